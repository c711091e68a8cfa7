"""Every configuration of docs/migrating-from-triton.md: what is said to load loads and answers, what is said to be refused
is, with the words that the guide names."""

import re
import sys

import pytest
from onnx import TensorProto

from support import models
from support.server import ROOT

pytestmark = pytest.mark.halimede_only("a guide to ours")

GUIDE = (ROOT / "docs" / "migrating-from-triton.md").read_text()
BLOCK = re.compile(r"<!-- test: (?P<model>\w+), (?P<outcome>loads|refused: (?P<text>[^\n]*)) -->\n```pbtxt\n(?P<config>.*?)^```", re.S | re.M)
BLOCKS = list(BLOCK.finditer(GUIDE))

PYTHON = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + array)]) for array in given]
"""
FLAGS = f"--backend-config=python,interpreter={sys.executable}"


def test_no_configuration_is_left_out():
    assert len(BLOCKS) == GUIDE.count("```pbtxt") >= 10


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {GUIDE.count(chr(10), 0, block.start()) + 2}")
def test_configuration(repository, serve, block):
    name = block["model"]
    if name == "python":
        repository.add(name, config=block["config"])
        (repository.path / name / "1" / "model.py").write_text(PYTHON)
    else:
        repository.add(name, models.add_sub(TensorProto.FLOAT, ["batch", 16]), block["config"])
    server = serve(repository, "--exit-on-error=false", FLAGS, wait=False)
    server.wait_ready("/v2/health/live")
    (entry,) = server.http.post("/v2/repository/index").json
    if block["text"]:
        assert entry["state"] == "UNAVAILABLE" and block["text"] in entry["reason"], entry
        return
    assert entry["state"] == "READY", entry
    inputs = [{"name": i["name"], "datatype": "FP32", "shape": [1, 16], "data": list(range(16))}
              for i in server.http.get(f"/v2/models/{name}").json["inputs"]]  # fmt: skip
    outputs = {o["name"]: o["data"] for o in server.http.infer(name, {"inputs": inputs}).json["outputs"]}
    assert outputs["OUTPUT0"] == [2.0 * i for i in range(16)]


def test_what_is_ignored_is_said(repository, serve):
    """The configuration under `What is ignored`."""
    config = next(block["config"] for block in BLOCKS if "host_policy" in block["config"])
    repository.add("add_sub", models.add_sub(TensorProto.FLOAT, ["batch", 16]), config)
    log = serve(repository).log_text()
    for field in ("optimization.cuda", "execution accelerator 'tensorrt'", "optimization.priority", "optimization.eager_batching",
                  "host_policy"):  # fmt: skip
        assert f"{field} is ignored" in log or re.search(rf"{re.escape(field)}\S* is ignored", log), field


def test_that_vertex_ai_is_not_served_is_said(repository, serve):
    repository.add("add_sub", models.add_sub(TensorProto.FLOAT, ["batch", 16]))
    assert "Vertex AI" in serve(repository, env={"AIP_MODE": "PREDICTION"}).log_text()
    assert "Vertex AI" not in serve(repository).log_text()
