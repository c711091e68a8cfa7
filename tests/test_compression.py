"""Compressed requests and replies."""

import gzip
import json
import zlib

import pytest

FOUR = {"shape": [4], "datatype": "FP32", "data": [1, 2, 3, 4]}
BODY = json.dumps({"inputs": [{"name": n, **FOUR} for n in ("INPUT0", "INPUT1")]}).encode()
PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress}


def outputs(body):
    return {o["name"]: o["data"] for o in json.loads(body)["outputs"]}


EXPECTED = {"OUTPUT0": [2, 4, 6, 8], "OUTPUT1": [0, 0, 0, 0]}


@pytest.mark.parametrize("encoding", PACK)
def test_request(http, encoding):
    reply = http.infer("add_sub", PACK[encoding](BODY), {"Content-Encoding": encoding})
    assert (reply.status, outputs(reply.body)) == (200, EXPECTED)


def test_request_of_an_unknown_encoding(http):
    reply = http.infer("add_sub", BODY, {"Content-Encoding": "br"})
    assert reply.status == 501
    assert reply.error == "Unsupported compression type"
    assert reply.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize("encoding", PACK)
def test_broken_request(http, encoding):
    reply = http.infer("add_sub", b"this is no " + encoding.encode(), {"Content-Encoding": encoding})
    assert reply.status == 400


ACCEPT = [
    ("gzip", "gzip"),
    ("deflate", "deflate"),
    ("deflate, gzip", "deflate"),
    ("gzip;q=0.5, deflate;q=0.8", "deflate"),
    ("br", None),
    ("identity", None),
    ("", None),
    ("*", None),
]


@pytest.mark.parametrize("accept, encoding", ACCEPT)
def test_reply(http, accept, encoding):
    reply = http.infer("add_sub", BODY, {"Accept-Encoding": accept})
    assert reply.status == 200
    assert reply.headers.get("content-encoding") == encoding
    body = UNPACK[encoding](reply.body) if encoding else reply.body
    assert outputs(body) == EXPECTED


def test_header_length_counts_uncompressed_bytes(http):
    blob = bytes(16)
    head = {"inputs": [
        {"name": n, "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 16}} for n in ("INPUT0", "INPUT1")
    ]}  # fmt: skip
    head = json.dumps(head).encode()
    headers = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": str(len(head))}
    reply = http.infer("add_sub", gzip.compress(head + blob + blob), headers)
    assert (reply.status, outputs(reply.body)) == (200, {"OUTPUT0": [0] * 4, "OUTPUT1": [0] * 4})


def test_binary_reply_compressed(http):
    request = json.dumps({**json.loads(BODY), "parameters": {"binary_data_output": True}})
    reply = http.infer("add_sub", request, {"Accept-Encoding": "gzip"})
    body = gzip.decompress(reply.body)
    size = int(reply.headers["inference-header-content-length"])
    assert len(body) == size + 32
    assert json.loads(body[:size])["outputs"][0]["parameters"] == {"binary_data_size": 16}


@pytest.mark.halimede_only("2.51.0 has no bound on the decompressed size")
def test_decompressed_size_is_bounded(serve, repository):
    from support import models

    repository.add("raw", models.identity(1, [-1, -1]), models.copy_config("FP32"))
    server = serve(repository, "--http-max-input-size=1000000")
    bomb = gzip.compress(b" " * 50_000_000)
    reply = server.http.infer("raw", bomb, {"Content-Encoding": "gzip"})
    assert reply.status == 400
    assert server.http.get("/v2/health/live").status == 200
