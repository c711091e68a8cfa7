"""Images of a large batch are answered as each is by itself, in every precision and on one and several threads."""

import subprocess

import numpy as np
import onnx
import pytest

from support.architectures import architectures
from support.server import binary

# So many images do not fit beside each other into the caches: their steps run in slices, and leave results far away.
BATCH = 33
NAMES = ["resnet", "mobilenet", "efficientnet", "unet", "yolo", "vit"]
ALL = [one for one in architectures() if one.name in NAMES]
# Of the largest number. Sums of bf16 may be cut differently for a large batch, and results rounded to bf16 once more or
# once less; an image that takes over another's memory is wrong in its first digit.
TOLERANCES = {"exact": 1e-5, "balanced": 0.05}


def run(folder, model, inputs, *flags):
    """The outputs of one run, by name."""
    np.savez(folder / "inputs.npz", **inputs)
    command = [binary(), "run", model, "--inputs", folder / "inputs.npz", "--output", folder / "outputs"]
    subprocess.run([*command, "--tuning-database", "off", *flags], check=True, capture_output=True, text=True)
    return {path.stem: np.load(path) for path in (folder / "outputs").iterdir()}


@pytest.fixture(scope="module", params=ALL, ids=NAMES)
def saved(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param.name) / "model.onnx"
    onnx.save(request.param.model, path)
    return request.param, path


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("precision", TOLERANCES)
def test_a_batch_is_its_images(saved, precision, threads, tmp_path):
    one, path = saved
    inputs = one.inputs(BATCH, 1)
    flags = ["--precision", precision, "--threads", threads]
    together = run(tmp_path, path, inputs, *flags)
    for index in (0, 1, BATCH // 2, BATCH - 1):
        alone = run(tmp_path, path, {name: array[index : index + 1] for name, array in inputs.items()}, *flags)
        for name, want in alone.items():
            if want.dtype.kind != "f":  # the boxes that the detector keeps, of all images in one list
                continue
            got = together[name][index : index + 1]
            assert got.shape == want.shape and np.isfinite(got).all(), name
            assert abs(got - want).max() <= TOLERANCES[precision] * abs(want).max(), f"{name} of image {index}"


def test_the_batch_is_large_enough(tmp_path):
    """Without a step that runs in slices the test above would show less than it says."""
    one = next(one for one in ALL if one.name == "mobilenet")
    onnx.save(one.model, tmp_path / "model.onnx")
    shape = "x".join(map(str, one.inputs(BATCH, 1)["image"].shape))
    command = [binary(), "explain", tmp_path / "model.onnx", "--input", f"image=f32:{shape}", "--precision", "exact"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert " slices" in text
