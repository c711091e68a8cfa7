"""`halimede quantize`: what it writes is standard ONNX that says nearly the same, here and elsewhere."""

import re
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

from support.models import info
from support.server import binary
from test_verbs import CLASSIFIER, halimede

pytestmark = pytest.mark.halimede_only("a verb of ours")


def network(opset=13):
    """A convolution, a product with weights, one without, and a Gemm that is scaled."""
    rng = np.random.default_rng(3)

    def stored(name, *shape):
        # Channels of very different sizes, as trained weights have them.
        channels = np.geomspace(0.1, 10, shape[0] if len(shape) != 2 else shape[1])
        spread = channels.reshape(-1, *[1] * (len(shape) - 1)) if len(shape) != 2 else channels
        return numpy_helper.from_array((rng.standard_normal(shape) * spread).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "kernel", "offset"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["h"], name="product"),
        helper.make_node("Transpose", ["h"], ["t"]),
        helper.make_node("MatMul", ["h", "t"], ["s"], name="scores"),
        helper.make_node("Gemm", ["h", "g", "b"], ["y"], name="last", transB=1),
        helper.make_node("Gemm", ["h", "g"], ["z"], name="halved", transB=1, alpha=0.5),
    ]
    tensors = [stored("kernel", 6, 3, 3, 3), stored("offset", 6), stored("m", 6, 16), stored("g", 5, 16), stored("b", 5)]
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [info(name, TensorProto.FLOAT, ["n", last]) for name, last in (("y", 5), ("z", 5), ("s", "n"))], tensors,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def runtime(model):
    """ONNX Runtime without its integer kernels, which saturate on older processors."""
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    return InferenceSession(model.SerializeToString(), options)


def cosine(a, b):
    return float(np.vdot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


def test_another_runtime_reads_what_is_written(tmp_path):
    path, samples = tmp_path / "m.onnx", tmp_path / "samples"
    # The weights lie beside the model, the result elsewhere.
    onnx.save(network(), path, save_as_external_data=True, location="weights", size_threshold=0)
    samples.mkdir()
    rng = np.random.default_rng(4)
    images = rng.standard_normal((4, 2, 3, 8, 8)).astype(np.float32)
    for index, image in enumerate(images):
        np.savez(samples / f"{index}.npz", x=image)
    (tmp_path / "out").mkdir()
    written = tmp_path / "out" / "q.onnx"
    printed = halimede("quantize", path, "--calibration", samples, "--output", written)
    assert "3 products of 8 bits" in printed
    assert "stays: MatMul 'scores': its weights are computed" in printed
    assert "stays: Gemm 'halved': it transposes or scales what it multiplies" in printed
    model = onnx.load(written)
    onnx.checker.check_model(model, full_check=True)
    types = [node.op_type for node in model.graph.node]
    # An activation each for the convolution, the product, and the Gemm; kernel, m, g and two biases besides.
    assert (types.count("QuantizeLinear"), types.count("DequantizeLinear")) == (3, 8)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    assert "kernel" not in stored and "g" in stored  # the scaled Gemm still reads g
    scale = next(numpy_helper.to_array(stored[name]) for name in stored if name.startswith("kernel_scale"))
    assert scale.shape == (6,) and scale.max() / scale.min() > 10
    exact, narrow = runtime(network()), runtime(model)
    for image in images:
        for a, b in zip(exact.run(None, {"x": image}), narrow.run(None, {"x": image}), strict=True):
            assert cosine(a, b) > 0.999
    told = [float(number) for number in re.findall(r"cosine ([\d.]+)", printed)]
    # What is told leaves the mean out, which makes up most of these outputs.
    assert len(told) == 3 and 0.95 < min(told) < max(told) < 1


def test_the_classifier_stays_right(tmp_path):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    model = CLASSIFIER / "1" / "model.onnx"
    samples = tmp_path / "samples"
    samples.mkdir()
    for index in range(0, 200, 10):
        np.savez(samples / f"{index:03}.npz", image=images[index : index + 10])
    halimede("quantize", model, "--calibration", samples, "--output", tmp_path / "q.onnx")
    np.savez(tmp_path / "all.npz", image=images)

    def accuracy(path, folder):
        halimede("run", path, "--inputs", tmp_path / "all.npz", "--output", tmp_path / folder)
        (scores,) = [np.load(file) for file in (tmp_path / folder).iterdir()]
        return (scores.argmax(1) == digits.target).mean()

    assert accuracy(tmp_path / "q.onnx", "narrow") > accuracy(model, "exact") - 0.005


REFUSED = [
    (network(opset=11), "is of opset 11; scales per channel came with 13"),
    (helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g",
                                         [info("x", TensorProto.FLOAT, [2])], [info("y", TensorProto.FLOAT, [2])]),
                       opset_imports=[helper.make_opsetid("", 13)], ir_version=8), "there is no product to quantise"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "reason"), REFUSED)
def test_what_cannot_be_quantised_says_why(tmp_path, model, reason):
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert reason in halimede("quantize", path, "--calibration", "random", status=1)


def test_twice_is_once_too_often(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(network(), path)
    made_up = ["--calibration", "random", "--samples", "2", "--input", "x=f32:1x3x8x8"]
    halimede("quantize", path, *made_up)
    assert "is quantised already" in halimede("quantize", tmp_path / "m.int8.onnx", *made_up, status=1)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no .npz file" in halimede("quantize", path, "--calibration", empty, status=1)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_refused(tmp_path, wrong):
    path, samples, written = tmp_path / "m.onnx", tmp_path / "samples", tmp_path / "q.onnx"
    onnx.save(network(), path)
    samples.mkdir()
    for index in range(3):
        image = np.random.default_rng(index).standard_normal((2, 3, 8, 8)).astype(np.float32)
        if index == 1:
            image[0, 1, 2, 3:5] = wrong
        np.savez(samples / f"{index}.npz", x=image)
    told = halimede("quantize", path, "--calibration", samples, "--output", written, status=1)
    assert f"--calibration {samples}/1.npz: input 'x': of 384 numbers 2 are NaN or infinite: give finite ones" in told
    assert not written.exists()
    np.save(tmp_path / "x.npy", np.full((1, 3, 8, 8), wrong, np.float32))
    made_up = ["--calibration", "random", "--input", f"x={tmp_path}/x.npy", "--output", written]
    assert "random sample 0: input 'x': of 192 numbers 192 are NaN" in halimede("quantize", path, *made_up, status=1)
    assert not written.exists()


def test_what_differs_much_is_told(tmp_path):
    """A number that is far from the others takes all of the 255 steps; a logarithm of them has none."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((16, 16)).astype(np.float32)
    weights[0] = 0
    tensors = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.float32(-1e9), "far")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Add", ["y", "far"], ["s"]),
             helper.make_node("Log", ["s"], ["z"])]  # fmt: skip
    outputs = [info(name, TensorProto.FLOAT, ["n", 16]) for name in "yz"]
    graph = helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, ["n", 16])], outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    samples = tmp_path / "samples"
    samples.mkdir()
    numbers = rng.standard_normal((8, 16)).astype(np.float32)
    numbers[:, 0] = 1e6
    np.savez(samples / "0.npz", x=numbers)
    arguments = [binary(), "quantize", tmp_path / "m.onnx", "--calibration", samples, "--output", tmp_path / "q.onnx"]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True)
    told = r"warning: the quantised model differs much from the original: output 'y' has a cosine of -?0\.0\d+, less than 0\.9"
    assert re.search(told, ran.stderr)
    assert "warning: output 'z' has no finite number on any of the inputs" in ran.stderr
    assert (tmp_path / "q.onnx").exists()
