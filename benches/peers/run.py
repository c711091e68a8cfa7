"""How long a model takes here and with ONNX Runtime, interleaved round by round.

    cargo build --release -p halimede-server --bin halimede
    python benches/peers/run.py MODEL.onnx [MODEL.onnx@input=1x128,other=1x128 ...]
        [--threads 1] [--rounds 9] [--seconds 0.5] [--binary FILE] [--json FILE]

Open dimensions are 1 unless the model's entry gives the input's shape. Both programs compute in f32 on
the same number of threads. A round runs each for the given seconds, one after the other, and keeps
the round's fastest run: on one thread in processor time of the process, on more in wall time. Printed
are the medians over the rounds and the median of the rounds' ratios. What else runs on the machine
disturbs both; a ratio is worth more than its parts.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

ROOT = Path(__file__).resolve().parent.parent.parent
TYPES = {"tensor(float)": ("f32", np.float32), "tensor(int64)": ("i64", np.int64), "tensor(int32)": ("i32", np.int32)}


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def session(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def feed_of(session, shapes):
    """Ones for integers, which are indices in most models, numbers between 0 and 1 for the rest."""
    rng = np.random.default_rng(2051)
    feed = {}
    for entry in session.get_inputs():
        shape = shapes.get(entry.name) or [size if isinstance(size, int) else 1 for size in entry.shape]
        dtype = TYPES[entry.type][1]
        feed[entry.name] = (rng.random(shape) if dtype == np.float32 else np.ones(shape)).astype(dtype)
    return feed


class Halimede:
    def __init__(self, binary, path, threads, session, feed):
        inputs = []
        for entry in session.get_inputs():
            name, dtype = TYPES[entry.type]
            shape = "x".join(str(size) for size in feed[entry.name].shape)
            fill = "random" if dtype == np.float32 else "ones"
            inputs += ["--input", f"{entry.name}={name}:{shape}:{fill}"]
        command = [binary, "bench", path, "--threads", str(threads), "--interactive", *inputs]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("READY"):
            sys.exit(f"{path}: the binary did not load it")

    def round(self, seconds, clock):
        self.process.stdin.write(f"run {seconds} 3\n")
        self.process.stdin.flush()
        return min(json.loads(self.process.stdout.readline())[clock])

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def peer_round(session, feed, seconds, clock):
    def now():
        if clock == "lat":
            return time.perf_counter()
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = now()
        session.run(None, feed)
        times.append(now() - start)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--binary", default=str(ROOT / "target/release/halimede"))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    clock = "cpu" if arguments.threads == 1 else "lat"
    print(f"{processor()}, {arguments.threads} thread(s), f32, ONNX Runtime {onnxruntime.__version__}, "
          f"{arguments.rounds} rounds of {arguments.seconds} s, {'processor' if clock == 'cpu' else 'wall'} time\n")
    print("| model | halimede ms | ONNX Runtime ms | ONNX Runtime / halimede |\n|---|---|---|---|")
    rows = []
    for entry in arguments.models:
        path, _, given = entry.partition("@")
        pairs = [pair.split("=") for pair in given.split(",") if pair]
        shapes = {name: [int(size) for size in shape.split("x")] for name, shape in pairs}
        peer = session(path, arguments.threads)
        feed = feed_of(peer, shapes)
        ours = Halimede(arguments.binary, path, arguments.threads, peer, feed)
        here, there = [], []
        for _ in range(arguments.rounds):
            here.append(ours.round(arguments.seconds, clock))
            there.append(peer_round(peer, feed, arguments.seconds, clock))
        ours.close()
        ratio = statistics.median(b / a for a, b in zip(here, there))
        a, b = 1e3 * statistics.median(here), 1e3 * statistics.median(there)
        name = Path(path).parent.parent.name or path if Path(path).name == "model.onnx" else Path(path).stem
        label = f"{name} {given}".strip()
        print(f"| {label} | {a:.2f} | {b:.2f} | {ratio:.2f} |", flush=True)
        rows.append({"model": label, "halimede_ms": here, "onnxruntime_ms": there, "ratio": ratio})
    if arguments.json:
        report = {"processor": processor(), "threads": arguments.threads, "onnxruntime": onnxruntime.__version__,
                  "clock": clock, "rows": rows}
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
