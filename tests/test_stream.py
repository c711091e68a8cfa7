"""ModelStreamInfer: order, errors inside the stream, final responses."""

import time

import numpy as np
import pytest
import grpc as grpcio
from tritonclient.grpc import service_pb2 as pb

from support import models
from support.grpc import Grpc, add_sub, tensor


@pytest.fixture(scope="module")
def grpc(server):
    client = Grpc(server.grpc_address)
    yield client
    client.close()


def wrong(**fields):
    return pb.ModelInferRequest(model_name="nope", **fields)


def test_answers_keep_the_order_of_the_requests(grpc):
    requests = []
    for i in range(20):
        request = pb.ModelInferRequest(model_name="raw", id=str(i))
        tensor(request, "INPUT0", "FP32", [1, 1], np.float32(i).tobytes())
        requests.append(request)
    replies = list(grpc.stub.ModelStreamInfer(iter(requests), timeout=60))
    assert [r.infer_response.id for r in replies] == [str(i) for i in range(20)]
    values = [np.frombuffer(r.infer_response.raw_output_contents[0], np.float32)[0] for r in replies]
    assert values == list(range(20))


def test_an_error_leaves_the_stream_open(grpc):
    replies = list(grpc.stub.ModelStreamInfer(iter([wrong(id="a"), add_sub(id="b")]), timeout=60))
    assert replies[0].error_message == "Request for unknown model: 'nope' is not found"
    assert replies[0].infer_response.id == "a"
    assert replies[0].infer_response.model_name == ""
    assert replies[1].error_message == ""
    assert replies[1].infer_response.id == "b"


def test_final_response_parameter(grpc):
    (reply,) = grpc.stub.ModelStreamInfer(iter([add_sub()]), timeout=60)
    assert reply.infer_response.parameters["triton_final_response"].bool_param is True


def test_request_for_the_empty_final_response(grpc):
    request = add_sub()
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    (reply,) = grpc.stub.ModelStreamInfer(iter([request]), timeout=60)
    assert len(reply.infer_response.outputs) == 2
    assert reply.infer_response.parameters["triton_final_response"].bool_param is True


def failing():
    """A correct request that fails when the model runs."""
    request = pb.ModelInferRequest(model_name="pick")
    tensor(request, "INPUT0", "INT64", [2], np.array([0, 9], np.int64).tobytes())
    return request


def test_a_failing_model_leaves_the_stream_open(grpc):
    replies = list(grpc.stub.ModelStreamInfer(iter([failing(), add_sub()]), timeout=60))
    assert replies[0].error_message != ""
    assert replies[1].error_message == ""


def test_error_mode_ends_the_stream_with_the_status(grpc):
    metadata = [("triton_grpc_error", "true")]
    with pytest.raises(grpcio.RpcError) as error:
        list(grpc.stub.ModelStreamInfer(iter([failing()]), metadata=metadata, timeout=60))
    assert error.value.code().name != "OK"
    assert error.value.details() != ""


def test_empty_stream(grpc):
    assert list(grpc.stub.ModelStreamInfer(iter([]), timeout=60)) == []


def test_a_client_that_reads_nothing_is_not_read_from(repository, serve):
    repository.add("large", config=models.identity_config())
    client = Grpc(serve(repository).grpc_address)
    count, sent = 300, []

    def requests():
        for i in range(count):
            request = pb.ModelInferRequest(model_name="large", id=str(i))
            tensor(request, "INPUT0", "FP32", [1, 1 << 18], bytes(1 << 20))
            sent.append(i)
            yield request

    replies = client.stub.ModelStreamInfer(requests(), timeout=300)
    before = -1
    while len(sent) > before:
        before = len(sent)
        time.sleep(2)
    # 128 MiB wait in the server, and some in the connection.
    assert 100 < len(sent) < 200
    assert [reply.infer_response.id for reply in replies] == [str(i) for i in range(count)]
    client.close()
