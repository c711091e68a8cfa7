"""The verbs for one model: run, bench, explain, doctor. (`check` is in test_conformance.py.)"""

import json
import math
import os
import re
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from support import models
from support.server import ROOT, binary

pytestmark = pytest.mark.halimede_only("verbs of ours")
ENCODER = ROOT / "examples" / "repository" / "encoder"
CLASSIFIER = ENCODER.parent / "digits_classifier"


def halimede(*arguments, stdin="", status=0):
    """What a command printed, after its status is what it should be."""
    done = subprocess.run(
        [str(binary()), *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.fixture
def add_sub(tmp_path):
    path = tmp_path / "add_sub.onnx"
    onnx.save(models.add_sub(TensorProto.FLOAT, ["n", 2]), path)
    return path


@pytest.fixture
def npz(tmp_path):
    path = tmp_path / "inputs.npz"
    np.savez(path, INPUT0=np.array([[1, 2], [3, 4]], np.float32), INPUT1=np.full((2, 2), 0.5, np.float32))
    return path


def test_run_prints_json(add_sub):
    printed = json.loads(halimede("run", add_sub, "--input", "INPUT0=[[1, 2]]", "--input", "INPUT1=f32:1x2:ones"))
    assert printed["OUTPUT0"] == {"datatype": "f32", "shape": [1, 2], "data": [2.0, 3.0]}
    assert printed["OUTPUT1"]["data"] == [0.0, 1.0]


def test_run_reads_and_writes_numpy_files(add_sub, npz, tmp_path):
    halimede("run", add_sub, "--inputs", npz, "--output", tmp_path / "out")
    expected = np.array([[1.5, 2.5], [3.5, 4.5]], np.float32)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "OUTPUT0.npy"), expected)
    np.save(tmp_path / "one.npy", expected)
    (tmp_path / "two.json").write_text("[[1, 1], [1, 1]]")
    mixed = ["--input", f"INPUT0={tmp_path}/one.npy", "--input", f"INPUT1={tmp_path}/two.json"]
    assert json.loads(halimede("run", add_sub, *mixed))["OUTPUT0"]["data"] == [2.5, 3.5, 4.5, 5.5]


def test_what_is_no_model_says_where_models_are(add_sub):
    assert "halimede serve" in halimede("run", ENCODER.parent / "digits", status=1)
    assert "one folder of a repository" in halimede("explain", ENCODER.parent, status=1)


def test_units_and_durations_are_judged_first(add_sub):
    for wrong in (["--threads", "0"], ["--unit", "gpu"]):
        assert "made up" not in halimede("run", add_sub, *wrong, status=1)
    assert "seconds" in halimede("doctor", "--seconds", "nan", status=2)


