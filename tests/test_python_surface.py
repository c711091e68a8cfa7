"""What Python models can import: every public name of Triton 2.51's Python backend, and code that old interpreters read."""

import ast
import inspect
import json
import os
import subprocess
import sys

import pytest

from support.server import ROOT

SCRIPTS = ROOT / "crates" / "python-backend" / "python"

# By module and class, as the bindings of Triton's pb_stub.cc and its triton_python_backend_utils.py have them. What serves
# Triton's own tests (SharedMemory, async_event_future_done_callback) is left out.
NAMES = {
    "triton_python_backend_utils": [
        "InferenceRequest", "InferenceResponse", "Logger", "MetricFamily", "ModelConfig", "PreferredMemory", "Tensor",
        "TritonError", "TritonModelException", "TRITON_STRING_TO_NUMPY", "TRITONSERVER_MEMORY_CPU",
        "TRITONSERVER_MEMORY_GPU", "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START", "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL", "TRITONSERVER_REQUEST_RELEASE_ALL",
        "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE", "deserialize_bytes_tensor", "serialize_byte_tensor",
        "get_input_config_by_name", "get_input_tensor_by_name", "get_model_dir", "get_output_config_by_name",
        "get_output_tensor_by_name", "is_model_ready", "load_model", "numpy_to_triton_type", "triton_string_to_numpy",
        "triton_to_numpy_type", "unload_model", "using_decoupled_model_transaction_policy",
    ],
    "c_python_backend_utils": [
        "COUNTER", "GAUGE", "HISTOGRAM", "InferenceRequest", "InferenceResponse", "InferenceResponseSender",
        "InferenceTrace", "Logger", "MemoryType", "Metric", "MetricFamily", "MetricKind", "PreferredMemory",
        "ResponseIterator", "Tensor", "TritonError", "TritonModelException", "TRITONSERVER_MEMORY_CPU",
        "TRITONSERVER_MEMORY_GPU", "is_model_ready", "load_model", "unload_model",
    ],
    "c_python_backend_utils.InferenceRequest": [
        "async_exec", "correlation_id", "exec", "flags", "get_response_sender", "inputs", "is_cancelled", "parameters",
        "request_id", "requested_output_names", "set_flags", "set_release_flags", "timeout", "trace",
    ],
    "c_python_backend_utils.InferenceResponse": ["error", "has_error", "output_tensors"],
    "c_python_backend_utils.InferenceResponseSender": ["is_cancelled", "send"],
    "c_python_backend_utils.InferenceTrace": ["get_context"],
    "c_python_backend_utils.Logger": [
        "ERROR", "INFO", "LogLevel", "VERBOSE", "WARNING", "log", "log_error", "log_info", "log_verbose", "log_warn",
    ],
    "c_python_backend_utils.Logger.LogLevel": ["ERROR", "INFO", "VERBOSE", "WARNING"],
    "c_python_backend_utils.MemoryType": ["TRITONSERVER_MEMORY_CPU", "TRITONSERVER_MEMORY_GPU"],
    "c_python_backend_utils.Metric": ["increment", "observe", "set", "value"],
    "c_python_backend_utils.MetricFamily": ["COUNTER", "GAUGE", "HISTOGRAM", "Metric"],
    "c_python_backend_utils.MetricKind": ["COUNTER", "GAUGE", "HISTOGRAM"],
    "c_python_backend_utils.ResponseIterator": ["__iter__", "__next__"],
    "c_python_backend_utils.Tensor": [
        "__dlpack__", "__dlpack_device__", "as_numpy", "from_dlpack", "is_cpu", "name", "shape", "to_dlpack",
        "triton_dtype",
    ],
    "c_python_backend_utils.TritonError": [
        "ALREADY_EXISTS", "CANCELLED", "INTERNAL", "INVALID_ARG", "NOT_FOUND", "UNAVAILABLE", "UNKNOWN", "UNSUPPORTED",
        "code", "message",
    ],
    "triton_python_backend_utils.ModelConfig": [
        "add_input", "add_output", "as_dict", "set_dynamic_batching", "set_max_batch_size", "set_model_transaction_policy",
    ],
}  # fmt: skip

# Names of arguments that models may use.
ARGUMENTS = {
    "InferenceRequest": [
        "request_id", "correlation_id", "inputs", "requested_output_names", "model_name", "model_version", "flags",
        "timeout", "preferred_memory", "trace", "parameters",
    ],
    "InferenceRequest.exec": ["decoupled"],
    "InferenceRequest.async_exec": ["decoupled"],
    "InferenceResponse": ["output_tensors", "error"],
    "InferenceResponseSender.send": ["response", "flags"],
    "Logger.log": ["message", "level"],
    "Logger.log_info": ["message"],
    "MetricFamily": ["name", "description", "kind"],
    "MetricFamily.Metric": ["labels", "buckets"],
    "PreferredMemory": ["preferred_memory_type", "preferred_device_id"],
    "Tensor.__dlpack__": ["stream"],
    "TritonError": ["message", "code"],
    "is_model_ready": ["model_name", "model_version"],
    "load_model": ["model_name", "config", "files"],
    "unload_model": ["model_name", "unload_dependents"],
}  # fmt: skip


