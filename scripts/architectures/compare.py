"""Export real architectures with both of torch's exporters, and compare the server with ONNX Runtime.

    python -m venv ENV && ENV/bin/pip install -r scripts/architectures/requirements.txt   (about 3 GB)
    ENV/bin/python scripts/architectures/compare.py [--exporter torchscript|dynamo|both] [--export-only] [NAME ...]

Each model is exported once to `target/architectures`, loaded by ONNX Runtime
and by our server, and run at batch 1 and 4 and at two lengths. Reported is the
largest difference of any output as a share of its largest value; above 1e-4
fails. With `--through check` the engine answers without a server, by
`halimede check` on the same inputs and outputs.
"""

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
TOLERANCE = 1e-4
OPSETS = {"torchscript": 17, "dynamo": 20}


def export(name, exporter, folder):
    """The exported model of one case, made unless it is there."""
    import torch
    from models import cases

    path = folder / f"{name}_{exporter}" / "1" / "model.onnx"
    if path.exists():
        return path
    case = cases()[name]
    module = case.build()
    path.parent.mkdir(parents=True, exist_ok=True)
    example = tuple(case.example(2, 24))
    options = dict(input_names=list(case.inputs), output_names=case.outputs, opset_version=OPSETS[exporter])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "torchscript":
            torch.onnx.export(module, example, path, dynamo=False, dynamic_axes=case.inputs, **options)
        else:
            shapes = [{axis: torch.export.Dim.DYNAMIC for axis in axes} for axes in case.inputs.values()]
            # A module that takes *tensors has one argument for all that follow the named ones.
            named = [p for p in __import__("inspect").signature(module.forward).parameters.values() if p.kind != p.VAR_POSITIONAL]
            shapes = (*shapes[: len(named)], *([tuple(shapes[len(named) :])] if len(shapes) > len(named) else []))
            torch.onnx.export(module, example, path, dynamo=True, dynamic_shapes=shapes, **options)
    return path


