"""Build every model of the example repository except the trained classifier.

Fixed seeds, `onnx.helper` and NumPy only. The classifier comes from
`train_digits.py`.

    python examples/scripts/make_repository.py
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from encoder import encoder

REPOSITORY = Path(__file__).resolve().parent.parent / "repository"

# Datatype in Triton's spelling, element type in ONNX's.
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


def save(name, graph, opset=17):
    """Write `graph` as version 1 of the model `name`."""
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
        producer_name="halimede-examples",
    )
    onnx.checker.check_model(model, full_check=True)
    path = REPOSITORY / name / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def config(name, text):
    """Write the model's config.pbtxt; the models without one are completed by the server."""
    path = REPOSITORY / name / "config.pbtxt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.lstrip())


def identity(datatype):
    """INPUT0 of any length to OUTPUT0."""
    info = helper.make_tensor_value_info
    return helper.make_graph(
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"], "identity")],
        f"identity_{datatype.lower()}",
        [info("INPUT0", DATATYPES[datatype], ["batch", "length"])],
        [info("OUTPUT0", DATATYPES[datatype], ["batch", "length"])],
    )


def preprocess():
    """Grey values 0 to 16 of [batch, 8, 8] to [batch, 1, 8, 8] in 0 to 1."""
    info = helper.make_tensor_value_info
    constants = [
        numpy_helper.from_array(np.float32(1 / 16), "scale"),
        numpy_helper.from_array(np.array([1], np.int64), "channel"),
    ]
    return helper.make_graph(
        [
            helper.make_node("Cast", ["pixels"], ["real"], "cast", to=TensorProto.FLOAT),
            helper.make_node("Mul", ["real", "scale"], ["scaled"], "scale_pixels"),
            helper.make_node("Unsqueeze", ["scaled", "channel"], ["image"], "add_channel"),
        ],
        "preprocess",
        [info("pixels", TensorProto.UINT8, ["batch", 8, 8])],
        [info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        constants,
    )


def top_class():
    """Scores [batch, 10] to the index and the score of the largest."""
    info = helper.make_tensor_value_info
    return helper.make_graph(
        [
            helper.make_node("ArgMax", ["scores"], ["digit"], "argmax", axis=1, keepdims=1),
            helper.make_node("ReduceMax", ["scores"], ["confidence"], "max", axes=[1], keepdims=1),
        ],
        "top_class",
        [info("scores", TensorProto.FLOAT, ["batch", 10])],
        [info("digit", TensorProto.INT64, ["batch", 1]), info("confidence", TensorProto.FLOAT, ["batch", 1])],
    )


def add_sub():
    """OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1, without a batch dimension."""
    info = helper.make_tensor_value_info
    return helper.make_graph(
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"], "add"),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"], "sub"),
        ],
        "add_sub",
        [info(n, TensorProto.FLOAT, [4]) for n in ("INPUT0", "INPUT1")],
        [info(n, TensorProto.FLOAT, [4]) for n in ("OUTPUT0", "OUTPUT1")],
    )


CLASSIFIER_CONFIG = """
backend: "onnxruntime"
max_batch_size: 64
input [ { name: "image" data_type: TYPE_FP32 dims: [ 1, 8, 8 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" } ]
dynamic_batching { max_queue_delay_microseconds: 200 }
"""

ENSEMBLE_CONFIG = """
platform: "ensemble"
max_batch_size: 64
input [ { name: "pixels" data_type: TYPE_UINT8 dims: [ 8, 8 ] } ]
output [
  { name: "digit" data_type: TYPE_INT64 dims: [ 1 ] },
  { name: "confidence" data_type: TYPE_FP32 dims: [ 1 ] },
  { name: "scores" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" }
]
ensemble_scheduling {
  step [
    {
      model_name: "digits_preprocess"
      model_version: -1
      input_map { key: "pixels" value: "pixels" }
      output_map { key: "image" value: "image" }
    },
    {
      model_name: "digits_classifier"
      model_version: -1
      input_map { key: "image" value: "image" }
      output_map { key: "scores" value: "scores" }
    },
    {
      model_name: "digits_top_class"
      model_version: -1
      input_map { key: "scores" value: "scores" }
      output_map { key: "digit" value: "digit" }
      output_map { key: "confidence" value: "confidence" }
    }
  ]
}
"""

BATCHED_CONFIG = """
backend: "onnxruntime"
max_batch_size: 64
"""

IDENTITY_CONFIG = """
backend: "identity"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

LABELS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def main():
    for datatype in DATATYPES:
        save(f"identity_{datatype.lower()}", identity(datatype))

    config("identity", IDENTITY_CONFIG)
    # A version folder has to exist; the backend needs no file in it.
    (REPOSITORY / "identity" / "1").mkdir(parents=True, exist_ok=True)
    (REPOSITORY / "identity" / "1" / ".keep").touch()

    save("digits_preprocess", preprocess())
    config("digits_preprocess", BATCHED_CONFIG)
    config("digits_classifier", CLASSIFIER_CONFIG)
    save("digits_top_class", top_class())
    config("digits_top_class", BATCHED_CONFIG)
    config("digits", ENSEMBLE_CONFIG)
    (REPOSITORY / "digits" / "1").mkdir(parents=True, exist_ok=True)
    (REPOSITORY / "digits" / "1" / ".keep").touch()
    for name in ("digits", "digits_classifier"):
        (REPOSITORY / name / "labels.txt").write_text("\n".join(LABELS) + "\n")

    save("add_sub", add_sub())
    save("encoder", encoder(), opset=14)


if __name__ == "__main__":
    main()
