"""One peer on one workload, driven over standard input and output as `halimede bench --interactive` is.

    python worker.py PEER MODEL.onnx FEEDS --threads N [--case NAME]

FEEDS is a folder with a folder per way to group the inputs, each with files 0.npz, 1.npz, … that one run
answers all of; where there are several groupings, the fastest is found first and kept. The worker prints
`READY {…}`, then answers each line `run SECONDS MIN_ITERATIONS` with `{"lat":[…],"cpu":[…]}` in seconds,
and `save FILE.npz` with `{}` once the first feed's outputs are in the file; it ends at end of file.
"""

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path

from peers import BY_NAME
from workloads import square

HERE = Path(__file__).resolve().parent
ARCHITECTURES = HERE.parent.parent / "scripts" / "architectures"
RUNS_MOST = 20000


def quantized(model, suffix):
    path = model.with_suffix(suffix)
    if not path.exists():
        raise FileNotFoundError(f"there is no {path.name} beside the model")
    return path


def openvino(peer, model, feeds, threads, case):
    import numpy as np
    import openvino as ov

    core = ov.Core()
    graph = core.read_model(quantized(model, ".int8.xml") if peer.precision == "int8" else model)
    names = {name for port in graph.inputs for name in port.get_names()}
    if len(feeds) == 1:
        graph.reshape({name: list(array.shape) for name, array in feeds[0].items() if name in names})
    # What int8 leaves in floating point computes in bf16, as OpenVINO itself would choose.
    hint = "f32" if peer.precision == "f32" else "bf16"
    options = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": threads,
               "INFERENCE_PRECISION_HINT": hint, "ENABLE_CPU_PINNING": False}  # fmt: skip
    compiled = core.compile_model(graph, "CPU", options)

    def caller(feed):
        request = compiled.create_infer_request()
        # Requests read the arrays where they are.
        request.set_tensors({name: ov.Tensor(array) for name, array in feed.items() if name in names})

        def call():
            request.infer()
            return lambda: [np.copy(request.get_output_tensor(i).data) for i in range(len(compiled.outputs))]

        return call

    return caller, ov.__version__


def onnxruntime(peer, model, feeds, threads, case):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    if peer.precision == "int8":
        model = quantized(model, ".int8.onnx")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    wanted = {entry.name for entry in session.get_inputs()}

    def caller(feed):
        # Outputs stay where the session puts them: none is copied to an array.
        binding = session.io_binding()
        for name, array in feed.items():
            if name in wanted:
                binding.bind_cpu_input(name, array)
        for entry in session.get_outputs():
            binding.bind_output(entry.name, "cpu")

        def call():
            session.run_with_iobinding(binding)
            return binding.copy_outputs_to_cpu

        return call

    return caller, ort.__version__


def torch(peer, model, feeds, threads, case):
    import torch

    torch.set_num_threads(threads)
    module, names = torch_module(case)
    if peer.options.get("compile"):
        import torch._inductor.config as inductor

        inductor.freezing = True
        module = torch.compile(module)
    mode = torch.no_grad if peer.options.get("compile") else torch.inference_mode

    def caller(feed):
        arguments = [torch.from_numpy(feed[name]) for name in names]

        def call():
            with mode(), torch.autocast("cpu", torch.bfloat16, enabled=peer.precision == "bf16"):
                outputs = module(*arguments)
            return lambda: [output.detach().numpy() for output in outputs]

        return call

    return caller, torch.__version__


def torch_module(case):
    """The module of an architecture with f32 outputs whatever it computes in, and its inputs' names."""
    import torch

    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=case.endswith("causal"))

    class AsF32(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *arguments):
            outputs = self.inner(*arguments)
            outputs = (outputs,) if torch.is_tensor(outputs) else outputs
            return [output.float() if output.is_floating_point() else output for output in outputs]

    kind, _, rest = case.partition("_")
    if kind == "attention":
        return AsF32(Attention()).eval(), list("qkv")
    if kind == "product":
        linear = torch.nn.Linear(int(rest), int(rest), bias=False)
        linear.weight.data = torch.from_numpy(square(int(rest))).t().contiguous()
        return AsF32(linear).eval(), ["a"]
    sys.path.insert(0, str(ARCHITECTURES))
    from models import cases

    entry = cases()[case]
    return AsF32(entry.build()).eval(), list(entry.inputs)


