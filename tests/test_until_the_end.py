"""What was begun is finished, or fails as it should: while models are replaced, unloaded, warmed up, or call themselves."""

import os
import queue
import signal
import subprocess
import threading
import time

import grpc
import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.grpc import service_pb2, service_pb2_grpc

from support import models
from support.python_models import CPU, DECOUPLED, INTERPRETER, add, config
from support.server import Server, binary
from support.waiting import wait_until

EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")

# A sender that a thread uses long after `execute` has returned.
LATE = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            threading.Thread(target=self.answer, args=[request.get_response_sender(), count]).start()

    def answer(self, sender, count):
        for number in range(count):
            time.sleep(0.05)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

# It calls itself from a thread, and the inner request asks whether anybody waits for it.
CALLS_ITSELF = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            threading.Thread(target=self.answer, args=[request.get_response_sender(), count], daemon=True).start()

    def answer(self, sender, count):
        out = [int(sender.is_cancelled())]
        if count:
            tensor = pb_utils.Tensor("IN", np.array([count - 1], np.int32))
            called = pb_utils.InferenceRequest(model_name=b"itself", requested_output_names=[b"OUT"], inputs=[tensor])
            for response in called.exec(decoupled=True):
                for tensor in response.output_tensors():
                    out += tensor.as_numpy().tolist()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(out, np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

SLOW = """
class TritonPythonModel:
    def execute(self, requests):
        open(pb_utils.get_model_dir() + "/begun", "w").close()
        time.sleep(1)
        tensors = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor + 1)]) for tensor in tensors]
"""

ENSEMBLE = """platform: "ensemble"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "first" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "between" } },
  { model_name: "second" model_version: -1 input_map { key: "IN" value: "between" } output_map { key: "OUT" value: "OUT" } }
] }
"""

WARM_UP = """model_warmup [ { name: "sample" batch_size: 1 inputs {
  key: "IN" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } } ]
"""

SENDS_AN_ERROR = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            error = pb_utils.InferenceResponse([], pb_utils.TritonError("not warm"))
            sender.send(error, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

# One array for all responses of a batch, as a model may have for speed.
REUSES = """
class TritonPythonModel:
    def initialize(self, args):
        self.texts, self.numbers = np.empty(1, np.object_), np.empty((1, 4), np.int32)

    def execute(self, requests):
        answers = []
        for request in requests:
            number = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().reshape(-1)[0])
            self.texts[0], self.numbers[...] = f"text {number}", number
            tensors = [pb_utils.Tensor("TEXT", self.texts.reshape(1, 1)), pb_utils.Tensor("OUT", self.numbers[:, ::2])]
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers
"""

# What cannot be told is found out when it is sent.
FAILS_TO_SEND = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, last = request.get_response_sender(), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            error = pb_utils.TritonError("text")
            error._message = object()
            try:
                sender.send(pb_utils.InferenceResponse([], error), last)
            except TypeError:
                sender.send(pb_utils.InferenceResponse([], pb_utils.TritonError("told")), last)
"""

WHOLE = {"IN": "INT32"}, {"OUT": "INT32"}


def numbers(*values):
    tensor = httpclient.InferInput("IN", [len(values)], "INT32")
    tensor.set_data_from_numpy(np.array(values, np.int32))
    return tensor


def wait_begun(repository, model):
    wait_until((repository.path / model / "1" / "begun").exists, f"{model} runs")


class Stream:
    """The responses to one request."""

    def __init__(self, server, model, value):
        self.answers = queue.Queue()
        self.client = grpcclient.InferenceServerClient(server.grpc_address)
        self.client.start_stream(lambda result, error: self.answers.put((result, error)))
        tensor = grpcclient.InferInput("IN", [1], "INT32")
        tensor.set_data_from_numpy(np.array([value], np.int32))
        self.client.async_stream_infer(model, [tensor], enable_empty_final_response=True)

    def next(self):
        """An output; None at the end."""
        result, error = self.answers.get(timeout=60)
        assert error is None, error
        output = result.as_numpy("OUT")
        return None if output is None else output.tolist()

    def rest(self):
        found = list(iter(self.next, None))
        self.client.stop_stream()
        self.client.close()
        return found


@pytest.mark.parametrize("reload", [False, True], ids=["unload", "reload"])
def test_responses_that_come_after_execute_are_awaited(tmp_path, serve, reload):
    repository = models.Repository(tmp_path / "models")
    add(repository, "late", LATE, config(*WHOLE, extra=CPU + DECOUPLED))
    server = serve(repository, INTERPRETER, *EXPLICIT)
    stream = Stream(server, "late", 20)
    assert stream.next() == [0]
    with httpclient.InferenceServerClient(server.http_address) as client:
        if reload:
            (repository.path / "late" / "1" / "more.txt").write_text("changed")
            client.load_model("late")
        else:
            client.unload_model("late")
        assert stream.rest() == [[number] for number in range(1, 20)]
        if reload:
            assert Stream(server, "late", 2).rest() == [[0], [1]]
        else:
            wait_until(lambda: client.get_model_repository_index()[0]["state"] == "UNAVAILABLE", "it is unloaded")


def test_a_model_that_calls_itself_may_ask_whether_it_is_cancelled(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    add(repository, "itself", CALLS_ITSELF, config(*WHOLE, extra=CPU + DECOUPLED))
    server = serve(repository, INTERPRETER)
    assert Stream(server, "itself", 3).rest() == [[0, 0, 0, 0]]
    assert server.http.get("/v2/models/itself/ready").status == 200


def test_members_that_are_unloaded_finish_the_requests_of_their_ensemble(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    add(repository, "first", SLOW, config(*WHOLE))
    add(repository, "second", SLOW, config(*WHOLE))
    repository.add("both", config=ENSEMBLE)
    (repository.path / "both" / "1").mkdir(parents=True, exist_ok=True)
    server = serve(repository, INTERPRETER, *EXPLICIT)
    with httpclient.InferenceServerClient(server.http_address, concurrency=2) as client:
        waiting = client.async_infer("both", [numbers(1, 2)])
        wait_begun(repository, "first")
        client.unload_model("both", unload_dependents=True)
        assert waiting.get_result().as_numpy("OUT").tolist() == [3, 4]


def test_a_server_that_ends_waits_for_a_model_that_was_replaced(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    add(repository, "slow", SLOW.replace("sleep(1)", "sleep(8)"), config(*WHOLE))
    server = serve(repository, INTERPRETER, *EXPLICIT)
    got = []

    def ask():
        with httpclient.InferenceServerClient(server.http_address, network_timeout=60) as client:
            got.append(client.infer("slow", [numbers(1)]).as_numpy("OUT").tolist())

    thread = threading.Thread(target=ask)
    thread.start()
    wait_begun(repository, "slow")
    (repository.path / "slow" / "1" / "more.txt").write_text("changed")
    with httpclient.InferenceServerClient(server.http_address, network_timeout=60) as client:
        client.load_model("slow")
    server.process.send_signal(signal.SIGTERM)
    thread.join(60)
    assert got == [[2]]
    assert server.wait_exit() == 0


def test_a_warm_up_that_is_answered_with_an_error_fails_the_load(tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "cold", SENDS_AN_ERROR, config(*WHOLE, extra=CPU + DECOUPLED + WARM_UP))
    server = Server([repository.path], INTERPRETER, wait=False)
    assert server.wait_exit() == 1
    assert "failed to run warmup sample 'sample': not warm" in server.log_text()


def test_a_warm_up_has_a_bound(tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "hot", SENDS_AN_ERROR, config(*WHOLE, extra=CPU + WARM_UP.replace("batch_size: 1", "batch_size: 4000000000")))
    server = Server([repository.path], INTERPRETER, wait=False)
    assert server.wait_exit() == 1
    assert "'sample' of model 'hot' has a batch_size of 4000000000; 65536 requests run together at most" in server.log_text()


SLOW_TO_LOAD = """
class TritonPythonModel:
    def initialize(self, args):
        time.sleep(1)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.int32))]) for _ in requests]
