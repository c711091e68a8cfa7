"""How many threads compute at the same time."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.models import info, io, onnx_model

pytestmark = pytest.mark.halimede_only("looks at the names of our threads")

WIDTH, ROWS, CORES = 512, 256, os.cpu_count() or 1
CONFIG = (
    'platform: "onnxruntime_onnx"\n'
    + io("input", "x", "FP32", [-1, WIDTH])
    + io("output", "y", "FP32", [-1, WIDTH])
    + f"instance_group [{{ count: {CORES} }}]\n"
    + 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }\n'
)


def layers(count):
    """Products of 512 x 512, one after the other."""
    weights = np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32)
    names = ["x", *(f"v{i}" for i in range(1, count)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], "w"], [names[i + 1]]) for i in range(count)]
    x, y = [info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in "xy"]
    return onnx_model(nodes, [x], [y], [numpy_helper.from_array(weights, "w")])


def computing(pid):
    """Threads of instances and of pools that are running, or would be if they had a core."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            head, _, rest = (task / "stat").read_text().rpartition(")")
        except OSError:  # it has just ended
            continue
        name = head.partition("(")[2]
        count += rest.split()[0] == "R" and name.startswith(("steady", "halimede-cpu"))
    return count


def test_a_core_to_a_request(repository, serve):
    repository.add("steady", layers(40), CONFIG)
    server = serve(repository)
    stop = time.monotonic() + 2
    data = {"name": "x", "shape": [ROWS, WIDTH], "datatype": "FP32", "data": np.ones(ROWS * WIDTH).tolist()}

    def ask():
        while time.monotonic() < stop:
            assert server.http.infer("steady", {"inputs": [data], "outputs": [{"name": "y"}]}).status == 200

    clients = [threading.Thread(target=ask) for _ in range(4 * CORES)]
    [client.start() for client in clients]
    seen = []
    while time.monotonic() < stop:
        seen.append(computing(server.process.pid))
        time.sleep(0.005)
    [client.join() for client in clients]
    assert 1 <= max(seen) <= CORES, seen
