"""Requests of different shapes in one batch: inputs in one dimension, inputs computed from the batch, outputs split by
an input."""

import queue
import sys

import numpy as np
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from support import models
from support.models import info
from support.server import ROOT, Server
from support.together import WAIT, executions, outputs, tensors, together

# The configuration of the documentation.
DOCUMENTED = (ROOT / "docs" / "ragged-batching.md").read_text().split("```pbtxt\n")[1].split("```")[0]


def ints(name, *values):
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def sums():
    """SUM is the sum of each request's elements, DOUBLED each element twice."""
    node = helper.make_node
    return models.onnx_model(
        [
            node("Concat", ["nothing", "TOKENS"], ["all"], axis=0),
            node("CumSum", ["all", "axis"], ["sums"]),
            node("Gather", ["sums", "BOUNDS"], ["at"]),
            node("Slice", ["at", "one", "end"], ["ends"]),
            node("Slice", ["at", "zero", "minus_one"], ["starts"]),
            node("Sub", ["ends", "starts"], ["sum"]),
            node("Unsqueeze", ["sum", "one"], ["SUM"]),
            node("Add", ["TOKENS", "TOKENS"], ["DOUBLED"]),
        ],
        [info("TOKENS", TensorProto.FLOAT, [None]), info("BOUNDS", TensorProto.INT32, [None])],
        [info("SUM", TensorProto.FLOAT, [None, 1]), info("DOUBLED", TensorProto.FLOAT, [None])],
        [
            helper.make_tensor("nothing", TensorProto.FLOAT, [1], [0.0]),
            helper.make_tensor("axis", TensorProto.INT64, [], [0]),
            ints("zero", 0), ints("one", 1), ints("minus_one", -1), ints("end", 2**31),
        ],
    )  # fmt: skip


def told(element):
    """OUT has the input B, which is computed from the batch, in a row for each element of COUNT."""
    node = helper.make_node
    return models.onnx_model(
        [
            node("Shape", ["COUNT"], ["requests"]),
            node("Concat", ["requests", "one"], ["shape"], axis=0),
            node("Unsqueeze", ["B", "zero"], ["row"]),
            node("Expand", ["row", "shape"], ["OUT"]),
        ],
        [info("X", TensorProto.FLOAT, [None]), info("B", element, [None]), info("COUNT", TensorProto.FLOAT, [None])],
        [info("OUT", element, [None, None])],
        [ints("zero", 0), ints("one", 1)],
    )


SEQUENCES = ["direct { }", "oldest { max_candidate_sequences: 4 preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 100000000 }"]


def marked():
    """SAME is X, FIRST whether the request begins its sequence."""
    return models.onnx_model(
        [helper.make_node("Identity", ["X"], ["SAME"]), helper.make_node("Identity", ["START"], ["FIRST"])],
        [info("X", TensorProto.FLOAT, [None]), info("START", TensorProto.FLOAT, [None, 1])],
        [info("SAME", TensorProto.FLOAT, [None]), info("FIRST", TensorProto.FLOAT, [None, 1])],
    )


def marked_config(strategy):
    start = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }'
    config = onnx_config() + ragged("X", "FP32", [-1]) + split("SAME", "X")
    config += models.io("output", "SAME", "FP32", [-1]) + models.io("output", "FIRST", "FP32", [1])
    config += "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
    return config + f"sequence_batching {{ max_sequence_idle_microseconds: 60000000 {strategy} {start} }}\n"


def computed(kind, target, datatype="FP32", source="X"):
    return f'batch_input {{ kind: {kind} target_name: "{target}" data_type: TYPE_{datatype} source_input: "{source}" }}\n'


def ragged(name, datatype, dims):
    return models.io("input", name, datatype, dims, "allow_ragged_batch: true")


def split(target, source):
    return f'batch_output {{ target_name: "{target}" source_input: "{source}" }}\n'


def onnx_config(batch=4):
    return f'backend: "onnxruntime"\nmax_batch_size: {batch}\n'


def lines(lengths, start=0.0):
    """Arrays [1, length] whose elements all differ."""
    ends = np.cumsum(lengths)
    return [np.arange(start + end - length, start + end, dtype=np.float32)[None] for length, end in zip(lengths, ends)]


