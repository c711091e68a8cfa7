"""Models with any number of responses to a request: streams, final responses, refusals, statistics, cancellation."""

import queue
import time

import grpc as grpcio
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb

from support import models
from support.grpc import Grpc, add_sub, tensor
from support.server import ROOT, Server

# The configuration of the documentation.
REPEAT = (ROOT / "docs" / "decoupled.md").read_text().split("```pbtxt\n")[1].split("```")[0]

SQUARE = (
    'backend: "square"\nmax_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n'
    + models.io("input", "IN", "INT32", [1])
    + models.io("output", "OUT", "INT32", [1])
)


def parameter(name, value):
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    repository = models.Repository(tmp_path_factory.mktemp("decoupled"))
    repository.add("repeat_int32", config=REPEAT)
    repository.add("square_int32", config=SQUARE)
    repository.add("slow", config=SQUARE + parameter("CUSTOM_INFER_DELAY_NS", 20_000_000))
    failing = parameter("CUSTOM_FAIL_COUNT", 1) + parameter("CUSTOM_EMPTY_COUNT", 1)
    repository.add("failing", config=SQUARE + failing)
    repository.add("add_sub", models.add_sub(models.TensorProto.FLOAT, [4]))
    with Server([repository.path]) as server:
        yield server


@pytest.fixture
def grpc(running):
    client = Grpc(running.grpc_address)
    yield client
    client.close()


def repeat(values, delays=None, wait=0, **fields):
    request = pb.ModelInferRequest(model_name="repeat_int32", **fields)
    delays = [0] * len(values) if delays is None else delays
    tensor(request, "IN", "INT32", [len(values)], np.array(values, np.int32).tobytes())
    tensor(request, "DELAY", "UINT32", [len(delays)], np.array(delays, np.uint32).tobytes())
    tensor(request, "WAIT", "UINT32", [1], np.array([wait], np.uint32).tobytes())
    return request


def square(count, model="square_int32", **fields):
    request = pb.ModelInferRequest(model_name=model, **fields)
    tensor(request, "IN", "INT32", [1], np.array([count], np.int32).tobytes())
    return request


def with_end(request):
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


def stream(grpc, *requests, **options):
    return [reply for reply in grpc.stub.ModelStreamInfer(iter(requests), timeout=60, **options)]


def is_final(reply):
    return reply.infer_response.parameters["triton_final_response"].bool_param


def outputs(reply):
    response = reply.infer_response
    values = (int(np.frombuffer(raw, np.int32)[0]) for raw in response.raw_output_contents)
    return dict(zip((output.name for output in response.outputs), values))


def test_one_response_for_each_element(grpc):
    replies = stream(grpc, repeat([4, 2, 0, 1], id="r"))
    assert [outputs(reply) for reply in replies] == [
        {"OUT": 4, "IDX": 0}, {"OUT": 2, "IDX": 1}, {"OUT": 0, "IDX": 2}, {"OUT": 1, "IDX": 3}]  # fmt: skip
    assert {reply.infer_response.id for reply in replies} == {"r"}
    assert [is_final(reply) for reply in replies] == [False] * 4


def test_no_response_at_all(grpc):
    assert stream(grpc, repeat([])) == []


def test_the_empty_final_response_comes_where_it_is_asked_for(grpc):
    replies = stream(grpc, with_end(repeat([7], id="a")))
    assert [is_final(reply) for reply in replies] == [False, True]
    end = replies[1].infer_response
    assert (end.id, end.model_name, len(end.outputs)) == ("a", "repeat_int32", 0)
    (end,) = stream(grpc, with_end(repeat([])))
    assert is_final(end) and end.error_message == ""


def test_only_outputs_that_are_asked_for(grpc):
    request = repeat([5])
    request.outputs.add().name = "IDX"
    assert [outputs(reply) for reply in stream(grpc, request)] == [{"IDX": 0}]


def test_responses_do_not_wait_for_those_of_other_requests(grpc):
    replies = stream(grpc, repeat([1], delays=[600], id="slow"), add_sub(id="other"), repeat([2], id="quick"))
    assert [reply.infer_response.id for reply in replies][-1] == "slow"
    assert {reply.infer_response.id for reply in replies} == {"slow", "other", "quick"}


