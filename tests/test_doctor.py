"""What `halimede doctor REPOSITORY` says of the models of a Triton repository."""

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

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


def test_what_is_no_model_is_to_be_moved(repository):
    for name in (".git/objects", "X.Y/docs", "lost+found", "empty.onnx"):
        (repository.path / name).mkdir(parents=True)
    # One that says what it is, or has a version, is a model that lacks something.
    (repository.path / "configured").mkdir()
    (repository.path / "configured" / "config.pbtxt").write_text('backend: "onnxruntime"')
    (repository.path / "own.secret" / "1").mkdir(parents=True)
    said = by_name(repository, status=1)
    moved = {name for name, finding in said.items() if finding["remedy"].startswith("if this is no model, move it out")}
    assert moved == {".git", "X.Y", "lost+found", "empty.onnx"}
    assert said["configured"]["remedy"].startswith("put the model's file into MODEL/VERSION/")
    assert said["own.secret"]["remedy"].startswith("libraries of backends are not loaded")


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
    assert "max_batch_sise" in said["wrong"]["why"][0] and said["wrong"]["remedy"].startswith("correct the line")
    assert "no licence for this machine" in said["licensed"]["why"][0]
    assert said["licensed"]["remedy"].startswith("the text is that of the model's own code")
    assert "remedy" not in said["plain"]
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


def test_every_refused_member_of_an_ensemble_is_named(repository):
    for name in ["dali", "plan"]:
        repository.add(name, config=f'backend: "{name}"\n' + models.io("input", "A", "FP32", [1]) + models.io("output", "B", "FP32", [1]))
    step = 'step {{ model_name: "{}" model_version: -1 input_map {{ key: "A" value: "{}" }} output_map {{ key: "B" value: "{}" }} }}'
    repository.add("both", None, (
        'platform: "ensemble"\n' + models.io("input", "A", "FP32", [1]) + models.io("output", "C", "FP32", [1])
        + "ensemble_scheduling {" + step.format("dali", "A", "B") + step.format("plan", "B", "C") + "}"
    ))  # fmt: skip
    said = by_name(repository, status=1)
    assert said["both"]["remedy"].startswith("repair the members that are named")
    assert said["both"]["why"][1] == "members that do not load: 'dali', 'plan'"
    assert said["dali"]["remedy"].startswith("do the same steps in a Python model")


