"""Sequences: strategies, signals, states, the backlog, refusals, cancellation, and streams in order."""

import queue
import sys
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from onnx import TensorProto, helper
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from support import models
from support.grpc import Grpc, tensor
from support.models import info
from support.server import ROOT, Server
from support.waiting import wait_until

# The configuration of the documentation.
STATEFUL = (ROOT / "docs" / "sequences.md").read_text().split("```pbtxt\n")[1].split("```")[0]

PLAIN = models.io("input", "INPUT", "INT32", [1]) + models.io("output", "OUTPUT", "INT32", [1])
ONE = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"


def control(name, kind, value):
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {value} }} }}\n'


INT32 = "int32_false_true: [ 0, 1 ]"
START_READY = control("START", "START", INT32) + control("READY", "READY", INT32)


def all_controls(data_type):
    corrid = control("CORRID", "CORRID", f"data_type: {data_type}")
    return START_READY + control("END", "END", INT32) + corrid


def batching(controls="", strategy="", idle_us=5_000_000, more=""):
    return f"sequence_batching {{ max_sequence_idle_microseconds: {idle_us} {strategy} {controls} {more} }}\n"


def summing(dims):
    """SUM_OUT is SUM_IN plus INPUT, in a row that is ready; OUTPUT is the same times 1, or 100 at the start."""
    shape = ["batch", *dims]
    ninety_nine = helper.make_tensor("ninety_nine", TensorProto.FLOAT, [], [99.0])
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    return models.onnx_model(
        [
            helper.make_node("Mul", ["INPUT", "READY"], ["ready"]),
            helper.make_node("Add", ["SUM_IN", "ready"], ["SUM_OUT"]),
            helper.make_node("Mul", ["START", "ninety_nine"], ["factor"]),
            helper.make_node("Add", ["factor", "one"], ["by"]),
            helper.make_node("Mul", ["SUM_OUT", "by"], ["OUTPUT"]),
        ],
        [info(name, TensorProto.FLOAT, shape) for name in ("INPUT", "START", "READY", "SUM_IN")],
        [info("OUTPUT", TensorProto.FLOAT, shape), info("SUM_OUT", TensorProto.FLOAT, shape)],
        [ninety_nine, one],
    )


def growing():
    """The state is all that came before, and so is the output."""
    return models.onnx_model(
        [
            helper.make_node("Concat", ["PAST", "INPUT"], ["PRESENT"], axis=1),
            helper.make_node("ReduceSum", ["PRESENT", "columns"], ["OUTPUT"], keepdims=1),
        ],
        [info("INPUT", TensorProto.FLOAT, ["b", "n"]), info("PAST", TensorProto.FLOAT, ["b", "p"])],
        [info("OUTPUT", TensorProto.FLOAT, ["b", 1]), info("PRESENT", TensorProto.FLOAT, ["b", "q"])],
        [helper.make_tensor("columns", TensorProto.INT64, [1], [1])],
    )


def signals(datatype, element):
    """OUTPUT is the identifier, FLAGS are START, END and READY."""
    shape = ["batch", 1]
    flags = ["START", "END", "READY"]
    return models.onnx_model(
        [
            helper.make_node("Identity", ["CORRID"], ["OUTPUT"]),
            helper.make_node("Concat", flags, ["FLAGS"], axis=1),
            helper.make_node("Identity", ["INPUT"], ["SAME"]),
        ],
        [info("INPUT", TensorProto.INT32, shape), info("CORRID", element, shape)]
        + [info(name, datatype, shape) for name in flags],
        [
            info("OUTPUT", element, shape),
            info("FLAGS", datatype, ["batch", 3]),
            info("SAME", TensorProto.INT32, shape),
        ],
    )


SIGNALS = {
    "INT32": (TensorProto.INT32, "int32_false_true: [ -1, 7 ]", [-1, 7]),
    "FP32": (TensorProto.FLOAT, "fp32_false_true: [ 0.5, 2 ]", [0.5, 2]),
    "BOOL": (TensorProto.BOOL, "bool_false_true: [ true, false ]", [True, False]),
}
IDENTIFIERS = {
    "UINT64": TensorProto.UINT64,
    "INT64": TensorProto.INT64,
    "UINT32": TensorProto.UINT32,
    "INT32": TensorProto.INT32,
    "STRING": TensorProto.STRING,
}


