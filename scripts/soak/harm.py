"""What is done to the server that no client should do, in rounds as in `workers.py`."""

import contextlib
import json
import os
import random
import signal
import socket
import time

import numpy as np
import tritonclient.grpc as grpcclient
from workers import SECONDS_MAX, tensor


def connected(port):
    return socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)


def request(model, inputs):
    body = json.dumps({"inputs": inputs}).encode()
    return b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (model.encode(), len(body)) + body


SLOW = request("slow", [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}])


def leave(server):
    """A client that goes away while its request runs."""

    def work():
        with connected(server.http_port) as one:
            one.sendall(SLOW)
            time.sleep(0.02)
        time.sleep(0.05)

    return work


def cancel(server):
    one = grpcclient.InferenceServerClient(server.grpc_address)
    given = [tensor(grpcclient, "INPUT0", np.zeros(1, np.float32))]

    def work():
        call = one.async_infer("slow", given, lambda result, error: None)
        time.sleep(0.03)
        call.cancel()

    return work


def abandon_sequence(server):
    """A sequence that never ends."""
    one = grpcclient.InferenceServerClient(server.grpc_address)
    chance = random.Random(5)

    def work():
        given = [tensor(grpcclient, "INPUT", np.array([[1]], np.float32))]
        one.infer("sums", given, sequence_id=chance.randrange(2**62, 2**63), sequence_start=True)
        # Fewer in the idle time than there are candidates.
        time.sleep(0.5)

    return work


def slow_reader(server):
    """A client that sends its request byte by byte and takes two seconds to read four megabytes."""
    numbers = 1 << 20
    head = json.dumps({
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [numbers], "parameters": {"binary_data_size": 4 * numbers}}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }).encode()  # fmt: skip

    def work():
        with connected(server.http_port) as one:
            length = len(head) + 4 * numbers
            start = f"POST /v2/models/large/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n"
            start += f"Inference-Header-Content-Length: {len(head)}\r\nConnection: close\r\n\r\n"
            for byte in start.encode():
                one.sendall(bytes([byte]))
                time.sleep(0.002)
            one.sendall(head + bytes(4 * numbers))
            got = b""
            while part := one.recv(1 << 16):
                got = got[-64:] + part if got else part
                if not got.startswith(b"HTTP/1.1 200") and len(got) == len(part):
                    raise AssertionError(got[:200])
                time.sleep(0.03)

    return work


def malformed(server):
    """Requests with bytes changed, added or cut off, at every port."""
    chance = random.Random(7)
    good = request("simple", [{"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for i in range(2)])
    frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" + b"\0\0\5\1\4\0\0\0\1" + b"\x82\x86\x84\x41\x8a"
    load = b"POST /v2/repository/models/guest/load HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n" + b'{"parameters":{"config":"{}"}}'

    def work():
        port = chance.choice([server.http_port, server.grpc_port, server.metrics_port])
        sent = bytearray(chance.choice([good, frames, load, SLOW, chance.randbytes(200)]))
        for _ in range(chance.randrange(1, 6)):
            place = chance.randrange(len(sent))
            match chance.randrange(3):
                case 0:
                    sent[place] = chance.randrange(256)
                case 1:
                    sent[place:place] = chance.randbytes(chance.randrange(1, 9))
                case 2:
                    del sent[place + 1 : place + 1 + chance.randrange(16)]
        with connected(port) as one:
            # The server may close the connection at any byte, and need not answer what is no request.
            with contextlib.suppress(OSError):
                one.sendall(sent)
                one.shutdown(socket.SHUT_WR)
                while one.recv(1 << 16):
                    pass
        time.sleep(0.02)

    return work


def children(pid):
    """Processes whose parent is `pid`."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if name.isdigit() and int(open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[1]) == pid:
                found.append(int(name))
    return found


def kill_python(server):
    """Every few seconds a process of the Python model is killed; afterwards the model answers again."""

    def work():
        time.sleep(4)
        before = children(server.process.pid)
        assert before, "there is no process of the Python model"
        victim = random.choice(before)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        end = time.monotonic() + SECONDS_MAX
        while victim in (now := children(server.process.pid)) or len(now) < len(before):
            assert time.monotonic() < end, "the killed process of the Python model was not replaced"
            time.sleep(0.1)

    return work


def fill_disk(server, folder):
    """The file system of the traces is full, and then it is not."""
    filler = folder / "filler"

    def work():
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        time.sleep(2)
        for path in folder.iterdir():
            path.unlink()
        time.sleep(2)

    return work