@pytest.fixture(scope="module")
def served(tmp_path_factory, repository_for):
    repository = models.Repository(tmp_path_factory.mktemp("ragged"))
    repository.add("documented", sums(), DOCUMENTED)
    for kind in KINDS:
        for datatype, element in (("FP32", TensorProto.FLOAT), ("INT32", TensorProto.INT32)):
            config = onnx_config() + ragged("X", "FP32", [-1, -1]) + models.io("output", "OUT", datatype, [-1])
            config += computed("BATCH_ELEMENT_COUNT", "COUNT") + computed(kind, "B", datatype) + WAIT
            repository.add(f"{kind}_{datatype}", told(element), config)
    shapes = models.onnx_model(
        [helper.make_node("Identity", ["SHAPES"], ["OUT"])],
        [info("X", TensorProto.FLOAT, [None]), info("SHAPES", TensorProto.INT32, [None, 2])],
        [info("OUT", TensorProto.INT32, [None, 2])],
    )
    config = onnx_config() + ragged("X", "FP32", [-1, -1]) + models.io("output", "OUT", "INT32", [2])
    repository.add("item_shape", shapes, config + computed("BATCH_ITEM_SHAPE", "SHAPES", "INT32") + WAIT)
    for kind, shape in (("BATCH_ITEM_SHAPE", ["rows", 1]), ("BATCH_ITEM_SHAPE_FLATTEN", ["values"])):
        shapes = models.onnx_model(
            [helper.make_node("Identity", ["SHAPES"], ["OUT"])],
            [info("X", TensorProto.FLOAT, ["n", "m"]), info("SHAPES", TensorProto.INT32, shape)],
            [info("OUT", TensorProto.INT32, shape)],
        )
        config = onnx_config(0) + models.io("input", "X", "FP32", [-1, -1]) + computed(kind, "SHAPES", "INT32")
        repository.add(f"{kind}_alone", shapes, config + models.io("output", "OUT", "INT32", [-1, 1][: len(shape)]))
    beside = models.onnx_model(
        [helper.make_node("Identity", ["X"], ["SAME"]), helper.make_node("Identity", ["Y"], ["OTHER"])],
        [info("X", TensorProto.FLOAT, [None]), info("Y", TensorProto.FLOAT, [None, None])],
        [info("SAME", TensorProto.FLOAT, [None]), info("OTHER", TensorProto.FLOAT, [None, None])],
    )
    config = onnx_config() + ragged("X", "FP32", [-1]) + models.io("input", "Y", "FP32", [-1])
    config += models.io("output", "SAME", "FP32", [-1]) + models.io("output", "OTHER", "FP32", [-1])
    repository.add("beside", beside, config + split("SAME", "X") + WAIT)
    texts = models.identity(TensorProto.STRING, [None])
    config = ragged("INPUT0", "STRING", [-1]) + models.io("output", "OUTPUT0", "STRING", [-1]) + split("OUTPUT0", "INPUT0")
    repository.add("texts", texts, onnx_config(2) + config + WAIT)
    table = helper.make_tensor("table", TensorProto.INT64, [3], [10, 20, 30])
    pick = models.onnx_model(
        [helper.make_node("Gather", ["table", "INPUT0"], ["OUTPUT0"])],
        [info("INPUT0", TensorProto.INT64, [None])], [info("OUTPUT0", TensorProto.INT64, [None])], [table],
    )  # fmt: skip
    config = ragged("INPUT0", "INT64", [-1]) + models.io("output", "OUTPUT0", "INT64", [-1]) + split("OUTPUT0", "INPUT0")
    repository.add("pick", pick, onnx_config(3) + config + WAIT)
    for strategy in SEQUENCES:
        repository.add(strategy.partition(" ")[0], marked(), marked_config(strategy))
    config = 'backend: "identity"\nmax_batch_size: 4\n' + ragged("INPUT0", "FP32", [-1])
    repository.add("identity", config=config + models.io("output", "OUTPUT0", "FP32", [-1]) + WAIT)
    config = 'backend: "python"\nmax_batch_size: 4\n' + ragged("INPUT0", "FP32", [-1]) + models.io("output", "OUTPUT0", "FP32", [-1])
    repository.add("python", config=config + WAIT)
    (repository.path / "python" / "1" / "model.py").write_text(PYTHON)
    with Server([repository_for(repository.path)], f"--backend-config=python,interpreter={sys.executable}") as server:
        yield server