def add_signals(repository, flag, identifier):
    element, values, _ = SIGNALS[flag]
    controls = "".join(control(kind, kind, values) for kind in ("START", "END", "READY"))
    controls += control("CORRID", "CORRID", f"data_type: TYPE_{identifier}")
    outputs = models.io("output", "OUTPUT", identifier, [1]) + models.io("output", "FLAGS", flag, [3])
    config = 'platform: "onnxruntime_onnx" max_batch_size: 2\n' + models.io("input", "INPUT", "INT32", [1]) + outputs
    model = signals(element, IDENTIFIERS[identifier])
    repository.add(f"signals_{flag}_{identifier}", model, config + batching(controls))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    repository = models.Repository(tmp_path_factory.mktemp("sequences"))
    sequence = f'backend: "sequence" max_batch_size: 4\n{PLAIN}{ONE}'
    repository.add("simple_sequence", config=sequence + batching(START_READY))
    repository.add("one_place", config=sequence.replace("4", "1") + batching(START_READY, idle_us=60_000_000))
    repository.add("impatient", config=sequence + batching(START_READY, idle_us=300_000))
    oldest = "oldest { max_candidate_sequences: 16 max_queue_delay_microseconds: 1000 }"
    dyna = f'backend: "dyna_sequence" max_batch_size: 8\n{PLAIN}instance_group {{ kind: KIND_CPU count: 2 }}\n'
    for name, kind in [("simple_dyna_sequence", "TYPE_UINT64"), ("simple_string_dyna_sequence", "TYPE_STRING")]:
        repository.add(name, config=dyna + batching(all_controls(kind), oldest))
    repository.add("stateful", summing([1]), STATEFUL)
    (repository.path / "stateful" / "initial_state").mkdir()
    (repository.path / "stateful" / "initial_state" / "begin").write_bytes(np.float32(1000).tobytes())
    state = 'state { input_name: "PAST" output_name: "PRESENT" data_type: TYPE_FP32 dims: [ -1 ] }'
    plain = models.io("input", "INPUT", "FP32", [-1]) + models.io("output", "OUTPUT", "FP32", [1])
    grows = f'platform: "onnxruntime_onnx" max_batch_size: 1\n{plain}'
    repository.add("growing", growing(), grows + batching(more=state))
    visible = plain + models.io("output", "PRESENT", "FP32", [-1])
    repository.add("visible", growing(), f'platform: "onnxruntime_onnx" max_batch_size: 1\n{visible}' + batching(more=state))
    for flag, identifier in [("INT32", "UINT64"), ("FP32", "INT64"), ("BOOL", "UINT32"), ("INT32", "INT32"), ("BOOL", "STRING")]:
        add_signals(repository, flag, identifier)
    member = (
        'platform: "ensemble" max_batch_size: 4\n' + PLAIN + 'ensemble_scheduling { step [ { model_name: "simple_sequence" '
        'model_version: -1 input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUTPUT" value: "OUTPUT" } } ] }'
    )
    repository.add("ensemble_sequence", config=member)
    iterative = models.io("input", "INPUT", "INT32", [1]) + models.io("output", "OUTPUT", "INT32", [1])
    iterative = f'backend: "iterative_sequence" max_batch_size: 4\n{iterative}model_transaction_policy {{ decoupled: true }}\n'
    repository.add("iterative", config=iterative + batching(more="iterative_sequence: true", idle_us=100_000))
    repository.add("not_iterative", config=iterative + batching())
    with Server([repository.path]) as server:
        yield server


@pytest.fixture
def client(running):
    with triton_http.InferenceServerClient(running.http_address) as client:
        yield client


def step(client, model, sequence, value, flags="", output="OUTPUT", dtype=np.int32, **options):
    """One request; `s` starts and `e` ends the sequence."""
    value = np.array([value], dtype)
    value = value if value.ndim == 2 else value[:, None]
    given = triton_http.InferInput("INPUT", value.shape, "INT32" if dtype is np.int32 else "FP32")
    given.set_data_from_numpy(value)
    answer = client.infer(
        model, [given], sequence_id=sequence, sequence_start="s" in flags, sequence_end="e" in flags, **options
    )
    return answer if output is None else answer.as_numpy(output).ravel().tolist()


def error(call, *args, **options):
    with pytest.raises(InferenceServerException) as found:
        call(*args, **options)
    return found.value


