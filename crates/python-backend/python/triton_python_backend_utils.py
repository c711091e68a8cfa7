"""What Python models import: tensors, requests, responses, and helpers around the configuration."""

from halimede_host.logger import Logger
from halimede_host.messages import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    PreferredMemory,
    TritonError,
)
from halimede_host.metrics import Metric, MetricFamily, MetricKind
from halimede_host.model_config import ModelConfig
from halimede_host.models import is_model_ready, load_model, unload_model
from halimede_host.tensor import (
    Tensor,
    TritonModelException,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_to_numpy_type,
)

import numpy as _np

# As texts of errors spell them.
for _type in (Tensor, TritonModelException, InferenceRequest, InferenceResponse, InferenceResponseSender, TritonError,
              Metric, MetricFamily, MetricKind):  # fmt: skip
    _type.__module__ = "c_python_backend_utils"

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

TRITON_STRING_TO_NUMPY = {
    "TYPE_BOOL": bool, "TYPE_UINT8": _np.uint8, "TYPE_UINT16": _np.uint16, "TYPE_UINT32": _np.uint32,
    "TYPE_UINT64": _np.uint64, "TYPE_INT8": _np.int8, "TYPE_INT16": _np.int16, "TYPE_INT32": _np.int32,
    "TYPE_INT64": _np.int64, "TYPE_FP16": _np.float16, "TYPE_FP32": _np.float32, "TYPE_FP64": _np.float64,
    "TYPE_STRING": _np.object_,
}  # fmt: skip


def triton_string_to_numpy(triton_type_string):
    """The numpy type of a datatype as configurations spell it, such as `TYPE_FP32`."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def get_input_tensor_by_name(inference_request, name):
    """The input of a request with that name, or None."""
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response, name):
    """The output of a response with that name, or None."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config, name):
    """The input of a configuration with that name, or None."""
    return next((entry for entry in model_config.get("input", []) if entry["name"] == name), None)


def get_output_config_by_name(model_config, name):
    """The output of a configuration with that name, or None."""
    return next((entry for entry in model_config.get("output", []) if entry["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config):
    """Whether the model answers a request with any number of responses."""
    return model_config.get("model_transaction_policy", {}).get("decoupled", False)


def get_model_dir():
    """The directory of the model's version."""
    from halimede_host import host

    return host.model_directory
