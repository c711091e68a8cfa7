"""How soon the server is ready, and what it takes: time, memory, file size.

    cargo build --release -p halimede-server --bin halimede
    python benches/footprint/run.py [--rounds 10] [--binary FILE]

Measures the example repository and a model of 400 MB of weights: time from
start to the first ready answer, resident and private memory when idle, and the
size of the binary. Memory is read from /proc (Linux only).
"""

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from servers import RELEASE, ROOT, free_ports  # noqa: E402

READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
LARGE_LAYERS, LARGE_WIDTH = 25, 2048


def large_model(folder):
    """25 layers of 2048 x 2048 in single precision: 419 MB in one file."""
    rng = np.random.default_rng(2051)
    weights, nodes, x = [], [], "x"
    for i in range(LARGE_LAYERS):
        w = (rng.standard_normal((LARGE_WIDTH, LARGE_WIDTH), dtype=np.float32) / LARGE_WIDTH**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"]))
        x = "y" if i == LARGE_LAYERS - 1 else f"r{i}"
        nodes.append(helper.make_node("Relu", [f"m{i}"], [x]))
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", LARGE_WIDTH]) for n in "xy"]
    graph = helper.make_graph(nodes, "large", info[:1], info[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "large" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    onnx.save(model, path)
    return path


def is_ready(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
            s.sendall(READY)
            return s.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def memory_mib(pid):
    """Resident memory, and the part of it that no other process or file shares."""
    values = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, amount = line.split()[:2]
        values[name.rstrip(":")] = int(amount) / 1024
    return values["Rss"], values["Private_Dirty"] + values["Private_Clean"], values["Private_Dirty"]


def start(binary, repository):
    """Seconds from start to ready, and memory one second later."""
    http, grpc, metrics = free_ports(3)
    command = [binary, "serve", "--precision=exact", "--model-repository", repository, f"--http-port={http}", f"--grpc-port={grpc}",
               f"--metrics-port={metrics}"]  # fmt: skip
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not is_ready(http):
        if process.poll() is not None:
            sys.exit(f"the server ended with {process.returncode}")
        time.sleep(0.0005)
    seconds = time.perf_counter() - begin
    time.sleep(1)
    memory = memory_mib(process.pid)
    process.terminate()
    process.wait()
    return seconds, *memory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--binary", type=Path, default=RELEASE / "halimede")
    options = parser.parse_args()
    print(f"binary: {options.binary.stat().st_size / 2**20:.1f} MiB\n")
    print("| repository | ready after ms: median (worst) | resident MiB | private MiB | of that written |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        large_model(Path(folder))
        for name, repository in (("examples", ROOT / "examples" / "repository"), ("419 MB of weights", folder)):
            rounds = [start(options.binary, repository) for _ in range(options.rounds)]
            times = [r[0] * 1000 for r in rounds]
            resident, private, written = (statistics.median(r[i] for r in rounds) for i in (1, 2, 3))
            print(f"| {name} | {statistics.median(times):.0f} ({max(times):.0f}) | {resident:.1f} | {private:.1f} "
                  f"| {written:.1f} |")  # fmt: skip


if __name__ == "__main__":
    main()
