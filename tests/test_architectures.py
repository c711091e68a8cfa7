"""Small versions of real architectures agree with ONNX Runtime at several batches and lengths."""

import re
import subprocess

import numpy as np
import onnx
import pytest
import tritonclient.http as httpclient
from onnxruntime import InferenceSession
from tritonclient.utils import np_to_triton_dtype

from support import models
from support.architectures import architectures
from support.server import Server, binary

ALL = architectures()
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def client(tmp_path_factory, repository_for):
    repository = models.Repository(tmp_path_factory.mktemp("architectures"))
    for one in ALL:
        onnx.checker.check_model(one.model, full_check=True)
        repository.add(one.name, one.model, "max_batch_size: 0\nbackend: \"onnxruntime\"\n")
    with Server([repository_for(repository.path)], "--exit-on-error=false", "--strict-readiness=false") as server:
        with httpclient.InferenceServerClient(server.http_address, network_timeout=300) as client:
            yield client


def difference(found, expected):
    """Largest difference as a share of the largest value; exact for integers."""
    assert found.shape == expected.shape
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(found, expected) else np.inf
    return abs(found - expected).max() / abs(expected).max()


def reply_of(client, one, inputs):
    tensors = []
    for name, array in inputs.items():
        tensor = httpclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return client.infer(one.name, tensors)


def by_onnx_runtime(one, inputs):
    session = InferenceSession(one.model.SerializeToString())
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs)))


@pytest.mark.parametrize("batch, length", [(1, 5), (4, 5), (1, 12), (4, 12)])
@pytest.mark.parametrize("one", ALL, ids=[a.name for a in ALL])
def test_agrees_with_onnx_runtime(client, one, batch, length):
    inputs = one.inputs(batch, length)
    reply = reply_of(client, one, inputs)
    for name, want in by_onnx_runtime(one, inputs).items():
        assert difference(reply.as_numpy(name), want) < TOLERANCE, name


# What a server promises of every output in a precision: its cosine with that of `exact`.
COSINE_LEAST = {"balanced": 0.999, "fast": 0.99}
CALIBRATION = [(1, 12), (2, 12), (4, 12)]
SETTLED = r"model '{}' (computes in|has nothing to compute in)[^\n]*"
# In `fast` no product of small models may be large enough to be worth rounding to 8 bits on some machine; most have one.
NARROW_LEAST = len(ALL) // 2


def computes_less_exactly(precision):
    doctor = subprocess.run([binary(), "doctor", "--seconds", "0"], capture_output=True, text=True, check=True).stdout
    return precision in re.search(r"unit +cpu: .*", doctor)[0]


@pytest.mark.halimede_only("precision is a setting of ours")
@pytest.mark.parametrize("precision", COSINE_LEAST)
def test_precisions_stay_near_onnx_runtime(tmp_path, repository_for, precision, record_property):
    """As a server serves them: compared on a few samples of their own, asked with others."""
    if not computes_less_exactly(precision):
        pytest.skip(f"nothing here multiplies faster in {precision} precision than in f32")
    repository = models.Repository(tmp_path / "models")
    calibration = 'parameters { key: "calibration" value { string_value: "samples" } }\n'
    for one in ALL:
        repository.add(one.name, one.model, "max_batch_size: 0\nbackend: \"onnxruntime\"\n" + calibration)
        samples = repository.path / one.name / "samples"
        samples.mkdir()
        for number, (batch, length) in enumerate(CALIBRATION):
            np.savez(samples / f"{number}.npz", **one.inputs(batch, length))
    flags = [f"--precision={precision}", "--log-verbose=1", "--exit-on-error=false", "--strict-readiness=false"]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with Server([repository_for(repository.path)], *flags, env=cache, default_precision=True) as server:
        said = {one.name: server.wait_log(SETTLED.format(one.name), 120)[0] for one in ALL}
        narrow = [name for name, text in said.items() if f"computes in {precision} precision" in text]
        assert len(narrow) >= NARROW_LEAST, said
        with httpclient.InferenceServerClient(server.http_address, network_timeout=300) as client:
            for one in ALL:
                # One more text or image than the samples had: their numbers are others.
                inputs = one.inputs(3, 12)
                reply = reply_of(client, one, inputs)
                for name, want in by_onnx_runtime(one, inputs).items():
                    found = reply.as_numpy(name)
                    if one.name == "yolo":
                        # Rows are boxes that are left of many: of two that overlap nearly as much as is allowed either may be.
                        assert abs(len(found) - len(want)) <= 0.05 * len(want), said["yolo"]
                        continue
                    found, want = (array.astype(np.float64).ravel() for array in (found, want))
                    cosine = found @ want / (np.linalg.norm(found) * np.linalg.norm(want))
                    worst = abs(found - want).max() / abs(want).max()
                    record_property(f"{one.name}.{name}", f"cosine {cosine:.5f}, largest difference {worst:.2g} of the largest")
                    print(f"{precision} {one.name}.{name}: cosine {cosine:.5f}, largest difference {worst:.2g}")
                    assert cosine > COSINE_LEAST[precision], (one.name, name, said[one.name])
