"""An answer does not depend on what else is in its batch, and one failure stays one failure."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http as httpclient

from support.server import ROOT


@pytest.fixture(scope="module")
def images():
    held_back = np.load(ROOT / "examples" / "data" / "digits_held_back.npz")["images"]
    return (held_back / 16).astype(np.float32)[:, None]


@pytest.fixture(scope="module")
def client(examples):
    with httpclient.InferenceServerClient(examples.http_address, network_timeout=120) as client:
        yield client


def scores(client, images):
    tensor = httpclient.InferInput("image", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    return client.infer("digits_classifier", [tensor]).as_numpy("scores")


@pytest.mark.parametrize("size", [2, 5, 16])
def test_companions_change_no_bit(client, images, size):
    """The same image in batches of one size with different companions."""
    found = {scores(client, np.concatenate([images[:1], images[i : i + size - 1]]))[0].tobytes() for i in (1, 50, 100, 200)}
    assert len(found) == 1


@pytest.mark.parametrize("size", [2, 3, 8, 33])
def test_place_in_the_batch_changes_little(client, images, size):
    alone = np.concatenate([scores(client, images[i : i + 1]) for i in range(size)])
    assert abs(scores(client, images[:size]) - alone).max() < 1e-5


def test_not_a_number_stays_in_its_row(client, images):
    batch = images[:6].copy()
    expected = scores(client, batch)
    batch[2] = np.nan
    found = scores(client, batch)
    keep = [0, 1, 3, 4, 5]
    assert found[keep].tobytes() == expected[keep].tobytes()
    assert np.isnan(found[2]).all()


def test_concurrent_requests_get_their_own_answers(examples, client, images):
    expected = [scores(client, images[i : i + 1]) for i in range(64)]

    def infer(i):
        tensor = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": images[i].ravel().tolist()}
        reply = examples.http.infer("digits_classifier", {"inputs": [tensor]})
        return np.array(reply.json["outputs"][0]["data"], np.float32)

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(infer, list(range(64)) * 3))
    for i, one in enumerate(found):
        assert abs(one - expected[i % 64]).max() < 1e-5


def test_a_failing_request_fails_alone(http):
    """`pick` fails for an index beyond its table; the model goes on."""

    def pick(index):
        return http.infer("pick", {"inputs": [{"name": "INPUT0", "datatype": "INT64", "shape": [2], "data": [0, index]}]})

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(pick, [1, 9, 2, -9, 1, 100, 0, 2]))
    assert [r.status == 200 for r in replies] == [True, False, True, False, True, False, True, True]
    assert replies[0].json["outputs"][0]["data"] == [10, 20]
    assert "error" in replies[1].json
    assert http.get("/v2/models/pick/ready").status == 200
