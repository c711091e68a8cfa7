"""`halimede explain` as a person reads it."""

import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.server import binary


def model():
    """A linear layer scaled per column, a GELU written out, and one scaled per row, which stays."""
    rng = np.random.default_rng(2)

    def constant(name, array):
        return numpy_helper.from_array(np.asarray(array, np.float32), name)

    initializers = [
        constant("w", rng.normal(size=(8, 8))), constant("columns", rng.normal(size=8)), constant("rows", [[1.5], [2.5]]),
        constant("root", 2**0.5), constant("one", 1), constant("half", 0.5),
    ]  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], "linear"),
        helper.make_node("Mul", ["y", "columns"], ["scaled"], "per_column"),
        helper.make_node("Div", ["scaled", "root"], ["inner"]),
        helper.make_node("Erf", ["inner"], ["erf"]),
        helper.make_node("Add", ["erf", "one"], ["sum"]),
        helper.make_node("Mul", ["scaled", "sum"], ["twice"]),
        helper.make_node("Mul", ["twice", "half"], ["gelu"]),
        helper.make_node("MatMul", ["gelu", "w"], ["z"], "second"),
        helper.make_node("Mul", ["z", "rows"], ["out"], "per_row"),
    ]
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8]) for n in ("x", "out")]
    graph = helper.make_graph(nodes, "explained", tensors[:1], tensors[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("explain") / "model.onnx"
    onnx.save(model(), path)
    return path


def explain(path, *flags):
    return subprocess.run([binary(), "explain", *flags, str(path)], capture_output=True, text=True, check=True).stdout


def test_sections_come_in_the_order_of_the_work(path):
    text = explain(path)
    titles = [line.split("  ")[0] for line in text.splitlines() if line and not line.startswith(" ")]
    assert titles == ["model", "graph", "passes", "plan", "time", "memory", "coverage"]
    assert "all 2 steps run on kernels" in text


def test_steps_say_how_near_they_are_to_the_best(path):
    text = explain(path, "--threads", "1")
    plan = text[text.index("\nplan") : text.index("\ntime")].splitlines()
    steps = [line.split() for line in plan if " Contract " in line]
    assert len(steps) == 2
    for _, _, gflops, gbps, roof, *_ in steps:
        assert float(gflops) > 0 and float(gbps) > 0 and 0 <= int(roof.rstrip("%")) <= 120


def test_passes_say_what_they_did_where_and_why_not(path):
    lines = [line.strip() for line in explain(path).splitlines()]
    at = lines.index("a factor per column went into the weights")
    assert lines[at + 1] == "at linear"
    assert "GeluErf as one function" in lines
    at = next(i for i, line in enumerate(lines) if line.startswith("left alone: ") and "not one per column" in line)
    assert lines[at + 1] == "at per_row"
    assert any(line.startswith("nothing to do for: ") and "rotary embedding" in line for line in lines)


def test_without_passes_the_model_runs_as_it_was_imported(path):
    text = explain(path, "--passes", "off")
    assert "passes  off" in text
    plan = text[text.index("\nplan") : text.index("\ntime")]
    assert plan.count(" Map ") == 7 and plan.count(" Contract ") == 2


def test_a_model_that_is_only_looked_at_is_not_run(path):
    text = explain(path, "--no-run")
    assert "\npasses" in text and "\nplan" not in text