"""

GENERATES = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(40):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

PASSES_ON = """
class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one)]) for one in given]
"""

LIMITED = """platform: "ensemble"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
ensemble_scheduling { max_inflight_requests: 2 step [
  { model_name: "generates" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "between" } },
  { model_name: "passes_on" model_version: -1 input_map { key: "IN" value: "between" } output_map { key: "OUT" value: "OUT" } }
] }
"""


def test_others_go_on_beside_very_many_loads(tmp_path, serve):
    """More than an event loop has threads for work that takes long; a step that waits for another one needs one of them."""
    repository = models.Repository(tmp_path / "models")
    add(repository, "slow", SLOW_TO_LOAD, config(*WHOLE, extra=CPU))
    add(repository, "generates", GENERATES, config(*WHOLE, extra=CPU + DECOUPLED))
    add(repository, "passes_on", PASSES_ON, config(*WHOLE, extra=CPU))
    repository.add("limited", None, LIMITED)
    flags = ["--model-control-mode=explicit", "--load-model=limited", "--http-thread-count=1"]
    server = serve(repository, INTERPRETER, *flags)
    loads = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(server.grpc_address))
    loading = [loads.RepositoryModelLoad.future(service_pb2.RepositoryModelLoadRequest(model_name="slow")) for _ in range(600)]
    time.sleep(0.5)
    answers = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        given = grpcclient.InferInput("IN", [1], "INT32")
        given.set_data_from_numpy(np.zeros(1, np.int32))
        client.async_stream_infer("limited", [given])
        seen = []
        while len(seen) < 40:
            result, error = answers.get(timeout=20)
            assert error is None
            if (number := result.as_numpy("OUT")) is not None:
                seen += number.tolist()
    assert seen == list(range(40))
    assert server.http.get("/v2/health/live").status == 200
    assert [load.exception(60) for load in loading] == [None] * 600


def test_tensors_are_what_they_were_when_they_were_made(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    batching = "dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: [ 4 ] }\n"
    outputs = {"TEXT": "STRING", "OUT": "INT32"}
    add(repository, "reuses", REUSES, config({"IN": "INT32"}, outputs, batch=4, extra=CPU + batching))
    server = serve(repository, INTERPRETER)
    with httpclient.InferenceServerClient(server.http_address, concurrency=4) as client:
        waiting = []
        for number in range(4):
            tensor = httpclient.InferInput("IN", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[number]], np.int32))
            waiting.append(client.async_infer("reuses", [tensor]))
        for number, answer in enumerate(waiting):
            result = answer.get_result()
            assert result.as_numpy("TEXT").tolist() == [[f"text {number}".encode()]]
            assert result.as_numpy("OUT").tolist() == [[number, number]]


def test_a_response_that_cannot_be_sent_leaves_its_sender_open(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    add(repository, "bad", FAILS_TO_SEND, config(*WHOLE, extra=CPU + DECOUPLED))
    server = serve(repository, INTERPRETER)
    stream = Stream(server, "bad", 1)
    assert "told" in str(stream.answers.get(timeout=30)[1])
    stream.client.stop_stream()


def test_a_signal_while_models_are_loaded_ends_the_server(tmp_path):
    repository = models.Repository(tmp_path / "models")
    begins = '        open(pb_utils.get_model_dir() + "/begun", "w").close()\n'
    loads_long = SLOW + "\n    def initialize(self, args):\n" + begins + "        time.sleep(600)\n"
    add(repository, "long", loads_long, config(*WHOLE))
    server = Server([repository.path], INTERPRETER, wait=False)
    wait_begun(repository, "long")
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    assert "Exiting before all models are loaded" in server.log_text()


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["explain", "MODEL"]], ids=" ".join)
def test_what_nobody_reads_ends_quietly(tmp_path, arguments):
    """As `halimede doctor | head` does once `head` has ended."""
    if "MODEL" in arguments:
        onnx.save(models.add_sub(onnx.TensorProto.FLOAT, [4]), tmp_path / "model.onnx")
        arguments = ["explain", str(tmp_path / "model.onnx")]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([binary(), *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert done.returncode == -signal.SIGPIPE and "panicked" not in done.stderr, done.stderr


def test_very_many_inputs_are_refused_at_once(serve, tmp_path):
    repository = models.Repository(tmp_path / "models")
    repository.add("identity", config=models.identity_config())
    server = serve(repository)
    one = '{"name":"I%d","shape":[1],"datatype":"FP32","data":[0]}'
    body = '{"inputs":[%s]}' % ",".join(one % number for number in range(60_000))
    begin = time.monotonic()
    answer = server.http.post("/v2/models/identity/infer", body.encode())
    # Comparing each with each would take minutes.
    assert answer.status == 400 and time.monotonic() - begin < 30


def test_a_connection_carries_many_calls(serve, tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "late", LATE, config(*WHOLE, extra=CPU + DECOUPLED))
    server = serve(repository, INTERPRETER)
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        stub, forever = client._client_stub, threading.Event()

        def requests():
            forever.wait(60)
            yield service_pb2.ModelInferRequest()

        streams = [stub.ModelStreamInfer(requests()) for _ in range(210)]
        time.sleep(1)
        assert client.is_server_live(client_timeout=20)
        forever.set()
        for stream in streams:
            stream.cancel()