def configure(path):
    """Writes a configuration that takes tensors as they come: left to itself, a server makes the first
    dimension a batch, and a model whose other outputs have another first dimension then answers otherwise."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    types = {1: "FP32", 7: "INT64", 9: "BOOL"}

    def tensor(kind, value):
        tensor = value.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
        return f'{kind} [{{ name: "{value.name}" data_type: TYPE_{types[tensor.elem_type]} dims: {dims} }}]'

    tensors = [tensor("input", v) for v in model.graph.input] + [tensor("output", v) for v in model.graph.output]
    (path.parent.parent / "config.pbtxt").write_text("\n".join(['backend: "onnxruntime"', *tensors, ""]))


def expected(path, inputs):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, {k: v for k, v in inputs.items() if k in wanted}))), wanted


def difference(found, want):
    if found.shape != want.shape:
        return np.inf
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(found, want) else np.inf
    return float(abs(found - want).max() / max(abs(want).max(), 1e-30)) if want.size else 0.0


def compare(name, exporter, folder, table=None):
    """A line per batch and length; whether all are within the tolerance."""
    import tritonclient.http as httpclient
    from models import arrays, cases
    from support.server import Server
    from tritonclient.utils import np_to_triton_dtype

    path = export(name, exporter, folder)
    configure(path)
    case = cases()[name]
    good, worst_of_all = True, 0.0
    model = path.parent.parent.name
    start = time.monotonic()
    with Server([folder], "--model-control-mode=explicit", f"--load-model={model}") as server:
        ready = time.monotonic() - start
        with httpclient.InferenceServerClient(server.http_address, network_timeout=600, connection_timeout=600) as client:
            for batch in (1, 4):
                for length in case.lengths:
                    inputs = arrays(case, batch, length)
                    want, used = expected(path, inputs)
                    tensors = []
                    for key in used:
                        tensor = httpclient.InferInput(key, list(inputs[key].shape), np_to_triton_dtype(inputs[key].dtype))
                        tensor.set_data_from_numpy(inputs[key])
                        tensors.append(tensor)
                    reply = client.infer(model, tensors)
                    worst = max(difference(reply.as_numpy(key), value) for key, value in want.items())
                    good &= worst < TOLERANCE
                    worst_of_all = max(worst, worst_of_all)
                    print(f"{name:16} {exporter:11} batch {batch} length {length:3}  difference {worst:.1e}"
                          f"{'' if worst < TOLERANCE else '  TOO LARGE'}  (ready after {ready:.2f} s)", flush=True)  # fmt: skip
    if table:
        add_row(table, name, exporter, path, case, worst_of_all)
    return good


def add_row(table, name, exporter, path, case, worst):
    """Adds a line to the table: the worst difference, and how the steps of one run were computed."""
    from models import arrays

    inputs = arrays(case, 1, case.lengths[-1])
    _, used = expected(path, inputs)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "inputs.npz"
        np.savez(file, **{key: value for key, value in inputs.items() if key in used})
        command = [os.environ["HALIMEDE_BIN"], "bench", str(path), "--inputs", str(file), "--seconds", "0", "--json"]
        facts = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    with table.open("a") as out:
        out.write(f"| {name} | {exporter} | {worst:.1e} | {facts['kernels']} | {facts['reference']} |\n")


def check(name, exporter, folder):
    """The same comparison by `halimede check`: whether it passes."""
    from models import arrays, cases
    from onnx import numpy_helper

    path = export(name, exporter, folder)
    case = cases()[name]
    place = folder / "check" / path.parent.parent.name
    shutil.rmtree(place, ignore_errors=True)
    # Hard links: external data has to lie beside the model.
    shutil.copytree(path.parent, place, copy_function=os.link)
    largest = []
    for number, (batch, length) in enumerate((b, n) for b in (1, 4) for n in case.lengths):
        inputs = arrays(case, batch, length)
        want, used = expected(path, inputs)
        largest += [abs(v).max() for v in want.values() if v.dtype.kind == "f"]
        (place / f"test_data_set_{number}").mkdir()
        kept = {k: v for k, v in inputs.items() if k in used}
        for kind, tensors in (("input", kept), ("output", want)):
            for i, (key, value) in enumerate(tensors.items()):
                file = place / f"test_data_set_{number}" / f"{kind}_{i}.pb"
                file.write_bytes(numpy_helper.from_array(value, key).SerializeToString())
    # One tolerance for all outputs: that of the output with the smallest values.
    command = [os.environ["HALIMEDE_BIN"], "check", "--rtol", "0", "--atol", str(TOLERANCE * min(largest)), str(place)]
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"{name:16} {exporter:11} {done.stdout.strip() or done.stderr.strip()}", flush=True)
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", choices=["torchscript", "dynamo", "both"], default="both")
    parser.add_argument("--export-only", action="store_true", help="and compare torch with ONNX Runtime only by loading")
    parser.add_argument("--through", choices=["server", "check"], default="server")
    parser.add_argument("--folder", type=Path, default=ROOT / "target" / "architectures")
    parser.add_argument("--table", type=Path, help="with --through server: append a line per model to this file")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HALIMEDE_BIN", str(ROOT / "target" / "release" / "halimede"))
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.one:
        name, exporter = options.one
        if options.export_only:
            from models import arrays, cases

            path = export(name, exporter, options.folder)
            for length in cases()[name].lengths:
                want, _ = expected(path, arrays(cases()[name], 4, length))
            print(f"{name:16} {exporter:11} {path.stat().st_size / 1e6:8.1f} MB", {k: v.shape for k, v in list(want.items())[:3]})
            return 0
        through = check if options.through == "check" else functools.partial(compare, table=options.table)
        return 0 if through(name, exporter, options.folder) else 1
    from models import cases

    failed = []
    for name in options.names or cases():
        for exporter in ("torchscript", "dynamo") if options.exporter == "both" else (options.exporter,):
            # A process each: torch keeps the memory of what it exported.
            command = [sys.executable, __file__, "--folder", str(options.folder), "--one", name, exporter, "--through", options.through]
            command += ["--table", str(options.table)] if options.table else []
            if subprocess.run(command + ["--export-only"] * options.export_only).returncode != 0:
                failed.append(f"{name} ({exporter})")
    print("failed:", ", ".join(failed) or "none")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
