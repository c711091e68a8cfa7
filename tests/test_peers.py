"""The parts of benches/peers that measure nothing: statistics, comparison, tables, pictures, workloads."""

import copy
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support import models
from support.server import ROOT, binary

PEERS = ROOT / "benches" / "peers"
pytestmark = pytest.mark.halimede_only("tools of ours")


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.syspath_prepend(str(PEERS))


def module(name):
    return importlib.import_module(name)


def noisy(middle, seed, count=15, spread=0.02):
    return list(middle * (1 + spread * np.random.default_rng(seed).standard_normal(count)))


def row(peer, precision, ms, probes=None, **more):
    return {
        "workload": "resnet50_b1", "group": "vision", "batch": 1, "peer": peer, "precision": precision, "version": "1",
        "together": 1, "ms": ms, "probes": probes or [[140.0, 200.0]] * len(ms), **more,
    }  # fmt: skip


def report(*rows):
    machine = {"class": "M", "cpu": "a processor", "cores": 2, "system": "Linux x86_64"}
    return {
        "format": 1, "date": "2026-11-21", "machine": machine, "threads": 1, "clock": "processor time", "rounds": 15,
        "seconds": 0.25, "note": "It rained.", "rows": list(rows), "not_run": [{"workload": "resnet50_b1", "peer": "tract f32", "reason": "why"}],
    }  # fmt: skip


@pytest.fixture
def both():
    return report(
        row("halimede exact", "f32", noisy(10, 1)),
        row("onnxruntime f32", "f32", noisy(15, 2), cosine=1.0, largest_difference=2.5e-05),
        row("openvino bf16", "bf16", noisy(4, 3)),
    )


def test_a_speedup_lies_in_its_interval_and_is_the_same_each_time():
    speedup = module("stats").speedup
    found = speedup(noisy(10, 1), noisy(15, 2))
    assert found["low"] < 1.5 < found["high"]
    assert found["high"] - found["low"] < 0.1
    assert found == speedup(noisy(10, 1), noisy(15, 2))


def test_more_noise_makes_the_interval_wider():
    speedup = module("stats").speedup
    calm, wild = (speedup(noisy(10, 1, spread=s), noisy(15, 2, spread=s)) for s in (0.01, 0.2))
    assert wild["high"] - wild["low"] > 5 * (calm["high"] - calm["low"])


def test_the_common_speed_is_the_highest_that_everybody_saw():
    stats = module("stats")
    fast, slow, cold = [140.0, 200.0], [70.0, 200.0], [140.0, 110.0]
    assert stats.common_speed([[fast, fast, slow], [fast, slow, fast]], 2) == tuple(fast)
    # The second program met only the slow machine: the first one's fast samples would flatter it.
    assert stats.common_speed([[fast, fast, slow, slow], [slow, slow, cold]], 2) == tuple(slow)
    assert stats.common_speed([[fast, fast], [slow, slow]], 1) is None
    assert [stats.at_speed(probe, slow) for probe in (fast, slow, [60.0, 190.0], cold)] == [False, True, True, False]


def test_a_change_of_the_machine_is_no_change_of_ours():
    slowdown = module("stats").slowdown
    before, after = noisy(10, 1), noisy(13, 2)
    peer = (noisy(20, 3), noisy(26, 4))
    assert slowdown(before, after)["low"] > 1.25
    with_peer = slowdown(before, after, [peer])
    assert with_peer["low"] < 1 < with_peer["high"]


def test_figures_leave_out_samples_of_another_speed(both):
    probes = [[140.0, 200.0]] * 12 + [[70.0, 200.0]] * 3
    both["rows"][1] |= {"probes": probes, "ms": [15.0] * 12 + [40.0] * 3}
    figure = module("reports").figures(both)["resnet50_b1"]["onnxruntime f32"]
    assert (figure.ms, figure.dropped, figure.speed) == (15.0, 3, (140.0, 200.0))


def test_ratios_are_of_equal_precision(both):
    reports = module("reports")
    found = reports.speedups(reports.figures(both)["resnet50_b1"])
    assert list(found) == ["onnxruntime f32"]
    table = reports.markdown(both)
    assert re.search(r"\| resnet50_b1 \(f32 peak 140 GFLOP/s\) \| f32 \| onnxruntime f32 \| 1[45]\.\d+ \| 1\.\d\d \(", table)
    assert re.search(r"\| resnet50_b1 .*\| bf16 \| openvino bf16 \| \d\.\d+ \|  \|", table)
    assert "- resnet50_b1, tract f32: why" in table


