"""Results of operators where it is easy to be wrong, through the server."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from support import models
from support.models import info, onnx_model

FLOAT, U8, I32 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT32


def clipped_gelu():
    """`gelu_10` of transformers: the bound lies where the function is a line."""
    nodes = [
        helper.make_node("Div", ["x", "root"], ["scaled"]),
        helper.make_node("Erf", ["scaled"], ["erf"]),
        helper.make_node("Add", ["erf", "one"], ["more"]),
        helper.make_node("Mul", ["x", "more"], ["product"]),
        helper.make_node("Mul", ["product", "half"], ["gelu"]),
        helper.make_node("Clip", ["gelu", "low", "high"], ["y"]),
    ]
    numbers = {"root": 2**0.5, "one": 1, "half": 0.5, "low": -10, "high": 10}
    weights = [numpy_helper.from_array(np.float32(number), name) for name, number in numbers.items()]
    return onnx_model(nodes, [info("x", FLOAT, [3])], [info("y", FLOAT, [3])], weights)


def log_softmax():
    return onnx_model(
        [helper.make_node("LogSoftmax", ["x"], ["y"])], [info("x", FLOAT, [1, 2])], [info("y", FLOAT, [1, 2])]
    )


def padded_integers():
    """A border of zeros around numbers whose zero point is 128."""
    nodes = [
        helper.make_node("Pad", ["x", "pads", "zero"], ["padded"]),
        helper.make_node("ConvInteger", ["padded", "w", "point"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64), "pads"),
        numpy_helper.from_array(np.uint8(0), "zero"),
        numpy_helper.from_array(np.uint8(128), "point"),
        numpy_helper.from_array(np.ones((16, 16, 3, 3), np.int8), "w"),
    ]
    shapes = [info("x", U8, [1, 16, 2, 2])], [info("y", I32, [1, 16, 2, 2])]
    return onnx_model(nodes, *shapes, weights)


CASES = {
    "clipped_gelu": (clipped_gelu, np.float32([20, -20, 5]), [10, 0, 5], 1e-5),
    "log_softmax": (log_softmax, np.float32([[1e7, 1e7 - 1]]), [[-0.3132617, -1.3132617]], 1e-6),
    # Four numbers of 130 and five of the border in each of 16 channels.
    "padded_integers": (padded_integers, np.full((1, 16, 2, 2), 130, np.uint8), np.full((1, 16, 2, 2), 16 * (8 - 640)), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_results(name, tmp_path, serve):
    make, given, expected, bound = CASES[name]
    repository = models.Repository(tmp_path / "models").add(name, make())
    server = serve(repository)
    kind = {np.dtype(np.float32): "FP32", np.dtype(np.uint8): "UINT8"}[given.dtype]
    tensor = {"name": "x", "shape": list(given.shape), "datatype": kind, "data": given.ravel().tolist()}
    answer = server.http.post(f"/v2/models/{name}/infer", json.dumps({"inputs": [tensor]}).encode())
    assert answer.status == 200, answer.body
    made = np.reshape(answer.json["outputs"][0]["data"], np.shape(expected))
    np.testing.assert_allclose(made, expected, rtol=0, atol=bound)


def test_very_many_rows_of_nothing_take_no_time(tmp_path, serve):
    node = helper.make_node("Concat", ["x", "x"], ["y"], axis=2)
    shape = ["a", "b", "c"]
    model = onnx_model([node], [info("x", FLOAT, shape)], [info("y", FLOAT, ["a", "b", "d"])])
    server = serve(models.Repository(tmp_path / "models").add("joins", model))
    tensor = {"name": "x", "shape": [1, 1 << 50, 0], "datatype": "FP32", "data": []}
    answer = server.http.post("/v2/models/joins/infer", json.dumps({"inputs": [tensor]}).encode())
    assert answer.status == 200 and answer.json["outputs"][0]["shape"] == [1, 1 << 50, 0], answer.body


TOGETHER = """max_batch_size: 2
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 20000000 }
"""


def test_outputs_that_nobody_configured_hold_up_no_batch(repository, serve):
    """A graph may give what has no row for each request, as a recurrent one its state: that is for nobody."""
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0, 1], keepdims=1),
    ]
    outputs = [info("y", FLOAT, ["batch", 3]), info("mean", FLOAT, [1, 1])]
    repository.add("together", onnx_model(nodes, [info("x", FLOAT, ["batch", 3])], outputs), TOGETHER)
    server = serve(repository)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda _: server.http.infer("together", body), range(2)))
    for reply in replies:
        assert reply.status == 200, reply.json
        assert [(one["name"], one["data"]) for one in reply.json["outputs"]] == [("y", [-1, -2, -3])]
    assert server.metric("nv_inference_exec_count", "together") == 1, "they ran alone"