PYTHON = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + len(requests))]) for array in given]
"""

# Requests with X of these shapes, and what the model is told.
SHAPES = [(1, 4, 1), (1, 1, 2), (1, 3, 1), (1, 2, 2)]
KINDS = {
    "BATCH_ELEMENT_COUNT": [4, 2, 3, 4],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": [4, 6, 9, 13],
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 4, 6, 9, 13],
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": 4,
    "BATCH_ITEM_SHAPE_FLATTEN": [4, 1, 1, 2, 3, 1, 2, 2],
}


def test_the_documented_configuration(served):
    arrays = lines([2, 4, 1, 3], start=1.0)
    requests = [{"TOKENS": array} for array in arrays]
    found = together(served, "documented", requests)
    for (result, error), array in zip(found, arrays, strict=True):
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("SUM"), [[array.sum()]])
        np.testing.assert_array_equal(result.as_numpy("DOUBLED"), array * 2)
    assert executions(served, "documented") == (1, 4)


def test_alone(served):
    """Without company, over HTTP; a second later than the request came."""
    array = lines([5])[0]
    body = {"inputs": [{"name": "TOKENS", "datatype": "FP32", "shape": [1, 5], "data": array.ravel().tolist()}]}
    found = {o["name"]: o for o in served.http.infer("documented", body).json["outputs"]}
    assert (found["SUM"]["shape"], found["SUM"]["data"]) == ([1, 1], [10.0])
    assert (found["DOUBLED"]["shape"], found["DOUBLED"]["data"]) == ([1, 5], [0.0, 2.0, 4.0, 6.0, 8.0])


@pytest.mark.parametrize("datatype", ["FP32", "INT32"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_model_is_told(served, kind, datatype):
    requests = [{"X": np.zeros(shape, np.float32)} for shape in SHAPES]
    want = KINDS[kind]
    for got in outputs(served, f"{kind}_{datatype}", requests, "OUT"):
        assert got.dtype == {"FP32": np.float32, "INT32": np.int32}[datatype]
        if isinstance(want, int):
            assert got.shape == (1, want)
        else:
            np.testing.assert_array_equal(got, [want])
    assert executions(served, f"{kind}_{datatype}") == (1, 4)


def test_shapes_of_every_inference(served):
    requests = [{"X": np.zeros(shape, np.float32)} for shape in [(2, 1, 2), (1, 1, 2), (1, 2, 2)]]
    got = outputs(served, "item_shape", requests, "OUT")
    for got, want in zip(got, [[[1, 2], [1, 2]], [[1, 2]], [[2, 2]]], strict=True):
        np.testing.assert_array_equal(got, want)
    assert executions(served, "item_shape") == (1, 4)


def test_rows_without_a_batch(served):
    """The first dimension counts as the batch, as in Triton."""
    for kind, want in (("BATCH_ITEM_SHAPE", [[2], [2], [2]]), ("BATCH_ITEM_SHAPE_FLATTEN", [2, 2, 2])):
        with triton.InferenceServerClient(served.grpc_address) as client:
            found = client.infer(f"{kind}_alone", tensors({"X": np.zeros((3, 2), np.float32)}))
            np.testing.assert_array_equal(found.as_numpy("OUT"), want)
            body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1 << 40, 0], "data": []}]}
            reply = served.http.post(f"/v2/models/{kind}_alone/infer", body)
            assert reply.status == 400 and "rows without elements" in reply.json["error"]


def test_other_inputs_decide_who_shares_a_batch(served):
    """The third request has another Y: the first two do not wait for it, nor it for them."""
    lengths, sizes = [2, 5, 1, 3, 4], [3, 3, 2, 2, 2]
    rows = [1, 1, 1, 1, 2]
    xs = [np.arange(row * length, dtype=np.float32).reshape(row, length) for row, length in zip(rows, lengths)]
    ys = [np.full((row, size), number, np.float32) for number, (row, size) in enumerate(zip(rows, sizes))]
    found = together(served, "beside", [{"X": x, "Y": y} for x, y in zip(xs, ys)])
    for (result, error), x, y in zip(found, xs, ys, strict=True):
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("SAME"), x)
        np.testing.assert_array_equal(result.as_numpy("OTHER"), y)
    assert executions(served, "beside") == (2, 6)


@pytest.mark.halimede_only("Triton's ONNX Runtime backend cannot split BYTES")
def test_texts_are_split(served):
    words = [[b"a", b"", b"long words"], ["\u00e9".encode()]]
    requests = [{"INPUT0": np.array([one], np.object_)} for one in words]
    for got, want in zip(outputs(served, "texts", requests, "OUTPUT0"), words, strict=True):
        assert got.tolist() == [want]
    assert executions(served, "texts") == (1, 2)


@pytest.mark.halimede_only("in Triton the batch fails as a whole")
def test_a_request_with_wrong_data_fails_alone(served):
    requests = [{"INPUT0": np.array([one], np.int64)} for one in ([0, 1], [99], [2, 2, 1])]
    found = together(served, "pick", requests)
    errors = [error for _, error in found if error]
    assert len(errors) == 1 and "model 'pick'" in str(errors[0]), errors
    got = sorted((result.as_numpy("OUTPUT0") for result, error in found if error is None), key=len)
    assert sorted(array.tolist() for array in got) == [[[10, 20]], [[30, 30, 20]]]


def check_sequence(result, array, first):
    np.testing.assert_array_equal(result.as_numpy("SAME"), array)
    assert result.as_numpy("FIRST") == first


def test_rows_of_sequences_without_a_request(served):
    """The second sequence runs beside the place of the first, which has no request then."""
    with triton.InferenceServerClient(served.grpc_address) as client:
        for sequence, length, start in [(1, 2, True), (2, 4, True), (2, 3, False), (1, 5, False)]:
            array = lines([length], start=sequence)[0]
            result = client.infer("direct", tensors({"X": array}), sequence_id=sequence, sequence_start=start, sequence_end=not start)
            check_sequence(result, array, start)


def test_requests_of_sequences_share_a_batch(served):
    answers = queue.Queue()
    with triton.InferenceServerClient(served.grpc_address) as client:
        for lengths, start in [((2, 5), True), ((4, 1), False)]:
            arrays = lines(lengths)
            for number, array in enumerate(arrays):
                client.async_infer("oldest", tensors({"X": array}), lambda result, error: answers.put((result, error)), request_id=str(number),
                                   sequence_id=number + 1, sequence_start=start, sequence_end=not start)  # fmt: skip
            for result, error in [answers.get(timeout=60) for _ in arrays]:
                assert error is None
                check_sequence(result, arrays[int(result.get_response().id)], start)
    assert executions(served, "oldest") == (2, 4)


@pytest.mark.parametrize("model, added", [("identity", 0), ("python", 4)])
def test_backends_that_look_at_each_request(served, model, added):
    arrays = lines([2, 4, 1, 3])
    for got, array in zip(outputs(served, model, [{"INPUT0": array} for array in arrays], "OUTPUT0"), arrays, strict=True):
        np.testing.assert_array_equal(got, array + added)


def test_what_is_computed_is_no_input_of_clients(served):
    metadata = served.http.get("/v2/models/documented").json
    assert metadata["inputs"] == [{"name": "TOKENS", "datatype": "FP32", "shape": [-1, -1]}]
    config = served.http.get("/v2/models/documented/config").json
    assert [one["kind"] for one in config["batch_input"]] == ["BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"]
    assert config["batch_output"] == [
        {"target_name": ["DOUBLED"], "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "source_input": ["TOKENS"]}
    ]
    arrays = {"TOKENS": np.zeros((1, 2), np.float32), "BOUNDS": np.zeros((1, 2), np.int32)}
    with triton.InferenceServerClient(served.grpc_address) as client:
        with pytest.raises(InferenceServerException, match="expected 1 inputs but got 2 inputs"):
            client.infer("documented", tensors(arrays))


# What is changed in the documented configuration, and why the model `m` does not load then.
REFUSED = [
    ('source_input: "TOKENS"\n}', 'source_input: "WORDS"\n}', "unknown source input name 'WORDS' for m"),
    ("TYPE_INT32", "TYPE_INT64", "batch input data type must be TYPE_INT32 or TYPE_FP32 for m"),
    ('target_name: "DOUBLED"', 'target_name: "TWICE"', "unknown target output name 'TWICE' for m"),
    ("allow_ragged_batch: true", "", "the model expects 1 dimensions (shape [-1]) but the model configuration specifies 2"),
    (DOCUMENTED[DOCUMENTED.index("batch_input") : DOCUMENTED.index("output [")], "", "configuration expects 1 inputs, model provides 2"),
]  # fmt: skip


def test_refusals_at_load(repository, serve):
    """Texts of Triton's."""
    repository.add("plain", models.identity(TensorProto.FLOAT, ["n", 4]),
                   onnx_config() + ragged("INPUT0", "FP32", [4]) + models.io("output", "OUTPUT0", "FP32", [4]))  # fmt: skip
    expected = {"plain": "configuration expects model provides input with shape [-1]  for ragged input 'INPUT0', model provides [-1,4]"}
    for number, (old, new, text) in enumerate(REFUSED):
        assert old in DOCUMENTED
        name = f"wrong_{number}"
        repository.add(name, sums(), DOCUMENTED.replace(old, new, 1))
        expected[name] = text.replace(" for m", f" for {name}")
    server = serve(repository, "--exit-on-error=false", wait=False)
    server.wait_ready("/v2/health/live")
    index = {entry["name"]: entry for entry in server.http.post("/v2/repository/index").json}
    for name, text in expected.items():
        assert index[name]["state"] == "UNAVAILABLE" and text in index[name]["reason"], index[name]