def run(*arguments):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.parametrize(
    "ours, peer, status, word",
    [(1.0, 1.0, 0, ""), (1.2, 1.0, 1, "SLOWER"), (1.2, 1.2, 0, ""), (0.8, 1.0, 0, "faster"), (1.02, 1.0, 0, "")],
)
def test_compare_flags_what_is_sure(both, tmp_path, ours, peer, status, word):
    later = copy.deepcopy(both)
    for entry, factor in zip(later["rows"], (ours, peer, peer)):
        entry["ms"] = [factor * ms for ms in entry["ms"]]
    files = [tmp_path / name for name in ("before.json", "after.json")]
    for file, content in zip(files, (both, later)):
        file.write_text(json.dumps(content))
    done = run(PEERS / "compare.py", *files)
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout.strip().endswith(word or "times as long")


def compared(tmp_path, before, after, *options):
    """What comparing two reports says; text is written as it is."""
    files = [tmp_path / name for name in ("before.json", "after.json")]
    for file, content in zip(files, (before, after)):
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return run(PEERS / "compare.py", *files, *options)


def test_compare_says_what_is_gone_and_what_is_new(both, tmp_path):
    workload = [entry | {"workload": "product_512"} for entry in both["rows"]]
    more = both | {"rows": both["rows"] + workload}
    fewer = both | {"not_run": [{"workload": "product_512", "peer": "openvino bf16", "reason": "it fell"}]}
    gone = "MISSING: halimede exact, onnxruntime f32, openvino bf16 (it fell)"
    done = compared(tmp_path, more, fewer)
    assert done.returncode == 1 and "product_512" in done.stdout and gone in done.stdout
    done = compared(tmp_path, more, fewer, "--allow-missing")
    assert done.returncode == 0 and gone in done.stdout
    done = compared(tmp_path, fewer, more)
    assert done.returncode == 0 and "new: halimede exact, onnxruntime f32, openvino bf16" in done.stdout
    # A peer alone, too: it says how much the machine differed.
    done = compared(tmp_path, both, both | {"rows": both["rows"][:1]})
    assert done.returncode == 1 and "MISSING: onnxruntime f32, openvino bf16" in done.stdout


def test_compare_refuses_other_machines(both, tmp_path):
    other = both | {"machine": both["machine"] | {"class": "Z"}}
    done = compared(tmp_path, both, other)
    assert done.returncode == 2 and "different machines" in done.stderr
    done = compared(tmp_path, both, both | {"threads": 2})
    assert done.returncode == 2 and "different numbers of threads" in done.stderr
    done = compared(tmp_path, both, both | {"rows": []})
    assert done.returncode == 2 and "nothing of ours in common" in done.stderr


