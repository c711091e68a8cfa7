"""From the start of the server to its first answer, and what a model takes: time and memory, with caches and without.

    cargo build --release -p halimede-server --bin halimede
    python benches/footprint/first_answer.py --models DIR [--rounds 5] [--binary FILE] [--json FILE] [--svg FILE]

DIR has a folder per model with 1/model.onnx, as `benches/peers/prepare.py` makes them, and may have a config.pbtxt in it. The page cache
holds the files (they are read once before), the user's cache folder is one of this program's own. Three states of it:

- empty: nobody knows yet whether the model may compute in 16 bits, so that its first answers are exact;
- verdict: that is known, weights are packed anew at each start (`--packed-weights=off`);
- packed: that is known, and packed weights are mapped.

Memory is read from /proc (Linux only) when the model has taken its final form. `written` is what no file stands behind:
heap, arenas, stacks. `private` counts pages of files too that no other process has mapped at that moment; `second
process` is the private memory of another server on the same cache while the first one runs, `second instance` what
`instance_group` with a count of 2 adds to what is written. Every instance has run before memory is read.
"""

import argparse
import contextlib
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from run import RELEASE, free_ports, is_ready, memory_mib

sys.path.append(str(Path(__file__).resolve().parent.parent))
import machine  # noqa: E402
import picture  # noqa: E402

EXAMINED = ("computes in", "has nothing to compute in")
WAIT_SECONDS_MAX = 60


def tensors(name):
    """Inputs of a model of this name, by input."""
    if "resnet" in name:
        return {"image": np.random.default_rng(1).standard_normal((1, 3, 224, 224), dtype=np.float32)}
    ids = np.arange(1000, 1128, dtype=np.int64)[None]
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def request(inputs):
    """Headers and body of a request with binary tensors."""
    kinds = {"float32": "FP32", "int64": "INT64"}
    described = [{"name": name, "datatype": kinds[str(array.dtype)], "shape": list(array.shape),
                  "parameters": {"binary_data_size": array.nbytes}} for name, array in inputs.items()]  # fmt: skip
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(array.tobytes() for array in inputs.values())
    return {"Inference-Header-Content-Length": str(len(head))}, body


