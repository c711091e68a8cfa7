"""Parameters of requests, and headers that become some."""

import json

import numpy as np
import pytest
import tritonclient.grpc

from support.models import io

pytestmark = pytest.mark.halimede_only("the backend `parameters` is ours")

CONFIG = (
    'backend: "parameters"\n'
    + io("input", "INPUT0", "FP32", [1])
    + io("output", "key", "STRING", [-1])
    + io("output", "value", "STRING", [-1])
)
BODY = {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1]}]}
RESERVED = ["sequence_id", "priority", "timeout", "triton_final_response", "triton_anything"]


@pytest.fixture
def forwarding(repository, serve):
    """A server that forwards headers whose names match the pattern."""
    repository.add("parameters", None, CONFIG)
    return lambda pattern: serve(
        repository, f"--http-header-forward-pattern={pattern}", f"--grpc-header-forward-pattern={pattern}"
    )


def seen(reply):
    outputs = {output["name"]: output["data"] for output in reply.json["outputs"]}
    return dict(zip(outputs["key"], outputs["value"]))


def client_seen(client, module, headers):
    tensor = module.InferInput("INPUT0", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    result = client.infer("parameters", [tensor], headers=headers)
    return dict(zip(*(result.as_numpy(name).astype(str).tolist() for name in ("key", "value"))))


def test_parameters_reach_the_model(forwarding):
    server = forwarding("none_like_this")
    parameters = {"text": "a", "number": 2, "switch": True, "double": 123.123}
    reply = server.http.infer("parameters", {**BODY, "parameters": parameters}, {"text": "header"})
    assert seen(reply) == {"text": "a", "number": "2", "switch": "True", "double": "123.123"}


def test_headers_that_match_become_parameters(forwarding):
    server = forwarding("MY_HEADER.*")
    headers = {"my_header_1": "one", "my_header_2": 'a "quoted" \\ ', "other": "two"}
    expected = {"my_header_1": "one", "my_header_2": 'a "quoted" \\'}
    trimmed = {name: value.strip() for name, value in seen(server.http.infer("parameters", BODY, headers)).items()}
    assert trimmed == expected
    grpc = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    assert client_seen(grpc, tritonclient.grpc, {"my_header_1": "one", "other": "two"}) == {"my_header_1": "one"}
    grpc.close()


def test_a_pattern_may_ask_for_case(forwarding):
    server = forwarding("(?-i)MY_HEADER.*")
    grpc = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    assert client_seen(grpc, tritonclient.grpc, {"my_header_1": "one"}) == {}
    grpc.close()


def test_reserved_names_are_refused(forwarding):
    server = forwarding(".*_.*|priority|timeout")
    grpc = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    for name in RESERVED:
        expected = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
        reply = server.http.infer("parameters", json.dumps(BODY), {name: "x"})
        assert (reply.status, reply.error) == (400, expected)
        with pytest.raises(tritonclient.grpc.InferenceServerException, match="reserved for Triton usage"):
            client_seen(grpc, tritonclient.grpc, {name: "x"})
    grpc.close()
