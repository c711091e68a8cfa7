"""gRPC: replies, status codes and texts."""

import socket

import numpy as np
import pytest
from onnx import TensorProto
from tritonclient.grpc import service_pb2 as pb

from support import models
from support.grpc import FOUR, PREFACE, Grpc, add_sub, frames_until, tensor


@pytest.fixture(scope="module")
def grpc(server):
    client = Grpc(server.grpc_address)
    yield client
    client.close()


def inputs(*tensors, model="add_sub"):
    """A request of (name, datatype, shape, raw) inputs."""
    request = pb.ModelInferRequest(model_name=model)
    for name, datatype, shape, raw in tensors:
        tensor(request, name, datatype, shape, raw)
    return request


def contents(datatype="FP32", shape=(4,), raw=None, model="raw", **fields):
    """A request with one input in `contents`."""
    request = pb.ModelInferRequest(model_name=model)
    tensor(request, "INPUT0", datatype, shape, raw, **fields)
    return request


def parameter(key, **value):
    request = add_sub()
    for field, content in value.items():
        setattr(request.parameters[key], field, content)
    return request


def output_parameter(key, **value):
    request = add_sub()
    output = request.outputs.add()
    output.name = "OUTPUT0"
    for field, content in value.items():
        setattr(output.parameters[key], field, content)
    return request


ONE = ("INPUT0", "FP32", [4], FOUR)
ID = "[request id: <id_unknown>] "