def answer(port, name, sent):
    """Seconds that a request takes, over a connection of its own."""
    headers, body = sent
    begin = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS_MAX)
    connection.request("POST", f"/v2/models/{name}/infer", body, headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    if response.status != 200:
        sys.exit(f"status {response.status}: {content[:300]}")
    return time.perf_counter() - begin


class Started:
    """A server on a repository with one model."""

    def __init__(self, binary, repository, cache, flags):
        self.ports = free_ports(3)
        http_port, grpc, metrics = self.ports
        command = [binary, "serve", "--precision=balanced", "--model-repository", repository, f"--http-port={http_port}",
                   f"--grpc-port={grpc}", f"--metrics-port={metrics}", *flags]  # fmt: skip
        self.log = tempfile.NamedTemporaryFile("r", suffix=".log")
        self.begin = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=open(self.log.name, "w"), env=os.environ | {"XDG_CACHE_HOME": str(cache)}
        )  # fmt: skip

    def first_answer(self, name, sent):
        """Seconds from start to ready, from start to the first answer, and what a second one takes."""
        port = self.ports[0]
        while not is_ready(port):
            if self.process.poll() is not None:
                sys.exit(f"the server ended with {self.process.returncode}: {self.log.read()}")
            time.sleep(0.0005)
        ready = time.perf_counter() - self.begin
        answer(port, name, sent)
        first = time.perf_counter() - self.begin
        return ready, first, answer(port, name, sent)

    def until_settled(self, name, sent, instances):
        """Waits until the model has its final form, and lets every instance run in it."""
        end = time.perf_counter() + WAIT_SECONDS_MAX
        while not any(text in Path(self.log.name).read_text() for text in EXAMINED):
            if time.perf_counter() > end:
                sys.exit(f"no verdict: {self.log.read()}")
            time.sleep(0.05)
        time.sleep(1)
        for _ in range(3):
            threads = [threading.Thread(target=answer, args=(self.ports[0], name, sent)) for _ in range(2 * instances)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        time.sleep(0.5)

    def memory(self):
        return dict(zip(("resident", "private", "written"), memory_mib(self.process.pid), strict=True))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def repository_of(source, folder, instances):
    """A repository with the model alone, by a link to its file."""
    model = folder / f"{source.name}-{instances}" / source.name
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.onnx").symlink_to(source / "1" / "model.onnx")
    given = source / "config.pbtxt"
    text = (given.read_text() if given.exists() else 'backend: "onnxruntime"') + f"\ninstance_group [{{ count: {instances} }}]\n"
    (model / "config.pbtxt").write_text(text)
    return model.parent


def measure(binary, source, rounds):
    sent = request(tensors(source.name))
    name = source.name
    (source / "1" / "model.onnx").read_bytes()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        one, two = repository_of(source, folder, 1), repository_of(source, folder, 2)
        known = folder / "known"
        with Started(binary, one, known, []) as server:
            server.first_answer(name, sent)
            server.until_settled(name, sent, 1)
        # What was found out and packed lies there now.
        with Started(binary, one, known, []) as server:
            server.first_answer(name, sent)
            server.until_settled(name, sent, 1)
        states = {"empty": [], "verdict": ["--packed-weights=off"], "packed": []}
        found = {state: [] for state in states}
        for _ in range(rounds):
            for state, flags in states.items():
                cache = folder / "empty" if state == "empty" else known
                shutil.rmtree(folder / "empty", ignore_errors=True)
                with Started(binary, one, cache, flags) as server:
                    ready, first, second = server.first_answer(name, sent)
                    server.until_settled(name, sent, 1)
                    found[state].append({"ready_ms": ready * 1e3, "first_answer_ms": first * 1e3, "second_answer_ms": second * 1e3}
                                        | {f"{kind}_mib": amount for kind, amount in server.memory().items()})  # fmt: skip
        for state, flags in states.items():
            results[state] = {key: statistics.median(round[key] for round in found[state]) for key in found[state][0]}
            results[state]["first_answer_worst_ms"] = max(round["first_answer_ms"] for round in found[state])
            if state == "empty":
                continue
            with contextlib.ExitStack() as stack:
                first = stack.enter_context(Started(binary, one, known, flags))
                other = stack.enter_context(Started(binary, one, known, flags))
                for server in (first, other):
                    server.first_answer(name, sent)
                    server.until_settled(name, sent, 1)
                results[state]["second_process_private_mib"] = other.memory()["private"]
            with Started(binary, two, known, flags) as server:
                server.first_answer(name, sent)
                server.until_settled(name, sent, 2)
                results[state]["second_instance_mib"] = server.memory()["written"] - results[state]["written_mib"]
    return results


def drawn(report, everything):
    made = []
    for name, states in everything.items():
        shown = [(state, found["first_answer_ms"], f"{found['first_answer_ms']:.0f} ms") for state, found in states.items()]
        made.append((name, [(state, ms, text, True) for state, ms, text in shown]))
    note = f"class {report['machine']['class']}, {report['date']}; from the start of the server, by what its caches hold; shorter is faster"
    return picture.svg("Until the first answer", note, made)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", nargs="+", default=["resnet50_torchscript", "bert_base_torchscript"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--binary", type=Path, default=RELEASE / "halimede")
    machine.add_arguments(parser)
    options = parser.parse_args()
    report = machine.facts(options.binary, options.build, options.note) | {"rounds": options.rounds}
    print(f"# Until the first answer\n\n{machine.heading(report)} Medians of {options.rounds} rounds.\n")
    everything = {}
    print("| model | cache | ready ms | first answer ms: median (worst) | second answer ms | private MiB | of that written "
          "| second instance adds MiB | second process, private MiB |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.names:
        everything[name] = measure(options.binary, options.models / name, options.rounds)
        for state, r in everything[name].items():
            more = [r.get("second_instance_mib"), r.get("second_process_private_mib")]
            shown = ["—" if amount is None else f"{amount:.1f}" for amount in more]
            print(f"| {name} | {state} | {r['ready_ms']:.0f} | {r['first_answer_ms']:.0f} ({r['first_answer_worst_ms']:.0f}) "
                  f"| {r['second_answer_ms']:.0f} | {r['private_mib']:.1f} | {r['written_mib']:.1f} | {shown[0]} | {shown[1]} |",
                  flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(report | {"models": everything}, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(drawn(report, everything))


if __name__ == "__main__":
    main()
