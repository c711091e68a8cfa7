"""Small versions of real architectures agree with ONNX Runtime at several batches and lengths."""

import numpy as np
import onnx
import pytest
import tritonclient.http as httpclient
from onnxruntime import InferenceSession
from tritonclient.utils import np_to_triton_dtype

from support import models
from support.architectures import architectures
from support.server import Server

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


@pytest.mark.parametrize("batch, length", [(1, 5), (4, 5), (1, 12), (4, 12)])
@pytest.mark.parametrize("one", ALL, ids=[a.name for a in ALL])
def test_agrees_with_onnx_runtime(client, one, batch, length):
    inputs = one.inputs(batch, length)
    session = InferenceSession(one.model.SerializeToString())
    expected = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs)))
    tensors = []
    for name, array in inputs.items():
        tensor = httpclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    reply = client.infer(one.name, tensors)
    for name, want in expected.items():
        assert difference(reply.as_numpy(name), want) < TOLERANCE, name
