"""What clients do, each again and again: a function that makes a client and returns one round of its work.

A round checks its answers. An error that the server owes to the harm done to it (`harm.py`) is clean where it is one
of those named here; everything else fails the soak.
"""

import itertools
import json
import os
import queue
import random
import time

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

SECONDS_MAX = 60


class Clean(Exception):
    """A request failed as it should."""


def client(server, protocol):
    if protocol == "http":
        return httpclient, httpclient.InferenceServerClient(
            server.http_address, connection_timeout=SECONDS_MAX, network_timeout=SECONDS_MAX)  # fmt: skip
    return grpcclient, grpcclient.InferenceServerClient(server.grpc_address)


def tensor(library, name, array):
    from tritonclient.utils import np_to_triton_dtype

    one = library.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    one.set_data_from_numpy(array)
    return one


def infer(server, protocol, model, arrays, check, clean=()):
    """Inference over one protocol; `check` gets the result."""
    library, one = client(server, protocol)
    inputs = [tensor(library, name, array) for name, array in arrays.items()]
    limit = {"client_timeout": SECONDS_MAX} if protocol == "grpc" else {}

    def work():
        try:
            check(one.infer(model, inputs, **limit))
        except InferenceServerException as error:
            if any(text in str(error) for text in clean):
                raise Clean from error
            raise

    return work


def equal(name, expected):
    def check(result):
        assert np.array_equal(result.as_numpy(name), expected), (name, result.as_numpy(name), expected)

    return check


ROW = np.arange(16, dtype=np.int32)[None]
WORDS = np.array([["a", "", "\u00e9", "x" * 1000]], dtype=object)
FLOATS = np.arange(64, dtype=np.float32)[None]
# What a model says whose process was killed; the next one is being started then.
DEAD = ("is ended", "process", "ended while", "restart", "not ready")


def sums_to_one(result):
    assert np.allclose(result.as_numpy("OUTPUT0").sum(axis=1), 1, atol=1e-3)


def simple(server, protocol):
    return infer(server, protocol, "simple", {"INPUT0": ROW, "INPUT1": ROW}, equal("OUTPUT0", 2 * ROW))


def network(server, protocol):
    return infer(server, protocol, "network", {"INPUT0": np.ones((3, 256), np.float32)}, sums_to_one)


def twice(server, protocol):
    return infer(server, protocol, "twice", {"A": ROW, "B": ROW}, equal("DOUBLE_A", 2 * ROW))


def text(server, protocol):
    def check(result):
        got = [word.decode() for word in result.as_numpy("OUTPUT0").reshape(-1)]
        assert got == WORDS.reshape(-1).tolist(), got

    return infer(server, protocol, "text", {"INPUT0": WORDS}, check)


def cached(server, protocol):
    """A few questions that are asked again and again, and new ones, so that old answers leave the cache."""
    library, one = client(server, protocol)
    numbers = itertools.count()

    def work():
        count = next(numbers)
        array = np.full((1, 256), count % 8 if count % 2 else count, np.float32)
        equal("OUTPUT0", array)(one.infer("cached", [tensor(library, "INPUT0", array)]))

    return work


def python(server, protocol):
    return infer(server, protocol, "python", {"INPUT0": FLOATS}, equal("OUTPUT0", 2 * FLOATS), DEAD)


def guest(server, protocol):
    """A model that comes and goes."""
    array = {"INPUT0": np.ones((1, 256), np.float32)}
    return infer(server, protocol, "guest", array, sums_to_one, ("Request for unknown model",))


def sequences(server, protocol):
    library, one = client(server, protocol)
    chance = random.Random(protocol)

    def work():
        name, total = chance.randrange(1, 2**62), 0.0
        for step in range(length := chance.randrange(1, 12)):
            value = float(chance.randrange(100))
            total += value
            given = tensor(library, "INPUT", np.array([[value]], np.float32))
            result = one.infer("sums", [given], sequence_id=name, sequence_start=step == 0, sequence_end=step == length - 1)
            equal("OUTPUT", [[total]])(result)

    return work


def stream(server, _):
    """A stream of its own for each round: inference and a decoupled model in turn."""

    def work():
        answers = queue.Queue()
        with grpcclient.InferenceServerClient(server.grpc_address) as one:
            one.start_stream(lambda result, error: answers.put((result, error)))
            inputs = [tensor(grpcclient, f"INPUT{i}", ROW) for i in range(2)]
            for number in range(5):
                one.async_stream_infer("simple", inputs, request_id=str(number))
            for number in range(5):
                result, error = answers.get(timeout=SECONDS_MAX)
                assert error is None and result.get_response().id == str(number), error
            given = {"IN": np.arange(8, dtype=np.int32), "DELAY": np.zeros(8, np.uint32), "WAIT": np.zeros(1, np.uint32)}
            one.async_stream_infer("repeat", [tensor(grpcclient, name, array) for name, array in given.items()])
            got = []
            for _ in range(8):
                result, error = answers.get(timeout=SECONDS_MAX)
                assert error is None, error
                got.append(int(result.as_numpy("OUT")[0]))
            assert got == list(range(8)), got
            one.stop_stream()

    return work


def generate(server, _):
    body = {"INPUT0": [1.0, 2.0]}

    def work():
        reply = server.http.post("/v2/models/large/generate", body)
        assert reply.status == 200 and reply.json["OUTPUT0"] == [1.0, 2.0], reply

    return work


def shared_memory(server, protocol):
    """Registers, uses and forgets a region."""
    library, one = client(server, protocol)
    name = f"soak_{os.getpid()}_{protocol}"
    region = shm.create_shared_memory_region(name, f"/{name}", 4096)

    def work():
        shm.set_shared_memory_region(region, [ROW, ROW])
        one.register_system_shared_memory(name, f"/{name}", 4096)
        inputs = [library.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in range(2)]
        for index, given in enumerate(inputs):
            given.set_shared_memory(name, ROW.nbytes, offset=index * ROW.nbytes)
        output = library.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory(name, ROW.nbytes, offset=1024)
        one.infer("simple", inputs, outputs=[output])
        assert np.array_equal(shm.get_contents_as_numpy(region, np.int32, [1, 16], 1024), 2 * ROW)
        one.unregister_system_shared_memory(name)

    work.close = lambda: shm.destroy_shared_memory_region(region)
    return work


def look(server, _):
    """Those who watch the server."""
    paths = itertools.cycle(["/v2/models/stats", "/v2/health/ready", "/v2/models/simple/config", "/v2/systemsharedmemory/status",
                             "/v2/trace/setting", "/v2/logging", "/ui/state"])  # fmt: skip

    def work():
        path = next(paths)
        reply = server.http.get(path)
        # Not ready: a process of the Python model is being replaced, or the guest has gone.
        assert reply.status == 200 or path == "/v2/health/ready", (path, reply.status)
        assert "nv_inference_count" in server.metrics_text()
        time.sleep(0.2)

    return work


def reload(server, _):
    """The guest comes and goes, as it lies there or as the request brings it; `simple` is loaded again under load."""
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 4})
    rounds = itertools.count()

    def work():
        turn = next(rounds) % 3
        for verb, model, body in (
            ("load", "guest", {"parameters": {"config": config}} if turn == 1 else b""), ("load", "simple", b""),
            ("unload", "guest", b""),
        ):  # fmt: skip
            reply = server.http.post(f"/v2/repository/models/{model}/{verb}", body)
            assert reply.status == 200, (verb, model, reply.body)
            time.sleep(0.2)

    return work
