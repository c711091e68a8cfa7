"""Ensembles with decoupled members and with sequences, through NVIDIA's client."""

import queue
import re
import time

import numpy as np
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import np_to_triton_dtype

from support import models
from support.grpc import Grpc
from support.models import info
from support.server import ROOT, Server

# Configurations of the documentation.
REPEAT = (ROOT / "docs" / "decoupled.md").read_text().split("```pbtxt\n")[1].split("```")[0]
STREAM = (ROOT / "docs" / "ensembles.md").read_text().split("```pbtxt\n")[1].split("```")[0]

SQUARE = (
    'backend: "square"\nmax_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n'
    + models.io("input", "IN", "INT32", [1])
    + models.io("output", "OUT", "INT32", [1])
)

SEQUENCE = """
    backend: "sequence"
    max_batch_size: 1
    instance_group { count: 2 kind: KIND_CPU }
    sequence_batching {
      control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
      control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
    }
""" + models.io("input", "INPUT", "INT32", [1]) + models.io("output", "OUTPUT", "INT32", [1])


def step(model, inputs, outputs):
    def maps(kind, pairs):
        return "".join(f'{kind} {{ key: "{key}" value: "{value}" }} ' for key, value in pairs.items())

    return f'step {{ model_name: "{model}" model_version: -1 {maps("input_map", inputs)}{maps("output_map", outputs)}}}\n'


def ensemble(inputs, outputs, *steps, more=""):
    return f'platform: "ensemble"\n{inputs}{outputs}ensemble_scheduling {{ {"".join(steps)} }}\n{more}'


def times(factor):
    return models.onnx_model(
        [helper.make_node("Mul", ["INPUT0", "factor"], ["OUTPUT0"])],
        [info("INPUT0", TensorProto.INT32, [1])],
        [info("OUTPUT0", TensorProto.INT32, [1])],
        [helper.make_tensor("factor", TensorProto.INT32, [1], [factor])],
    )


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    repository = models.Repository(tmp_path_factory.mktemp("ensembles"))
    repository.add("repeat_int32", config=REPEAT)
    repository.add("square_int32", config=SQUARE)
    repository.add("tenfold", times(10))
    repository.add("tenfold_stream", config=STREAM)
    repository.add("sequence_int32", config=SEQUENCE)
    into, out = models.io("input", "X", "INT32", [1]), models.io("output", "Y", "INT32", [1])
    behind = step("tenfold", {"INPUT0": "X"}, {"OUTPUT0": "t"}), step("sequence_int32", {"INPUT": "t"}, {"OUTPUT": "Y"})
    repository.add("sums", config=ensemble(into, out, *behind, more="max_batch_size: 1\n"))
    endless = step("square_int32", {"IN": "X"}, {"OUT": "t"}), step("tenfold", {"INPUT0": "t"}, {"OUTPUT0": "Y"})
    repository.add("endless", config=ensemble(into, out, *endless, "max_inflight_requests: 1"))
    with Server([repository.path]) as server:
        yield server


class Stream:
    """A stream and what came on it."""

    def __init__(self, server):
        self.client = triton.InferenceServerClient(server.grpc_address)
        self.answers = queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put((result, error)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream(cancel_requests=True)
        self.client.close()

    def send(self, model, tensors, **options):
        inputs = []
        for name, value in tensors.items():
            inputs.append(triton.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype)))
            inputs[-1].set_data_from_numpy(value)
        self.client.async_stream_infer(model, inputs, **options)

    def next(self):
        return self.answers.get(timeout=60)

    def until_final(self):
        """Responses with outputs up to the final flag, and the error where there is one."""
        results = []
        while True:
            result, error = self.next()
            if error is not None:
                return results, error
            if result.get_response().outputs:
                results.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return results, None


def repeat(values):
    values = np.array(values, np.int32)
    return {"VALUES": values, "DELAY": np.zeros(values.shape, np.uint32), "WAIT": np.zeros([1], np.uint32)}


