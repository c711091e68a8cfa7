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
