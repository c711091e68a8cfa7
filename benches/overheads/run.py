"""Processor time per request beside a real tritonserver, for what a server adds to a model.

    cargo build --release -p halimede-server --bin halimede --example load
    python benches/overheads/run.py --peer COMMAND [--binary FILE] [--client compiled] [--rounds 7] [--seconds 1] [--json FILE]

COMMAND starts tritonserver 2.51.0 with tritonserver's flags (benches/load/README.md says where one is). It and our
server serve the same Python models; ours serves some of the same with its own backends, too (rows that say so). The
servers take turns in short slices. Counted is the time on processors of the server's process and all its children, to the
nanosecond; each figure is the median of the rounds, each ratio the median of the rounds' ratios. Over HTTP the client is
`crates/server/examples/load.rs`, or with `--client python` four threads of this program, which take more of the processors
and of their caches than the servers do.
Needs `tritonclient[grpc]` and, for tritonserver's Python models, numpy below 2.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import platform
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import models
import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import serialize_byte_tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from servers import RELEASE, RunningServer, cores, free_ports, processes  # noqa: E402

CONNECTIONS = 4
RESPONSES = 100
IN_SEQUENCE = 10


def seconds_on_processors(root):
    """Of a process and its descendants, with threads that have ended."""
    total = 0
    for pid in processes(root):
        # The clock of another process, as clock_getcpuclockid(3) makes it.
        with contextlib.suppress(OSError):
            total += time.clock_gettime(~pid << 3 | 2)
    return total


def described(name, array):
    data = serialize_byte_tensor(array).item() if array.dtype == np.object_ else array.tobytes()
    kind = {"float32": "FP32", "int32": "INT32", "object": "BYTES"}[str(array.dtype)]
    head = {"name": name, "shape": list(array.shape), "datatype": kind, "parameters": {"binary_data_size": len(data)}}
    return head, data


def body(inputs, parameters=None, length=0):
    """A request as NVIDIA's client sends it, and the length of its JSON, which is at least `length`."""
    parts = [described(name, array) for name, array in inputs.items()]
    head = {"inputs": [head for head, _ in parts], "parameters": {"binary_data_output": True, **(parameters or {})}}
    head = json.dumps(head, separators=(",", ":")).encode().ljust(length)
    return head + b"".join(data for _, data in parts), len(head)


def same(inputs):
    """One request, over and over."""
    request = body(inputs)
    return lambda connection: [request]


def sequences(connection):
    """A sequence of ten, over and over."""
    inputs = {"INPUT0": np.ones((1, 1), np.int32)}
    last = IN_SEQUENCE - 1

    def request(place, length=0):
        number = {"sequence_id": connection + 1, "sequence_start": place == 0, "sequence_end": place == last}
        return body(inputs, number, length)

    longest = max(request(place)[1] for place in range(IN_SEQUENCE))
    return [request(place, longest) for place in range(IN_SEQUENCE)]


