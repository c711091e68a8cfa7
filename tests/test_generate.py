"""The generate extension: JSON members to tensors and parameters, one response or server-sent events."""

import http.client
import json
import sys

import pytest

from support import models
from support.server import Server

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            count = pb_utils.get_input_tensor_by_name(request, "N")
            count = 1 if count is None else int(count.as_numpy()[0])
            for i in range(count):
                if sender.is_cancelled():
                    pb_utils.Logger.log_info("the reader is gone")
                    break
                if i == 3:
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("three")))
                    continue
                places = pb_utils.Tensor("I", np.array([i, i][: 1 + i % 2], np.int32))
                parameters = {"given": request.parameters()}
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text), places], parameters=parameters))
            if count == -1:
                error = pb_utils.TritonError("bad", pb_utils.TritonError.NOT_FOUND)
                sender.send(pb_utils.InferenceResponse(error=error))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

CONFIG = """backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "N" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] }, { name: "I" data_type: TYPE_INT32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    repository = models.Repository(tmp_path_factory.mktemp("generate"))
    repository.add("text", config=CONFIG)
    (repository.path / "text" / "1" / "model.py").write_text(MODEL)
    once = 'backend: "identity"\nmax_batch_size: 4\n'
    for name, datatype, dims in (("F", "FP32", [2, -1]), ("B", "BOOL", [1]), ("S", "STRING", [-1])):
        once += models.io("input", f"INPUT{name}", datatype, dims, "optional: true")
        once += models.io("output", f"OUTPUT{name}", datatype, dims)
    repository.add("once", config=once)
    repository.add("half", config=models.identity_config("FP16"))
    with Server([repository.path], f"--backend-config=python,interpreter={sys.executable}") as server:
        yield server


def ask(server, path, body, headers=None):
    return server.http.post(f"/v2/models/{path}", body, headers)


def events(reply):
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    parts = reply.body.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part[6:]) for part in parts]


def test_parameters_reach_the_model_in_their_order(running):
    text = '{"zero":0,"foo":1,"TEXT":"hi","parameters":{"bar":"a \\"b\\""},"z":true,"a":0.5}'
    reply = ask(running, "text/generate", text)
    assert (reply.status, reply.json["given"]) == (200, '{"zero":0,"foo":1,"bar":"a \\"b\\"","z":true,"a":0.5}')


def answer(text, i=0, given="{}", **more):
    return {"I": i, "OUT": text, "given": given, "model_name": "text", "model_version": "1", **more}


def test_one_response(running):
    reply = ask(running, "text/generate", {"TEXT": "hi"})
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.body == b'{"I":0,"OUT":"hi","given":"{}","model_name":"text","model_version":"1"}'
    assert ask(running, "text/generate", {"TEXT": ["a", "b"], "N": 1}).json == answer(["a", "b"])
    assert ask(running, "text/generate", {"TEXT": [["a"], ["b"]]}).json == answer(["a", "b"])
    assert ask(running, "text/versions/1/generate", {"TEXT": "x"}).json == answer("x")
    assert ask(running, "text/generate", {"TEXT": []}).json == answer([])


def test_members_that_are_no_inputs_are_parameters(running):
    given = {"a": 1, "b": "q", "c": True, "d": 1.5}
    reply = ask(running, "text/generate", {"TEXT": "x", **given})
    assert reply.json == answer("x", 0, json.dumps(given, separators=(",", ":")))
    reply = ask(running, "text/generate", {"TEXT": "x", "parameters": {"q": 1, "N": 1}, "id": "7"})
    assert reply.json == answer("x", 0, '{"q":1,"id":"7"}', id="7")


def test_exactly_one_response_is_wanted(running):
    for count in (0, 2, 5):
        reply = ask(running, "text/generate", {"TEXT": "x", "N": count})
        assert reply.status == 200
        assert reply.error == (
            "generate expects model to produce exactly 1 response, use generate stream for model that generates "
            "various number of responses"
        )
    reply = ask(running, "text/generate", {"TEXT": "x", "N": -1})
    assert (reply.status, reply.error) == (404, "bad")


def test_events(running):
    got = events(ask(running, "text/generate_stream", {"TEXT": "x", "N": 5}))
    assert got == [answer("x"), answer("x", [1, 1]), answer("x", 2), {"error": "three"}, answer("x", 4)]
    assert events(ask(running, "text/generate_stream", {"TEXT": "x", "N": 0})) == []
    reply = ask(running, "text/generate_stream", {"TEXT": "x", "N": -1})
    assert (reply.status, events(reply)) == (404, [{"error": "bad"}])


def test_models_that_answer_once(running):
    reply = ask(running, "once/generate", {"INPUTF": [1, 2, 3.5, 4], "INPUTB": True, "INPUTS": ["p", "q"]}).json
    assert (reply["OUTPUTF"], reply["OUTPUTB"], reply["OUTPUTS"]) == ([1.0, 2.0, 3.5, 4.0], True, ["p", "q"])
    assert reply["param1"] == 42
    (event,) = events(ask(running, "once/generate_stream", {"INPUTB": [False]}))
    assert event["OUTPUTB"] is False


SHAPE = "The schema can not convert input 'INPUTF' to tensor with proper shape"
MISSING = "but missing required input(s) ['TEXT']"
NESTED = "Converting keyword: 'parameters': parameter 'q' has invalid type."


@pytest.mark.parametrize("mode", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    "model, body, status, text",
    [
        ("text", b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        ("text", b"nope", 500, "failed to parse the request JSON buffer: Invalid value. at 1"),
        ("text", [1], 500, "attempt to get members for non-object"),
        ("text", {}, 400, MISSING),
        ("text", {"TEXT": 5}, 500, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ("text", {"TEXT": "x", "N": [1, 2]}, 400, "The schema can not convert input 'N' to tensor with proper shape"),
        ("text", {"TEXT": "x", "e": None}, 400, "parameter 'e' has invalid type."),
        ("text", {"TEXT": "x", "parameters": 3}, 500, "Expected JSON object for keyword: 'parameters'"),
        ("text", {"TEXT": "x", "parameters": {"q": [1]}}, 400, NESTED),
        ("text", {"TEXT": "x", "id": 7}, 500, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ("once", {"INPUTF": [1, 2, 3]}, 400, SHAPE),
        ("half", {"INPUT0": [1]}, 400, "receiving FP16 data via JSON is not supported."),
        ("nothing", {}, 404, "Request for unknown model: 'nothing' is not found"),
        ("text/versions/9", {"TEXT": "x"}, 404, "Request for unknown model: 'text' version 9 is not found"),
    ],
)
def test_what_is_wrong_with_a_request(running, mode, model, body, status, text):
    reply = ask(running, f"{model}/{mode}", body)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
    assert text in reply.error


def test_compressed_bodies_are_refused(running):
    reply = ask(running, "text/generate", b"x", {"Content-Encoding": "gzip"})
    assert (reply.status, reply.error) == (400, "Unsupported content-encoding, only 'identity' is supported.")


def test_a_reader_that_goes_away_is_noticed(running):
    connection = http.client.HTTPConnection(running.http_address, timeout=30)
    connection.request("POST", "/v2/models/text/generate_stream", json.dumps({"TEXT": "x" * 1000, "N": 1_000_000}))
    reply = connection.getresponse()
    assert reply.read(20).startswith(b"data: {")
    reply.close()
    connection.close()
    running.wait_log("the reader is gone")
