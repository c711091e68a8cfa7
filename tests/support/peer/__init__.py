"""A copy of a repository that a tritonserver with nothing but its Python backend can serve."""

import shutil
from pathlib import Path

import onnx

MODEL = Path(__file__).with_name("model.py")

# ONNX element types in Triton's spelling.
TYPES = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "STRING",
    9: "BOOL", 10: "FP16", 11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip


def copy(source, target):
    """`source` with every ONNX and identity model replaced by a Python model of the same interface."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    for folder in Path(target).iterdir():
        convert(folder)
    return target


def convert(folder):
    path = folder / "config.pbtxt"
    config = path.read_text() if path.exists() else ""
    models = sorted(folder.glob("*/model.onnx"))
    if not models and 'backend: "identity"' not in config:
        return
    for name in ('platform: "onnxruntime_onnx"', 'backend: "onnxruntime"', 'backend: "identity"'):
        config = config.replace(name, "")
    config += 'backend: "python"\n'
    if models and "input [" not in config:
        config += interface(onnx.load(models[0]), config)
    if "instance_group" not in config:
        config += "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
    path.write_text(config)
    for version in folder.iterdir():
        if version.is_dir() and version.name.isdigit():
            shutil.copy(MODEL, version)


def interface(model, config):
    """Inputs and outputs as Triton completes them for an ONNX model without configuration."""
    initializers = {i.name for i in model.graph.initializer}
    values = [("input", v) for v in model.graph.input if v.name not in initializers]
    values += [("output", v) for v in model.graph.output]
    shapes = [
        [d.dim_value if d.HasField("dim_value") else -1 for d in v.type.tensor_type.shape.dim] for _, v in values
    ]
    batching = all(shape[:1] == [-1] for shape in shapes) and "max_batch_size: 0" not in config
    text = ""
    if batching and "max_batch_size" not in config:
        text = "max_batch_size: 4\ndynamic_batching { }\n"
    for (kind, value), shape in zip(values, shapes):
        dims = ", ".join(str(d) for d in (shape[1:] if batching else shape))
        datatype = TYPES[value.type.tensor_type.elem_type]
        text += f'{kind} [ {{ name: "{value.name}" data_type: TYPE_{datatype} dims: [ {dims} ] }} ]\n'
    return text
