"""What `halimede doctor REPOSITORY` says of the models of a Triton repository."""

import json
import os
import subprocess
import sys

import pytest

from support import models
from support.server import binary

pytestmark = pytest.mark.halimede_only

PYTHON = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("no licence for this machine")
"""


def doctor(*arguments, status):
    # Python models run with this interpreter, which has numpy.
    env = os.environ | {"PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]}
    done = subprocess.run([binary(), "doctor", *map(str, arguments)], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 or done.stdout else done.stderr


def by_name(repository, status):
    findings = json.loads(doctor(repository.path, "--json", status=status))
    return {finding["model"]: finding for finding in findings}


def test_models_that_load(repository):
    repository.add("plain", models.add_sub(1, [4]))
    repository.add("tuned", models.add_sub(1, [4]), "optimization { cuda { graphs: true } }")
    said = by_name(repository, status=0)
    assert said["plain"] == {"model": "plain", "verdict": "loads", "backend": "onnxruntime", "why": []}
    assert said["tuned"]["verdict"] == "differs"
    assert said["tuned"]["why"] == ["optimization.cuda is ignored: it is for CUDA devices"]
    printed = doctor(repository.path, status=0)
    assert printed.splitlines() == [
        "loads     plain (onnxruntime)",
        "differs   tuned (onnxruntime)",
        "          optimization.cuda is ignored: it is for CUDA devices",
        "2 models: 1 load, 1 differ, 0 refused",
    ]


def test_what_models_print_is_none_of_the_report(repository):
    repository.add("talks", config='backend: "python"\n' + models.io("input", "IN", "FP32", [1]) + models.io("output", "OUT", "FP32", [1]))
    (repository.path / "talks" / "1" / "model.py").write_text("print('hello')\n" + PYTHON)
    said = by_name(repository, status=1)
    assert said["talks"]["verdict"] == "refused" and "no licence for this machine" in said["talks"]["why"][0]


def test_who_takes_long_is_named(repository):
    code = "import time\n\n\nclass TritonPythonModel:\n    def initialize(self, args):\n        time.sleep(600)\n"
    repository.add("endless", config='backend: "python"\n' + models.io("input", "IN", "FP32", [1]) + models.io("output", "OUT", "FP32", [1]))
    (repository.path / "endless" / "1" / "model.py").write_text(code)
    env = os.environ | {"PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]}
    with subprocess.Popen([binary(), "doctor", repository.path], stderr=subprocess.PIPE, text=True, env=env) as running:
        said = next(line for line in running.stderr if "still" in line)
        running.kill()
    assert said.startswith("'endless' is still being loaded after 1")


def test_models_that_do_not_and_the_way_out(repository):
    repository.add("plain", models.add_sub(1, [4]))
    # The backend is known by the file.
    (repository.path / "script" / "1").mkdir(parents=True)
    (repository.path / "script" / "1" / "model.pt").write_bytes(b"PK")
    for name, backend in [("plan", "tensorrt"), ("own", "company_secret")]:
        repository.add(name, config=f'backend: "{backend}"\nmax_batch_size: 0\n')
    repository.add("gpu", models.add_sub(1, [4]), "instance_group { kind: KIND_GPU }")
    repository.add("wrong", config="max_batch_sise: 3\n")
    (repository.path / "licensed" / "1").mkdir(parents=True)
    (repository.path / "licensed" / "1" / "model.py").write_text(PYTHON)
    said = by_name(repository, status=1)
    assert {name: finding["verdict"] for name, finding in said.items()} == {
        "plain": "loads", "script": "refused", "plan": "refused", "own": "refused", "wrong": "refused",
        "gpu": "refused", "licensed": "refused",
    }  # fmt: skip
    assert said["gpu"]["remedy"].startswith("write KIND_AUTO or KIND_CPU")
    assert said["script"]["backend"] == "pytorch" and "torch.onnx.export" in said["script"]["remedy"]
    assert "the ONNX file that it was built from" in said["plan"]["remedy"]
    assert said["own"]["remedy"].startswith("libraries of backends are not loaded")
    assert "max_batch_sise" in said["wrong"]["why"][0] and "remedy" not in said["wrong"]
    assert "no licence for this machine" in said["licensed"]["why"][0] and "remedy" not in said["licensed"]
    printed = doctor(repository.path, status=1)
    assert "          way out: export it to ONNX" in printed
    assert printed.splitlines()[-1] == "7 models: 1 load, 0 differ, 6 refused"


def test_an_ensemble_and_its_member(repository):
    repository.add("simple", models.add_sub(6, [1, 16]), "max_batch_size: 0")
    repository.add("both", None, (
        'platform: "ensemble"\n' + models.io("input", "A", "INT32", [1, 16]) + models.io("output", "B", "INT32", [1, 16])
        + 'ensemble_scheduling { step { model_name: "simple" model_version: -1 input_map { key: "INPUT0" value: "A" }'
        ' input_map { key: "INPUT1" value: "A" } output_map { key: "OUTPUT0" value: "B" } } }'
    ))  # fmt: skip
    assert {name: finding["verdict"] for name, finding in by_name(repository, status=0).items()} == {
        "simple": "loads", "both": "loads",
    }  # fmt: skip


def test_a_folder_that_is_none(tmp_path):
    assert f"'{tmp_path / 'nowhere'}' is no folder" in doctor(tmp_path / "nowhere", status=1)
    assert doctor(tmp_path, status=0) == "0 models: 0 load, 0 differ, 0 refused\n"
