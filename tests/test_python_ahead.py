"""Requests of Python models that are sent to the process while it runs another."""

import json
import threading
import time

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support import models
from support.python_models import INTERPRETER, RUNS, add, config
from support.waiting import wait_until

# Tensors go back as they came, in the memory that they came in.
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""

# And in the memory that another model's answer came in.
RELAY = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            called = pb_utils.InferenceRequest(
                model_name="echo", requested_output_names=["X"], inputs=request.inputs())
            answers.append(pb_utils.InferenceResponse(called.exec().output_tensors()))
        return answers
"""
CLIENTS, REQUESTS = 6, 150


@pytest.mark.parametrize("model", ["echo", "relay"])
def test_answers_are_read_before_their_memory_is_used_again(tmp_path, serve, model):
    repository = models.Repository(tmp_path / "models")
    for name, code in {"echo": ECHO, "relay": RELAY}.items():
        add(repository, name, code, config({"X": "FP32"}, {"X": "FP32"}))
    server = serve(repository, INTERPRETER)
    wrong = []

    def ask(number):
        with httpclient.InferenceServerClient(server.http_address) as client:
            for place in range(REQUESTS):
                sent = np.full(1000, number * REQUESTS + place, np.float32)
                tensor = httpclient.InferInput("X", [1000], "FP32")
                tensor.set_data_from_numpy(sent)
                got = client.infer(model, [tensor]).as_numpy("X")
                if not np.array_equal(got, sent):
                    wrong.append((sent[0], got))

    threads = [threading.Thread(target=ask, args=[number]) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]


def text(content):
    tensor = httpclient.InferInput("IN", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([content.encode()], object))
    return [tensor]


@pytest.fixture
def running(tmp_path, serve):
    repository = models.Repository(tmp_path / "models")
    add(repository, "runs", RUNS, config({"IN": "STRING"}, {"OUT": "STRING"}))
    return serve(repository, INTERPRETER)


def until_there(path):
    """What a model runs that waits for a file, and says that it does."""
    begun = json.dumps(str(path) + ".begun")
    return f"import time; open({begun}, 'w').close()\nwhile not os.path.exists({json.dumps(str(path))}): time.sleep(0.005)\n"


def test_what_a_process_that_dies_did_not_begin_runs_in_the_next(tmp_path, running):
    go = tmp_path / "go"
    with httpclient.InferenceServerClient(running.http_address, concurrency=4) as client:
        dying = client.async_infer("runs", text(until_there(go) + "os._exit(3)"))
        wait_until((tmp_path / "go.begun").exists, "the model runs")
        others = [client.async_infer("runs", text(f"result = {number}")) for number in range(3)]
        running.wait_pending("runs", 3)
        go.touch()
        with pytest.raises(InferenceServerException, match="Stub process 'runs_0_0' is not healthy"):
            dying.get_result()
        # In any order: clients have connections of their own.
        assert [answer.get_result().as_numpy("OUT")[0] for answer in others] == [b"0", b"1", b"2"]
        running.wait_pending("runs", 0)


def test_time_behind_another_request_is_time_in_the_queue(tmp_path, running):
    go = tmp_path / "go"
    with httpclient.InferenceServerClient(running.http_address, concurrency=2) as client:
        first = client.async_infer("runs", text(until_there(go)))
        wait_until((tmp_path / "go.begun").exists, "the model runs")
        second = client.async_infer("runs", text("result = 1"))
        running.wait_pending("runs", 1)
        since = time.monotonic_ns()
        # Time that shows, wherever it is counted.
        wait_until(lambda: time.monotonic_ns() - since > 300e6, "time goes on")
        waited = time.monotonic_ns() - since
        go.touch()
        first.get_result()
        assert second.get_result().as_numpy("OUT")[0] == b"1"
        running.wait_answered("runs", 2)
        statistics = client.get_inference_statistics("runs")["model_stats"][0]["inference_stats"]
    queued = statistics["queue"]["ns"]
    computed = sum(statistics[f"compute_{part}"]["ns"] for part in ("input", "infer", "output"))
    # One waited so long, the other ran so long.
    assert queued >= waited and computed >= waited
    assert queued + computed <= statistics["success"]["ns"]
