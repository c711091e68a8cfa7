"""Precision of served models: what a server is asked for, and what a model gets after the comparison."""

import re
import subprocess

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.models import info, io, onnx_model
from support.server import binary
from test_verbs import CLASSIFIER

pytestmark = pytest.mark.halimede_only("precision is a setting of ours")

WIDTH = 256
CONFIG = 'platform: "onnxruntime_onnx"\n' + io("input", "x", "FP32", [-1, WIDTH]) + io("output", "y", "FP32", [-1, WIDTH])


def product(nudge):
    """A model of one product; with a nudge the difference of two that rounding loses."""
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    # What multiplies inputs as they come stays exact: the products are of something else.
    nodes = [helper.make_node("Tanh", ["x"], ["t"])]
    nodes.append(helper.make_node("MatMul", ["t", "w"], ["y" if nudge is None else "a"]))
    constants = [numpy_helper.from_array(weights, "w")]
    if nudge is not None:
        other = weights + nudge * rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        constants.append(numpy_helper.from_array(other.astype(np.float32), "v"))
        nodes += [helper.make_node("MatMul", ["t", "v"], ["b"]), helper.make_node("Sub", ["a", "b"], ["y"])]
    x, y = [info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in "xy"]
    return onnx_model(nodes, [x], [y], constants)


def ask(server, model):
    numbers = np.linspace(-1, 1, 3 * WIDTH, dtype=np.float32)
    data = {"name": "x", "shape": [3, WIDTH], "datatype": "FP32", "data": numbers.tolist()}
    reply = server.http.infer(model, {"inputs": [data]})
    return np.array(reply.json["outputs"][0]["data"])


def parameters(**values):
    entry = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
    return "".join(entry.format(name, value) for name, value in values.items())


@pytest.fixture
def balanced(repository, serve, tmp_path):
    """Starts servers of the repository as a user would, with a cache of the test's own."""
    doctor = subprocess.run([binary(), "doctor", "--seconds", "0"], capture_output=True, text=True, check=True).stdout
    if "balanced" not in re.search(r"unit +cpu: .*", doctor)[0]:
        # Instructions for bf16 that are slower than those for f32 are not used: Intel's are where a virtual machine hides AMX.
        f32, *narrow = [float(rate) for rate in re.findall(r"([\d.]+) GFLOP/s in (?:f32|bf16)", doctor)]
        assert all(rate < f32 for rate in narrow), doctor
        pytest.skip("nothing here multiplies bf16 faster than f32: balanced precision is exact")
    return lambda *flags: serve(repository, *flags, env={"XDG_CACHE_HOME": str(tmp_path / "cache")}, default_precision=True)


def test_a_model_serves_exactly_until_it_was_compared(repository, balanced):
    repository.add("plain", product(None), CONFIG)
    repository.add("plain_exact", product(None), CONFIG + parameters(precision="exact"))
    # Without a matrix unit there is nothing that multiplies fewer bits fast.
    repository.add("plain_without", product(None), CONFIG + parameters(matrix="off"))
    server = balanced()
    said = server.wait_log(r"model 'plain' computes in balanced precision; against exact: 'y': cosine ([\d.]+)")
    assert float(said[1]) > 0.9999
    exact, narrow = ask(server, "plain_exact"), ask(server, "plain")
    np.testing.assert_allclose(narrow, exact, atol=0.1)
    assert not np.array_equal(narrow, exact)
    np.testing.assert_array_equal(ask(server, "plain_without"), exact)
    assert "_exact' computes" not in server.log_text()
    # What was found out is known to the next server before it is ready.
    server.stop()
    again = balanced()
    text = again.log_text()
    assert 0 < text.find("model 'plain' computes in balanced") < text.find("successfully loaded 'plain'")
    np.testing.assert_array_equal(ask(again, "plain"), narrow)


def test_what_rounding_ruins_stays_exact(repository, balanced):
    repository.add("delicate", product(1e-5), CONFIG)
    repository.add("exact", product(1e-5), CONFIG + parameters(precision="exact"))
    server = balanced()
    server.wait_log("model 'delicate' computes in exact precision: in balanced its outputs differ too much; 'y': cosine -?0")
    np.testing.assert_array_equal(ask(server, "delicate"), ask(server, "exact"))


def test_nodes_that_are_named_stay_exact(repository, balanced):
    repository.add("delicate", product(1e-5), CONFIG + parameters(exact_nodes="a, b"))
    repository.add("exact", product(1e-5), CONFIG + parameters(precision="exact"))
    server = balanced("--log-verbose=1")
    server.wait_log("model 'delicate' has nothing to compute in balanced precision")
    np.testing.assert_array_equal(ask(server, "delicate"), ask(server, "exact"))


