"""gRPC at the level of the messages, without the checks a client library makes."""

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc


class Grpc:
    """A channel and its stub; `call` returns the reply or the error."""

    def __init__(self, address):
        limit = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self.channel = grpc.insecure_channel(address, options=limit)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def error(self, method, request, timeout=20):
        """Status name and text of a call that has to fail."""
        try:
            getattr(self.stub, method)(request, timeout=timeout)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        raise AssertionError(f"{method} succeeded")

    def infer(self, request, timeout=20):
        return self.stub.ModelInfer(request, timeout=timeout)

    def close(self):
        self.channel.close()


def tensor(request, name, datatype, shape, raw=None, **contents):
    """Append an input; `raw` goes to raw_input_contents, `contents` into its field."""
    t = request.inputs.add()
    t.name, t.datatype = name, datatype
    t.shape.extend(shape)
    for field, values in contents.items():
        getattr(t.contents, field).extend(values)
    if raw is not None:
        request.raw_input_contents.append(raw)
    return t


FOUR = np.array([1, 2, 3, 4], np.float32).tobytes()


def add_sub(**fields):
    """A correct request for `add_sub`."""
    request = pb.ModelInferRequest(model_name="add_sub", **fields)
    tensor(request, "INPUT0", "FP32", [4], FOUR)
    tensor(request, "INPUT1", "FP32", [4], FOUR)
    return request


# What a client sends first, with SETTINGS that change nothing.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

SETTINGS_ACK = bytes([0, 0, 0, 4, 1, 0, 0, 0, 0])


def frames_of(method, request, stream=1):
    """The frames of a call with one message, as bytes: HEADERS without compression, and DATA that ends the stream."""
    headers = {":method": "POST", ":scheme": "http", ":path": f"/inference.GRPCInferenceService/{method}",
               ":authority": "a", "content-type": "application/grpc", "te": "trailers"}  # fmt: skip
    block = b"".join(b"\0%c%b%c%b" % (len(n), n.encode(), len(v), v.encode()) for n, v in headers.items())
    message = request.SerializeToString()
    data = b"\0" + len(message).to_bytes(4, "big") + message
    head = stream.to_bytes(4, "big")
    return b"%b\x01\x04%b%b%b\0\x01%b%b" % (len(block).to_bytes(3, "big"), head, block, len(data).to_bytes(3, "big"), head, data)


def frames_until(stream, is_last):
    """Type, flags and payload of the frames that arrive, up to the one that `is_last` accepts or the end."""
    while True:
        head = stream.read(9)
        if len(head) < 9:
            return
        frame = (head[3], head[4], stream.read(int.from_bytes(head[:3], "big")))
        yield frame
        if is_last(frame):
            return
