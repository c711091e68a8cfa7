"""Whole models over HTTP: our server beside a real tritonserver that runs them in OpenVINO.

    cargo build --release -p halimede-server --bin halimede --example load
    python benches/served/run.py MODELS --peer COMMAND [--rounds 5] [--seconds 6] [--json FILE] [--svg FILE]

MODELS holds resnet50_torchscript and bert_base_torchscript as benches/peers/prepare.py makes them. COMMAND starts
tritonserver with a Python backend whose interpreter has OpenVINO (benches/served/README.md). Both servers batch
dynamically, multiply bf16 and have every processor; 16 requests of one image or one text of 128 tokens are in flight.
Each server is measured in two settings, one instance on all processors and an instance a processor, in turns; the
better one of each counts.
"""

import argparse
import json
import shutil
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "load")]
from run import Target  # noqa: E402
import machine  # noqa: E402
import picture  # noqa: E402
from servers import RELEASE, cores, free_ports  # noqa: E402

CONCURRENCY = 16
# Of a model: its folder; its inputs, each with name, datatype, shape of a row, shape of a row in the configuration, and an
# element; the shape of a row of its output in the configuration.
WORKLOADS = {
    "resnet50": ("resnet50_torchscript", [("image", "FP32", [3, 224, 224], [3, 224, 224], struct.pack("<f", 0.25))], [1000]),
    "bert_base": (
        "bert_base_torchscript",
        [
            ("input_ids", "INT64", [128], [-1], struct.pack("<q", 7)),
            ("attention_mask", "INT64", [128], [-1], struct.pack("<q", 1)),
        ],
        [-1, 768],
    ),
}