class OverHttp:
    """Several connections that each wait for an answer before they send again."""

    def __init__(self, requests):
        # The requests of a connection: they are sent in their order, over and over.
        self.requests = [requests(connection) for connection in range(CONNECTIONS)]

    def run(self, server, model, seconds, client):
        send = self.compiled if client == "compiled" else self.in_threads
        return send(server.name, f"127.0.0.1:{server.http_port}", f"/v2/models/{model}/infer", seconds)

    def compiled(self, name, address, path, seconds):
        # The JSON of all of them is equally long.
        (length,) = {length for requests in self.requests for _, length in requests}
        with tempfile.TemporaryDirectory() as folder:
            for number, requests in enumerate(self.requests):
                Path(folder, str(number)).mkdir()
                for place, (content, _) in enumerate(requests):
                    Path(folder, str(number), f"{place:03}").write_bytes(content)
            load = [RELEASE / "examples" / "load", "http", address, path, folder, str(length), str(CONNECTIONS), str(seconds)]
            done = subprocess.run(load, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name}, {path}: {done.stderr}")
        seen = json.loads(done.stdout)
        if seen["errors"]:
            sys.exit(f"{name}, {path}: {seen['errors']} of {seen['requests']} requests failed")
        return seen["requests"]

    def in_threads(self, name, address, path, seconds):
        counts, errors = [0] * CONNECTIONS, queue.Queue()
        end = time.monotonic() + seconds

        def work(number):
            connection = http.client.HTTPConnection(address)
            requests = self.requests[number]
            for content, length in itertools.cycle(requests):
                # Sequences end whole: what is left of one would keep its place.
                if time.monotonic() >= end and counts[number] % len(requests) == 0:
                    break
                headers = {"Inference-Header-Content-Length": str(length)}
                connection.request("POST", path, content, headers)
                answer = connection.getresponse()
                text = answer.read()
                # A tensor comes back as it went, and what is there besides is short.
                if answer.status != 200 or len(text) < len(content) - length - 64:
                    errors.put(f"{name}, {path}: {answer.status}, {len(text)} bytes: {text[:300]}")
                    break
                counts[number] += 1

        threads = [threading.Thread(target=work, args=[number]) for number in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not errors.empty():
            sys.exit(errors.get())
        return sum(counts)


class OverStream:
    """One stream of gRPC; a request has many responses."""

    def run(self, server, model, seconds, _client):
        answers = queue.Queue()
        inputs = {"INPUT0": np.array([RESPONSES], np.int32)}
        if model.endswith("_own"):
            inputs = {"IN": np.arange(RESPONSES, dtype=np.int32), "DELAY": np.zeros(RESPONSES, np.uint32),
                      "WAIT": np.zeros(1, np.uint32)}  # fmt: skip
        tensors = []
        for name, array in inputs.items():
            tensors.append(grpc.InferInput(name, list(array.shape), "INT32" if array.dtype == np.int32 else "UINT32"))
            tensors[-1].set_data_from_numpy(array)
        count, end = 0, time.monotonic() + seconds
        with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            while time.monotonic() < end:
                client.async_stream_infer(model, tensors)
                for _ in range(RESPONSES):
                    _, error = answers.get(timeout=30)
                    if error is not None:
                        sys.exit(f"{server.name}, {model}: {error}")
                count += 1
            client.stop_stream()
        return count


FLOATS = np.arange(16, dtype=np.float32).reshape(1, 16)
MEGABYTE = np.ones((1, 1 << 18), np.float32)
TEXTS = np.array([[b"a text of thirty bytes, or so it is %d" % number for number in range(100)]], np.object_)

# What is measured: a name, the models of ours and of the peer, and the requests.
WORKLOADS = [
    ("identity, FP32[1, 16]", ["identity", "identity_own"], OverHttp(same({"INPUT0": FLOATS}))),
    ("add, FP32[1, 16] twice", ["add"], OverHttp(same({"INPUT0": FLOATS, "INPUT1": FLOATS}))),
    ("ensemble of three identities", ["ensemble", "ensemble_own"], OverHttp(same({"INPUT0": FLOATS}))),
    ("sequences of ten, INT32[1, 1]", ["sequence"], OverHttp(sequences)),
    ("decoupled stream of 100 responses", ["stream", "stream_own"], OverStream()),
    ("identity, 1 MiB of FP32", ["identity", "identity_own"], OverHttp(same({"INPUT0": MEGABYTE}))),
    ("identity, 100 strings", ["bytes", "bytes_own"], OverHttp(same({"INPUT0": TEXTS}))),
]


class Server(RunningServer):
    def __init__(self, name, command, repository):
        http, self.grpc_port, metrics = free_ports(3)
        ports = [f"--http-port={http}", f"--grpc-port={self.grpc_port}", f"--metrics-port={metrics}"]
        # Python models of both find the packages of this interpreter.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        super().__init__(name, [*command, f"--model-repository={repository}", *ports], http, {"PATH": path})

    def measure(self, load, model, seconds, client):
        """Microseconds on processors per request."""
        before = seconds_on_processors(self.process.pid)
        count = load.run(self, model, seconds, client)
        return (seconds_on_processors(self.process.pid) - before) / count * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--binary", default=RELEASE / "halimede")
    parser.add_argument("--client", choices=["compiled", "python"], default="compiled")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models.write(f"{folder}/ours", built_in=True)
        models.write(f"{folder}/its", built_in=False)
        ours = Server("halimede", [options.binary, "serve"], f"{folder}/ours")
        its = Server("tritonserver", [options.peer], f"{folder}/its")
        try:
            measured = measure(ours, its, options)
        except SystemExit:
            print(ours.log_end(), its.log_end(), sep="\n")
            raise
        for server in (ours, its):
            server.stop()
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")
    report(measured, options)


def measure(ours, its, options):
    """For each workload the figures of the peer and of each of our models, round by round."""
    measured = []
    for name, [shared, *own], load in WORKLOADS:
        turns = [(its, shared), (ours, shared), *((ours, model) for model in own)]
        for server, model in turns:  # the compiled client looks at the status alone, this one at the answer
            load.run(server, model, options.seconds / 8, "python")
        for server, model in turns:  # first requests cost more
            server.measure(load, model, options.seconds / 4, options.client)
        rounds = []
        for number in range(options.rounds):
            place = number % len(turns)
            taken = {}
            for server, model in turns[place:] + turns[:place]:
                taken[f"{server.name} {model}"] = server.measure(load, model, options.seconds, options.client)
            rounds.append([taken[f"{server.name} {model}"] for server, model in turns])
        measured.append({"workload": name, "models": [shared, shared, *own], "rounds": rounds})
    return measured


def report(measured, options):
    print(f"{platform.machine()}, {cores()} processors, {options.rounds} rounds of {options.seconds:g} s\n")
    print("| workload | model | tritonserver µs | halimede µs | tritonserver's time / ours (least to most) |")
    print("|---|---|---:|---:|---|")
    for row in measured:
        for column, model in list(enumerate(row["models"]))[1:]:
            kind = "own backend" if model.endswith("_own") else "the same, Python"
            its, ours = (statistics.median(taken[place] for taken in row["rounds"]) for place in (0, column))
            ratios = sorted(taken[0] / taken[column] for taken in row["rounds"])
            middle = statistics.median(ratios)
            spread = f"{middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f"| {row['workload']} | {kind} | {its:.0f} | {ours:.0f} | {spread} |")


if __name__ == "__main__":
    main()
