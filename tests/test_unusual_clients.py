"""Clients that are within the protocols and unlike those that most people use."""

import re
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2

from support import models
from support.http2 import END_STREAM, Connection, message
from support.python_models import INTERPRETER, add, config
from support.waiting import wait_until

SLOW = """
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info("it has begun")
        time.sleep(3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.int32))]) for _ in requests]
"""

WHOLE = {"IN": "INT32"}, {"OUT": "INT32"}


def send_all(address, request):
    """What the server answers once all of a request is sent, of which it reads nothing before."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request)
        answer = connection.recv(1 << 16)
        return int(answer.split(b" ", 2)[1]), answer


@pytest.mark.parametrize(
    "path, status", [("/v2/models/unknown/infer", 404), ("/v3", 404), ("/v2", 405), ("/v2/models/identity/infer", 400)]
)
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
def test_an_error_waits_for_the_body(serve, tmp_path, path, status, is_chunked):
    repository = models.Repository(tmp_path / "models")
    repository.add("identity", config=models.identity_config())
    server = serve(repository, "--http-max-input-size=1000")
    body = bytes(32 << 20)
    how = "transfer-encoding: chunked" if is_chunked else f"content-length: {len(body)}"
    if is_chunked:
        body = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    one = f"POST {path} HTTP/1.1\r\nhost: a\r\n{how}\r\n\r\n".encode() + body
    assert send_all(server.http_address, one)[0] == status
    # The connection goes on.
    host, _, port = server.http_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection, connection.makefile("rb") as answers:
        for _ in range(2):
            connection.sendall(one)
            assert int(answers.readline().split(b" ", 2)[1]) == status
            length = 0
            while (line := answers.readline().lower()) != b"\r\n":
                length = int(line.partition(b":")[2]) if line.startswith(b"content-length:") else length
            answers.read(length)


def test_who_asks_first_is_told_at_once(server):
    head = b"POST /v2/models/unknown/infer HTTP/1.1\r\nhost: a\r\ncontent-length: 99999\r\nexpect: 100-continue\r\n\r\n"
    status, answer = send_all(server.http_address, head)
    # What it may still send finds no server: it is told so.
    assert status == 404 and b"connection: close" in answer.lower()


def virtual_bytes(process):
    found = re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    return int(found[1]) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="address space is told in /proc")
def test_the_head_of_a_message_takes_no_memory(server):
    before = virtual_bytes(server.process)
    with Connection(server.grpc_address) as connection:
        for _ in range(40):
            connection.call(message(b"\x0a\x01m", length=(1 << 31) - 1))
        # What came before it was read.
        connection.wait_answer(connection.call(message(b""), "/inference.GRPCInferenceService/ServerLive", END_STREAM))
        assert virtual_bytes(server.process) - before < 1 << 30


def test_long_messages_come_whole(serve, tmp_path):
    repository = models.Repository(tmp_path / "models")
    repository.add("identity", config=models.identity_config())
    server = serve(repository)
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        for count in (1 << 10, 1 << 20, 5 << 18, 3 << 20, 9 << 20):
            array = np.random.default_rng(count).random((1, count), np.float32)
            tensor = grpcclient.InferInput("INPUT0", list(array.shape), "FP32")
            tensor.set_data_from_numpy(array)
            assert (client.infer("identity", [tensor]).as_numpy("OUTPUT0") == array).all()


def request(model="slow"):
    made = service_pb2.ModelInferRequest(model_name=model)
    made.inputs.add(name="IN", datatype="INT32", shape=[1])
    made.raw_input_contents.append(bytes(4))
    return made


def test_a_call_ends_with_its_time_though_its_client_does_not_say_so(serve, tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "slow", SLOW, config(*WHOLE))
    server = serve(repository, INTERPRETER)
    with Connection(server.grpc_address) as connection:
        # One that runs, and one that waits.
        content = message(request().SerializeToString())
        connection.call(content, flags=END_STREAM)
        server.wait_log("it has begun")
        for _ in range(3):
            connection.call(content, flags=END_STREAM, grpc_timeout="300m")
        server.wait_answered("slow", 4)
        # One may have been with the process already.
        assert server.metric("nv_inference_request_failure", "slow") >= 2


def test_very_many_requests_wait_on_one_stream(serve, tmp_path):
    repository = models.Repository(tmp_path / "models")
    add(repository, "slow", SLOW, config(*WHOLE))
    server = serve(repository, INTERPRETER)
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        enough, count = threading.Event(), 60_000

        def requests():
            yield from (request() for _ in range(count))
            enough.wait(120)

        stream = client._client_stub.ModelStreamInfer(requests())
        wait_until(lambda: server.metric("nv_inference_pending_request_count", "slow") > count - 1000, "they wait", 120)
        assert client.is_server_live(client_timeout=30)
        stream.cancel()
        enough.set()
        wait_until(lambda: server.metric("nv_inference_pending_request_count", "slow") == 0, "nothing waits", 60)