def count(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def body(inputs):
    """A request for one row as NVIDIA's client sends it, and the length of its JSON."""
    data = [element * count(shape) for _, _, shape, _, element in inputs]
    described = [
        {"name": name, "shape": [1, *shape], "datatype": datatype, "parameters": {"binary_data_size": len(bytes_)}}
        for (name, datatype, shape, _, _), bytes_ in zip(inputs, data, strict=True)
    ]
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(data), len(head)


def output_of(model):
    """The name of a model's output."""
    import onnx

    return onnx.load(model, load_external_data=False).graph.output[0].name


def configuration(inputs, output, shape, instances, rest):
    lines = ["max_batch_size: 16", "dynamic_batching { }", f"instance_group [ {{ kind: KIND_CPU count: {instances} }} ]"]
    for name, datatype, _, dims, _ in inputs:
        lines.append(f'input [ {{ name: "{name}" data_type: TYPE_{datatype} dims: {dims} }} ]')
    lines.append(f'output [ {{ name: "{output}" data_type: TYPE_FP32 dims: {shape} }} ]')
    return "\n".join([*lines, *rest]) + "\n"


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def sample(model, inputs):
    """Has our server compare precisions on what it is going to be asked: random weights answer to made-up images so that
    it leaves operations exact, which the peer rounds without a look."""
    import numpy as np

    dtypes = {"FP32": np.float32, "INT64": np.int64}
    arrays = {
        name: np.frombuffer(element * count(shape), dtypes[datatype]).reshape(1, *shape)
        for name, datatype, shape, _, element in inputs
    }
    (model / "samples").mkdir()
    np.savez(model / "samples" / "request.npz", **arrays)


def repositories(folder, models, name, instances):
    """Our repository and the peer's for a workload."""
    model, inputs, shape = WORKLOADS[name]
    onnx = models / model / "1" / "model.onnx"
    output = output_of(onnx)
    threads = cores() // instances
    own_threads = [parameter("intra_op_thread_count", 1)] if instances > 1 else []
    ours, peer = folder / f"ours-{name}-{instances}", folder / f"peer-{name}-{instances}"
    for repository, rest in (
        (ours, ['backend: "onnxruntime"', parameter("calibration", "samples"), *own_threads]),
        (peer, ['backend: "python"', parameter("model", onnx), parameter("threads", max(threads, 1))]),
    ):
        version = repository / name / "1"
        version.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(configuration(inputs, output, shape, instances, rest))
        if repository is ours:
            for file in onnx.parent.iterdir():
                (version / file.name).symlink_to(file)
            sample(repository / name, inputs)
        else:
            shutil.copy(HERE / "peer" / "model.py", version / "model.py")
    return ours, peer


def start(name, command, repository):
    http, grpc, metrics = free_ports(3)
    flags = [f"--model-repository={repository}", f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    return Target(name, [*command, *flags], http, grpc)


def until_balanced(target, seconds=120):
    """Waits until a server of ours has compared its model with exact answers and multiplies bf16."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if "computes in balanced precision" in Path(target.log.name).read_text():
            return
        time.sleep(0.2)
    sys.exit(f"{target.name} is still exact after {seconds} s; its log is {target.log.name}")


def measure(target, name, path, length, seconds):
    return target.measure("http", {"http": (path, length)}, CONCURRENCY, seconds, model=name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--binary", default=RELEASE / "halimede")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6)
    machine.add_arguments(parser)
    options = parser.parse_args()
    facts = machine.facts(options.binary, options.build, options.note) | {"rounds": options.rounds, "seconds": options.seconds}
    slices = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in options.workloads:
            request, length = body(WORKLOADS[name][1])
            path = folder / f"{name}.request"
            path.write_bytes(request)
            running = []
            for instances in dict.fromkeys((1, cores())):
                ours, peer = repositories(folder, options.models.resolve(), name, instances)
                running.append((instances, start("halimede", [options.binary, "serve"], ours)))
                running.append((instances, start("peer", [options.peer], peer)))
            for _, target in running:
                if target.name == "halimede":
                    until_balanced(target)
            for round_ in range(options.rounds):
                turn = round_ % len(running)
                for instances, target in running[turn:] + running[:turn]:
                    seen = measure(target, name, path, length, options.seconds)
                    slices.append({"workload": name, "target": target.name, "instances": instances, **seen})
            for _, target in running:
                target.stop()
    if options.json:
        options.json.write_text(json.dumps(facts | {"slices": slices}, indent=1) + "\n")
    rows = summary(slices)
    report(rows, facts)
    if options.svg:
        options.svg.write_text(drawn(rows, facts))


def summary(slices):
    """A row per model, server and number of instances: medians of the slices."""
    rows = []
    for key in dict.fromkeys((s["workload"], s["target"], s["instances"]) for s in slices):
        own = [s for s in slices if (s["workload"], s["target"], s["instances"]) == key]
        medians = {name: statistics.median(s[name] for s in own) for name in ("rps", "p50_us", "p99_us", "cpu_us")}
        rows.append(dict(zip(("workload", "target", "instances"), key)) | medians)
    return rows


def times(rows, name):
    """Our requests by those of the peer, each in its better setting."""
    best = {target: max(r["rps"] for r in rows if (r["workload"], r["target"]) == (name, target)) for target in ("halimede", "peer")}
    return best["halimede"] / best["peer"]


def report(rows, facts):
    print(f"# Whole models over HTTP\n\n{machine.heading(facts)} {cores()} processors, {CONCURRENCY} requests in flight, "
          f"{facts['rounds']} rounds of {facts['seconds']:g} s. The guard of halimede has compared the request that is measured, so that both "
          "servers multiply everything in bf16.\n")  # fmt: skip
    print("| model | server | instances | requests/s | p50 ms | p99 ms | CPU ms/request |")
    print("|---|---|---|---|---|---|---|")
    for r in rows:
        print(f"| {r['workload']} | {r['target']} | {r['instances']} | {r['rps']:.1f} | {r['p50_us'] / 1e3:.1f} "
              f"| {r['p99_us'] / 1e3:.1f} | {r['cpu_us'] / 1e3:.1f} |")  # fmt: skip
    print()
    for name in dict.fromkeys(r["workload"] for r in rows):
        print(f"{name}: {times(rows, name):.2f} times the requests of the peer.\n")


def drawn(rows, facts):
    made = []
    for name in dict.fromkeys(r["workload"] for r in rows):
        bars = [
            (f"{r['target']}, {r['instances']} instance(s)", r["rps"], f"{r['rps']:.1f} requests/s", r["target"] == "halimede")
            for r in rows if r["workload"] == name
        ]  # fmt: skip
        made.append((f"{name}, ×{times(rows, name):.2f}", bars))
    note = f"class {facts['machine']['class']}, {facts['date']}, {CONCURRENCY} in flight; longer is more; ×: the better setting of each"
    return picture.svg("Whole models over HTTP", note, made)


if __name__ == "__main__":
    main()
