"""The model repository that the tests serve, built with `onnx.helper`."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

info = helper.make_tensor_value_info


def onnx_model(nodes, inputs, outputs, initializers=(), opset=17):
    """A checked ModelProto; IR version 8 is what opset 17 came with."""
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


class Repository:
    """A model repository under construction."""

    def __init__(self, path):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)

    def add(self, name, model=None, config=None, version=1, labels=None):
        """A model of one version; `model` None leaves the version folder empty."""
        folder = self.path / name
        (folder / str(version)).mkdir(parents=True, exist_ok=True)
        if model is not None:
            onnx.save(model, folder / str(version) / "model.onnx")
        if config is not None:
            (folder / "config.pbtxt").write_text(config)
        if labels is not None:
            (folder / "labels.txt").write_text("".join(label + "\n" for label in labels))
        return self


def add_sub(dtype, shape):
    """OUTPUT0 is the sum of INPUT0 and INPUT1, OUTPUT1 the difference."""
    return onnx_model(
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        [info("INPUT0", dtype, shape), info("INPUT1", dtype, shape)],
        [info("OUTPUT0", dtype, shape), info("OUTPUT1", dtype, shape)],
    )


def identity(dtype, shape):
    """OUTPUT0 is INPUT0."""
    return onnx_model(
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        [info("INPUT0", dtype, shape)],
        [info("OUTPUT0", dtype, shape)],
    )


def product(left, right):
    """Y is X, of the shape `left`, times a constant of the shape `right`."""
    weights = helper.make_tensor("W", TensorProto.FLOAT, right, [0.25] * (right[0] * right[1]))
    return onnx_model(
        [helper.make_node("MatMul", ["X", "W"], ["Y"])],
        [info("X", TensorProto.FLOAT, left)],
        [info("Y", TensorProto.FLOAT, [left[0], right[1]])],
        [weights],
    )


def two_products():
    """INPUT0 [n, 256] times 256 x 256 twice, large enough that threads share them."""
    chance = np.random.default_rng(1)
    weights = [numpy_helper.from_array(chance.normal(size=(256, 256)).astype(np.float32), f"w{i}") for i in range(2)]
    nodes = [
        helper.make_node("MatMul", ["INPUT0", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["c"]),
        helper.make_node("Softmax", ["c"], ["OUTPUT0"]),
    ]
    inputs, outputs = [info("INPUT0", TensorProto.FLOAT, ["n", 256])], [info("OUTPUT0", TensorProto.FLOAT, ["n", 256])]
    return onnx_model(nodes, inputs, outputs, weights)


def pick():
    """OUTPUT0 is the element of [10, 20, 30] at each index of INPUT0; other indices fail when it runs."""
    table = helper.make_tensor("table", TensorProto.INT64, [3], [10, 20, 30])
    return onnx_model(
        [helper.make_node("Gather", ["table", "INPUT0"], ["OUTPUT0"], "pick")],
        [info("INPUT0", TensorProto.INT64, [2])],
        [info("OUTPUT0", TensorProto.INT64, [2])],
        [table],
    )


def io(kind, name, datatype, dims, extra=""):
    """One input or output of a config.pbtxt."""
    dims = ", ".join(str(d) for d in dims)
    return f'{kind} [ {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] {extra} }} ]\n'


def copy_config(datatype, dims=(-1,), batch=8, extra=""):
    """The configuration of an ONNX model that copies INPUT0 to OUTPUT0."""
    text = f'platform: "onnxruntime_onnx"\nmax_batch_size: {batch}\n'
    return text + io("input", "INPUT0", datatype, dims) + io("output", "OUTPUT0", datatype, dims) + extra


def identity_config(datatype="FP32", dims=(-1,), batch=8, delay_ms=0, extra=""):
    """A model of the built-in `identity` backend, whose replies carry example parameters."""
    text = f'backend: "identity"\nmax_batch_size: {batch}\n'
    text += io("input", "INPUT0", datatype, dims) + io("output", "OUTPUT0", datatype, dims)
    text += "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
    if delay_ms:
        text += f'parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay_ms}" }} }}\n'
    return text + extra


BATCHED_INT32 = (
    'platform: "onnxruntime_onnx"\nmax_batch_size: 8\n'
    + io("input", "INPUT0", "INT32", [16])
    + io("input", "INPUT1", "INT32", [16])
    + io("output", "OUTPUT0", "INT32", [16])
    + io("output", "OUTPUT1", "INT32", [16])
    + "dynamic_batching { }\n"
)

CLASSES = (
    'platform: "onnxruntime_onnx"\nmax_batch_size: 4\n'
    + io("input", "INPUT0", "FP32", [4])
    + io("output", "OUTPUT0", "FP32", [4], 'label_filename: "labels.txt"')
)

ENSEMBLE = (
    'platform: "ensemble"\nmax_batch_size: 8\n'
    + io("input", "A", "INT32", [16])
    + io("input", "B", "INT32", [16])
    + io("output", "DOUBLE_A", "INT32", [16])
    + """ensemble_scheduling { step [
  { model_name: "simple" model_version: -1
    input_map { key: "INPUT0" value: "A" } input_map { key: "INPUT1" value: "B" }
    output_map { key: "OUTPUT0" value: "sum" } output_map { key: "OUTPUT1" value: "difference" } },
  { model_name: "simple" model_version: -1
    input_map { key: "INPUT0" value: "sum" } input_map { key: "INPUT1" value: "difference" }
    output_map { key: "OUTPUT0" value: "DOUBLE_A" } }
] }
"""
)

QUEUE = """dynamic_batching {
  max_queue_delay_microseconds: 0
  priority_levels: 2
  default_priority_level: 2
  default_queue_policy { max_queue_size: 2 allow_timeout_override: true default_timeout_microseconds: 60000000 }
}
"""


def standard(path):
    """What most tests need, none of it slow to load."""
    repository = Repository(path)
    repository.add("add_sub", add_sub(TensorProto.FLOAT, [4]))
    repository.add("simple", add_sub(TensorProto.INT32, ["batch", 16]), BATCHED_INT32)
    repository.add("twice", config=ENSEMBLE)
    repository.add("raw", identity(TensorProto.FLOAT, [-1, -1]), copy_config("FP32"))
    repository.add("text", identity(TensorProto.STRING, [-1, -1]), copy_config("STRING"))
    repository.add("classes", identity(TensorProto.FLOAT, ["batch", 4]), CLASSES, labels=["ant", "bee", "cat"])
    repository.add("pick", pick())
    repository.add("slow", config=identity_config(delay_ms=300, batch=0))
    repository.add("queue", config=identity_config(delay_ms=300, batch=1, extra=QUEUE))
    for datatype, element in DATATYPES.items():
        repository.add(f"identity_{datatype.lower()}", identity(element, [-1, -1]))
    policy = "version_policy { specific { versions: [ 1, 3 ] } }\n"
    for version in (1, 2, 3):
        repository.add("versions", identity(TensorProto.FLOAT, [-1, -1]), copy_config("FP32", extra=policy), version)
    return repository


DATATYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}
