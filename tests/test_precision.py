"""Precision of served models: what a server is asked for, and what a model gets after the comparison."""

import re

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.models import info, io, onnx_model

pytestmark = pytest.mark.halimede_only("precision is a setting of ours")

WIDTH = 48
CONFIG = 'platform: "onnxruntime_onnx"\n' + io("input", "x", "FP32", [-1, WIDTH]) + io("output", "y", "FP32", [-1, WIDTH])


def product(nudge):
    """A model of one product; with a nudge the difference of two that rounding loses."""
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y" if nudge is None else "a"])]
    constants = [numpy_helper.from_array(weights, "w")]
    if nudge is not None:
        other = weights + nudge * rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        constants.append(numpy_helper.from_array(other.astype(np.float32), "v"))
        nodes += [helper.make_node("MatMul", ["x", "v"], ["b"]), helper.make_node("Sub", ["a", "b"], ["y"])]
    x, y = [info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in "xy"]
    return onnx_model(nodes, [x], [y], constants)


def ask(server, model):
    numbers = np.linspace(-1, 1, 3 * WIDTH, dtype=np.float32)
    data = {"name": "x", "shape": [3, WIDTH], "datatype": "FP32", "data": numbers.tolist()}
    reply = server.http.infer(model, {"inputs": [data]})
    return np.array(reply.json["outputs"][0]["data"])


def test_a_model_is_narrow_where_that_does_no_harm(repository, serve):
    balanced = 'parameters { key: "precision" value { string_value: "balanced" } }'
    exact = 'parameters { key: "precision" value { string_value: "exact" } }'
    repository.add("plain", product(None), CONFIG)
    repository.add("plain_exact", product(None), CONFIG + exact)
    repository.add("delicate", product(1e-5), CONFIG)
    repository.add("delicate_exact", product(1e-5), CONFIG + exact)
    server = serve(repository, "--precision=balanced")
    log = server.log_text()
    said = re.search(r"model 'plain' computes in balanced precision; against exact: 'y': cosine ([\d.]+)", log)
    assert said and float(said[1]) > 0.9999
    np.testing.assert_allclose(ask(server, "plain"), ask(server, "plain_exact"), atol=0.1)
    np.testing.assert_array_equal(ask(server, "delicate"), ask(server, "delicate_exact"))
    assert "_exact' computes" not in log

    repository.add("plain", product(None), CONFIG + balanced)
    repository.add("wrong", product(None), CONFIG + balanced.replace("balanced", "wild"))
    server = serve(repository, "--exit-on-error=false", "--strict-readiness=false")
    assert "model 'plain' computes in balanced precision" in server.log_text()
    assert "'wild' is no precision: it is exact or balanced" in server.log_text()
