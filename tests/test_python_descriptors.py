"""Memory that Python models see is files without names: how many a server and a process have open."""

import os
import queue

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support import models
from support.python_models import CPU, DECOUPLED, INTERPRETER, add, config, wait_until
from support.server import Server

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
