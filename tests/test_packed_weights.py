"""Packed weights in files: what one server packed the next one maps, and what is wrong with a file costs nothing."""

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.models import info, io, onnx_model
from test_metrics import Metrics

pytestmark = pytest.mark.halimede_only("packed weights are kept by us alone")

WIDTH = 512
CONFIG = 'platform: "onnxruntime_onnx"\n' + io("input", "x", "FP32", [-1, WIDTH]) + io("output", "y", "FP32", [-1, WIDTH])


def model(seed):
    """A product, whose packed weights of 1 MiB are just worth a file."""
    weights = np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    x, y = [info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in "xy"]
    return onnx_model(nodes, [x], [y], [numpy_helper.from_array(weights, "w")])


def ask(server):
    numbers = np.linspace(-1, 1, 3 * WIDTH, dtype=np.float32)
    data = {"name": "x", "shape": [3, WIDTH], "datatype": "FP32", "data": numbers.tolist()}
    return np.array(server.http.infer("m", {"inputs": [data]}).json["outputs"][0]["data"])


def mapped(server):
    """Names of the files of packed weights that a server has mapped."""
    maps = Path(f"/proc/{server.process.pid}/maps").read_text().splitlines()
    return {Path(line.split(maxsplit=5)[5]).name for line in maps if line.endswith(".weights")}


def wait_mapped(server):
    """The same, once it has mapped any: models are served while their weights are written."""
    end = time.monotonic() + 60
    while not (names := mapped(server)):
        assert time.monotonic() < end, f"no packed weights are mapped:\n{server.log_text()[-4000:]}"
        time.sleep(0.02)
    return names


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "packed"


@pytest.fixture
def start(repository, serve, folder):
    """Starts servers of the repository, with a folder of packed weights of the test's own."""
    repository.add("m", model(7), CONFIG)
    return lambda *flags: serve(repository, *(flags or [f"--packed-weights={folder}"]))


def test_what_one_server_packed_the_next_one_maps(start, folder):
    server = start()
    files = wait_mapped(server)
    answer = ask(server)
    server.stop()
    assert {path.name for path in folder.iterdir()} == files
    again = start()
    assert mapped(again) == files, "not mapped by the time it was ready"
    packed = {backing: Metrics(again.metrics_address).of(
        "halimede_model_memory_bytes", model="m", version="1", part="packed", backing=backing
    ) for backing in ("private", "mapped")}  # fmt: skip
    assert packed["private"] == 0 and packed["mapped"] >= 2 * WIDTH * WIDTH
    np.testing.assert_array_equal(ask(again), answer)
    np.testing.assert_array_equal(ask(start("--packed-weights=off")), answer)


def test_other_weights_have_a_file_of_their_own(start, repository, folder):
    first = start()
    wait_mapped(first)
    answer = ask(first)
    first.stop()
    onnx.save(model(8), repository.path / "m" / "1" / "model.onnx")
    second = start()
    assert not np.array_equal(ask(second), answer)
    wait_mapped(second)
    assert not np.array_equal(ask(second), answer)
    assert len(list(folder.iterdir())) == 2


def flipped(content):
    """One bit of a weight is another."""
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :]


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"#!/bin/sh\n" + bytes(100), flipped])
def test_a_damaged_file_is_told_and_packed_anew(start, folder, damage):
    server = start()
    (name,) = wait_mapped(server)
    answer = ask(server)
    server.stop()
    whole = (folder / name).read_bytes()
    (folder / name).unlink()
    (folder / name).write_bytes(damage(whole))
    again = start()
    again.wait_log(f"the weights of model 'm' are packed anew: packed weights in '{folder / name}': (it|the checksum of what)")
    np.testing.assert_array_equal(ask(again), answer)
    assert wait_mapped(again) == {name}
    np.testing.assert_array_equal(ask(again), answer)
    assert (folder / name).read_bytes() == whole


def test_a_folder_that_cannot_be_written_to_costs_a_line(start, folder):
    folder.write_text("no folder")
    server = start()
    server.wait_log(f"the packed weights of model 'm' are not kept: packed weights in '{folder}/")
    assert ask(server).shape == (3 * WIDTH,)
    assert folder.read_text() == "no folder"


def test_files_are_bounded(start, folder):
    server = start(f"--packed-weights={folder}", "--packed-weights-byte-size=100000")
    server.wait_log("the packed weights of model 'm' are not kept: it would be larger than the 100000 bytes for all files")
    assert list(folder.iterdir()) == []