ERRORS = [
    # name, method, request, status, text
    ("unknown model", "ModelInfer", pb.ModelInferRequest(model_name="nope"), "NOT_FOUND",
     "Request for unknown model: 'nope' is not found"),
    ("unknown version", "ModelInfer", add_sub(model_version="9"), "NOT_FOUND",
     "Request for unknown model: 'add_sub' version 9 is not found"),
    ("version not a number", "ModelInfer", add_sub(model_version="x"), "INVALID_ARGUMENT",
     "failed to get model version from specified version string 'x' (details: stol), "
     "version should be an integral value > 0"),
    ("version negative", "ModelInfer", add_sub(model_version="-2"), "INVALID_ARGUMENT",
     "invalid model version specified '-2' , version should be an integral value > 0"),
    ("metadata of an unknown model", "ModelMetadata", pb.ModelMetadataRequest(name="nope"), "NOT_FOUND",
     "Request for unknown model: 'nope' is not found"),
    ("config of an unknown model", "ModelConfig", pb.ModelConfigRequest(name="nope"), "NOT_FOUND",
     "Request for unknown model: 'nope' is not found"),
    ("statistics of an unknown model", "ModelStatistics", pb.ModelStatisticsRequest(name="nope"), "INVALID_ARGUMENT",
     "requested model 'nope' is not available"),
    ("no inputs", "ModelInfer", pb.ModelInferRequest(model_name="add_sub"), "INVALID_ARGUMENT",
     ID + "expected 2 inputs but got 0 inputs for model 'add_sub'. Got input(s) [], but missing required input(s) "
     "['INPUT0','INPUT1']. Please provide all required input(s)."),
    ("one input missing", "ModelInfer", inputs(ONE), "INVALID_ARGUMENT",
     ID + "expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['INPUT0'], but missing required "
     "input(s) ['INPUT1']. Please provide all required input(s)."),
    ("unexpected input", "ModelInfer", inputs(ONE, ("NOPE", "FP32", [4], FOUR)), "INVALID_ARGUMENT",
     "unexpected inference input 'NOPE' for model 'add_sub'"),
    ("input twice", "ModelInfer", inputs(ONE, ONE), "INVALID_ARGUMENT",
     ID + "input 'INPUT0' already exists in request"),
    ("no data", "ModelInfer", inputs(ONE, ("INPUT1", "FP32", [4], None)), "INVALID_ARGUMENT",
     "unable to find data for input tensor 'INPUT1' for model 'add_sub' in request."),
    ("wrong datatype", "ModelInfer", inputs(ONE, ("INPUT1", "INT32", [4], FOUR)), "INVALID_ARGUMENT",
     ID + "inference input 'INPUT1' data-type is 'INT32', but model 'add_sub' expects 'FP32'"),
    ("unknown datatype", "ModelInfer", inputs(ONE, ("INPUT1", "FP31", [4], FOUR)), "INVALID_ARGUMENT",
     ID + "inference input 'INPUT1' data-type is '<invalid>', but model 'add_sub' expects 'FP32'"),
    ("wrong shape", "ModelInfer", inputs(ONE, ("INPUT1", "FP32", [2, 2], FOUR)), "INVALID_ARGUMENT",
     ID + "unexpected shape for input 'INPUT1' for model 'add_sub'. Expected [4], got [2,2]. "),
    ("wrong size", "ModelInfer", inputs(ONE, ("INPUT1", "FP32", [4], FOUR[:8])), "INVALID_ARGUMENT",
     ID + "input byte size mismatch for input 'INPUT1' for model 'add_sub'. Expected 16, got 8"),
    ("contents and raw", "ModelInfer", contents(raw=FOUR, shape=[1, 4], fp32_contents=[1, 2, 3, 4]),
     "INVALID_ARGUMENT",
     "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'raw'"),
    ("contents in the wrong field", "ModelInfer", contents(shape=[1, 4], int_contents=[1, 2, 3, 4]),
     "INVALID_ARGUMENT",
     "unexpected explicit tensor data for input tensor 'INPUT0' for model 'raw' of type 'INT32', "
     "expected datatype 'FP32'"),
    ("FP16 in contents", "ModelInfer", contents("FP16", [1, 1], model="identity_fp16", fp32_contents=[1]),
     "INVALID_ARGUMENT",
     "unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity_fp16' of type 'FP32', "
     "expected datatype 'FP16'"),
    ("unexpected output", "ModelInfer",
     pb.ModelInferRequest(
         model_name="add_sub",
         inputs=add_sub().inputs,
         raw_input_contents=[FOUR, FOUR],
         outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="NOPE")],
     ), "INVALID_ARGUMENT", "unexpected inference output 'NOPE' for model 'add_sub'"),
    ("classification 0", "ModelInfer", output_parameter("classification", int64_param=0), "INVALID_ARGUMENT",
     "invalid value for 'classification' parameter, expected >= 0"),
    ("classification a string", "ModelInfer", output_parameter("classification", string_param="2"),
     "INVALID_ARGUMENT", "invalid value type for 'classification' parameter, expected int64_param"),
    ("region without a size", "ModelInfer", output_parameter("shared_memory_region", string_param="r"),
     "INVALID_ARGUMENT",
     "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'OUTPUT0'"),
    ("priority a string", "ModelInfer", parameter("priority", string_param="1"), "INVALID_ARGUMENT",
     "invalid value type for 'priority' parameter, expected int64_param or uint64_param."),
    ("timeout a string", "ModelInfer", parameter("timeout", string_param="1"), "INVALID_ARGUMENT",
     "invalid value type for 'timeout' parameter, expected int64_param."),
    ("uint64 parameter", "ModelInfer", parameter("mine", uint64_param=1), "INVALID_ARGUMENT",
     "invalid value type for 'mine' parameter, expected int64_param, bool_param, or string_param."),
    ("reserved parameter", "ModelInfer", parameter("triton_mine", int64_param=1), "INVALID_ARGUMENT",
     "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
     "'triton_' are allowed: triton_enable_empty_final_response"),
    ("load in control mode none", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="add_sub"),
     "UNAVAILABLE", "explicit model load / unload is not allowed if polling is enabled"),
    ("unload in control mode none", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="add_sub"),
     "UNAVAILABLE", "explicit model load / unload is not allowed if polling is enabled"),
    ("index of a repository", "RepositoryIndex", pb.RepositoryIndexRequest(repository_name="x"), "UNIMPLEMENTED",
     "'repository_name' specification is not supported"),
    ("load from a repository", "RepositoryModelLoad",
     pb.RepositoryModelLoadRequest(repository_name="x", model_name="add_sub"), "UNIMPLEMENTED",
     "'repository_name' specification is not supported"),
    ("status of an unknown region", "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="r"),
     "NOT_FOUND", "Unable to find system shared memory region: 'r'"),
    ("register what is not there", "SystemSharedMemoryRegister",
     pb.SystemSharedMemoryRegisterRequest(name="r", key="/halimede_no_such_region", byte_size=64), "INTERNAL",
     "Unable to open shared memory region: '/halimede_no_such_region'"),
    ("log format unknown", "LogSettings",
     pb.LogSettingsRequest(settings={"log_format": pb.LogSettingsRequest.SettingValue(string_param="nope")}),
     "INVALID_ARGUMENT", "invalid argument for log_format, got: nope"),
]  # fmt: skip


@pytest.mark.parametrize("method, request_, status, text", [pytest.param(*e[1:], id=e[0]) for e in ERRORS])
def test_error(grpc, method, request_, status, text):
    assert grpc.error(method, request_) == (status, text)


CONTENTS = [
    # datatype, field of the contents, values
    ("BOOL", "bool_contents", [True, False]),
    ("UINT8", "uint_contents", [0, 255]),
    ("UINT16", "uint_contents", [0, 65535]),
    ("UINT32", "uint_contents", [0, 2**32 - 1]),
    ("UINT64", "uint64_contents", [0, 2**64 - 1]),
    ("INT8", "int_contents", [-128, 127]),
    ("INT16", "int_contents", [-32768, 32767]),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
    ("FP32", "fp32_contents", [1.5, float("inf")]),
    ("FP64", "fp64_contents", [0.1, -1e300]),
]


@pytest.mark.parametrize("datatype, field, values", CONTENTS, ids=[c[0] for c in CONTENTS])
def test_typed_contents_are_answered_raw(grpc, datatype, field, values):
    request = contents(datatype, [1, 2], model=f"identity_{datatype.lower()}", **{field: values})
    reply = grpc.infer(request)
    kind = {"FP": "float", "IN": "int", "UI": "uint", "BO": "bool"}[datatype[:2]]
    bits = "" if kind == "bool" else datatype.lstrip("FPINTU")
    assert np.frombuffer(reply.raw_output_contents[0], kind + bits).tolist() == values
    assert not reply.outputs[0].HasField("contents")
    assert (reply.outputs[0].datatype, list(reply.outputs[0].shape)) == (datatype, [1, 2])