def tract(peer, model, feeds, threads, case):
    from importlib.metadata import version

    if threads != 1:
        raise NotImplementedError("its Python package runs on one thread")
    if len(feeds) > 1:
        raise NotImplementedError("every shape would be a model of its own in memory")
    if peer.precision == "bf16":
        # Read when the library is loaded.
        os.environ["TRACT_AMX_BF16"] = "1"
    import tract

    kinds = {"f": "f32", "i": "i64"}

    def caller(feed):
        graph = tract.onnx().load(str(model))
        count = graph.input_count()
        names = [graph.input_name(i) for i in range(count)]
        for i, name in enumerate(names):
            dims = ",".join(map(str, feed[name].shape))
            graph.set_input_fact(i, f"{dims},{kinds[feed[name].dtype.kind]}")
        runnable = graph.into_model().into_runnable()
        inputs = [tract.Tensor.from_numpy(feed[name]) for name in names]

        def call():
            outputs = runnable.run(inputs)
            return lambda: [output.to_numpy() for output in outputs]

        return call

    return caller, version("tract")


def onednn(peer, model, feeds, threads, case):
    """The product of torch's own oneDNN, with weights in oneDNN's layout."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    kernels, bare = torch.ops.mkldnn, peer.options.get("bare")

    def caller(feed):
        a = torch.from_numpy(feed["a"])
        size = a.shape[1]
        weights = torch.from_numpy(square(size)).t().contiguous()
        if peer.precision == "int8":
            packed = torch.ops.onednn.qlinear_prepack((weights * 30).clamp(-127, 127).to(torch.int8), list(a.shape))
            a = (a.abs() * 40).clamp(0, 255).to(torch.uint8)
            scales, zeros = torch.tensor([0.01]), torch.tensor([0], dtype=torch.int32)
            linear = torch.ops.onednn.qlinear_pointwise
            run = lambda: linear(a, 0.01, 0, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")  # noqa: E731
        else:
            dtype = torch.float32 if peer.precision == "f32" else torch.bfloat16
            packed = kernels._reorder_linear_weight(weights.to(dtype), a.shape[0])
            a = a.to(dtype) if bare else a

            def run():
                product = kernels._linear_pointwise(a.to(dtype), packed, None, "none", [], "")
                return product if bare else product.float()

        def call():
            output = run()
            return lambda: [output.float().numpy()]

        return call

    return caller, torch.__version__


RUNTIMES = {f.__name__: f for f in (openvino, onnxruntime, torch, tract, onednn)}


def feeds_of(folder):
    import numpy as np

    groupings = {}
    for place in sorted(folder.iterdir(), key=lambda place: int(place.name)):
        files = sorted(place.glob("*.npz"), key=lambda file: int(file.stem))
        groupings[int(place.name)] = [dict(np.load(file)) for file in files]
    return groupings


def seconds_of(run, passes=3):
    """The fastest of some runs after one to warm up."""
    run()
    times = []
    for _ in range(passes):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def timed(run, seconds, runs_min):
    """Wall and processor times of runs, at least so long and so many."""
    wall, cpu, end = [], [], time.perf_counter() + seconds
    while len(wall) < runs_min or (time.perf_counter() < end and len(wall) < RUNS_MOST):
        used, start = time.process_time(), time.perf_counter()
        run()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    return {"lat": wall, "cpu": cpu}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer")
    parser.add_argument("model", type=Path)
    parser.add_argument("feeds", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--case", default="")
    arguments = parser.parse_args()
    # Libraries print to standard output as they like; the protocol has it for itself.
    protocol = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(arguments.threads)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    def answer(line):
        protocol.write(line + "\n")
        protocol.flush()

    peer = BY_NAME[arguments.peer]
    start = time.perf_counter()
    groupings = feeds_of(arguments.feeds)
    every = [feed for feeds in groupings.values() for feed in feeds]
    try:
        caller, version = RUNTIMES[peer.runtime](peer, arguments.model, every, arguments.threads, arguments.case)
        best = None
        for group, feeds in groupings.items():
            callers = [caller(feed) for feed in feeds]

            def run(callers=callers):
                return [call() for call in callers]

            seconds = seconds_of(run)
            if best is None or seconds < best[0]:
                best = (seconds, group, run)
    except Exception as error:  # Whatever a peer throws, the others are still measured.
        answer("FAILED " + json.dumps({"reason": f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:300]}"}))
        sys.exit(1)
    _, group, run = best
    answer("READY " + json.dumps({"version": version, "group": group, "ready_s": time.perf_counter() - start}))
    for line in sys.stdin:
        words = line.split()
        if words[0] == "save":
            import numpy as np

            np.savez(words[1], *run()[0]())
            answer("{}")
        else:
            answer(json.dumps(timed(run, float(words[1]), int(words[2]))))


if __name__ == "__main__":
    main()
