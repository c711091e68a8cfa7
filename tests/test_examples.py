"""The repository that ships with the project does what its README says."""

import json

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as httpclient
from onnxruntime import InferenceSession

from support.server import ROOT

DATA = ROOT / "examples" / "data"
DATATYPES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]


@pytest.fixture(scope="module")
def client(examples):
    with httpclient.InferenceServerClient(examples.http_address, network_timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def held_back():
    return np.load(DATA / "digits_held_back.npz")


def infer(client, model, **inputs):
    tensors = []
    for name, array in inputs.items():
        datatype = {"uint8": "UINT8", "float32": "FP32", "int64": "INT64"}[str(array.dtype)]
        tensor = httpclient.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return client.infer(model, tensors)


def test_the_ensemble_reads_the_held_back_digits(client, held_back):
    stated = json.loads((DATA / "digits.json").read_text())
    images, labels = held_back["images"], held_back["labels"]
    assert len(images) == stated["held_back_images"]
    found = np.concatenate(
        [infer(client, "digits", pixels=images[i : i + 64]).as_numpy("digit") for i in range(0, len(images), 64)]
    )
    assert (found[:, 0] == labels).mean() == pytest.approx(stated["held_back_accuracy"], abs=1e-4)
    assert stated["held_back_accuracy"] >= 0.98


def test_scores_agree_with_onnx_runtime(client, held_back):
    image = (held_back["images"][:8] / 16).astype(np.float32)[:, None]
    model = ROOT / "examples" / "repository" / "digits_classifier" / "1" / "model.onnx"
    (expected,) = InferenceSession(model).run(None, {"image": image})
    scores = infer(client, "digits_classifier", image=image).as_numpy("scores")
    assert abs(scores - expected).max() < 1e-5
    assert scores.sum(1) == pytest.approx(np.ones(8), abs=1e-5)


def test_classes_have_names(client, held_back):
    image = (held_back["images"][:1] / 16).astype(np.float32)[:, None]
    tensor = httpclient.InferInput("image", [1, 1, 8, 8], "FP32")
    tensor.set_data_from_numpy(image)
    output = httpclient.InferRequestedOutput("scores", class_count=2)
    (top, _) = client.infer("digits_classifier", [tensor], outputs=[output]).as_numpy("scores")[0]
    score, index, name = top.decode().split(":")
    names = "zero one two three four five six seven eight nine".split()
    assert name == names[int(index)] == names[held_back["labels"][0]]
    assert float(score) > 0.5


@pytest.mark.parametrize("batch, length", [(1, 1), (1, 17), (3, 5), (4, 64)])
def test_encoder_at_several_lengths(client, batch, length):
    rng = np.random.default_rng(length)
    ids = rng.integers(0, 512, (batch, length))
    mask = np.ones_like(ids)
    mask[-1, (length + 1) // 2 :] = 0
    model = ROOT / "examples" / "repository" / "encoder" / "1" / "model.onnx"
    expected = InferenceSession(model).run(None, {"input_ids": ids, "attention_mask": mask})
    reply = infer(client, "encoder", input_ids=ids, attention_mask=mask)
    for name, want in zip(("last_hidden_state", "sentence_embedding"), expected):
        assert abs(reply.as_numpy(name) - want).max() / abs(want).max() < 1e-4, name


@pytest.mark.parametrize("datatype", DATATYPES)
def test_identity_of(client, datatype):
    from tritonclient.utils import triton_to_np_dtype

    kind = np.dtype(triton_to_np_dtype(datatype))
    array = np.array([[0, 1, 2], [1, 0, 3]]).astype(kind)
    if kind.kind in "iu":
        array[0, 0], array[1, 2] = np.iinfo(kind).min, np.iinfo(kind).max
    if kind.kind == "f":
        array[0, 0], array[1, 2] = -np.inf, np.nan
    tensor = httpclient.InferInput("INPUT0", [2, 3], datatype)
    tensor.set_data_from_numpy(array)
    found = client.infer(f"identity_{datatype.lower()}", [tensor]).as_numpy("OUTPUT0")
    assert (found.dtype, found.tobytes()) == (array.dtype, array.tobytes())


def test_identity_of_bytes(client):
    array = np.array([[b"", b"a\0b"], [b"\xff\xfe", "é".encode()]], dtype=object)
    tensor = httpclient.InferInput("INPUT0", [2, 2], "BYTES")
    tensor.set_data_from_numpy(array)
    assert client.infer("identity_bytes", [tensor]).as_numpy("OUTPUT0").tolist() == array.tolist()


def test_identity_of_bf16(client):
    array = np.array([[1.0, -2.5, 0.0]], ml_dtypes.bfloat16)
    tensor = httpclient.InferInput("INPUT0", [1, 3], "BF16")
    tensor.set_data_from_numpy(array)
    assert client.infer("identity_bf16", [tensor]).as_numpy("OUTPUT0").astype(np.float32).tolist() == [[1.0, -2.5, 0.0]]


def test_repository_is_small():
    size = sum(f.stat().st_size for f in (ROOT / "examples" / "repository").rglob("*") if f.is_file())
    assert size < 2_000_000
