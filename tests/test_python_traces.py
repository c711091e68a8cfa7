"""Traces that Python models see, and calls of other models in them."""

import json
import queue

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from support.python_models import CPU, DECOUPLED, INTERPRETER, add, config
from test_opentelemetry import SPAN, TRACE, TRACEPARENT, collector  # noqa: F401

TEXTS = config({"IN": "STRING"}, {"OUT": "STRING"})

# Answers with the context of its trace, after it called `inner` with the trace and without.
CALLS = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            trace = request.trace()
            assert isinstance(trace, pb_utils.InferenceTrace)
            for given in ({"trace": trace}, {}):
                called = pb_utils.InferenceRequest(
                    model_name="inner", requested_output_names=["OUT"], inputs=request.inputs(), **given
                )
                assert called.trace().get_context() == (trace.get_context() if given else None)
                assert not called.exec().has_error()
            tensor = pb_utils.Tensor("OUT", np.array([json.dumps(trace.get_context())], dtype=object))
            answers.append(pb_utils.InferenceResponse([tensor]))
        return answers
"""

INNER = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one.inputs()[0].as_numpy())]) for one in requests]
"""

# A decoupled model whose thread calls another model after `execute` returned.
LATER = """
class TritonPythonModel:
    def execute(self, requests):
        [threading.Thread(target=self.answer, args=(request,)).start() for request in requests]

    def answer(self, request):
        call = lambda: pb_utils.InferenceRequest(
            model_name="inner", requested_output_names=["OUT"], inputs=request.inputs(), trace=request.trace()
        ).exec()
        sender = request.get_response_sender()
        sender.send(call())
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        # Answered: its trace is over, and what is called now belongs to none.
        assert not call().has_error()
"""


@pytest.fixture
def models(repository):
    add(repository, "inner", INNER, TEXTS)
    add(repository, "calls", CALLS, TEXTS)
    add(repository, "later", LATER, config({"IN": "STRING"}, {"OUT": "STRING"}, extra=CPU + DECOUPLED))
    return repository


def sent(serve, models, collector, rate=1):  # noqa: F811
    flags = [f"rate={rate}", "level=TIMESTAMPS", "mode=opentelemetry", "opentelemetry,bsp_schedule_delay=10"]
    flags += [f"opentelemetry,{flag}" for flag in collector.flags["http"]]
    return serve(models, INTERPRETER, *(f"--trace-config={flag}" for flag in flags))


def request(server, headers=None):
    tensor = httpclient.InferInput("IN", [1], "BYTES")
    tensor.set_data_from_numpy(np.array(["text"], dtype=object))
    with httpclient.InferenceServerClient(server.http_address) as http:
        return json.loads(http.infer("calls", [tensor], headers=headers).as_numpy("OUT")[0])


def check(spans, context):
    """A request to `calls`, and the one to `inner` inside."""
    by_name = {span.name: span for span in spans if span.name != "compute"}
    assert sorted(by_name) == ["InferRequest", "calls", "inner"] and len(spans) == 5
    assert by_name["calls"].parent_span_id == by_name["InferRequest"].span_id
    assert by_name["inner"].parent_span_id == by_name["calls"].span_id
    computing = sorted(span.parent_span_id for span in spans if span.name == "compute")
    assert computing == sorted([by_name["calls"].span_id, by_name["inner"].span_id])
    # Another program's spans would lie in that of the model.
    trace, span = by_name["calls"].trace_id.hex(), by_name["calls"].span_id.hex()
    state = {"tracestate": by_name["calls"].trace_state} if by_name["calls"].trace_state else {}
    assert json.loads(context) == {"traceparent": f"00-{trace}-{span}-01", **state}
    return by_name


def test_spans_of_calls_lie_in_those_of_their_model(serve, models, collector):  # noqa: F811
    server = sent(serve, models, collector)
    context = request(server)
    check(collector.wait(5), context)
    collector.messages.clear()
    context = request(server, dict(TRACEPARENT))
    found = check(collector.wait(5), context)
    assert found["InferRequest"].trace_id.hex() == TRACE and found["InferRequest"].parent_span_id.hex() == SPAN
    collector.messages.clear()
    context = request(server, {**TRACEPARENT, "tracestate": "a=1,b=2"})
    assert {span.trace_state for span in check(collector.wait(5), context).values()} == {"a=1,b=2"}


def test_a_request_that_is_not_traced_has_no_context(serve, models, collector):  # noqa: F811
    server = sent(serve, models, collector, rate=0)
    assert request(server) is None
    context = request(server, dict(TRACEPARENT))
    check(collector.wait(5), context)


def events(path):
    return json.loads(path.read_text())


def test_files_tell_which_request_called(serve, models, tmp_path):
    path = tmp_path / "trace.json"
    flags = ("rate=1", "level=TIMESTAMPS", "mode=triton", f"triton,file={path}")
    server = serve(models, INTERPRETER, *(f"--trace-config={flag}" for flag in flags))
    assert request(server) is None
    assert server.stop() == 0
    begun = [event for event in events(path) if "model_name" in event]
    (outer,), (inner,) = ([one for one in begun if one["model_name"] == name] for name in ("calls", "inner"))
    assert "parent_id" not in outer and inner["parent_id"] == outer["id"]


def test_a_trace_lasts_as_long_as_its_request(serve, models, tmp_path):
    path = tmp_path / "trace.json"
    flags = ("rate=1", "level=TIMESTAMPS", "mode=triton", f"triton,file={path}")
    server = serve(models, INTERPRETER, *(f"--trace-config={flag}" for flag in flags))
    results = queue.Queue()
    tensor = grpcclient.InferInput("IN", [1], "BYTES")
    tensor.set_data_from_numpy(np.array(["text"], dtype=object))
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        client.async_stream_infer("later", [tensor])
        result, error = results.get(timeout=30)
        assert error is None and result.as_numpy("OUT")[0] == b"text"
        client.stop_stream()
    server.wait_answered("inner", 2)
    assert server.stop() == 0
    begun = [event for event in events(path) if "model_name" in event]
    assert [one["model_name"] for one in begun].count("inner") == 1
    (inner,) = (one for one in begun if one["model_name"] == "inner")
    assert inner["parent_id"] == next(one["id"] for one in begun if one["model_name"] == "later")