@pytest.mark.parametrize("model", ["simple_sequence", "ensemble_sequence"])
def test_sequences_add_up_each_for_itself(client, model):
    for value, flags in [(1, "s"), (2, ""), (3, "e")]:
        one = step(client, model, 1, value, flags)
        other = step(client, model, "a text", value * 10, flags)
        assert other == [one[0] * 10]
    assert one == [6]
    assert step(client, model, 1, 5, "se") == [5]


@pytest.mark.parametrize("model, identifier", [("simple_dyna_sequence", 1000), ("simple_string_dyna_sequence", "1000")])
def test_oldest_finds_sequences_by_their_identifier(client, model, identifier):
    assert step(client, model, identifier, 1, "s") == [1]
    assert step(client, model, identifier, 2) == [3]
    assert step(client, model, identifier, 3, "e") == [1006]


@pytest.mark.parametrize(
    "request_of, text",
    [
        (dict(sequence=0, flags="s"), "inference request to model 'simple_sequence' must specify a non-zero or non-empty correlation ID"),
        (dict(sequence="", flags="s"), "inference request to model 'simple_sequence' must specify a non-zero or non-empty correlation ID"),
        (dict(sequence=99), "inference request for sequence 99 to model 'simple_sequence' must specify the START flag on the first request of the sequence"),
        (dict(sequence="x"), "inference request for sequence x to model 'simple_sequence' must specify the START flag on the first request of the sequence"),
        (dict(sequence=98, value=[[1], [2]], flags="s"), "inference request to model 'simple_sequence' must specify batch-size 1 due to requirements of sequence batcher"),
        (dict(sequence="x" * 129, flags="s"), "string correlation ID cannot be longer than 128 characters"),
    ],
)  # fmt: skip
def test_what_is_refused(client, request_of, text):
    options = {"value": 1, "flags": "", **request_of}
    value = options.pop("value")
    if isinstance(value, list):
        given = triton_http.InferInput("INPUT", [2, 1], "INT32")
        given.set_data_from_numpy(np.array(value, np.int32))
        found = error(client.infer, "simple_sequence", [given], sequence_id=98, sequence_start=True)
    else:
        found = error(step, client, "simple_sequence", value=value, **options)
    assert found.message() == text


def test_an_identifier_of_another_type_is_refused(client):
    for model, identifier, text in [
        ("simple_dyna_sequence", "5", "'BYTES', but model 'simple_dyna_sequence' expects 'UINT64'"),
        ("simple_string_dyna_sequence", 5, "'UINT64', but model 'simple_string_dyna_sequence' expects 'BYTES'"),
    ]:
        found = error(step, client, model, identifier, 1, "s").message()
        assert found == f"[request id: <id_unknown>] sequence batching control 'CORRID' data-type is {text}"


def test_a_second_start_begins_anew(client):
    assert step(client, "simple_sequence", 7, 1, "s") == [1]
    assert step(client, "simple_sequence", 7, 5, "s") == [5]
    assert step(client, "simple_sequence", 7, 1, "e") == [6]


@pytest.mark.parametrize("flag, identifier", [("INT32", "UINT64"), ("FP32", "INT64"), ("BOOL", "UINT32"), ("INT32", "INT32"), ("BOOL", "STRING")])  # fmt: skip
def test_signals_of_every_type(client, flag, identifier):
    model = f"signals_{flag}_{identifier}"
    no, yes = SIGNALS[flag][2]
    given = "an id" if identifier == "STRING" else 2**40 + 3
    expected = {"STRING": b"an id", "UINT32": 3, "INT32": 3}.get(identifier, given)
    for flags, values in [("s", [yes, no, yes]), ("", [no, no, yes]), ("e", [no, yes, yes]), ("se", [yes, yes, yes])]:
        answer = step(client, model, given, 1, flags, output=None)
        assert answer.as_numpy("OUTPUT").ravel().tolist() == [expected]
        assert answer.as_numpy("FLAGS").ravel().tolist() == values
        assert answer.as_numpy("SAME") is None, "not among the configured outputs"


