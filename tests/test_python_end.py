"""What becomes of the processes and the memory of Python models when a server ends, in whatever way."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest
import tritonclient.http as httpclient

from support import models
from support.python_models import CPU, DECOUPLED, INTERPRETER, add, config
from support.server import Server
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="asks Linux")

WRITES_PID = """
        with open(pb_utils.get_model_dir() + "/pid", "w") as file:
            file.write(str(os.getpid()))
"""

FINALIZES = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]

    def finalize(self):
        print("finalized", flush=True)
"""


def shared_memory_of(server):
    """Names of a server's shared memory, which the system shows as files."""
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"hm{server.process.pid:x}-")]


def is_running(pid):
    """Whether a process is there, and not only its remains that nobody asked for."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pid_in(repository, model):
    file = repository.path / model / "1" / "pid"
    wait_until(lambda: file.exists() and file.read_text(), "the model runs")
    return int(file.read_text())


@contextlib.contextmanager
def asking(server, model, size=1, count=1):
    """While as many requests of so many elements are asked that nobody answers."""

    def ask():
        tensor = httpclient.InferInput("IN", [size], "FP32")
        tensor.set_data_from_numpy(np.zeros(size, np.float32))
        with httpclient.InferenceServerClient(server.http_address, network_timeout=60) as http:
            with contextlib.suppress(Exception):
                http.infer(model, [tensor])

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def kill(server):
    """Ends a server at once, if it is still there."""
    server.process.kill()
    server.process.wait()


MANY = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(20):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1 << 20, np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

DOES_NOT_READ = f"""
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.Tensor("IN", np.zeros(1, np.float32))]
        request = pb_utils.InferenceRequest(model_name="many", requested_output_names=["OUT"], inputs=inputs)
        answers = request.exec(decoupled=True)
        {WRITES_PID}
        # The rest lies in memory of which this process has not read yet.
        time.sleep(600)
"""


def test_a_server_that_is_killed_leaves_no_memory_that_was_not_read(tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "many", MANY, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU + DECOUPLED))
    add(repository, "lazy", DOES_NOT_READ, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU))
    server = Server([repository.path], INTERPRETER)
    # Inputs of the second one lie ahead in the socket.
    with asking(server, "lazy", size=1000, count=2):
        try:
            pid = pid_in(repository, "lazy")
            server.wait_answered("many", 1)
            assert not shared_memory_of(server)
        finally:
            kill(server)
    wait_until(lambda: not is_running(pid), "the model's process has ended")
    assert not shared_memory_of(server)


def test_models_finalize_where_another_one_does_not_load(tmp_path):
    repository = models.Repository(tmp_path / "models")
    bad = "import time\ntime.sleep(1)\nraise RuntimeError('does not load')\n"
    for name, code in {"good": FINALIZES, "fine": FINALIZES, "bad": bad}.items():
        add(repository, name, code, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU))
    for _ in range(3):
        server = Server([repository.path], INTERPRETER, wait=False)
        assert server.wait_exit() == 1
        log = server.log_text()
        assert log.count("finalized") == 2 and "does not load" in log, log
        assert "ended: signal" not in log and "cannot start" not in log, log


def test_a_start_that_fails_waits_for_no_model_that_does_not_end(tmp_path):
    repository = models.Repository(tmp_path / "models")
    endless = f"""
class TritonPythonModel:
    def initialize(self, args):
        {WRITES_PID}

    def finalize(self):
        time.sleep(600)
"""
    add(repository, "endless", endless, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU))
    add(repository, "bad", "raise RuntimeError('does not load')\n", config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU))
    server = Server([repository.path], INTERPRETER, "--exit-timeout-secs=1", wait=False)
    assert server.wait_exit(20) == 1
    assert "Exit timeout expired" in server.log_text()
    pid = pid_in(repository, "endless")
    wait_until(lambda: not is_running(pid), "the model's process has ended")


STUCK = f"""
import ctypes


class TritonPythonModel:
    def execute(self, requests):
        {WRITES_PID}
        # With the interpreter's lock: no other thread of this process runs.
        ctypes.PyDLL(None).sleep(600)
"""

BUSY = f"""
class TritonPythonModel:
    def execute(self, requests):
        {WRITES_PID}
        time.sleep(600)
"""


@pytest.mark.parametrize("code", [STUCK, BUSY], ids=["stuck", "stopped"])
@pytest.mark.parametrize("end", ["timeout", "second signal"])
def test_processes_that_do_not_listen_end_with_the_server(tmp_path, code, end):
    repository = models.Repository(tmp_path / "models")
    add(repository, "m", code, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU))
    server = Server([repository.path], INTERPRETER, f"--exit-timeout-secs={1 if end == 'timeout' else 60}")
    with asking(server, "m"):
        pid = pid_in(repository, "m")
        try:
            if code == BUSY:
                os.kill(pid, signal.SIGSTOP)
            server.process.send_signal(signal.SIGTERM)
            if end == "second signal":
                server.wait_log("Waiting for in-flight requests to complete.")
                server.process.send_signal(signal.SIGTERM)
            assert server.wait_exit(20) == 1
            wait_until(lambda: not is_running(pid), "the model's process has ended")
        finally:
            kill(server)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    text = "Exit timeout expired." if end == "timeout" else "received again."
    assert f"{text} Exiting immediately." in server.log_text()


STUCK = f"""
class TritonPythonModel:
    def execute(self, requests):
        {WRITES_PID}
        time.sleep(600)
"""


def test_a_model_that_is_unloaded_and_does_not_end_is_named(tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "stopped", STUCK, config({"IN": "FP32"}, {"OUT": "FP32"}, extra=CPU))
    server = Server([repository.path], INTERPRETER, "--model-control-mode=explicit", "--load-model=*")
    with asking(server, "stopped"):
        try:
            pid = pid_in(repository, "stopped")
            os.kill(pid, signal.SIGSTOP)
            assert server.http.post("/v2/repository/models/stopped/unload").status == 200
            server.wait_log("model 'stopped' version 1 is unloaded, and has not ended after 1")
        finally:
            kill(server)
            os.kill(pid, signal.SIGKILL)


FORKS = """
import os, signal, time

class TritonPythonModel:
    def execute(self, requests):
        lost = 0
        for _ in range(200):
            child = os.fork()
            if child == 0:
                time.sleep(0.2)
                os._exit(0)
            os.kill(child, signal.SIGTERM)
            lost += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGTERM
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([lost], np.float32))]) for _ in requests]
"""


def test_a_signal_that_comes_right_after_a_fork_is_not_lost(repository, serve):
    """What a model forks is the model's to end; a pool that ends its processes waits for each of them."""
    server = serve(add(repository, "forks", FORKS, config({"IN": "FP32"}, {"OUT": "FP32"})), INTERPRETER)
    with httpclient.InferenceServerClient(server.http_address, network_timeout=60) as client:
        one = httpclient.InferInput("IN", [1], "FP32")
        one.set_data_from_numpy(np.ones(1, np.float32))
        assert client.infer("forks", [one]).as_numpy("OUT").tolist() == [0]
