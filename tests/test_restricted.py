"""Groups of calls that only those may use who send a header with a value."""

import contextlib
import queue

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from support import models
from support.server import Server

ROUTES = {
    "health": [("GET", "/v2/health/live"), ("GET", "/v2/health/ready"), ("GET", "/v2/models/add_sub/ready")],
    "metadata": [("GET", "/v2"), ("GET", "/v2/models/add_sub"), ("GET", "/v2/models/add_sub/versions/1")],
    "inference": [("POST", "/v2/models/add_sub/infer"), ("POST", "/v2/models/add_sub/generate"),
                  ("POST", "/v2/models/add_sub/generate_stream")],
    "shared-memory": [("GET", "/v2/systemsharedmemory/status"), ("POST", "/v2/systemsharedmemory/unregister"),
                      ("GET", "/v2/cudasharedmemory/status")],
    "model-config": [("GET", "/v2/models/add_sub/config")],
    "model-repository": [("POST", "/v2/repository/index"), ("POST", "/v2/repository/models/add_sub/load")],
    "statistics": [("GET", "/v2/models/stats"), ("GET", "/v2/models/add_sub/stats")],
    "trace": [("GET", "/v2/trace/setting"), ("POST", "/v2/models/add_sub/trace/setting")],
    "logging": [("GET", "/v2/logging"), ("POST", "/v2/logging")],
}  # fmt: skip


@pytest.fixture
def small(repository):
    return repository.add("add_sub", models.add_sub(1, [4]))


def inputs(module):
    tensors = [module.InferInput(name, [4], "FP32") for name in ("INPUT0", "INPUT1")]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones(4, np.float32))
    return tensors


@pytest.mark.parametrize("group", ROUTES)
def test_http_needs_the_header(small, serve, group):
    """The group needs its header, and no other group does."""
    server = serve(small, f"--http-restricted-api={group}:Some-Key=some=value", wait=False)
    # Health may be what is restricted.
    server.wait_ready("/v2" if group == "health" else "/v2/health/ready")
    for other, routes in ROUTES.items():
        for method, path in routes:
            reply = server.http.request(method, path)
            if other != group:
                assert reply.status != 403, path
                continue
            expected = "This API is restricted, expecting header 'Some-Key'"
            assert (reply.status, reply.error) == (403, expected), path
            assert server.http.request(method, path, None, {"Some-Key": "other"}).status == 403, path
            # A wrong method does not tell more.
            assert server.http.request("PUT", path).status == 403, path
            assert server.http.request(method, path, None, {"some-key": "some=value"}).status != 403, path


def test_several_groups_and_clients(small, serve):
    server = serve(
        small,
        "--http-restricted-api=model-repository:admin-key=admin-value",
        "--http-restricted-api=inference,metadata:infer-key=infer-value",
        "--grpc-restricted-protocol=model-repository:admin-key=admin-value",
        "--grpc-restricted-protocol=inference,health:infer-key=infer-value",
    )
    http = tritonclient.http.InferenceServerClient(server.http_address)
    right = {"infer-key": "infer-value"}
    with pytest.raises(InferenceServerException, match="This API is restricted, expecting header 'infer-key'"):
        http.infer("add_sub", inputs(tritonclient.http))
    assert http.infer("add_sub", inputs(tritonclient.http), headers=right).as_numpy("OUTPUT0")[0] == 2
    with pytest.raises(InferenceServerException, match="expecting header 'admin-key'"):
        http.unload_model("add_sub", headers=right)
    with pytest.raises(InferenceServerException, match="explicit model load / unload is not allowed"):
        http.unload_model("add_sub", headers={"admin-key": "admin-value"})
    http.close()

    grpc = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    right = {"triton-grpc-protocol-infer-key": "infer-value"}
    restricted = "This protocol is restricted, expecting header 'triton-grpc-protocol-infer-key'"
    for wrong in (None, {"triton-grpc-protocol-infer-key": "x"}, {"infer-key": "infer-value"}):
        for call in (
            lambda: grpc.is_server_live(headers=wrong),
            lambda: grpc.is_model_ready("add_sub", headers=wrong),
            lambda: grpc.infer("add_sub", inputs(tritonclient.grpc), headers=wrong),
        ):
            with pytest.raises(InferenceServerException, match=restricted) as refused:
                call()
            assert refused.value.status() == "StatusCode.UNAVAILABLE"
    assert grpc.is_server_live(headers=right)
    assert grpc.infer("add_sub", inputs(tritonclient.grpc), headers=right).as_numpy("OUTPUT0")[0] == 2
    assert grpc.get_server_metadata().name == "triton"
    with pytest.raises(InferenceServerException, match="expecting header 'triton-grpc-protocol-admin-key'"):
        grpc.get_model_repository_index(headers=right)
    grpc.close()


def stream_answer(server, headers):
    """The first thing that a stream hears: a result or an error."""
    heard = queue.Queue()
    client = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    client.start_stream(lambda result, error: heard.put(error or result), headers=headers)
    with contextlib.suppress(InferenceServerException):  # it may have heard already
        client.async_stream_infer("add_sub", inputs(tritonclient.grpc))
    answer = heard.get(timeout=60)
    client.stop_stream()
    client.close()
    return answer


def test_a_stream_is_refused_as_a_whole(small, serve):
    server = serve(small, "--grpc-restricted-protocol=inference:key=value")
    refused = stream_answer(server, None)
    assert "This protocol is restricted, expecting header 'triton-grpc-protocol-key'" in str(refused)
    allowed = stream_answer(server, {"triton-grpc-protocol-key": "value"})
    assert allowed.as_numpy("OUTPUT0")[0] == 2


WRONG = {
    "twice": (["model-repository,health:k1=v1", "metadata,health:k2=v2"],
              "restricted {} 'health' can not be specified in multiple config groups"),
    "unknown": (["model-reposit,health:k1=v1"], "unknown restricted {} 'model-reposit'"),
    "no value": (["health:k1"], "option format is '<config name>:<setting>=<value>'. Got health:k1"),
}  # fmt: skip


@pytest.mark.parametrize("flag, kind", [("http-restricted-api", "api"), ("grpc-restricted-protocol", "protocol")])
@pytest.mark.parametrize("texts, expected", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_restriction_ends_the_server(small, flag, kind, texts, expected):
    server = Server([small.path], *(f"--{flag}={text}" for text in texts), wait=False)
    assert server.wait_exit() == 1
    assert expected.format(kind) in server.log_text()


NEVER_SENT = {
    "name": ("--http-restricted-api=logging:my key=v", "its name has characters"),
    "blank": ("--http-restricted-api=logging:key=v ", "blanks around values are removed"),
    "binary": ("--grpc-restricted-protocol=logging:key-bin=v", "gRPC encodes the values"),
}


@pytest.mark.halimede_only("tritonserver starts, and nobody can use the calls")
@pytest.mark.parametrize("flag, reason", NEVER_SENT.values(), ids=NEVER_SENT.keys())
def test_a_header_that_nobody_can_send_is_refused(small, flag, reason):
    server = Server([small.path], flag, wait=False)
    assert server.wait_exit() == 1
    assert "no client can send the header" in server.log_text() and reason in server.log_text()
