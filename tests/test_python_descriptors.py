"""Memory that Python models see is files without names: how many a server and a process have open."""

import os
import queue
import resource
import subprocess

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support import models
from support.python_models import CPU, DECOUPLED, INTERPRETER, add, config
from support.server import Server
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="asks Linux")

BURST = 300

# Requests wait for each other, as in a queue of the model's own.
KEEPS = f"""
class TritonPythonModel:
    kept = []

    def execute(self, requests):
        self.kept += [(request.get_response_sender(), request) for request in requests]
        requests.clear()
        if len(self.kept) < {BURST}:
            return
        while self.kept:
            sender, request = self.kept.pop()
            tensor = pb_utils.Tensor("OUT", request.inputs()[0].as_numpy().copy())
            del request
            sender.send(pb_utils.InferenceResponse([tensor]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

LEAKS = """
import resource

class TritonPythonModel:
    def execute(self, requests):
        if not hasattr(self, "leaked"):
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
            self.leaked = []
            try:
                while True:
                    self.leaked.append(open(os.devnull))
            except OSError:
                pass
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""

# Answers with as many responses as it is told, each of as many elements.
STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count, size = request.inputs()[0].as_numpy()
            for number in range(int(count)):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(int(size), number, np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

# Reads such a stream, writes to each response, and tells how many came, and whether they are right, also when they are read again.
READS = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            inner = pb_utils.InferenceRequest(model_name="stream", requested_output_names=["OUT"], inputs=request.inputs())
            responses, numbers, errors = inner.exec(decoupled=True), [], 0
            time.sleep(0.2)
            for response in responses:
                errors += response.has_error()
                for tensor in response.output_tensors():
                    array = tensor.as_numpy()
                    numbers.append(array[-1])
                    array += 1
                del response
            again = [tensor.as_numpy()[0] - 1 for response in responses for tensor in response.output_tensors()]
            right = numbers == again == list(range(len(numbers)))
            answer = np.array([len(numbers), errors, right], np.float32)
            del responses
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]))
        return answers
"""

# Each request is answered after a moment by a coroutine of its own, so that all wait at a time.
SLOW = """
import asyncio

class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(1)
        for request in requests:
            tensor = pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())
            request.get_response_sender().send(
                pb_utils.InferenceResponse([tensor]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )
"""

HOLDS = """
class TritonPythonModel:
    held = []

    def execute(self, requests):
        self.held += [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))]) for _ in requests]
