"""Sizes, depths and counts at which a request is refused; the server lives on."""

import http.client
import json
import os
import resource
import socket

import pytest
from onnx import TensorProto

from support import models
from support.waiting import wait_until


def test_nesting_depth(http):
    deep = "[" * 5000 + "]" * 5000
    body = '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[4],"data":%s}]}' % deep
    reply = http.infer("add_sub", body)
    assert reply.status in (400, 500)
    assert http.get("/v2/health/live").status == 200


@pytest.mark.halimede_only("texts of later versions")
@pytest.mark.parametrize("header, text", [
    (None, "request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes."),
    ("0", "Raw input has a byte_size (1001 bytes) that exceeds the maximum allowed value of 1000 bytes."),
    ("9", "request size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes."),
])  # fmt: skip
def test_inference_beyond_the_limit(repository, serve, header, text):
    repository.add("raw", models.identity(TensorProto.FLOAT, [-1, -1]), models.copy_config("FP32"))
    server = serve(repository, "--http-max-input-size=1000")
    headers = {"Inference-Header-Content-Length": header} if header else {}
    reply = server.http.post("/v2/models/raw/infer", b" " * 1001, headers)
    assert (reply.status, reply.error) == (400, f"{text} Use --http-max-input-size to increase the limit.")


@pytest.mark.halimede_only("a stack overflow in 2.51.0, an error in later versions")
def test_nesting_beyond_the_stack(http):
    reply = http.infer("add_sub", "[" * 1_000_000)
    assert reply.status in (400, 500)
    assert http.get("/v2/health/live").status == 200


@pytest.mark.halimede_only("a flag of later versions")
def test_body_beyond_the_limit(repository, serve):
    repository.add("raw", models.identity(TensorProto.FLOAT, [-1, -1]), models.copy_config("FP32"))
    server = serve(repository, "--http-max-input-size=1000000")
    head = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 500000],
                        "parameters": {"binary_data_size": 2000000}}]}  # fmt: skip
    assert server.http.infer_binary("raw", head, bytes(2000000)).status == 400
    assert server.http.get("/v2/health/live").status == 200


def test_shape_beyond_64_bits(http):
    big = 2**63 - 1
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [big, big], "data": []}]}
    reply = http.infer("raw", body)
    assert reply.status in (400, 500)
    assert http.get("/v2/health/live").status == 200


@pytest.mark.halimede_only("a text of later versions")
def test_bytes_beyond_63_bits(http):
    """The number of elements fits, their bytes do not."""
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2**31, 2**31], "data": [1.0]}]}
    reply = http.infer("raw", body)
    assert (reply.status, reply.error[:40]) == (400, "byte size overflow for input 'INPUT0': e")


@pytest.mark.halimede_only("texts of later versions")
@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/models/add_sub/load", "/v2/logging"])
def test_json_beyond_the_limit(repository, serve, path):
    server = serve(repository, "--http-max-input-size=1000")
    reply = server.http.post(path, '{"a":"%s"}' % ("x" * 1000))
    assert reply.status == 400
    text = "request JSON size of 1008 bytes exceeds the maximum allowed input size of 1000 bytes"
    assert reply.error.startswith(text), reply.error


@pytest.mark.halimede_only("a stack overflow in 2.51.0, an error in later versions")
def test_index_of_deeply_nested_json(http):
    nested = "[" * 250_000 + "true" + "]" * 250_000
    reply = http.post("/v2/repository/index", '{"ready":%s}' % nested)
    assert (reply.status, reply.error) == (400, "Invalid value for 'ready': expected a boolean")


def test_chunked_body(server):
    body = json.dumps({"inputs": [{"name": n, "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
                                  for n in ("INPUT0", "INPUT1")]}).encode()  # fmt: skip
    connection = http.client.HTTPConnection(server.http_address, timeout=20)
    chunks = (body[i : i + 7] for i in range(0, len(body), 7))
    connection.request("POST", "/v2/models/add_sub/infer", chunks, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()


def test_keep_alive(server):
    connection = http.client.HTTPConnection(server.http_address, timeout=20)
    for path, status in (("/v2/health/live", 200), ("/nope", 404), ("/v2", 200), ("/v2/models/nope", 404)):
        connection.request("GET", path)
        reply = connection.getresponse()
        reply.read()
        assert reply.status == status
        sock = connection.sock
        assert sock is not None, "the server closed the connection"
    connection.close()


GARBAGE = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00",
    "bad request line": b"NOPE\r\n\r\n",
    "negative length": b"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "huge header": b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 2_000_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_on_the_port(server, sent):
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=5) as s:
        try:
            s.sendall(sent)
            s.shutdown(socket.SHUT_WR)
            s.recv(1000)
        except OSError:
            pass
    assert server.http.get("/v2/health/live").status == 200


@pytest.mark.halimede_only("2.51.0 ends with a segmentation fault")
def test_classes_of_bytes_are_refused(http):
    request = {
        "inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}],
    }
    reply = http.infer("text", request)
    assert reply.status == 400
    assert "class result not available for output due to unsupported type 'BYTES'" in reply.error


def test_too_many_inputs(http):
    """2.51.0 lists the inputs in the order of its hash table."""
    tensor = {"datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
    reply = http.infer("add_sub", {"inputs": [{"name": f"INPUT{i}", **tensor} for i in range(3)]})
    start = "[request id: <id_unknown>] expected 2 inputs but got 3 inputs for model 'add_sub'. Got input(s) ["
    end = "], but missing required input(s) ]. Please provide all required input(s)."
    assert reply.status == 400
    assert reply.error.startswith(start) and reply.error.endswith(end)
    assert sorted(reply.error[len(start) : -len(end)].split(",")) == ["'INPUT0'", "'INPUT1'", "'INPUT2'"]


@pytest.mark.halimede_only("its log")
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="bounds another process's files, as Linux can")
def test_more_connections_than_open_files(repository, serve):
    repository.add("raw", models.identity(TensorProto.FLOAT, [-1, -1]), models.copy_config("FP32"))
    server = serve(repository)
    known = http.client.HTTPConnection(server.http_address, timeout=20)

    def live(connection):
        connection.request("GET", "/v2/health/live")
        reply = connection.getresponse()
        reply.read()
        return reply.status == 200

    assert live(known)
    files = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (files + 10, files + 10))
    address = ("127.0.0.1", server.http_port)
    others = [socket.create_connection(address, timeout=20) for _ in range(30)]
    try:
        wait_until(lambda: "cannot accept connections" in server.log_text(), "it is told")
        assert live(known)
        late = http.client.HTTPConnection(server.http_address, timeout=20)
        late.request("GET", "/v2/health/live")
    finally:
        for other in others:
            other.close()
    # It was waiting for a file.
    assert late.getresponse().read() == b""
    assert "Too many open files" in server.log_text() and server.log_text().count("cannot accept connections") < 10
    for connection in (known, late):
        connection.close()
