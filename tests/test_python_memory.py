"""What a Python model does not finish, or not as it should, costs no memory: answers that nobody takes, responses that are
not sent, messages that are too long."""

import concurrent.futures
import os

import numpy as np
import pytest
import tritonclient.http as httpclient

from support import models
from support.python_models import CPU, DECOUPLED, INTERPRETER, RUNS, add, ask, config

MANY = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(8):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1 << 18, np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

# The last response of a batch is longer than a message may be.
TOO_LONG = """
class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.Tensor("OUT", np.zeros(1 << 18, np.float32))
        answers = [pb_utils.InferenceResponse([tensor]) for _ in requests]
        text = "x" * (int(pb_utils.get_input_tensor_by_name(requests[-1], "IN").as_numpy().ravel()[0]) << 20)
        answers[-1] = pb_utils.InferenceResponse([tensor], parameters={"text": text, "pid": os.getpid()})
        return answers
"""

# Answers each row by its sender with 1 MiB, the first elements of which tell of the batch and of the process.
ROWS = """
class TritonPythonModel:
    def execute(self, requests):
        # A row without a sequence has the identifier 0.
        cancelled = [request.is_cancelled() for request in requests if request.correlation_id() == 0]
        for request in requests:
            answer = np.zeros((1, 1 << 18), np.float32)
            answer[0, :4] = len(requests), len(cancelled), sum(cancelled), os.getpid()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

# Answers with a copy of the first tensor that it got.
COPIES = """
import copy


class TritonPythonModel:
    def initialize(self, args):
        self.first = None

    def execute(self, requests):
        self.first = self.first or copy.deepcopy(requests[0].inputs()[0])
        return [pb_utils.InferenceResponse([self.first]) for _ in requests]
"""

# Answers with views of its input, in memory that has not been copied; tells how many segments it has for outputs.
VIEWS = """
from halimede_host.channel import server

VIEWS = {"all": lambda x: x, "grid": lambda x: x.reshape(2, -1), "rest": lambda x: x[1000:], "half": lambda x: x[::2],
         "twice": lambda x: np.multiply(x, 2, out=x)}


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            view = VIEWS[json.loads(request.parameters())["view"]](request.inputs()[0].as_numpy())
            # The ones for outputs: of those for inputs there are two where the next request comes before this one's was given back.
            count = len(server().output_segments)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", view)], parameters={"segments": count}))
        return answers
"""

# Answers with a view of its input, which it keeps, and writes to when the next request comes.
OVERWRITES = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = np.zeros(1)

    def execute(self, requests):
        self.kept[:] = -1
        given = requests[0].inputs()[0]
        self.kept = given.as_numpy()[1:] if given.name() == "IN" else given.as_numpy()
        time.sleep(0.002)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.kept) if given.name() == "IN" else given])]
"""

# Mappings of shared memory of a process.
COUNT = """
result = sum("/dev/shm/hm" in line for line in open("/proc/self/maps"))
"""

CALLS = """
def call(take):
    tensor = pb_utils.Tensor("IN", np.zeros(1, np.float32))
    request = pb_utils.InferenceRequest(model_name="many", requested_output_names=["OUT"], inputs=[tensor])
    responses = request.exec(decoupled=True)
    for _, response in zip(range(take), responses):
        # The last one says nothing but that it is.
        [tensor.as_numpy() for tensor in response.output_tensors()]
"""


