"""Two servers behind a real HAProxy, with the configuration that deploy/ ships."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from support import models
from support.server import ROOT, Server, free_ports

pytestmark = pytest.mark.halimede_only("ours to deploy")

CONFIGURATION = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
SEQUENCE = """backend: "sequence" max_batch_size: 32
input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching { max_sequence_idle_microseconds: 60000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } } }
"""
ECHO = """backend: "identity" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] } output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] }
"""


@pytest.fixture
def pair(tmp_path):
    """Two servers of one repository, and a balancer in front of them."""
    program = shutil.which("haproxy", path=os.environ["PATH"] + ":/usr/sbin")
    if not program:
        assert not os.environ.get("HALIMEDE_EXPECT_HAPROXY"), "haproxy is to be installed here"
        pytest.skip("haproxy is not installed")
    repository = models.Repository(tmp_path / "models")
    repository.add("total", config=SEQUENCE)
    repository.add("echo", config=ECHO)
    pair = Pair(repository.path, program)
    try:
        wait(lambda: answers(pair.http), "the balancer does not answer")
        yield pair
    finally:
        pair.end()


class Pair:
    def __init__(self, repository, program):
        self.repository = repository
        self.ports = [free_ports(3), free_ports(3)]
        self.servers = [Server([repository], ports=ports) for ports in self.ports]
        http, grpc = free_ports(2)
        self.http, self.grpc = f"127.0.0.1:{http}", f"127.0.0.1:{grpc}"
        env = {**os.environ, "HTTP": self.http, "GRPC": self.grpc}
        for name, (http, grpc, _) in zip("AB", self.ports):
            env |= {f"{name}_HTTP": f"127.0.0.1:{http}", f"{name}_GRPC": f"127.0.0.1:{grpc}", f"{name}_HTTP_PORT": str(http)}
        subprocess.run([program, "-c", "-q", "-f", CONFIGURATION], env=env, check=True)
        self.balancer = subprocess.Popen([program, "-db", "-f", CONFIGURATION], env=env, stderr=subprocess.DEVNULL)

    def restart(self, index):
        self.servers[index] = Server([self.repository], ports=self.ports[index])

    def end(self):
        self.balancer.terminate()
        self.balancer.wait(20)
        for server in self.servers:
            if server.process.poll() is None:
                assert server.stop() == 0

    def asked(self, index, model):
        """Requests that a server has answered; `None` of one that is gone."""
        try:
            stats = self.servers[index].http.get(f"/v2/models/{model}/stats").json
        except OSError:
            return None
        return stats["model_stats"][0]["inference_stats"]["success"]["count"]


def answers(address):
    try:
        return httpclient.InferenceServerClient(address).is_server_ready()
    except Exception:
        return False


def wait(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class Clients:
    """Ask for echoes again and again, each of them waiting for its answer."""

    def __init__(self, pair, count=3):
        self.is_over = threading.Event()
        self.answered, self.failed = 0, []
        self.lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self.work, args=(module, address, number))
            for module, address in [(httpclient, pair.http), (grpcclient, pair.grpc)]
            for number in range(count)
        ]
        for thread in self.threads:
            thread.start()

    def work(self, module, address, number):
        client = module.InferenceServerClient(address)
        tensor = module.InferInput("INPUT0", [1, 4], "INT32")
        while not self.is_over.is_set():
            number += 10
            numbers = np.arange(number, number + 4, dtype=np.int32)[None]
            tensor.set_data_from_numpy(numbers)
            try:
                answer = client.infer("echo", [tensor]).as_numpy("OUTPUT0")
                wrong = None if np.array_equal(answer, numbers) else f"{answer} instead of {numbers}"
            except Exception as error:
                wrong = f"{module.__name__}: {error}"
            with self.lock:
                self.answered += 1
                if wrong:
                    self.failed.append(wrong)

    def more(self, count=200):
        """Waits until so many more were answered."""
        goal = self.answered + count
        wait(lambda: self.answered >= goal, f"no answers any more; failed were {self.failed}")

    def end(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.skipif(sys.platform != "linux", reason="HAProxy's paths and signals are those of Linux")
def test_no_request_is_lost_but_inside_a_process_that_died(pair):
    clients = Clients(pair)
    try:
        clients.more()
        assert clients.failed == []
        assert all(pair.asked(index, "echo") > 20 for index in (0, 1)), "not balanced"

        pair.servers[0].process.send_signal(signal.SIGKILL)
        pair.servers[0].process.wait()
        clients.more()
        # What it had begun to answer is lost with it: each client waits for one answer at most.
        assert len(clients.failed) <= len(clients.threads), clients.failed
        lost = len(clients.failed)

        pair.restart(0)
        wait(lambda: (pair.asked(0, "echo") or 0) > 20, "the server that is back is not asked")
        assert len(clients.failed) == lost, clients.failed[lost:]

        # One that is asked to end answers what it has begun: nothing is lost, but for calls that the balancer sends over HTTP/2 in the
        # very moment in which the server says that it goes, which it resets now and then (docs/deployment.md).
        assert pair.servers[1].stop() == 0
        clients.more()
        pair.restart(1)
        wait(lambda: (pair.asked(1, "echo") or 0) > 20, "the server that is back is not asked")
        failed = clients.failed[lost:]
        assert all("tritonclient.grpc" in one and "Stream removed" in one for one in failed), failed
        assert len(failed) <= len(clients.threads) // 2, failed
    finally:
        clients.end()


class Halves:
    """Requests over connections of their own, of which the heads are sent and the bodies follow when they are told to."""

    def __init__(self, address, count):
        numbers = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        self.body = json.dumps({"inputs": [numbers]}).encode()
        host, port = address.split(":")
        self.connections = [http.client.HTTPConnection(host, int(port), timeout=30) for _ in range(count)]
        for connection in self.connections:
            connection.putrequest("POST", "/v2/models/echo/infer")
            connection.putheader("Content-Length", str(len(self.body)))
            connection.endheaders()

    def answers(self):
        """Status and text of each answer, once the bodies are sent."""
        for connection in self.connections:
            connection.send(self.body)
        answers = [connection.getresponse() for connection in self.connections]
        return [(answer.status, answer.read().decode()) for answer in answers]


@pytest.mark.skipif(sys.platform != "linux", reason="HAProxy's paths and signals are those of Linux")
def test_a_request_whose_body_is_still_to_come_is_at_no_server(pair):
    halves = Halves(pair.http, 8)
    # Time for a balancer that passes heads on to do so, which cannot be seen from outside.
    time.sleep(0.5)
    pair.servers[0].process.send_signal(signal.SIGKILL)
    pair.servers[0].process.wait()
    answers = halves.answers()
    assert [status for status, _ in answers] == [200] * 8, answers


@pytest.mark.parametrize("module", [httpclient, grpcclient], ids=["http", "grpc"])
@pytest.mark.skipif(sys.platform != "linux", reason="HAProxy's paths and signals are those of Linux")
def test_a_sequence_stays_at_its_server(pair, module):
    address = pair.http if module is httpclient else pair.grpc
    clients = [module.InferenceServerClient(address) for _ in range(3)]
    total = dict.fromkeys(range(1, 17), 0)
    for place in range(5):
        for sequence in total:
            tensor = module.InferInput("INPUT", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[sequence + place]], np.int32))
            total[sequence] += sequence + place
            answer = clients[(sequence + place) % 3].infer(
                "total", [tensor], headers={"x-sequence": str(sequence)}, sequence_id=sequence,
                sequence_start=place == 0, sequence_end=place == 4,
            )  # fmt: skip
            assert answer.as_numpy("OUTPUT")[0, 0] == total[sequence]
    # Each server has some of them, and of those every request.
    counts = [pair.asked(index, "total") for index in (0, 1)]
    assert sum(counts) == 5 * len(total) and min(counts) > 0 and all(count % 5 == 0 for count in counts), counts