def regression():
    """Ten a year, from 2000 on."""
    constants = [numpy_helper.from_array(np.full((WIDTH, 1), 10, np.float32), "w"),
                 numpy_helper.from_array(np.array([-20000], np.float32), "b")]  # fmt: skip
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="years")]
    x, y = info("x", TensorProto.FLOAT, ["n", WIDTH]), info("y", TensorProto.FLOAT, ["n", 1])
    return onnx_model(nodes, [x], [y], constants)


def test_what_multiplies_inputs_stays_exact(repository, balanced):
    repository.add("years", regression())
    server = balanced("--log-verbose=1")
    server.wait_log("model 'years' has nothing to compute in balanced precision")
    years = np.zeros((3, WIDTH), np.float32)
    years[:, 0] = [2019, 2021, 2024]
    data = {"name": "x", "shape": [3, WIDTH], "datatype": "FP32", "data": years.ravel().tolist()}
    reply = server.http.infer("years", {"inputs": [data]})
    assert reply.json["outputs"][0]["data"] == [190, 210, 240]


def test_samples_of_ones_own_judge(repository, balanced):
    repository.add("delicate", product(1e-5), CONFIG + parameters(calibration="samples"))
    samples = repository.path / "delicate" / "samples"
    samples.mkdir()
    # Zeros differ nowhere.
    np.savez(samples / "zeros.npz", x=np.zeros((2, WIDTH), np.float32))
    balanced().wait_log("model 'delicate' computes in balanced precision; against exact: 'y': cosine 1.0")


def test_samples_that_hold_nan_are_left_out(repository, balanced):
    for name in ("delicate", "damaged"):
        repository.add(name, product(1e-5), CONFIG + parameters(calibration="samples"))
        samples_of(repository, name, x=np.full((2, WIDTH), np.nan, np.float32))
    np.savez(repository.path / "delicate" / "samples" / "zeros.npz", x=np.zeros((2, WIDTH), np.float32))
    server = balanced()
    for name in ("delicate", "damaged"):
        folder = repository.path / name / "samples"
        server.wait_log(f"parameter 'calibration': {folder}/sample.npz: array 'x' holds NaN: left out")
    server.wait_log("model 'delicate' computes in balanced precision; against exact: 'y': cosine 1.0")
    server.wait_log(f"parameter 'calibration': {folder}: no sample is left, inputs are made up")
    server.wait_log("model 'damaged' computes in exact precision: in balanced its outputs differ too much")


def logarithm(offset):
    """A product of the logarithm of the input and an offset."""
    constants = [numpy_helper.from_array(np.float32(offset), "o"),
                 numpy_helper.from_array(np.random.default_rng(7).standard_normal((WIDTH, WIDTH)).astype(np.float32), "w")]  # fmt: skip
    nodes = [helper.make_node("Add", ["x", "o"], ["s"]), helper.make_node("Log", ["s"], ["l"]),
             helper.make_node("MatMul", ["l", "w"], ["y"])]  # fmt: skip
    x, y = [info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in "xy"]
    return onnx_model(nodes, [x], [y], constants)


def test_what_was_not_compared_stays_exact(repository, balanced):
    repository.add("positive", logarithm(0), CONFIG)
    # There is no logarithm of numbers around -1000.
    repository.add("silent", logarithm(-1000), CONFIG)
    repository.add("given", logarithm(-1000), CONFIG + parameters(calibration="samples"))
    samples_of(repository, "given", x=np.random.default_rng(5).uniform(1001, 1100, (4, WIDTH)).astype(np.float32))
    server = balanced()
    server.wait_log(r"model 'positive' computes in balanced precision; against exact: 'y': cosine (0\.999|1\.0)")
    server.wait_log(
        r"model 'silent' computes in exact precision: balanced could not be compared with it: output 'y' has no finite "
        r"number for made-up inputs: give samples of real ones \(parameter 'calibration'\)"
    )
    server.wait_log(r"model 'given' computes in balanced precision; against exact: 'y': cosine (0\.999|1\.0)")


@pytest.fixture
def fast(repository, serve, tmp_path):
    """Starts servers of the repository in fast precision, with a cache of the test's own."""
    doctor = subprocess.run([binary(), "doctor", "--seconds", "0"], capture_output=True, text=True, check=True).stdout
    if "fast" not in re.search(r"unit +cpu: .*", doctor)[0]:
        pytest.skip("nothing here multiplies 8-bit integers")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    return lambda *flags: serve(repository, "--precision=fast", *flags, env=cache, default_precision=True)


def features(server):
    """What the units of a server multiply with."""
    return [unit["features"] for unit in server.http.request("GET", "/ui/state").json["units"]]


def samples_of(repository, model, **arrays):
    folder = repository.path / model / "samples"
    folder.mkdir()
    np.savez(folder / "sample.npz", **arrays)