"""

# More files than before a server or a process has while it has nothing to do: little memory for what comes, and what was connected.
IDLE_FILES_MAX = 20


def limit_files(pid, count):
    _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, most))


def hosts(pid):
    """The processes of Python models."""
    return [int(number) for number in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()]


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def tensor(library, array):
    given = library.InferInput("IN", list(array.shape), "FP32")
    given.set_data_from_numpy(array)
    return given


def test_files_that_a_burst_needed_are_closed(tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "keeps", KEEPS, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU + DECOUPLED))
    with Server([repository.path], INTERPRETER) as server:
        before, answers = open_files(server.process.pid), queue.Queue()
        with grpcclient.InferenceServerClient(server.grpc_address) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for number in range(BURST):
                if number == BURST - 1:
                    # Or this tests nothing.
                    wait_until(lambda: open_files(server.process.pid) > before + BURST // 2, "requests that wait have files")
                client.async_stream_infer("keeps", [tensor(grpcclient, np.full(4, number, np.float32))])
            numbers = set()
            for _ in range(BURST):
                result, error = answers.get(timeout=60)
                assert error is None
                numbers.add(result.as_numpy("OUT")[0])
        assert len(numbers) == BURST
        wait_until(lambda: open_files(server.process.pid) < before + BURST // 2, "files are closed")


def test_a_process_that_can_open_no_more_files_costs_the_server_none(tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "leaks", LEAKS, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU))
    with Server([repository.path], INTERPRETER) as server:
        with httpclient.InferenceServerClient(server.http_address) as client:
            # The first one finds no file for its answer either.
            with pytest.raises(InferenceServerException, match="Too many open files"):
                client.infer("leaks", [tensor(httpclient, np.zeros(4, np.float32))])
            before, failed = open_files(server.process.pid), 0
            for _ in range(50):
                try:
                    client.infer("leaks", [tensor(httpclient, np.zeros(1 << 18, np.float32))])
                except InferenceServerException as error:
                    assert "Too many open files" in str(error)
                    failed += 1
            assert failed > 40, "it could open files, and this tests nothing"
            assert open_files(server.process.pid) < before + 10


def test_streams_of_other_models_cost_no_files(tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "stream", STREAM, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU + DECOUPLED))
    add(repository, "reads", READS, config({"IN": "FP32"}, {"OUT": "FP32"}))
    with Server([repository.path], INTERPRETER) as server, httpclient.InferenceServerClient(server.http_address) as client:

        def read(count, size):
            given = tensor(httpclient, np.array([count, size], np.float32))
            return client.infer("reads", [given]).as_numpy("OUT").tolist()

        assert read(1, 1) == [1, 0, 1]
        processes = [server.process.pid, *hosts(server.process.pid)]
        assert len(processes) == 3
        before = [open_files(pid) for pid in processes]
        for pid in processes:
            limit_files(pid, 256)
        # Up to 64 KiB comes in messages, of any length.
        for count, size in [(5000, 1), (300, 4000), (300, 1 << 14)]:
            assert read(count, size) == [count, 0, 1]
        # Of larger ones, each that is not read, or that is kept, is a file, and no longer.
        assert read(100, 1 << 15) == [100, 0, 1]
        for pid, files in zip(processes, before):
            wait_until(lambda: open_files(pid) <= files + IDLE_FILES_MAX, "files are closed though nothing comes")


def test_files_of_a_burst_are_closed_while_nothing_comes(tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "slow", SLOW, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU + DECOUPLED))
    with Server([repository.path], INTERPRETER) as server:
        [host] = hosts(server.process.pid)
        before, answers = {pid: open_files(pid) for pid in (server.process.pid, host)}, queue.Queue()
        with grpcclient.InferenceServerClient(server.grpc_address) as client:
            client.start_stream(lambda result, error: answers.put(error))
            for _ in range(BURST):
                client.async_stream_infer("slow", [tensor(grpcclient, np.zeros(4, np.float32))])
            wait_until(lambda: open_files(host) > before[host] + BURST // 2, "requests that wait have files")
            assert not any(answers.get(timeout=60) for _ in range(BURST))
        for pid, files in before.items():
            wait_until(lambda: open_files(pid) <= files + IDLE_FILES_MAX, "files are closed though nothing comes")


def test_files_that_are_free_are_closed_before_there_are_too_many(tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "stream", STREAM, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU + DECOUPLED))
    add(repository, "holds", HOLDS, config({"IN": "FP32"}, {"OUT": "FP32"}))
    with Server([repository.path], INTERPRETER) as server, httpclient.InferenceServerClient(server.http_address) as client:
        with grpcclient.InferenceServerClient(server.grpc_address) as other:
            answers = queue.Queue()
            other.start_stream(lambda result, error: answers.put(error))
            other.async_stream_infer("stream", [tensor(grpcclient, np.array([1, 1], np.float32))])
            assert answers.get(timeout=60) is None
            client.infer("holds", [tensor(httpclient, np.zeros(4, np.float32))])
            used = {int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd")}
            limit_files(server.process.pid, min(set(range(len(used) + 1)) - used))
            # There is no file for its input, but for the one that lies free at the other model.
            client.infer("holds", [tensor(httpclient, np.zeros(4, np.float32))])
            with pytest.raises(InferenceServerException, match="Too many open files"):
                client.infer("holds", [tensor(httpclient, np.zeros(4, np.float32))])
            limit_files(server.process.pid, 1024)