def mappings(pid):
    with open(f"/proc/{pid}/maps") as lines:
        return sum("/dev/shm/hm" in line for line in lines)


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="mappings are counted in /proc")
def test_answers_that_nobody_takes_are_given_back(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    add(repository, "many", MANY, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU + DECOUPLED))
    add(repository, "runs", RUNS, config({"IN": "STRING"}, {"OUT": "STRING"}))
    server = serve(repository, INTERPRETER)
    with httpclient.InferenceServerClient(server.http_address, network_timeout=60) as client:
        assert ask(client, "runs", CALLS) == b"nothing"
        for take in (0, 1, 3, 8, 9):
            assert ask(client, "runs", f"for _ in range(20): call({take})") == b"nothing"
        # Eight answers at a time, twenty times, of which most were left.
        assert int(ask(client, "runs", COUNT)) < 40


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="mappings are counted in /proc")
def test_a_response_that_is_too_long_is_an_error_and_costs_nothing(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    add(repository, "long", TOO_LONG, config({"IN": "INT32"}, {"OUT": "FP32"}))
    server = serve(repository, INTERPRETER)

    def infer(client, megabytes):
        tensor = httpclient.InferInput("IN", [1], "INT32")
        tensor.set_data_from_numpy(np.array([megabytes], np.int32))
        return client.infer("long", [tensor]).get_response()["parameters"]["pid"]

    with httpclient.InferenceServerClient(server.http_address, network_timeout=60) as client:
        pid = infer(client, 0)
        before = mappings(pid)
        for _ in range(10):
            with pytest.raises(httpclient.InferenceServerException, match="longer than the 67108864 that the server reads"):
                infer(client, 65)
        # The same process, and no more memory than a request takes.
        assert infer(client, 0) == pid
        assert mappings(pid) <= before + 1


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="mappings are counted in /proc")
def test_what_stands_in_for_a_request_is_answered_as_one_and_costs_nothing(tmp_path, serve):
    signal = "int32_false_true: [ 0, 1 ]"
    control = f'control_input {{ name: "READY" control {{ kind: CONTROL_SEQUENCE_READY {signal} }} }}'
    repository = models.Repository(tmp_path / "models")
    sequences = CPU + f"sequence_batching {{ {control} }}"
    add(repository, "rows", ROWS, config({"IN": "FP32"}, {"OUT": "FP32"}, batch=2, extra=sequences))
    server = serve(repository, INTERPRETER)
    given = httpclient.InferInput("IN", [1, 1], "FP32")
    given.set_data_from_numpy(np.zeros((1, 1), np.float32))
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:

        def told(sequence, start=False):
            answer = client.infer("rows", [given], sequence_id=sequence, sequence_start=start).as_numpy("OUT")[0]
            return answer[:3].tolist(), int(answer[3])

        assert told(1, start=True)[0] == [1, 0, 0]
        # The first row has no request, and its stand-in no client that could have gone.
        assert told(2, start=True)[0] == [2, 1, 0]
        _, pid = told(2)
        before = mappings(pid)
        for _ in range(30):
            assert told(2) == ([2, 1, 0], pid)
        assert mappings(pid) <= before + 2


def test_views_of_inputs_are_answers_without_copies(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    add(repository, "views", VIEWS, config({"IN": "FP32"}, {"OUT": "FP32"}))
    server = serve(repository, INTERPRETER)
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:

        def told(view, size):
            x = np.arange(size, dtype=np.float32)
            given = httpclient.InferInput("IN", [size], "FP32")
            given.set_data_from_numpy(x)
            answer = client.infer("views", [given], parameters={"view": view})
            return x, answer.as_numpy("OUT"), answer.get_response()["parameters"]["segments"]

        expected = {"all": lambda x: x, "grid": lambda x: x.reshape(2, -1), "rest": lambda x: x[1000:], "twice": lambda x: 2 * x}
        for _ in range(3):
            for view, function in expected.items():
                x, answer, segments = told(view, 1 << 17)
                np.testing.assert_array_equal(answer, function(x))
                assert segments == 0, view
        # What lies scattered is copied into one for outputs, and so is what is short.
        for view, size in [("half", 1 << 17), ("all", 16)]:
            x, answer, _ = told(view, size)
            np.testing.assert_array_equal(answer, x[::2] if view == "half" else x)
            assert told(view, size)[2] == 1


@pytest.mark.parametrize("size", [250, 65_000, 1 << 17, 1 << 18, 1 << 20])
@pytest.mark.parametrize("name", ["IN", "SAME"])
def test_what_a_model_writes_later_is_not_in_its_answers(tmp_path, serve, name, size):
    """Views of an input, and an input that is answered as it came."""
    out = "OUT" if name == "IN" else name
    repository = models.Repository(tmp_path / "models")
    add(repository, "overwrites", OVERWRITES, config({name: "FP32"}, {out: "FP32"}))
    server = serve(repository, INTERPRETER)

    def wrong(number):
        with httpclient.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
            given = httpclient.InferInput(name, [size], "FP32")
            given.set_data_from_numpy(np.full(size, number, np.float32))
            answers = [client.infer("overwrites", [given]).as_numpy(out) for _ in range(20)]
        return sum(bool((answer != number).any()) for answer in answers)

    # Several at once: the next request lies with the model already.
    with concurrent.futures.ThreadPoolExecutor(4) as clients:
        assert list(clients.map(wrong, range(1, 5))) == [0, 0, 0, 0]


def test_a_copy_of_a_tensor_does_not_lie_where_the_tensor_lay(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    add(repository, "copies", COPIES, config({"X": "FP32"}, {"X": "FP32"}))
    server = serve(repository, INTERPRETER)
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        for value in range(4):
            given = httpclient.InferInput("X", [3], "FP32")
            given.set_data_from_numpy(np.full(3, value, np.float32))
            assert client.infer("copies", [given]).as_numpy("X").tolist() == [0, 0, 0]