def test_ways_out_for_what_lies_outside_of_configurations(repository):
    node = helper.make_node("Own", ["x"], ["y"], domain="acme")
    x, y = (helper.make_tensor_value_info(name, 1, [4]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    repository.add("operator", helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=8))
    weights = numpy_helper.from_array(np.zeros((4, 4), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [weights]), opset_imports=opsets[:1], ir_version=8)
    (repository.path / "outside" / "1").mkdir(parents=True)
    onnx.save(model, repository.path / "outside" / "1" / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (repository.path / "outside" / "1" / "weights.bin").unlink()
    said = by_name(repository, status=1)
    assert said["operator"]["remedy"].startswith("the operator is not known here: export"), said
    assert "weights.bin" in said["outside"]["why"][0]
    assert said["outside"]["remedy"].startswith("put the file that is named beside the model's own")


def test_a_missing_numpy_is_no_wrong_flag(repository, tmp_path):
    (repository.path / "script" / "1").mkdir(parents=True)
    (repository.path / "script" / "1" / "model.py").write_text(PYTHON)
    # An interpreter that finds nothing but the standard library.
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 -S "$@"\n')
    bare.chmod(0o755)
    flag = f"--backend-config=python,interpreter={bare}"
    finding = json.loads(doctor(repository.path, "--json", flag, status=1))[0]
    assert "cannot import numpy" in finding["why"][0]
    assert finding["remedy"].startswith("install numpy for the interpreter that is named")


def test_versions_that_a_policy_names_and_nobody_has(repository):
    repository.add("some", models.add_sub(1, [4]), "version_policy { specific { versions: [ 1, 3, 7 ] } }")
    said = by_name(repository, status=0)["some"]
    assert said["verdict"] == "differs"
    assert said["why"] == ["version_policy names versions that have no folder: 3, 7. The others are served"]


ONNX = 'backend: "onnxruntime"\n'
OUTPUT = models.io("output", "OUTPUT0", "FP32", [4])
SECOND = models.io("input", "INPUT1", "FP32", [4]) + OUTPUT
# A configuration of a model that adds and subtracts vectors of four floats, and how the way out begins.
REFUSED = {
    "platform": ('platform: "caffe2_netdef"', "write the backend instead"),
    "pair": (ONNX + 'platform: "tensorrt_plan"', "remove 'platform'"),
    "name": (ONNX + 'name: "other"', "give the folder the name"),
    "version": (ONNX + "version_policy { specific { versions: [ 7 ] } }", "put the model's file into"),
    "file": (ONNX + 'default_model_filename: "net.onnx"', "put the file there"),
    "batch": (ONNX + "max_batch_size: 4", "write max_batch_size: 0"),
    "type": (ONNX + models.io("input", "INPUT0", "INT8", [4]) + SECOND, "write the datatype"),
    "shape": (ONNX + models.io("input", "INPUT0", "FP32", [5]) + SECOND, "write the model's own shape"),
    "count": (ONNX + SECOND, "name all inputs"),
    "cache": (ONNX + "response_cache { enable: true } model_transaction_policy { decoupled: true }", "remove response_cache"),
    "agent": (ONNX + 'model_repository_agents { agents { name: "checksum" } }', "remove what is named"),
    "value": (ONNX + 'parameters { key: "intra_op_thread_count" value { string_value: "many" } }', "correct the value"),
    "queue": (ONNX + "max_batch_size: 4 dynamic_batching { preferred_batch_size: 9 }", "write sizes from 1"),
    "member": (models.ENSEMBLE, "put the member that is named"),
}


def test_every_refusal_says_the_way_out(repository):
    for name, (config, _) in REFUSED.items():
        repository.add(name, models.add_sub(1, [4]), config)
    (repository.path / "text" / "1").mkdir(parents=True)
    (repository.path / "text" / "1" / "model.onnx").write_text("version https://git-lfs.github.com/spec/v1")
    said = by_name(repository, status=1)
    expected = {name: way_out for name, (_, way_out) in REFUSED.items()} | {"text": "bring the file anew"}
    assert {name: (finding["verdict"], finding["remedy"][: len(expected[name])]) for name, finding in said.items()} == {
        name: ("refused", way_out) for name, way_out in expected.items()
    }, said
    printed = doctor(repository.path, status=1)
    assert printed.count("way out: ") == len(expected)


def test_what_a_server_would_be_told_is_told_to_the_doctor(repository, tmp_path):
    repository.add("plain", models.add_sub(1, ["n", 4]))
    repository.add("cached", models.add_sub(1, [4]), "response_cache { enable: true }")
    repository.add("limited", models.add_sub(1, [4]), 'instance_group { kind: KIND_CPU rate_limiter { resources { name: "r" count: 4 } } }')
    repository.add("two", models.add_sub(1, [4]), "max_batch_size: 0")
    (repository.path / "two" / "configs").mkdir()
    (repository.path / "two" / "configs" / "other.pbtxt").write_text('name: "three"')
    # Its member batches as far as the server says.
    repository.add("simple", models.add_sub(6, ["n", 16]))
    repository.add("twice", None, models.ENSEMBLE)
    repository.add("scripted", config='backend: "own"\n' + models.io("input", "IN", "FP32", [1]) + models.io("output", "OUT", "FP32", [1]))
    (tmp_path / "backends" / "own").mkdir(parents=True)
    (tmp_path / "backends" / "own" / "model.py").write_text(PYTHON.replace('raise RuntimeError("no licence for this machine")', "pass"))

    def verdicts(*flags):
        done = doctor(repository.path, "--json", *flags, status=1)
        return {finding["model"]: finding for finding in json.loads(done)}

    said = verdicts()
    assert {name: finding["verdict"] for name, finding in said.items()} == {
        "plain": "loads", "cached": "differs", "limited": "differs", "two": "loads", "simple": "loads",
        "twice": "refused", "scripted": "refused",
    }  # fmt: skip
    assert "--cache-config" in said["cached"]["why"][0] and "--rate-limit" in said["limited"]["why"][0]
    assert verdicts("--cache-config=local,size=1000000")["cached"]["verdict"] == "loads"
    limited = ["--rate-limit=execution_count", "--rate-limit-resource=r:4"]
    assert verdicts(*limited)["limited"]["verdict"] == "loads"
    too_few = verdicts(limited[0], "--rate-limit-resource=r:1")["limited"]
    assert too_few["verdict"] == "refused" and "--rate-limit-resource" in too_few["remedy"]
    assert verdicts("--model-config-name=other")["two"]["remedy"].startswith("give the folder the name")
    assert verdicts("--memory-limit=1")["plain"]["remedy"].startswith("lower 'count' in instance_group")
    strict = verdicts("--disable-auto-complete-config")["plain"]
    assert strict["verdict"] == "refused" and "--disable-auto-complete-config" in strict["remedy"]
    assert said["twice"]["remedy"].startswith("lower max_batch_size of the ensemble")
    assert verdicts("--backend-config=onnxruntime,default-max-batch-size=8")["twice"]["verdict"] == "loads"
    assert verdicts(f"--backend-directory={tmp_path / 'backends'}")["scripted"]["verdict"] == "loads"
    assert "--backend-config" in doctor(repository.path, "--backend-config=nonsense", status=1)
    assert "required" in doctor("--backend-config=python,x=1", status=2)


def test_a_folder_that_is_none(tmp_path):
    assert f"'{tmp_path / 'nowhere'}' is no folder" in doctor(tmp_path / "nowhere", status=1)
    assert "'s3://bucket/models' is elsewhere: doctor looks at folders of this machine" in doctor("s3://bucket/models", status=1)
    assert doctor(tmp_path, status=0) == "0 models: 0 load, 0 differ, 0 refused\n"


def test_the_folder_of_a_model_is_no_repository(repository):
    repository.add("plain", models.add_sub(1, [4])).add("told", models.add_sub(1, [4]), "max_batch_size: 0")
    for name, sign in [("plain", "1/model.onnx"), ("told", "config.pbtxt")]:
        said = doctor(repository.path / name, status=1)
        assert f"is the folder of a model, not of models: it has '{sign}'" in said and "Name the folder that it lies in" in said
    # A model may have a number as its name.
    repository.add("3", models.add_sub(1, [4]))
    assert by_name(repository, status=0)["3"]["verdict"] == "loads"


def test_a_verb_says_who_serves_what_it_does_not_run(repository):
    for name, backend in [("plan", "tensorrt"), ("script", "python"), ("own", "company_secret")]:
        repository.add(name, config=f'backend: "{backend}"\n')

    def said(name):
        done = subprocess.run([binary(), "run", repository.path / name], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        return done.stderr

    assert "the backend 'tensorrt', which is not here: a plan runs on one kind of NVIDIA's GPUs alone" in said("plan")
    assert "`halimede serve` runs it with its repository" in said("script")
    assert "libraries of backends are not loaded" in said("own")
