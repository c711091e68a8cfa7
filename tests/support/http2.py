"""Calls of gRPC that no client of gRPC would make, byte by byte (RFC 9113, RFC 7541)."""

import socket
import struct

HEADERS, DATA, SETTINGS = 1, 0, 4
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INFER = "/inference.GRPCInferenceService/ModelInfer"


def frame(kind, flags, stream, content=b""):
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def text(value):
    assert len(value) < 127
    return bytes([len(value)]) + value.encode()


def head(path, **headers):
    """Headers as literals that nobody keeps; `grpc_timeout` is the header grpc-timeout."""
    # POST and http are known to both sides, and so are the names of path, authority.
    content = b"\x83\x86\x04" + text(path) + b"\x01" + text("localhost")
    for name, value in {"content_type": "application/grpc", "te": "trailers", **headers}.items():
        content += b"\x00" + text(name.replace("_", "-")) + text(value)
    return content


def message(content, length=None):
    """A message that says that it has so many bytes."""
    return b"\x00" + struct.pack(">I", len(content) if length is None else length) + content


class Connection:
    """A connection on which nothing is read but what is waited for."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self.streams = 0

    def call(self, content, path=INFER, flags=0, **headers):
        """Begins a call, and does not end it without the flag; the number of its stream."""
        stream = 2 * self.streams + 1
        self.streams += 1
        begin = frame(HEADERS, END_HEADERS, stream, head(path, **headers))
        self.socket.sendall(begin + frame(DATA, flags, stream, content))
        return stream

    def read(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, "the connection ended"
            data += more
        return data

    def wait_answer(self, wanted):
        """Until a call has headers of an answer."""
        kind = stream = None
        while (kind, stream) != (HEADERS, wanted):
            begin = self.read(9)
            kind, stream = begin[3], int.from_bytes(begin[5:], "big")
            self.read(int.from_bytes(begin[:3], "big"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
