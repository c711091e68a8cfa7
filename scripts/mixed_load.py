"""Puts a server under everything at once: both protocols, shared memory, cancelled requests, models that
are loaded and unloaded meanwhile. For servers built with a sanitizer, whose reports fail it.

    python scripts/mixed_load.py --seconds 10 target/sanitize-thread/x86_64-unknown-linux-gnu/debug/halimede
"""

import argparse
import collections
import json
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from support import models
from support.server import Server

REPORTS = ("Sanitizer", "panicked")


class Load:
    """Threads that repeat what they do until the time is over; what they did is counted."""

    def __init__(self, server, seconds):
        self.server, self.end = server, time.monotonic() + seconds
        self.done, self.failures, self.regions = collections.Counter(), [], []

    def repeat(self, name, work):
        while time.monotonic() < self.end:
            try:
                work()
                self.done[name] += 1
            except Exception as error:  # every kind of failure is one of the server
                self.failures.append(f"{name}: {error!r} {error}")
                return

    def infer(self, library, address, model):
        shape, kind = ((4, 256), np.float32) if model == "network" else ((1, 16), np.int32)
        names = {"network": ["INPUT0"], "simple": ["INPUT0", "INPUT1"], "twice": ["A", "B"]}[model]
        client = library.InferenceServerClient(address)

        def work():
            tensors = [library.InferInput(name, shape, "FP32" if kind == np.float32 else "INT32") for name in names]
            for tensor in tensors:
                tensor.set_data_from_numpy(np.ones(shape, kind))
            result = client.infer(model, tensors).as_numpy("OUTPUT0" if model != "twice" else "DOUBLE_A")
            assert result.shape == shape

        return work

    def shared_memory(self, number):
        """Registers, uses and forgets a region of its own."""
        client = httpclient.InferenceServerClient(self.server.http_address)
        key, name = f"/halimede_load_{os.getpid()}_{number}", f"region{number}"
        region = shm.create_shared_memory_region(name, key, 4096)
        self.regions.append(region)

        def work():
            shm.set_shared_memory_region(region, [np.arange(4, dtype=np.float32)])
            client.register_system_shared_memory(name, key, 4096)
            tensors = [httpclient.InferInput(f"INPUT{i}", [4], "FP32") for i in range(2)]
            for tensor in tensors:
                tensor.set_shared_memory(name, 16)
            output = httpclient.InferRequestedOutput("OUTPUT0")
            output.set_shared_memory(name, 16, offset=1024)
            client.infer("add_sub", tensors, outputs=[output])
            client.unregister_system_shared_memory(name)
            assert shm.get_contents_as_numpy(region, np.float32, [4], 1024).tolist() == [0, 2, 4, 6]

        return work

    def leave(self):
        """Sends a request to a slow model and goes away."""
        body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()
        head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.server.http_port)) as client:
            client.sendall(head.encode() + body)
            time.sleep(0.02)

    def cancel(self):
        client = grpcclient.InferenceServerClient(self.server.grpc_address)

        def work():
            tensor = grpcclient.InferInput("INPUT0", [1], "FP32")
            tensor.set_data_from_numpy(np.zeros(1, np.float32))
            call = client.async_infer("slow", [tensor], lambda result, error: None)
            time.sleep(0.02)
            call.cancel()

        return work

    def reload(self):
        """Models come and go; requests to the one that is gone say so."""
        client = httpclient.InferenceServerClient(self.server.http_address)

        def work():
            client.load_model("simple")
            client.load_model("text")
            client.unload_model("text")

        return work

    def look(self):
        for path in ("/v2/models/stats", "/v2/health/ready", "/v2/models/simple/config", "/v2/systemsharedmemory/status"):
            assert self.server.http.get(path).status in (200, 400)

    def run(self):
        http, grpc = (httpclient, self.server.http_address), (grpcclient, self.server.grpc_address)
        work = {"leave": self.leave, "cancel": self.cancel(), "reload": self.reload(), "look": self.look}
        for number in range(2):
            for name, protocol in (("http", http), ("grpc", grpc)):
                for model in ("network", "simple", "twice"):
                    work[f"{name} {model} {number}"] = self.infer(*protocol, model)
            work[f"shared memory {number}"] = self.shared_memory(number)
        threads = [threading.Thread(target=self.repeat, args=item) for item in work.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for region in self.regions:
            shm.destroy_shared_memory_region(region)
        missing = [name for name in work if not self.done[name]]
        assert not self.failures and not missing, (self.failures, missing)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("binary", type=Path)
    arguments = parser.parse_args()
    os.environ["HALIMEDE_BIN"] = str(arguments.binary)
    with tempfile.TemporaryDirectory() as folder:
        models.standard(Path(folder))
        repository = models.Repository(Path(folder))
        repository.add("network", models.two_products())
        repository.add("slow", config=models.identity_config(dims=(1,), batch=0, delay_ms=50))
        flags = ["--model-control-mode=explicit"]
        loaded = ("network", "slow", "simple", "twice", "add_sub")
        server = Server([folder], *flags, *(f"--load-model={name}" for name in loaded))
        load = Load(server, arguments.seconds)
        try:
            load.run()
        finally:
            status = server.stop()
            text = server.log_text()
            if any(report in text for report in REPORTS):
                print(text[-20_000:])
    assert status == 0, f"the server ended with {status}:\n{text[-4000:]}"
    assert not any(report in text for report in REPORTS), "the server's log holds a report"
    print(f"{sum(load.done.values())} in {arguments.seconds:g} s: " + ", ".join(f"{n} {c}" for n, c in sorted(load.done.items())))


if __name__ == "__main__":
    main()
