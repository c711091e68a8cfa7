"""Compare servers under load: identity FP32[1,16] over HTTP and gRPC.

    cargo build --release -p halimede-server --bin halimede --example echo --example load
    python benches/load/run.py [--peer COMMAND --peer-repository FOLDER] [--rounds 5] [--seconds 4]

Servers take turns in short slices, so that a machine that changes its speed
changes it for all. Reported for each: processor time of the server per request
over all its processes, requests per second, and the 50th and 99th percentile
of the latency, each as the median of the rounds; then the ratios.

COMMAND starts a real tritonserver with tritonserver's flags, and FOLDER is a
repository with a model `identity` for it (see README.md).
"""

import argparse
import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from servers import RELEASE, ROOT, RunningServer, cores, free_ports, processes  # noqa: E402

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
VALUES = struct.pack("<16f", *range(16))


def http_body():
    """The request as NVIDIA's client sends it: JSON, then the tensor; and the length of the JSON."""
    head = {
        "inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "parameters": {"binary_data_size": 64}}],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(head, separators=(",", ":")).encode()
    return head + VALUES, len(head)


def field(number, content):
    """A length-delimited protobuf field of fewer than 128 bytes."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def grpc_body():
    """The same as a serialised ModelInferRequest."""
    tensor = field(1, b"INPUT0") + field(2, b"FP32") + field(3, bytes([1, 16]))
    return field(1, b"identity") + field(5, tensor) + field(7, VALUES)


def cpu_seconds(root):
    """User and system time of a process and its descendants so far."""
    ticks = 0
    for pid in processes(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_SECOND


class Target(RunningServer):
    """A server under load."""

    def __init__(self, name, command, http_port, grpc_port):
        super().__init__(name, command, http_port)
        self.grpc_port = grpc_port

    def measure(self, protocol, bodies, concurrency, seconds, model="identity"):
        """One slice; processor time in microseconds per request beside what the generator saw."""
        if protocol == "http":
            path, length = bodies["http"]
            arguments = ["http", f"127.0.0.1:{self.http_port}", f"/v2/models/{model}/infer", path, str(length)]
        else:
            arguments = ["grpc", f"127.0.0.1:{self.grpc_port}", bodies["grpc"]]
        before = cpu_seconds(self.process.pid)
        done = subprocess.run([RELEASE / "examples" / "load", *arguments, str(concurrency), str(seconds)],
                              capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"{self.name}, {protocol}: {done.stderr}")
        seen = json.loads(done.stdout)
        if seen["errors"]:
            sys.exit(f"{self.name}, {protocol}: {seen['errors']} errors in {seen['requests']} requests")
        seen["cpu_us"] = (cpu_seconds(self.process.pid) - before) * 1e6 / seen["requests"]
        return seen


def targets(options):
    """Our server, the bare echo, and the peer where there is one."""
    http, grpc, metrics = free_ports(3)
    command = [RELEASE / "halimede", "serve", "--model-repository", ROOT / "examples" / "repository",
               f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]  # fmt: skip
    yield Target("halimede", command, http, grpc)
    http, grpc = free_ports(2)
    yield Target("echo", [RELEASE / "examples" / "echo", str(http), str(grpc)], http, grpc)
    if options.peer:
        http, grpc, metrics = free_ports(3)
        command = [options.peer, f"--model-repository={options.peer_repository}", f"--http-port={http}",
                   f"--grpc-port={grpc}", f"--metrics-port={metrics}"]  # fmt: skip
        yield Target("peer", command, http, grpc)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer")
    parser.add_argument("--peer-repository", type=Path, default=Path(__file__).with_name("peer_repository"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--json", type=Path, help="write every slice to this file")
    options = parser.parse_args()
    running = list(targets(options))
    slices = []
    with tempfile.TemporaryDirectory() as folder:
        body, length = http_body()
        bodies = {"http": (f"{folder}/http", length), "grpc": f"{folder}/grpc"}
        Path(bodies["http"][0]).write_bytes(body)
        Path(bodies["grpc"]).write_bytes(grpc_body())
        for round_ in range(options.rounds):
            for protocol in ("http", "grpc"):
                for concurrency in (4, 32):
                    # Another server goes first in every round.
                    turn = round_ % len(running)
                    for target in running[turn:] + running[:turn]:
                        seen = target.measure(protocol, bodies, concurrency, options.seconds)
                        slices.append({"target": target.name, "protocol": protocol, "concurrency": concurrency, **seen})
    for target in running:
        target.stop()
    if options.json:
        options.json.write_text(json.dumps(slices, indent=1) + "\n")
    report(slices, [target.name for target in running], options)


def report(slices, names, options):
    def median(key, **which):
        return statistics.median(s[key] for s in slices if all(s[k] == v for k, v in which.items()))

    print(f"{platform.machine()}, {cores()} processors, {options.rounds} rounds of {options.seconds:g} s\n")
    print("| protocol | in flight | server | CPU µs/request | requests/s | p50 µs | p99 µs | CPU of ours / its | requests/s of ours / its |")
    print("|---|---|---|---|---|---|---|---|---|")
    for protocol in ("http", "grpc"):
        for concurrency in (4, 32):
            place = {"protocol": protocol, "concurrency": concurrency}
            ours_cpu, ours_rps = (median(k, target="halimede", **place) for k in ("cpu_us", "rps"))
            for name in names:
                cpu, rps, p50, p99 = (median(k, target=name, **place) for k in ("cpu_us", "rps", "p50_us", "p99_us"))
                print(f"| {protocol} | {concurrency} | {name} | {cpu:.1f} | {rps:.0f} | {p50:.0f} | {p99:.0f} "
                      f"| {ours_cpu / cpu:.2f} | {ours_rps / rps:.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