def test_responses_of_a_decoupled_member_flow_through_the_next(running):
    with Stream(running) as stream:
        for values in ([4, -2, 7], list(range(100)), []):
            stream.send("tenfold_stream", repeat(values), request_id="r", enable_empty_final_response=True)
            results, error = stream.until_final()
            assert error is None
            assert {result.get_response().id for result in results} <= {"r"}
            # The next step has more than one instance.
            got = sorted(int(result.as_numpy("TENFOLD")[0]) for result in results)
            assert got == sorted(10 * value for value in values)


def test_an_ensemble_of_a_decoupled_member_says_so(running):
    config = running.http.get("/v2/models/tenfold_stream/config").json
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["ensemble_scheduling"]["max_inflight_requests"] == 4
    assert running.http.infer("tenfold_stream", {"inputs": []}).status == 501
    grpc = Grpc(running.grpc_address)
    code, _ = grpc.error("ModelInfer", pb.ModelInferRequest(model_name="tenfold_stream"))
    assert code == "UNIMPLEMENTED"
    grpc.close()


def test_an_error_of_a_step_ends_the_responses(running):
    tensors = repeat([1, 2]) | {"DELAY": np.zeros([3], np.uint32)}
    with Stream(running) as stream:
        stream.send("tenfold_stream", tensors)
        results, error = stream.until_final()
    assert results == []
    assert str(error) == "in ensemble 'tenfold_stream', expected IN and DELAY shape to match, got [2] and [3]"


def test_a_client_that_goes_away_ends_an_ensemble(running):
    with Stream(running) as stream:
        stream.send("endless", {"X": np.array([1_000_000], np.int32)})
        result, error = stream.next()
        assert error is None and result.as_numpy("Y")[0] == 10_000_000
    line = re.compile(r'^nv_inference_request_failure\{(?=.*"endless")(?=.*"CANCELED").*\} 1$', re.M)
    wait_until(lambda: line.search(running.metrics_text()), "the cancellation is counted")


def wait_until(is_so, what):
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_sequences_pass_to_the_member_that_has_them(running):
    with Stream(running) as stream:

        def add(sequence, value, **flags):
            tensors = {"X": np.array([[value]], np.int32)}
            stream.send("sums", tensors, sequence_id=sequence, **flags)
            result, error = stream.next()
            assert error is None
            parameters = result.get_response().parameters
            assert parameters["sequence_start"].bool_param == flags.get("sequence_start", False)
            return int(result.as_numpy("Y").ravel()[0])

        assert add(7, 1, sequence_start=True) == 10
        assert add("seven", 5, sequence_start=True) == 50
        assert add(7, 2) == 30
        assert add("seven", 1, sequence_end=True) == 60
        assert add(7, 3, sequence_end=True) == 60
        stream.send("sums", {"X": np.array([[1]], np.int32)}, sequence_id=9)
        result, error = stream.next()
        assert "must specify the START flag on the first request of the sequence" in str(error)


def test_a_cache_that_would_answer_wrongly_is_refused(repository, serve):
    repository.add("square_int32", config=SQUARE).add("sequence_int32", config=SEQUENCE)
    into, out = models.io("input", "X", "INT32", [1]), models.io("output", "Y", "INT32", [1])
    cached = "response_cache { enable: true }\n"
    repository.add("stream", config=ensemble(into, out, step("square_int32", {"IN": "X"}, {"OUT": "Y"}), more=cached))
    sums = step("sequence_int32", {"INPUT": "X"}, {"OUTPUT": "Y"})
    repository.add("sums", config=ensemble(into, out, sums, more=cached + "max_batch_size: 1\n"))
    flags = ("--model-control-mode=explicit", "--cache-config=local,size=1048576")
    http = serve(repository, *flags).http
    text = "Response Cache does not currently support model {} with {}. Please disable the response cache."
    for model, what in [
        ("stream", "'decoupled' transaction policy"),
        ("sums", "sequence batching scheduler (of its member sequence_int32)"),
    ]:
        assert text.format(model, what) in http.post(f"/v2/repository/models/{model}/load", {}).error