def test_states_go_on_and_begin_with_a_file(client):
    for sequence in (1, 2):
        assert step(client, "stateful", sequence, 1, "s", dtype=np.float32) == [100100]
    assert step(client, "stateful", 1, 2, dtype=np.float32) == [1003]
    assert step(client, "stateful", 2, 5, "e", dtype=np.float32) == [1006]
    assert step(client, "stateful", 1, 4, "e", dtype=np.float32) == [1007]
    found = error(step, client, "stateful", 1, 4, "s", outputs=[triton_http.InferRequestedOutput("SUM_OUT")], dtype=np.float32)
    assert found.message() == "unexpected inference output 'SUM_OUT' for model 'stateful'"


def test_states_of_a_batch_are_those_of_their_sequences(running):
    """Sequences of all lengths at once over a stream: batches change their members all the time."""
    replies = queue.Queue()
    lengths = {sequence: 3 + sequence % 5 for sequence in range(1, 17)}
    with triton.InferenceServerClient(running.grpc_address) as client:
        client.start_stream(callback=lambda result, error: replies.put((result, error)))
        for at in range(max(lengths.values())):
            for sequence, length in lengths.items():
                if at < length:
                    given = triton.InferInput("INPUT", [1, 1], "FP32")
                    given.set_data_from_numpy(np.array([[sequence]], np.float32))
                    client.async_stream_infer(
                        "stateful", [given], request_id=f"{sequence} {at}", sequence_id=sequence,
                        sequence_start=at == 0, sequence_end=at == length - 1)  # fmt: skip
        seen = {sequence: 0 for sequence in lengths}
        for _ in range(sum(lengths.values())):
            result, found = replies.get(timeout=60)
            assert found is None, found
            sequence, at = map(int, result.get_response().id.split())
            assert at == seen[sequence], "responses of a sequence come in order"
            expected = (1000 + sequence * (at + 1)) * (100 if at == 0 else 1)
            assert result.as_numpy("OUTPUT").tolist() == [[expected]]
            seen[sequence] += 1
    assert seen == lengths


def test_states_may_grow_and_be_seen(client):
    assert step(client, "growing", 1, [1, 2], "s", dtype=np.float32) == [3]
    assert step(client, "growing", 1, [3], dtype=np.float32) == [6]
    assert step(client, "growing", 1, [4, 5, 6], "e", dtype=np.float32) == [21]
    step(client, "visible", 1, [1, 2], "s", dtype=np.float32)
    assert step(client, "visible", 1, [3], "e", output="PRESENT", dtype=np.float32) == [0, 1, 2, 3]


def in_thread(call, *args, **options):
    """Runs a call; the result is a queue with its value or its error."""
    done = queue.Queue()

    def run():
        try:
            done.put(call(*args, **options))
        except InferenceServerException as found:
            done.put(found)

    threading.Thread(target=run).start()
    return done


def test_the_backlog_waits_for_a_place(running, client):
    assert step(client, "one_place", 1, 1, "s") == [1]
    with triton_http.InferenceServerClient(running.http_address) as second:
        waiting = in_thread(step, second, "one_place", 2, 10, "se")
        running.wait_pending("one_place", 1)
        assert step(client, "one_place", 1, 2) == [3]
        assert waiting.empty()
        assert step(client, "one_place", 1, 3, "e") == [6]
        assert waiting.get(timeout=20) == [10]


def test_a_timeout_ends_the_wait_for_a_place(client):
    assert step(client, "one_place", 1, 1, "s") == [1]
    found = error(step, client, "one_place", 2, 1, "s", timeout=1000)
    assert found.message() == "timeout of the corresponding sequence has been expired"
    assert "must specify the START flag" in error(step, client, "one_place", 2, 1).message()
    assert step(client, "one_place", 1, 1, "e") == [2]


def test_an_idle_sequence_ends(client):
    assert step(client, "impatient", 1, 1, "s") == [1]

    def is_over():
        try:
            step(client, "impatient", 2, 1, "se")
            return "must specify the START flag" in error(step, client, "impatient", 1, 1).message()
        except pytest.fail.Exception:
            time.sleep(0.5)
            return False

    wait_until(is_over)


