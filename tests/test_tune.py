"""`halimede tune`: measures a model's operations, remembers what won, and the other commands read it."""

import json
import os
import re
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.models import info, onnx_model
from support.server import binary
from test_verbs import halimede

pytestmark = pytest.mark.halimede_only("a verb of ours")

TUNE = ("--threads", 1, "--budget", 0.2)
# `VERSION` in crates/compute-cpu/src/kernels/tuning.rs: records of others do not count.
KERNELS = 3


def small_network(batch=1):
    """A convolution and a product, small enough to measure in no time."""
    rng = np.random.default_rng(5)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("kernel", (32, 16, 3, 3)), ("m", (32, 24)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"], name="product"),
    ]
    x, y = [info("x", TensorProto.FLOAT, [batch, 16, 24, 24]), info("y", TensorProto.FLOAT, [batch, 24])]
    return onnx_model(nodes, [x], [y], weights)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "model.onnx"
    onnx.save(small_network(), path)
    return path


@pytest.fixture(scope="module")
def tuned(network, tmp_path_factory):
    """What tuning printed, and a database with a record of the convolution, whatever won."""
    database = tmp_path_factory.mktemp("database") / "deep" / "tuning.jsonl"
    printed = halimede("tune", network, *TUNE, "--database", database)
    operator = re.search(r"^ +(conv channels-last.*threads=1)", printed, re.M)[1]
    config = {"algorithm": "direct", "depth": 256, "pixels": 96}
    record = {**origin(printed), "operator": operator, "config": config}
    record |= {"probed": {"f32_gflops": 1.0, "l1_read_gbps": 1.0, "dropped": 0}, "date": "2026-01-01"}
    with open(database, "a") as file:
        file.write(json.dumps(record) + "\n")
    return printed, database, record


def origin(printed):
    """Whom records of this machine belong to."""
    chip = printed.split(",")[0]
    return {"unit": "cpu+matrix", "chip": chip, "kernels": KERNELS}


def explain(path, *flags):
    return halimede("explain", path, "--threads", 1, *flags)


def test_every_operator_is_measured_and_told(tuned):
    printed, database, _ = tuned
    lines = printed.splitlines()
    assert lines[0].endswith("1 thread(s), precision exact, strategy cost-model")
    operators = [line.strip() for line in lines if "f32*f32>f32 factors=own" in line]
    assert len(operators) == 2 and {line.split()[0] for line in operators} == {"conv", "contract"}
    assert "1x24x24x16,32x16x3x3" in printed and " 1x32,32x24 " in printed
    assert re.search(rf"^\d+ of \d+ results are new in {re.escape(str(database))}$", printed, re.M)
    records = [json.loads(line) for line in database.read_text().splitlines()]
    for record in records[:-1]:
        assert record.keys() >= {"operator", "unit", "chip", "kernels", "config", "probed", "date"}
        # Of operators that nothing is faster for than the kernel's own there are no times.
        assert ("warm" in record) == ("cold" in record) == bool(record["config"])
        if not record["config"]:
            continue
        assert record["warm"]["samples"] >= 8 and record["warm"]["p10_us"] <= record["warm"]["median_us"]


def test_what_is_known_is_used_and_shown(network, tuned):
    _, database, _ = tuned
    text = explain(network, "--tuning-database", database)
    assert "tuned: algorithm=direct depth=256 pixels=96" in text
    assert "Winograd" not in text
    assert "tuned:" not in explain(network, "--tuning-database", "off")


def test_a_choice_changes_the_work_and_not_the_answer(network, tuned, tmp_path):
    _, _, record = tuned
    database = tmp_path / "tuning.jsonl"
    database.write_text(json.dumps(record | {"config": {"algorithm": "f2", "kib": 256}}))
    text = explain(network, "--tuning-database", database)
    assert "conv by Winograd's F(2x2, 3x3)" in text and "tuned: algorithm=f2 kib=256" in text
    answers = []
    for number, source in enumerate((database, "off")):
        out = tmp_path / str(number)
        feed = ("--threads", 1, "--input", "x=f32:1x16x24x24:ones", "--output", out)
        halimede("run", network, "--tuning-database", source, *feed)
        answers.append(np.load(out / "y.npy"))
    np.testing.assert_allclose(*answers, rtol=1e-5, atol=1e-5 * np.abs(answers[0]).max())


def test_damaged_lines_are_told_and_others_used(network, tuned, tmp_path):
    _, _, record = tuned
    database = tmp_path / "tuning.jsonl"
    database.write_text("{half a line\n" + json.dumps(record) + "\n")
    command = ["explain", network, "--threads", "1", "--no-run", "--tuning-database", database]
    assert f"{database}:1: this line is no record" in warnings(command)
    assert "tuned: algorithm=direct" in explain(network, "--tuning-database", database)


def warnings(command):
    """What a command says beside its answer."""
    done = subprocess.run([str(binary()), *map(str, command)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("change", [{"kernels": 999}, {"chip": "another"}, {"unit": "cpu"}, {"config": {"rows": 5}}])
def test_records_of_others_do_not_count(network, tuned, tmp_path, change):
    _, _, record = tuned
    database = tmp_path / "tuning.jsonl"
    database.write_text(json.dumps(record | change) + "\n")
    assert "tuned:" not in explain(network, "--tuning-database", database)


def refused(network, database):
    return halimede("tune", network, *TUNE, "--database", database, status=1)


def test_a_place_that_cannot_be_written_is_named_before_anything_is_measured(network, tmp_path):
    assert f"cannot write the tuning database '{tmp_path}': " in refused(network, tmp_path)
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "tuning.jsonl"
    assert f"cannot write the tuning database '{below}': " in refused(network, below)
    assert "no place for the database" in refused(network, "off")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_for_reading_only_is_told(network, tmp_path):
    tmp_path.chmod(0o500)
    error = refused(network, tmp_path / "tuning.jsonl")
    assert "cannot write the tuning database" in error and "ermission denied" in error


def test_a_default_place_is_the_users_cache(network, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    printed = halimede("tune", network, *TUNE)
    assert f"are new in {tmp_path / 'halimede' / 'tuning.jsonl'}" in printed
    (tmp_path / "halimede").mkdir(exist_ok=True)
    (tmp_path / "halimede" / "tuning.jsonl").write_text("no record\n")
    assert "tuning.jsonl:1: this line is no record" in warnings(["explain", network, "--no-run"])