def test_integers_are_multiplied_once_they_were_compared(repository, fast):
    numbers = np.random.default_rng(5).uniform(-1, 1, (16, WIDTH)).astype(np.float32)
    repository.add("whole", product(None), CONFIG + parameters(calibration="samples"))
    samples_of(repository, "whole", x=numbers)
    repository.add("whole_exact", product(None), CONFIG + parameters(precision="exact"))
    server = fast()
    said = server.wait_log(
        r"model 'whole' computes in fast precision, 1 of its products in 8-bit integers; against exact: 'y': cosine ([\d.]+)"
    )
    assert 0.99 < float(said[1]) < 1
    exact, narrow = ask(server, "whole_exact"), ask(server, "whole")
    assert not np.array_equal(narrow, exact)
    np.testing.assert_allclose(narrow, exact, atol=0.02 * np.abs(exact).max())
    # What was found out, the ranges too, is known to the next server before it is ready; unless that measures another
    # unit to be the fastest, which this build, with its checks, makes possible where two are close.
    units = features(server)
    server.stop()
    again = fast()
    if features(again) == units:
        text = again.log_text()
        assert 0 < text.find("model 'whole' computes in fast") < text.find("successfully loaded 'whole'")
        np.testing.assert_array_equal(ask(again, "whole"), narrow)
    else:
        again.wait_log("model 'whole' computes in fast precision")
    again.stop()
    # Other samples have to be looked at anew.
    samples_of_before = repository.path / "whole" / "samples" / "sample.npz"
    samples_of_before.unlink()
    np.savez(samples_of_before, x=2 * numbers)
    other = fast()
    other.wait_log("model 'whole' computes in fast precision")
    assert not np.array_equal(ask(other, "whole"), narrow)


def test_what_8_bits_ruin_keeps_its_floats_or_stays_exact(repository, fast):
    repository.add("delicate", product(1e-5), CONFIG)
    repository.add("exact", product(1e-5), CONFIG + parameters(precision="exact"))
    server = fast()
    server.wait_log("model 'delicate' computes in exact precision: in fast its outputs differ too much; 'y': cosine")
    np.testing.assert_array_equal(ask(server, "delicate"), ask(server, "exact"))


def test_a_model_without_products_for_8_bits_says_so(repository, fast):
    """The product of a model's own inputs has no stored weights."""
    nodes = [helper.make_node("Tanh", ["x"], ["t"]), helper.make_node("Transpose", ["t"], ["u"]),
             helper.make_node("MatMul", ["t", "u"], ["y"])]  # fmt: skip
    x, y = info("x", TensorProto.FLOAT, ["n", WIDTH]), info("y", TensorProto.FLOAT, ["n", "n"])
    repository.add("pairs", onnx_model(nodes, [x], [y]))
    server = fast("--log-verbose=1")
    server.wait_log(r"model 'pairs' (computes in fast precision, having no product to round to 8 bits|has nothing to)")


def test_the_classifier_stays_right_in_fast_precision(repository, fast):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    config = (CLASSIFIER / "config.pbtxt").read_text().replace('label_filename: "labels.txt"', "")
    model = (CLASSIFIER / "1" / "model.onnx").read_bytes()
    repository.add("classifier", model, config + parameters(calibration="samples"))
    repository.add("exact", model, config + parameters(precision="exact"))
    # Every fifth image was held back when it was trained.
    held_back = np.arange(len(images)) % 5 == 4
    samples_of(repository, "classifier", image=images[~held_back][:64])
    server = fast()
    said = server.wait_log(r"model 'classifier' computes in fast precision, (\d+) of its products in 8-bit integers")
    assert int(said[1]) > 0

    def accuracy(name):
        right = []
        for batch, labels in zip(np.array_split(images[held_back], 8), np.array_split(digits.target[held_back], 8)):
            data = {"name": "image", "shape": list(batch.shape), "datatype": "FP32", "data": batch.ravel().tolist()}
            (output,) = server.http.infer(name, {"inputs": [data]}).json["outputs"]
            right.extend(np.reshape(output["data"], output["shape"]).argmax(1) == labels)
        return np.mean(right)

    assert accuracy("classifier") > accuracy("exact") - 0.005


WRONG = [
    ("calibration", "../other", "'../other' is not inside of the model's folder"),
    ("calibration", "nowhere", "nowhere: No such file"),
    ("calibration", "1", "no .npz file, each with one array per input of the model"),
    ("precision", "wild", "'wild' is no precision"),
    ("exact_nodes", "nobody", "no product has the name 'nobody'"),
]


@pytest.mark.parametrize(("name", "value", "reason"), WRONG)
def test_wrong_parameters_are_refused(repository, serve, name, value, reason):
    repository.add("wrong", product(None), CONFIG + parameters(**{name: value}))
    server = serve(repository, "--exit-on-error=false", "--strict-readiness=false")
    entry = server.http.post("/v2/repository/index").json[0]
    assert entry["state"] == "UNAVAILABLE" and reason in entry["reason"]