def test_numbers_that_json_lacks_are_texts(tmp_path):
    x, y = [onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Log", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "log.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    for given, expected in (("0", "-Infinity"), ("-1", "NaN"), ("1", 0.0)):
        assert json.loads(halimede("run", path, "--input", f"x={given}"))["y"]["data"] == [expected]


def test_run_takes_the_folder_of_a_model(add_sub):
    printed = json.loads(halimede("run", ENCODER, "--input", "input_ids=i64:1x5:ones", "--input", "attention_mask=i64:1x5:ones"))
    assert all(all(map(math.isfinite, output["data"])) for output in printed.values())


def test_verbs_take_the_file_that_is_served(tmp_path):
    """`net.onnx` is the model, as its configuration says; beside it lies one that is not served."""
    folder = tmp_path / "named"
    for version in (1, 2):
        (folder / str(version)).mkdir(parents=True)
        onnx.save(models.add_sub(TensorProto.FLOAT, [2]), folder / str(version) / "net.onnx")
        (folder / str(version) / "model.onnx").write_bytes(b"no model")
    config = folder / "config.pbtxt"
    config.write_text('backend: "onnxruntime" default_model_filename: "net.onnx"')
    (folder / "2" / "net.onnx").write_bytes(b"no model either")
    for verb in ("run", "bench", "explain"):
        assert str(folder / "2" / "net.onnx") in halimede(verb, folder, status=1)
    config.write_text(config.read_text() + " version_policy { specific { versions: [ 1 ] } }")
    assert json.loads(halimede("run", folder, "--input", "INPUT0=[1, 2]"))["OUTPUT0"]["shape"] == [2]
    assert json.loads(halimede("bench", folder, "--seconds", "0", "--json"))["inputs"] == ["f32[2]"] * 2
    assert "coverage" in halimede("explain", folder, "--runs", "1")
    assert "nothing to choose" in halimede("tune", folder, "--budget", "0", "--database", tmp_path / "t.jsonl", status=1)
    assert "no product to quantise" in halimede("quantize", folder, "--calibration", "random", status=1)
    config.write_text('default_model_filename: "../../secret.onnx" backend: "onnxruntime"')
    assert "outside the model's directory" in halimede("run", folder, status=1)
    config.write_text("max_batch_sise: 3")
    assert "max_batch_sise" in halimede("run", folder, status=1)


@pytest.mark.parametrize("verb", ["run", "bench", "explain"])
@pytest.mark.parametrize("size, bytes", [("1000000000000x2", "16000000000000"), ("9000000000000000000x2", "")])
def test_an_input_that_no_machine_holds_is_refused(add_sub, verb, size, bytes):
    text = halimede(verb, add_sub, "--input", f"INPUT0=f32:{size}:zeros", status=1).splitlines()[-1]
    shape = size.replace("x", ", ")
    assert text.startswith(f"error: --input INPUT0=f32:{size}:zeros: a tensor f32[{shape}] ") and bytes in text
    assert "make it smaller" in text and ("of this machine's memory are left" in text or not bytes)


@pytest.mark.parametrize("arguments, expected", [
    (["--input", "NOPE=[1]"], "the model has no input 'NOPE'; there are: INPUT0, INPUT1"),
    (["--input", "INPUT0=[[1, 2"], "INPUT0"),
    (["--unit", "abacus"], "no compute unit 'abacus'"),
    (["--passes", "some"], "--passes some"),
])  # fmt: skip
def test_what_is_wrong_is_named(add_sub, arguments, expected):
    text = halimede("run", add_sub, *arguments, status=1)
    assert text.splitlines()[-1].startswith("error: ") and expected in text


def test_precisions(add_sub):
    assert "'wild' is no precision: it is exact, balanced or fast" in halimede("run", add_sub, "--precision", "wild", status=2)
    image = ["--input", "image=f32:4x1x8x8:random"]
    answers = {}
    for precision in ("exact", "balanced", "fast"):
        printed = json.loads(halimede("run", CLASSIFIER, "--precision", precision, *image))
        answers[precision] = [number for output in printed.values() for number in output["data"]]
    pairs = list(zip(answers["exact"], answers["balanced"]))
    largest = max(map(abs, answers["exact"]))
    assert all(abs(a - b) < 0.02 * largest for a, b in pairs)
    assert answers["fast"] != answers["exact"]
    assert all(abs(a - b) < 0.05 * largest for a, b in zip(answers["exact"], answers["fast"]))
    explained = halimede("explain", CLASSIFIER, "--precision", "fast", *image)
    assert re.search("(int8|vnni), packed weights", explained)
    seen = json.loads(halimede("bench", CLASSIFIER, "--precision", "fast", "--seconds", "0", "--json", *image))
    assert seen["precision"] == "fast" and seen["reference"] == 0
    # Where the machine multiplies bf16, it did.
    if "balanced" in re.search(r"unit +cpu: .*", halimede("doctor", "--seconds", "0"))[0]:
        assert any(a != b for a, b in pairs)
        exact = json.loads(halimede("run", CLASSIFIER, "--precision", "balanced", "--disable-matrix", *image))
        assert [number for output in exact.values() for number in output["data"]] == answers["exact"]


def test_a_missing_model_is_named(tmp_path):
    for verb in ("run", "bench", "explain"):
        assert str(tmp_path / "nope.onnx") in halimede(verb, tmp_path / "nope.onnx", status=1)


def test_bench_in_json(add_sub, npz):
    seen = json.loads(halimede("bench", add_sub, "--inputs", npz, "--seconds", "0", "--threads", "1", "--json"))
    assert (seen["inputs"], seen["threads"], seen["precision"]) == (["f32[2, 2]"] * 2, 1, "exact")
    latency = seen["latency_ms"]
    assert 0 < latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert seen["runs"] >= 1 and seen["runs_per_second"] > 0 and seen["kernels"] > 0


def test_bench_for_people(add_sub):
    printed = halimede("bench", add_sub, "--seconds", "0", "--input", "INPUT0=f32:3x2:random")
    assert "p99" in printed and "runs/s" in printed


def test_bench_interactive(add_sub, npz):
    lines = halimede("bench", add_sub, "--inputs", npz, "--interactive", stdin="run 0 3\nrun 0 1\n").splitlines()
    word, _, facts = lines[0].partition(" ")
    assert word == "READY" and json.loads(facts)["unit"] == "cpu"
    times = [json.loads(line) for line in lines[1:]]
    assert [(len(one["lat"]), len(one["cpu"])) for one in times] == [(3, 3), (1, 1)]
    assert all(seconds > 0 for one in times for seconds in one["lat"])
    assert "run SECONDS MIN_ITERATIONS" in halimede("bench", add_sub, "--interactive", stdin="go\n", status=1)


def test_bench_runs_every_file_of_inputs(add_sub, npz, tmp_path):
    np.savez(tmp_path / "three.npz", INPUT0=np.ones((3, 2), np.float32), INPUT1=np.ones((3, 2), np.float32))
    command = ["bench", add_sub, "--inputs", npz, "--inputs", tmp_path / "three.npz", "--seconds", "0", "--json"]
    assert json.loads(halimede(*command))["runs"] == 1
    np.savez(tmp_path / "wrong.npz", INPUT0=np.ones((3, 5), np.float32), INPUT1=np.ones((3, 5), np.float32))
    assert "INPUT0" in halimede("bench", add_sub, "--inputs", npz, "--inputs", tmp_path / "wrong.npz", status=1)


def test_bench_suite_in_json():
    seen = json.loads(halimede("bench", "--suite", "rmsnorm", "read L1", "--seconds", "0", "--threads", "1", "--json"))
    assert (seen["threads"], seen["precision"]) == (1, "exact")
    read, norm = seen["kernels"]
    assert read["name"] == "read L1" and read["gbps"] > 0 and seen["best"]["f32_gflops"] > 0
    assert norm["ms"] > 0 and norm["reference"] == 0 and norm["slow"] <= norm["samples"]
    # A kernel of 3 MB at so many GB/s, held against how fast that much is read.
    assert norm["gbps"] == pytest.approx(2 * 4 * 512 * 768 / norm["ms"] / 1e6)
    assert 0 < norm["share"] and norm["roof"] == "reading"


def test_bench_suite_of_products():
    """Products beside what multiplies their factors: floats, and integers in fast precision."""
    names = ("products in a chain 512", "conv 1x1/1 256-64")
    for precision, key, roof in [
        ("exact", None, "f32 operations"),
        ("balanced", "bf16_gflops", "bf16 operations"),
        ("fast", "int8_gflops", "int8 operations"),
    ]:
        options = ("--precision", precision, "--seconds", "0", "--threads", "1", "--json")
        seen = json.loads(halimede("bench", "--suite", *names, *options))
        chain, conv = seen["kernels"]
        assert chain["gflops"] == pytest.approx(2 * 16 * 512**3 / chain["ms"] / 1e6)
        # A machine without units for bf16 multiplies f32 in balanced precision.
        if precision == "balanced" and seen["bf16_gflops"] is None:
            key, roof = None, "f32 operations"
        assert chain["roof"] == roof and conv["reference"] == 0
        assert [seen[other] is not None for other in ("bf16_gflops", "int8_gflops")] == [
            key == "bf16_gflops",
            key == "int8_gflops",
        ]
        if key:
            assert chain["share"] == pytest.approx(chain["gflops"] / seen[key])


def test_bench_suite_for_people():
    printed = halimede("bench", "--suite", "layernorm", "--seconds", "0")
    assert "one thread at best" in printed and "of reading" in printed
    assert "no kernel of the suite" in halimede("bench", "--suite", "nosuchkernel", status=1)
    assert "cannot be used with" in halimede("bench", "--suite", "norm", "--inputs", "x.npz", status=2)
    assert "required" in halimede("bench", status=2)


def test_explain_prints_graph_passes_and_plan():
    printed = halimede("explain", ENCODER)
    for word in ("written by", "opset", "input", "output", "passes", "pointwise fusion", "coverage", "gemm", "memory"):
        assert word in printed, word


def test_doctor_answers_each_line_with_a_probe():
    first, *lines = halimede("doctor", "--probe", stdin="now\nnow\n").splitlines()
    assert first == "READY {}"
    probes = [json.loads(line) for line in lines]
    assert len(probes) == 2
    rates = {"f32_gflops", "l1_read_gbps"}
    # Where there is one core, or threads are not bound to any, there is no way from one to another.
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1:
        rates.add("core_to_core_ns")
    assert all(set(probe) == rates and min(probe.values()) > 0 for probe in probes)


def test_doctor_names_the_machine():
    printed = halimede("doctor")
    for word in ("chip", "features", "cache", "from the first core to the second", "memory", "unit", "cpu: ", "rates"):
        assert word in printed, word
    library = "by the system's accelerate" if sys.platform == "darwin" else "no library of this system multiplies f32"
    assert library in printed


def test_help_lists_the_verbs():
    printed = halimede("--help")
    for verb in ("serve", "run", "bench", "explain", "check", "doctor"):
        assert f"  {verb} " in printed