def test_bytes_contents(grpc):
    reply = grpc.infer(contents("BYTES", [1, 2], model="text", bytes_contents=[b"ab", b""]))
    assert reply.raw_output_contents[0] == b"\x02\0\0\0ab\0\0\0\0"


def test_reply_names_the_version_and_the_id(grpc):
    reply = grpc.infer(add_sub(id="e1"))
    assert (reply.model_name, reply.model_version, reply.id) == ("add_sub", "1", "e1")
    assert [o.name for o in reply.outputs] == ["OUTPUT0", "OUTPUT1"]


@pytest.mark.parametrize("value", [dict(int64_param=5), dict(bool_param=True), dict(string_param="x"),
                                   dict(double_param=1.5)], ids=str)  # fmt: skip
def test_custom_parameter_is_accepted(grpc, value):
    grpc.infer(parameter("mine", **value))


@pytest.mark.parametrize("value", [dict(int64_param=1), dict(uint64_param=1)], ids=str)
def test_priority_is_accepted(grpc, value):
    grpc.infer(parameter("priority", **value))


def test_raw_contents_beyond_the_inputs_are_ignored(grpc):
    request = add_sub()
    request.raw_input_contents.append(FOUR)
    assert len(grpc.infer(request).outputs) == 2


def test_requested_output_only(grpc):
    request = add_sub()
    request.outputs.add().name = "OUTPUT1"
    reply = grpc.infer(request)
    assert [o.name for o in reply.outputs] == ["OUTPUT1"]
    assert np.frombuffer(reply.raw_output_contents[0], np.float32).tolist() == [0, 0, 0, 0]


def test_classification(grpc):
    request = output_parameter("classification", int64_param=2)
    reply = grpc.infer(request)
    assert (reply.outputs[0].datatype, list(reply.outputs[0].shape)) == ("BYTES", [2])
    assert reply.raw_output_contents[0] == b"\x0a\0\0\x008.000000:3\x0a\0\0\x006.000000:2"


def test_health(grpc):
    assert grpc.stub.ServerLive(pb.ServerLiveRequest()).live
    assert grpc.stub.ServerReady(pb.ServerReadyRequest()).ready
    assert grpc.stub.ModelReady(pb.ModelReadyRequest(name="add_sub")).ready
    assert not grpc.stub.ModelReady(pb.ModelReadyRequest(name="nope")).ready


@pytest.mark.parametrize("service", [b"", b"\n\x09no.matter"])
def test_standard_health_service_ignores_the_name(grpc, service):
    check = grpc.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(service) == b"\x08\x01"


def test_server_metadata(grpc):
    reply = grpc.stub.ServerMetadata(pb.ServerMetadataRequest())
    assert (reply.name, reply.version) == ("triton", "2.51.0")
    assert list(reply.extensions) == [
        "classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy",
        "model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters",
        "statistics", "trace", "logging",
    ]  # fmt: skip


def test_message_of_20_mib(grpc):
    count = 5 * 2**20
    request = contents(shape=[1, count], raw=bytes(4 * count))
    assert len(grpc.infer(request).raw_output_contents[0]) == 4 * count


def test_unknown_method(grpc):
    call = grpc.channel.unary_unary("/inference.GRPCInferenceService/Nope")
    with pytest.raises(Exception, match="UNIMPLEMENTED"):
        call(b"")


PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"12345678"


def pings(address, count):
    """The frames that answer so many PINGs at once."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(PREFACE + PING * count)
        left = iter(range(count - 1))
        with connection.makefile("rb") as stream:
            return list(frames_until(stream, lambda f: f[0] == 7 or f[:2] == (6, 1) and next(left, None) is None))


def test_a_client_that_probes_too_often_is_sent_away(repository, serve):
    """Three PINGs at once are allowed: the first, and two strikes."""
    repository.add("add_sub", models.add_sub(TensorProto.FLOAT, [4]))
    server = serve(repository)
    assert len([frame for frame in pings(server.grpc_address, 3) if frame[:2] == (6, 1)]) == 3
    kind, _, payload = pings(server.grpc_address, 6)[-1]
    assert (kind, payload[4:8], payload[8:]) == (7, bytes([0, 0, 0, 11]), b"too_many_pings")
    patient = serve(repository, "--grpc-http2-max-ping-strikes=0")
    assert len([frame for frame in pings(patient.grpc_address, 20) if frame[:2] == (6, 1)]) == 20
    quick = ["--grpc-http2-min-recv-ping-interval-without-data=0", "--grpc-keepalive-permit-without-calls=true"]
    assert len([frame for frame in pings(serve(repository, *quick).grpc_address, 20) if frame[:2] == (6, 1)]) == 20