@pytest.fixture(scope="module")
def modules():
    sys.path.insert(0, str(SCRIPTS))
    import c_python_backend_utils
    import triton_python_backend_utils

    yield {"triton_python_backend_utils": triton_python_backend_utils, "c_python_backend_utils": c_python_backend_utils}
    sys.path.remove(str(SCRIPTS))


def found(modules, path):
    module, *rest = path.split(".")
    value = modules[module]
    for name in rest:
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("owner", NAMES)
def test_every_public_name_is_there(modules, owner):
    missing = [name for name in NAMES[owner] if not hasattr(found(modules, owner), name)]
    assert missing == []


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_have_their_names(modules, name):
    signature = inspect.signature(found(modules, f"c_python_backend_utils.{name}"))
    assert set(ARGUMENTS[name]) <= set(signature.parameters)


def test_values_that_models_see(modules):
    utils = modules["triton_python_backend_utils"]
    codes = ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"]
    assert [getattr(utils.TritonError, name) for name in codes] == list(range(8))
    assert utils.TritonError("text").code() == utils.TritonError.INTERNAL
    code = utils.TritonError("text", utils.TritonError.NOT_FOUND).code()
    assert code == utils.TritonError.NOT_FOUND != utils.TritonError.INTERNAL and code == 2 and int(code) == code.value == 2
    assert (code.name, str(code), f"{code}", repr(code)) == (
        "NOT_FOUND", "__ErrorCode.NOT_FOUND", "__ErrorCode.NOT_FOUND", "<__ErrorCode.NOT_FOUND: 2>",
    )  # fmt: skip
    assert utils.TritonError("text", 3).code() == utils.TritonError.INVALID_ARG
    with pytest.raises(TypeError, match="code has to be one of TritonError's, such as TritonError.INTERNAL, found 12 of type"):
        utils.TritonError("text", 12)
    assert utils.PreferredMemory(utils.TRITONSERVER_MEMORY_GPU, 1) and utils.PreferredMemory(utils.TRITONSERVER_MEMORY_CPU)
    with pytest.raises(TypeError):
        utils.PreferredMemory("GPU")
    inputs = {"inputs": [], "requested_output_names": ["OUT"], "model_name": "m"}
    request = utils.InferenceRequest(correlation_id="text", flags=3, timeout=7, parameters={"a": 1}, **inputs)
    assert (request.correlation_id(), request.flags(), request.timeout()) == ("text", 3, 7)
    assert json.loads(request.parameters()) == {"a": 1} and request.trace().get_context() is None
    for wrong in (
        {"preferred_memory": 1}, {"trace": "t"}, {"inputs": None}, {"inputs": ["IN"]}, {"model_name": None},
        {"requested_output_names": [None]}, {"requested_output_names": None}, {"correlation_id": None},
        {"correlation_id": -1}, {"request_id": None}, {"model_version": None}, {"model_version": 1 << 63},
        {"flags": 1 << 32}, {"timeout": 0.5},
    ):  # fmt: skip
        with pytest.raises(TypeError):
            utils.InferenceRequest(**{**inputs, **wrong})
    for wrong in ({"inputs": [None]}, {"requested_output_names": [""]}):
        with pytest.raises(utils.TritonModelException, match="for request with id '' and model name 'm' should not be empty."):
            utils.InferenceRequest(**{**inputs, **wrong})
    with pytest.raises(utils.TritonModelException, match="Output tensor for inference response should not be empty."):
        utils.InferenceResponse([None])
    for call in (
        lambda: utils.InferenceResponse(None), lambda: utils.InferenceResponse([], "error"),
        lambda: utils.TritonError(None), lambda: utils.TritonError("text", 8), lambda: utils.TritonError("text", "INTERNAL"),
        lambda: utils.TritonError("text", None), lambda: utils.Logger.log("text", None),
        lambda: utils.Logger.log("text", 1), lambda: utils.Logger.log_warn(None),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            call()
    with pytest.raises(utils.TritonModelException, match="Correlation ID must be integer or string"):
        utils.InferenceRequest(correlation_id=1.5, **inputs)
    whole = {"least": -(1 << 63), "most": (1 << 63) - 1, "is": True}
    assert json.loads(utils.InferenceResponse([], parameters=whole).parameters()) == whole
    for value in (1 << 63, -(1 << 63) - 1, 10**5000):
        for call in (
            lambda: utils.InferenceResponse([], parameters={"a": value}),
            lambda: utils.InferenceRequest(parameters={"a": value}, **inputs),
        ):
            with pytest.raises(utils.TritonModelException, match="the parameter 'a' is beyond the whole numbers that 64 bits hold"):
                call()


def test_the_scripts_are_read_by_the_oldest_interpreter():
    files = sorted(SCRIPTS.rglob("*.py"))
    assert len(files) > 10
    for path in files:
        ast.parse(path.read_text(), str(path), feature_version=(3, 8))


def test_outside_of_a_server_models_can_be_imported():
    code = (
        "import triton_python_backend_utils as pb_utils\n"
        "pb_utils.Logger.log_info('a line')\n"
        "try:\n    pb_utils.is_model_ready('m')\nexcept RuntimeError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SCRIPTS)}, capture_output=True)
    assert done.stdout.decode().splitlines() == [
        "a line", "there is no server: this works inside a model that a server runs"
    ], done.stderr  # fmt: skip
