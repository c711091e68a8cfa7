"""Make the models that the workloads name, in three steps that may run in different environments.

    python benches/peers/prepare.py FOLDER export [NAME ...]            needs torch and transformers
    python benches/peers/prepare.py FOLDER quantize-onnx [NAME ...]     needs onnxruntime
    python benches/peers/prepare.py FOLDER quantize-openvino [NAME ...] needs openvino and nncf

A NAME is a model's, a workload's or a group's; without any, all are made. What is there already stays: remove it
to have it made again. FOLDER/MODEL/1/ then has model.onnx, model.int8.onnx (convolutional models as QDQ with calibrated
activations, the rest with activations quantised as they come: what each is fastest with in ONNX Runtime)
and model.int8.xml (by nncf). Weights and calibration inputs are random: these files say how fast a
quantised model runs, nothing about how good it is.
"""

import os
import sys
from pathlib import Path

import numpy as np
from workloads import SEED, WORKLOADS, square

ROOT = Path(__file__).resolve().parent.parent.parent
ARCHITECTURES = ROOT / "scripts" / "architectures"
VISION = {workload.model for workload in WORKLOADS if workload.group == "vision"}
# Kept in floating point by nobody's default; transformers among the vision models quantise as such.
TRANSFORMERS = {workload.model for workload in WORKLOADS if workload.group == "text"} | {"vit_base"}
CALIBRATIONS = 8


def models(names=()):
    """The models that these names mean; all, where there are none."""
    found = {}
    for name in names:
        made = [w.model for w in WORKLOADS if name in (w.model, w.name, w.group)]
        if not made:
            sys.exit(f"{name} is no model, workload or group of workloads.py")
        found |= dict.fromkeys(made)
    return list(found or dict.fromkeys(workload.model for workload in WORKLOADS))


def save(path, nodes, inputs, outputs, weights=()):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def infos(entries):
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in entries]

    weights = [numpy_helper.from_array(array, name) for name, array in weights]
    graph = helper.make_graph(nodes, path.parent.parent.name, infos(inputs), infos(outputs), weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def product(path, size):
    """f32 in, times a constant square matrix, f32 out."""
    from onnx import helper

    node = helper.make_node("MatMul", ["a", "w"], ["y"])
    save(path, [node], [("a", ["m", size])], [("y", ["m", size])], [("w", square(size))])


def attention(path, causal):
    """One attention of 12 heads of 64, as the operator of the standard."""
    from onnx import helper

    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=int(causal))
    shape = [1, 12, "length", 64]
    save(path, [node], [(name, shape) for name in "qkv"], [("y", shape)])


def export(folder, model):
    path = folder / model / "1" / "model.onnx"
    kind, _, rest = model.partition("_")
    if kind == "product":
        product(path, int(rest))
    elif kind == "attention":
        attention(path, rest == "causal")
    elif not path.exists():
        sys.path.insert(0, str(ARCHITECTURES))
        import compare

        made = compare.export(model, "torchscript", folder)
        (folder / model).symlink_to(made.parent.parent.name)
    return path


def samples(model):
    """Calibration inputs: those of the model's first workload, with other numbers."""
    first = next(workload for workload in WORKLOADS if workload.model == model)
    rng = np.random.default_rng(SEED + 1)
    for _ in range(CALIBRATIONS):
        feed = {}
        for name, array in first.feeds()[0].items():
            moved = rng.standard_normal(array.shape, dtype=np.float32) if array.dtype.kind == "f" else array
            feed[name] = rng.permutation(moved.ravel()).reshape(array.shape)
        yield feed


def quantize_onnx(folder, model):
    import onnxruntime.quantization as quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    source = folder / model / "1" / "model.onnx"
    target = source.with_suffix(".int8.onnx")
    if model in TRANSFORMERS or model.startswith("product"):
        quantization.quantize_dynamic(source, target, per_channel=True, weight_type=quantization.QuantType.QInt8)
        return target

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.samples = samples(model)

        def get_next(self):
            return next(self.samples, None)

    simple = source.with_suffix(".simple.onnx")
    quant_pre_process(source, simple, skip_symbolic_shape=True)
    quantization.quantize_static(
        simple, target, Reader(), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
        activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    simple.unlink()
    return target


def quantize_openvino(folder, model):
    import nncf
    import openvino

    source = folder / model / "1" / "model.onnx"
    target = source.with_suffix(".int8.xml")
    kind = nncf.ModelType.TRANSFORMER if model in TRANSFORMERS else None
    quantized = nncf.quantize(
        openvino.Core().read_model(source), nncf.Dataset(list(samples(model))), subset_size=CALIBRATIONS,
        preset=nncf.QuantizationPreset.PERFORMANCE, model_type=kind,
    )  # fmt: skip
    openvino.save_model(quantized, target, compress_to_fp16=False)
    return target


# How each model is made, and the file that says that it was.
STEPS = {
    "export": (export, "model.onnx"),
    "quantize-onnx": (quantize_onnx, "model.int8.onnx"),
    "quantize-openvino": (quantize_openvino, "model.int8.xml"),
}


def main():
    if len(sys.argv) < 3 or sys.argv[2] not in STEPS:
        sys.exit(__doc__)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder, step = Path(sys.argv[1]), sys.argv[2]
    make, file = STEPS[step]
    for model in models(sys.argv[3:]):
        target = folder / model / "1" / file
        if (step != "export" and model.startswith("attention")) or target.exists():
            continue
        try:
            make(folder, model)
        except BaseException:
            # A part of it is not taken for all of it the next time.
            target.unlink(missing_ok=True)
            raise
        print(target, flush=True)


if __name__ == "__main__":
    main()
