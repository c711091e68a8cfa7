"""The models of the soak: one of each kind that behaves differently."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests"))

from onnx import TensorProto, helper

from support import models
from support.models import info, io

STATES = """backend: "onnxruntime"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  oldest { max_candidate_sequences: 64 }
  state [ { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
}
"""

REPEAT = """backend: "repeat"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
  { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }
]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
"""

PYTHON = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor * 2)]) for tensor in tensors]
"""


def running_sum():
    shape = ["batch", 1]
    nodes = [helper.make_node("Add", ["SUM_IN", "INPUT"], ["SUM_OUT"]), helper.make_node("Identity", ["SUM_OUT"], ["OUTPUT"])]
    inputs = [info(name, TensorProto.FLOAT, shape) for name in ("INPUT", "SUM_IN")]
    return models.onnx_model(nodes, inputs, [info(name, TensorProto.FLOAT, shape) for name in ("OUTPUT", "SUM_OUT")])


def make(folder):
    """The repository, and the names of the models that are loaded from the start."""
    repository = models.Repository(folder)
    batching = "max_batch_size: 16\ndynamic_batching { max_queue_delay_microseconds: 500 }\n"
    repository.add("network", models.two_products(), 'backend: "onnxruntime"\n' + batching)
    repository.add("simple", models.add_sub(TensorProto.INT32, ["batch", 16]), models.BATCHED_INT32)
    repository.add("twice", config=models.ENSEMBLE)
    repository.add("text", models.identity(TensorProto.STRING, [-1, -1]), models.copy_config("STRING"))
    repository.add("large", models.identity(TensorProto.FLOAT, [-1]), models.copy_config("FP32", batch=0))
    repository.add("slow", config=models.identity_config(dims=(1,), batch=0, delay_ms=50))
    repository.add("cached", models.identity(TensorProto.FLOAT, [-1, -1]), models.copy_config("FP32", extra="response_cache { enable: true }\n"))
    repository.add("sums", running_sum(), STATES)
    repository.add("repeat", config=REPEAT)
    python = 'backend: "python"\nmax_batch_size: 8\ndynamic_batching { }\ninstance_group [ { count: 2 kind: KIND_CPU } ]\n'
    repository.add("python", config=python + io("input", "INPUT0", "FP32", [-1]) + io("output", "OUTPUT0", "FP32", [-1]))
    (repository.path / "python" / "1" / "model.py").write_text(PYTHON)
    loaded = sorted(path.name for path in repository.path.iterdir())
    # What comes and goes.
    repository.add("guest", models.two_products(), 'backend: "onnxruntime"\n' + batching)
    return loaded