@pytest.mark.parametrize(
    "content, word",
    [
        ("", "not JSON"), ("no", "not JSON"), ("{}", "not a report"), ("[1]", "not a report"), ('{"format": 2}', "not a report"),
        ('{"format": 1}', "damaged"), ('{"format": 1, "rows": [3]}', "damaged"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_report_is_named_in_one_line(both, tmp_path, content, word):
    for files in ((content, both), (both, content)):
        done = compared(tmp_path, *files)
        name = "before.json" if files[0] is content else "after.json"
        assert done.returncode == 2, done.stderr
        assert name in done.stderr and word in done.stderr and done.stderr.count("\n") == 1
    assert run(PEERS / "draw.py", tmp_path / "after.json").stderr == done.stderr


@pytest.mark.parametrize("change", [{"ms": []}, {"ms": ["a"] * 15}, {"probes": []}, {"probes": None}, {"precision": "f8"}])
def test_a_damaged_row_is_told_in_one_line(both, tmp_path, change):
    damaged = both | {"rows": [both["rows"][0] | change]}
    done = compared(tmp_path, both, damaged)
    assert done.returncode == 2 and "after.json: a damaged report" in done.stderr and done.stderr.count("\n") == 1


def test_compare_names_a_file_that_is_not_there(tmp_path):
    done = run(PEERS / "compare.py", tmp_path / "none.json", tmp_path)
    assert (done.returncode, done.stderr) == (2, f"{tmp_path}/none.json: No such file or directory\n")


def test_compare_says_that_a_suite_holds_no_samples(both, tmp_path):
    command = [binary(), "bench", "--suite", "softmax", "--threads", "1", "--seconds", "0.01", "--json"]
    suite = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    done = compared(tmp_path, both, suite)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "after.json: holds no samples" in done.stderr and "compare reports of run.py" in done.stderr


def test_run_measures_two_programs_in_turn(tmp_path):
    onnx.save(models.add_sub(TensorProto.FLOAT, ["n", 2]), tmp_path / "add_sub.onnx")
    entry = f"{tmp_path}/add_sub.onnx@INPUT0=3x2,INPUT1=3x2"
    options = ["--peers", "halimede exact,onnxruntime f32,onnxruntime int8", "--rounds", "3", "--seconds", "0.01"]
    command = [PEERS / "run.py", tmp_path, entry, *options, "--binary", binary(), "--json", tmp_path / "out.json"]
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    made = module("reports").load(tmp_path / "out.json")
    assert [entry["peer"] for entry in made["rows"]] == ["halimede exact", "onnxruntime f32"]
    for entry in made["rows"]:
        assert entry["cosine"] > 0.99999
        assert len(entry["ms"]) == len(entry["probes"]) >= 3 and min(entry["ms"]) > 0
    assert [entry["peer"] for entry in made["not_run"]] == ["onnxruntime int8"]
    # A second time the rows are replaced, not added.
    assert run(*command).returncode == 0
    assert len(module("reports").load(tmp_path / "out.json")["rows"]) == 2


@pytest.mark.parametrize("names, reference", [
    (["halimede fast", "openvino int8"], "halimede exact"),
    (["halimede balanced", "halimede exact"], "halimede exact"),
    (["halimede exact", "openvino bf16", "onnxruntime f32"], "onnxruntime f32"),
])  # fmt: skip
def test_answers_are_compared_with_one_in_f32(names, reference):
    """Whoever is measured first: a program is not its own reference."""
    bench = object.__new__(module("run").Bench)
    bench.outputs = lambda peer, *_: peer.name
    answers, found = bench.answers(dict.fromkeys(names), None, None, None)
    assert list(answers) == names and found == reference


def test_a_program_that_ends_stops_nobody_else():
    runner = module("run")
    script = "print('READY {}', flush=True); input(); print('{\"cpu\": [2, 1, 3]}', flush=True)"
    program = runner.Program([sys.executable, "-c", script], os.sched_getaffinity(0))
    assert program.ready and program.sample(0.1, 1, "cpu") == 2
    with pytest.raises(runner.Ended):
        program.sample(0.1, 1, "cpu")
    program.close()
    assert not runner.Program([sys.executable, "-c", "pass"], os.sched_getaffinity(0)).ready


def test_draw_writes_pictures_and_a_table(both, tmp_path):
    both["rows"][1]["peer"] = "a < b f32"
    file = tmp_path / "m.json"
    file.write_text(json.dumps(both))
    done = run(PEERS / "draw.py", file, "--svg", tmp_path, "--markdown", tmp_path / "m.md")
    assert done.returncode == 0, done.stderr
    names = {"m-vision-f32.svg", "m-vision-bf16.svg"}
    assert {path.name for path in tmp_path.glob("*.svg")} == names
    lengths = {}
    for name in names:
        root = tree.parse(tmp_path / name).getroot()
        bars = root.findall("{*}rect")
        lengths[name] = [float(bar.get("width")) for bar in bars]
        assert [bar.get("class") for bar in bars][1:] == ["peer"] * (len(bars) - 1)
    ours, theirs = lengths["m-vision-f32.svg"]
    assert theirs / ours == pytest.approx(1.5, rel=0.05)
    text = (tmp_path / "m.md").read_text()
    assert "Class M: a processor" in text and "It rained." in text and "without the guard" in text and all(name in text for name in names)
    assert "| 1.0 | 2.5e-05 |" in text


def test_workloads_have_one_name_each_and_the_sizes_they_say():
    workloads = module("workloads")
    assert len(workloads.BY_NAME) == len(workloads.WORKLOADS)
    for workload in workloads.WORKLOADS:
        if workload.texts or workload.group in ("product", "attention"):
            continue
        (feed,) = workload.feeds()
        assert {array.shape[0] for array in feed.values()} == {workload.batch}, workload.name
    feed = workloads.BY_NAME["bert_base_s384_b1"].feeds()[0]
    assert feed["input_ids"].shape == feed["attention_mask"].shape == (1, 384)


def test_texts_are_grouped_without_losing_a_token():
    workloads = module("workloads")
    assert len(workloads.MIXED) == 32 and min(workloads.MIXED) >= 5 and max(workloads.MIXED) <= 128
    for group in workloads.GROUPS:
        feeds = workloads.texts(workloads.MIXED, group)
        assert len(feeds) == 32 // group
        assert sum(int(feed["attention_mask"].sum()) for feed in feeds) == sum(workloads.MIXED)
        assert all(feed["attention_mask"][:, -1].any() for feed in feeds)


def test_a_file_is_a_workload():
    adhoc = module("workloads").adhoc("folder/model.onnx@image=1x3x8x8,ids=i64:1x5")
    (feed,) = adhoc.feeds()
    assert adhoc.model == "folder/model.onnx"
    assert (feed["image"].dtype, feed["image"].shape) == (np.float32, (1, 3, 8, 8))
    assert (feed["ids"].dtype, feed["ids"].shape) == (np.int64, (1, 5))


def test_every_peer_has_a_runtime_and_a_precision():
    peers, worker, reports = module("peers"), module("worker"), module("reports")
    for peer in peers.PEERS:
        assert peer.runtime == "halimede" or peer.runtime in worker.RUNTIMES
        assert peer.precision in reports.PRECISIONS
        assert (peer.name.split()[0] == reports.OURS) == (peer.runtime == "halimede")


ALL = PEERS.parent / "all.py"


def test_the_one_command_of_the_readme_runs_every_step(tmp_path):
    (printed,) = re.findall(r"^    python3 (benches/all\.py .*)$", (PEERS / "README.md").read_text(), re.M)
    done = run(*printed.replace("MODELS", str(tmp_path)).split(), "--served-peer", "its tritonserver", "--dry-run")
    assert done.returncode == 0, done.stderr
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    assert commands[0][:2] == ["cargo", "build"]
    scripts = [str(Path(command[1]).relative_to(PEERS.parent)) for command in commands if command[1].endswith(".py")]
    measured = ["kernels/run.py", "threads/run.py", "footprint/first_answer.py", "footprint/memory.py", "served/run.py"]
    assert scripts == ["peers/prepare.py"] * 3 + ["peers/run.py", "peers/draw.py"] + measured
    assert [command[3] for command in commands if command[1].endswith("prepare.py")] == ["export", "quantize-openvino", "quantize-onnx"]
    into = ROOT / "docs/benchmarks"
    assert [command[-1] for command in commands if command[-2] == ">"] == [
        str(into / f"{part}-m-27.md") for part in ("kernels", "threads", "first-answer", "memory", "served")
    ]
    assert "its tritonserver" in commands[-1]
    assert not any(tmp_path.iterdir())


def test_without_a_peer_nothing_is_served_and_that_is_said(tmp_path):
    done = run(ALL, tmp_path, "--name", "x", "--dry-run", "--python", sys.executable)
    assert done.returncode == 0 and "left out: served" in done.stderr and "served" not in done.stdout


def test_one_command_makes_measures_and_draws(tmp_path):
    models, into = tmp_path / "models", tmp_path / "into"
    into.mkdir()
    command = [ALL, models, "product_512", "--name", "small", "--parts", "peers", "--into", into, "--binary", binary()]
    command += ["--python", sys.executable, "--rounds", "1", "--seconds", "0.05"]
    command += ["--peers", "halimede exact,onnxruntime f32,onnxruntime int8"]
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    made = module("reports").load(into / "peers-small.json")
    assert [entry["peer"] for entry in made["rows"]] == ["halimede exact", "onnxruntime f32", "onnxruntime int8"]
    names = ("peers-small.json", "peers-small.md", "peers-small-product-f32.svg", "peers-small-product-int8.svg")
    assert {path.name for path in into.iterdir()} == set(names)
    files = {path: path.stat().st_mtime_ns for path in models.rglob("*.onnx")}
    assert {path.name for path in files} == {"model.onnx", "model.int8.onnx"}
    # A second time the models stay.
    assert run(*command).returncode == 0
    assert files == {path: path.stat().st_mtime_ns for path in models.rglob("*.onnx")}


def test_one_command_ends_with_the_step_that_fails(tmp_path):
    command = [ALL, tmp_path, "nothing", "--name", "x", "--into", tmp_path, "--parts", "peers"]
    done = run(*command, "--binary", "b", "--python", sys.executable)
    assert done.returncode == 1 and "nothing is no model, workload or group" in done.stderr
    assert len(done.stdout.splitlines()) == 1
    done = run(ALL, tmp_path, "--name", "x", "--parts", "peers,tables")
    assert done.returncode == 2 and "tables is no part: peers, kernels" in done.stderr


def measured(script, into, *arguments):
    """What a script prints, its report, and its picture, which has to be XML."""
    report, drawn = into / "report.json", into / "report.svg"
    done = run(PEERS.parent / script, *arguments, "--binary", binary(), "--note", "It rained.", "--json", report, "--svg", drawn)
    assert done.returncode == 0, done.stdout + done.stderr
    picture = "".join(tree.parse(drawn).getroot().itertext())
    assert re.search(r"^Class (M|Z|other): .* cores, .* halimede .*It rained\.", done.stdout, re.M), done.stdout
    return done.stdout, json.loads(report.read_text()), picture


def test_kernels_are_measured_beside_their_roofs(tmp_path):
    printed, report, picture = measured("kernels/run.py", tmp_path, "attention full 128", "--rounds", "2", "--seconds", "0.01")
    assert [row["precision"] for row in report["rows"]] == ["exact", "balanced", "fast"]
    for row in report["rows"]:
        assert row["kernel"] == "attention full 128" and row["ms"] > 0 and 0 < row["share"] < 2
        assert f"| attention full 128 | {row['precision']} | {1e3 * row['ms']:.1f} |" in printed
        assert f"{row['share']:.2f} of {row['roof']}" in picture


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two threads want two processors")
def test_threads_are_measured_against_one(tmp_path):
    prepared = run(PEERS / "prepare.py", tmp_path, "export", "product_512")
    assert prepared.returncode == 0, prepared.stderr
    printed, report, picture = measured("threads/run.py", tmp_path, tmp_path, "product_512", "--rounds", "3", "--seconds", "0.02")
    (row,) = report["rows"]
    assert (row["workload"], row["precision"]) == ("product_512", "balanced")
    for threads in ("1", "2"):
        assert 3 <= len(row["ms"][threads]) <= 9 and all(1 < ns < 1e6 for around in row["core_to_core_ns"][threads] for ns in around)
    assert re.search(
        r"^\| product_512 \| balanced \| [\d.]+ \| [\d.]+ \| [\d.]+ \([\d.]+ to [\d.]+\) \| [\d.]+ \| \d+ of \d+ \|$", printed, re.M
    )
    assert "2 thread(s)" in picture


def test_slices_of_cores_far_from_each_other_do_not_count():
    spec = importlib.util.spec_from_file_location("threads_run", PEERS.parent / "threads" / "run.py")
    threads_run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(threads_run)
    near = [30.0, 31.0]
    row = {"ms": {"1": [4.0, 4.1, 4.2], "2": [2.0, 3.1, 2.1]}, "core_to_core_ns": {"1": [near] * 3, "2": [near, [29.0, 160.0], near]}}
    assert threads_run.kept(row) == ([[4.0, 4.1, 4.2], [2.0, 2.1]], near * 5, 1)
    # Two threads of one core, before the slice and after it.
    row["core_to_core_ns"]["1"] = [[14.0, 30.0], [30.0, 14.0], near]
    assert threads_run.kept(row)[0] == [[4.2], [2.0, 2.1]]
    # Nothing is left of two threads: then all count.
    row["core_to_core_ns"] = {"1": [near] * 3, "2": [[29.0, 160.0]] * 3}
    assert threads_run.kept(row)[2] == 0