def test_errors_stand_between_responses(grpc):
    replies = stream(grpc, with_end(square(3, "failing", id="f")))
    assert [reply.error_message for reply in replies] == ["", "simulated failure", ""]
    assert [is_final(reply) for reply in replies] == [False, False, True]
    assert outputs(replies[0]) == {"OUT": 3}
    assert replies[1].infer_response.id == "f"


def test_error_mode_ends_the_stream_with_the_status(grpc):
    with pytest.raises(grpcio.RpcError) as error:
        stream(grpc, square(3, "failing"), metadata=[("triton_grpc_error", "true")])
    assert error.value.details() == "simulated failure"


def test_what_is_wrong_with_a_request_has_no_final_flag(grpc):
    (reply,) = stream(grpc, pb.ModelInferRequest(model_name="square_int32", id="x"))
    assert "expected 1 inputs but got 0 inputs" in reply.error_message
    assert reply.infer_response.id == "x"
    assert "triton_final_response" not in reply.infer_response.parameters


def test_refused_over_model_infer_and_http(running, grpc):
    text = "ModelInfer RPC doesn't support models with decoupled transaction policy"
    assert grpc.error("ModelInfer", repeat([1])) == ("UNIMPLEMENTED", text)
    reply = running.http.infer("repeat_int32", {"inputs": []})
    assert reply.status == 501
    assert reply.error == "HTTP end point doesn't support models with decoupled transaction policy"


def test_with_nvidias_client(running):
    answers = queue.Queue()
    with triton.InferenceServerClient(running.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        tensors = [("IN", np.array([9, 8], np.int32)), ("DELAY", np.array([0, 1], np.uint32)),
                   ("WAIT", np.array([0], np.uint32))]  # fmt: skip
        inputs = []
        for name, value in tensors:
            inputs.append(triton.InferInput(name, list(value.shape), "INT32" if name == "IN" else "UINT32"))
            inputs[-1].set_data_from_numpy(value)
        client.async_stream_infer("repeat_int32", inputs, enable_empty_final_response=True)
        got = [answers.get(timeout=30) for _ in range(3)]
        client.stop_stream()
    assert [error for _, error in got] == [None] * 3
    assert [int(result.as_numpy("OUT")[0]) for result, _ in got[:2]] == [9, 8]
    assert got[2][0].get_response().parameters["triton_final_response"].bool_param


def test_statistics_by_response(running, grpc):
    for count in (4, 6):
        stream(grpc, square(count))
    (stats,) = running.http.get("/v2/models/square_int32/stats").json["model_stats"]
    assert stats["response_stats"]["0"]["success"]["count"] == 2
    assert stats["response_stats"]["5"]["success"]["count"] == 1
    assert stats["response_stats"]["5"]["compute_output"]["count"] == 1
    assert stats["inference_stats"]["success"]["count"] == 2
    by_grpc = grpc.stub.ModelStatistics(pb.ModelStatisticsRequest(name="square_int32")).model_stats[0]
    assert by_grpc.response_stats["5"].success.ns == stats["response_stats"]["5"]["success"]["ns"]


def test_a_client_that_goes_away_ends_the_responses(running, grpc):
    call = grpc.stub.ModelStreamInfer(iter([square(100_000, "slow")]), timeout=60)
    next(call)
    call.cancel()

    def cancelled():
        (stats,) = running.http.get("/v2/models/slow/stats").json["model_stats"]
        return sum(one["cancel"]["count"] for one in stats["response_stats"].values())

    end = time.monotonic() + 20
    while not cancelled():
        assert time.monotonic() < end, "the model goes on"
        time.sleep(0.02)
    assert cancelled() == 1


def test_the_server_ends_after_the_last_response(tmp_path):
    repository = models.Repository(tmp_path / "models").add("repeat_int32", config=REPEAT)
    server = Server([repository.path])
    client = Grpc(server.grpc_address)
    call = client.stub.ModelStreamInfer(iter([repeat([1, 2], delays=[0, 1500])]), timeout=60)
    first = next(call)
    server.process.terminate()
    rest = list(call)
    assert [outputs(reply)["OUT"] for reply in [first, *rest]] == [1, 2]
    assert server.wait_exit() == 0
    client.close()