def test_a_client_that_leaves_ends_its_sequence(running, client):
    grpc = Grpc(running.grpc_address)
    assert step(client, "one_place", 1, 1, "s") == [1]
    request = pb.ModelInferRequest(model_name="one_place")
    request.parameters["sequence_id"].int64_param = 2
    request.parameters["sequence_start"].bool_param = True
    tensor(request, "INPUT", "INT32", [1, 1], np.array([1], np.int32).tobytes())
    waiting = grpc.stub.ModelInfer.future(request)
    running.wait_pending("one_place", 1)
    waiting.cancel()
    # It leaves the backlog although no place becomes free.
    running.wait_pending("one_place", 0)
    assert step(client, "one_place", 1, 1, "e") == [2]
    # The place is free for others, and the rest of what was cancelled is refused.
    assert step(client, "one_place", 3, 5, "se") == [5]
    assert "must specify the START flag" in error(step, client, "one_place", 2, 1).message()
    grpc.close()


def stream_of(running, model, values, **options):
    replies = queue.Queue()
    with triton.InferenceServerClient(running.grpc_address) as client:
        client.start_stream(callback=lambda result, error: replies.put(error or result.as_numpy("OUTPUT").tolist()))
        for value in values:
            given = triton.InferInput("INPUT", [1, 1], "INT32")
            given.set_data_from_numpy(np.array([[value]], np.int32))
            client.async_stream_infer(model, [given], **options)
        client.stop_stream()
    return [replies.get_nowait() for _ in range(replies.qsize())]


def test_iterative_sequences_run_again_until_the_model_ends_them(running):
    # A run takes longer than a sequence may be idle.
    assert stream_of(running, "iterative", [3]) == [[[2]], [[1]], [[0]]]
    # Several run in the same batches, and a sequence that is over has left its place.
    assert sorted(stream_of(running, "iterative", [2] * 6)) == [[[0]]] * 6 + [[[1]]] * 6
    statistics = running.http.get("/v2/models/iterative/stats").json["model_stats"][0]
    assert statistics["inference_count"] == 15


def test_only_iterative_sequences_run_again(running):
    (found,) = stream_of(running, "not_iterative", [3], sequence_id=1, sequence_start=True)
    assert "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" in str(found)


PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        return [self.step(request) for request in requests]

    def step(self, request):
        first = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy().ravel()[0]
        left = self.left.pop(request.correlation_id(), first) - 1
        if left > 0:
            self.left[request.correlation_id()] = left
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        starts = 1000 if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START else 0
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[left + starts]], np.int32))])
"""

STREAMING = PYTHON.replace("return [self.step(request) for request in requests]", """for request in requests:
            sender = request.get_response_sender()
            response = self.step(request)
            left = self.left.get(request.correlation_id(), 0)
            output = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[left]], np.int32))])
            sender.send(output, 0 if response is None else pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)""")


def test_python_models_run_again(serve, repository):
    config = f'backend: "python" max_batch_size: 4\n{PLAIN}{ONE}'
    iterative = batching(more="iterative_sequence: true")
    repository.add("again", config=config + iterative)
    repository.add("streaming", config=config + iterative + "model_transaction_policy { decoupled: true }\n")
    repository.add("never", config=config)
    for name, code in [("again", PYTHON), ("streaming", STREAMING), ("never", PYTHON)]:
        (repository.path / name / "1" / "model.py").write_text(code)
    server = serve(repository, f"--backend-config=python,interpreter={sys.executable}")
    with triton_http.InferenceServerClient(server.http_address) as client:
        # In its first run it begins a sequence, in those behind not.
        assert step(client, "again", 0, 1) == [1000]
        assert step(client, "again", 0, 4) == [0]
        assert server.http.get("/v2/models/again/stats").json["model_stats"][0]["inference_count"] == 5
        assert step(client, "never", 0, 1) == [0]
        assert "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" in error(step, client, "never", 0, 2).message()
    assert stream_of(server, "streaming", [3]) == [[[2]], [[1]], [[0]]]


def test_a_server_that_ends_waits_until_sequences_are_idle(serve, repository):
    config = f'backend: "sequence" max_batch_size: 4\n{PLAIN}{ONE}'
    repository.add("simple_sequence", config=config + batching(START_READY, idle_us=2_000_000))
    server = serve(repository)
    with triton_http.InferenceServerClient(server.http_address) as client:
        assert step(client, "simple_sequence", 1, 1, "s") == [1]
        assert step(client, "simple_sequence", 2, 1, "s") == [1]
    server.process.terminate()
    server.wait_log("Model 'simple_sequence' \\(version 1\\) has 2 in-flight inferences")
    assert server.wait_exit() == 0
