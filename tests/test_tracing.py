"""Traces of requests, and the settings that say which."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from support import models
from support.python_models import INTERPRETER

OF_A_MODEL = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END",
              "REQUEST_END"]  # fmt: skip
OF_HTTP = ["HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
OF_GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"]


def add_models(repository):
    """A model, and an ensemble of it."""
    repository.add("simple", models.add_sub(6, [1, 16]), "max_batch_size: 0")
    repository.add("ensemble", None, (
        'platform: "ensemble"\n' + models.io("input", "A", "INT32", [1, 16]) + models.io("input", "B", "INT32", [1, 16])
        + models.io("output", "SUM", "INT32", [1, 16])
        + 'ensemble_scheduling { step { model_name: "simple" model_version: -1 input_map { key: "INPUT0" value: "A" }'
        ' input_map { key: "INPUT1" value: "B" } output_map { key: "OUTPUT0" value: "SUM" } } }'
    ))  # fmt: skip


@pytest.fixture
def traced(repository, serve, tmp_path):
    """A server that writes every trace to a file of its own, unless told otherwise."""
    add_models(repository)
    repository.add("flat", models.add_sub(1, [4]))

    def start(*flags, frequency=1):
        file = tmp_path / "trace.json"
        given = ["--trace-config", f"triton,file={file}", "--trace-config", "rate=1", *flags]
        if frequency:
            given += ["--trace-config", f"triton,log-frequency={frequency}"]
        server = serve(repository, *given)
        server.traces = file
        return server

    return start


def infer(server, names=("INPUT0", "INPUT1"), model="simple", **options):
    client = tritonclient.http.InferenceServerClient(server.http_address)
    result = client.infer(model, tensors(tritonclient.http, names), **options)
    client.close()
    return result


def tensors(module, names=("INPUT0", "INPUT1")):
    made = [module.InferInput(name, [1, 16], "INT32") for name in names]
    for tensor in made:
        tensor.set_data_from_numpy(np.arange(16, dtype=np.int32)[None])
    return made


def read(path):
    """The objects of a file, once it is there; it is written a moment after the answer."""
    path = Path(path)
    end = time.monotonic() + 30
    while True:
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            assert time.monotonic() < end, f"{path} is not written"
            time.sleep(0.02)


def numbered(server, number):
    return read(f"{server.traces}.{number}")


def names(objects, id):
    """The activities of a request by their times."""
    stamps = [stamp for one in objects if one["id"] == id for stamp in one.get("timestamps", [])]
    return [stamp["name"] for stamp in sorted(stamps, key=lambda stamp: stamp["ns"])]


def test_timestamps_over_http(traced):
    server = traced("--trace-config", "level=TIMESTAMPS")
    infer(server, request_id="mine")
    objects = numbered(server, 0)
    (start,) = [one for one in objects if "model_name" in one]
    assert start == {"id": start["id"], "model_name": "simple", "model_version": 1, "request_id": "mine"}
    assert sorted(names(objects, start["id"])) == sorted(OF_HTTP + OF_A_MODEL)
    order = names(objects, start["id"])
    assert [name for name in order if name in OF_A_MODEL] == OF_A_MODEL
    assert [name for name in order if name in OF_HTTP] == OF_HTTP
    assert all(set(one) == {"id", "timestamps"} for one in objects if one is not start)


def test_timestamps_over_grpc(traced):
    server = traced("--trace-config", "level=TIMESTAMPS")
    client = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    client.infer("simple", tensors(tritonclient.grpc))
    objects = numbered(server, 0)
    (start,) = [one for one in objects if "model_name" in one]
    assert "request_id" not in start
    assert sorted(names(objects, start["id"])) == sorted(OF_GRPC + OF_A_MODEL)
    heard = []
    client.start_stream(lambda result, error: heard.append(error or result))
    client.async_stream_infer("simple", tensors(tritonclient.grpc))
    client.stop_stream()
    objects = numbered(server, 1)
    (start,) = [one for one in objects if "model_name" in one]
    assert sorted(names(objects, start["id"])) == sorted(OF_GRPC + OF_A_MODEL)
    client.close()


def test_an_ensemble_and_its_step(traced):
    server = traced("--trace-config", "level=TIMESTAMPS")
    infer(server, ("A", "B"), "ensemble")
    objects = numbered(server, 0)
    starts = {one["model_name"]: one for one in objects if "model_name" in one}
    assert starts["simple"]["parent_id"] == starts["ensemble"]["id"] and "parent_id" not in starts["ensemble"]
    assert names(objects, starts["simple"]["id"]) == OF_A_MODEL
    whole = [name for name in names(objects, starts["ensemble"]["id"]) if name not in OF_HTTP]
    assert whole == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]


def test_tensors(traced):
    server = traced("--trace-config", "level=TENSORS")
    infer(server)
    objects = numbered(server, 0)
    numbers = ",".join(str(n) for n in range(16))
    doubled = ",".join(str(2 * n) for n in range(16))
    found = {(one["activity"], one["tensor"]["name"]): one["tensor"] for one in objects}
    assert found == {
        (activity, name): {"name": name, "data": data, "shape": "1,16", "dtype": "INT32"}
        for activity, name, data in [
            ("TENSOR_QUEUE_INPUT", "INPUT0", numbers), ("TENSOR_QUEUE_INPUT", "INPUT1", numbers),
            ("TENSOR_BACKEND_OUTPUT", "OUTPUT0", doubled), ("TENSOR_BACKEND_OUTPUT", "OUTPUT1", ",".join(["0"] * 16)),
        ]
    }  # fmt: skip


def test_a_refused_request_leaves_the_file_readable(traced):
    server = traced("--trace-config", "level=TENSORS", frequency=2)
    with pytest.raises(InferenceServerException):
        infer(server, names=("INPUT0", "OTHER"))
    infer(server)
    infer(server)
    assert all("id" in one for one in numbered(server, 0))


def test_generate_is_traced(traced):
    server = traced("--trace-config", "level=TIMESTAMPS")
    body = {name: [1, 2, 3, 4] for name in ("INPUT0", "INPUT1")}
    reply = server.http.post("/v2/models/flat/generate", body)
    assert reply.status == 200, reply.body
    objects = numbered(server, 0)
    (start,) = [one for one in objects if "model_name" in one]
    assert sorted(names(objects, start["id"])) == sorted(OF_HTTP + OF_A_MODEL)


# Answers as often as its input says; -1 is an error.
DECOUPLED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(request.inputs()[0].as_numpy()[0])
            for number in range(count):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))]))
            if count < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("bad")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture
def decoupled(repository, traced):
    repository.add("many", config=(
        'backend: "python"\nmax_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n'
        + models.io("input", "IN", "INT32", [1]) + models.io("output", "OUT", "INT32", [1])
    ))  # fmt: skip
    (repository.path / "many" / "1" / "model.py").write_text(DECOUPLED)
    return traced(INTERPRETER, "--trace-config", "level=TIMESTAMPS")


def of_protocol(server, number):
    """The activities of the one request of a file, without the model's."""
    objects = numbered(server, number)
    (start,) = [one for one in objects if "model_name" in one]
    found = names(objects, start["id"])
    assert [name for name in found if name in OF_A_MODEL] == OF_A_MODEL
    return [name for name in found if name not in OF_A_MODEL]


def test_responses_of_decoupled_models_are_traced(decoupled):
    """Each message over gRPC, the last one that holds nothing too where it is wanted."""
    sent = ["GRPC_SEND_START", "GRPC_SEND_END"]
    cases = [(count, wants_end) for count in (0, 1, 3, -1) for wants_end in (True, False)]
    for number, (count, wants_end) in enumerate(cases):
        with tritonclient.grpc.InferenceServerClient(decoupled.grpc_address) as client:
            client.start_stream(lambda result, error: None)
            tensor = tritonclient.grpc.InferInput("IN", [1], "INT32")
            tensor.set_data_from_numpy(np.array([count], np.int32))
            client.async_stream_infer("many", [tensor], enable_empty_final_response=wants_end)
            client.stop_stream()
        expected = OF_GRPC[:3] + sent * (abs(count) + wants_end)
        assert of_protocol(decoupled, number) == expected, (count, wants_end)


def test_events_of_generate_stream_are_traced(decoupled):
    """As Triton does: each response, and that there is no other; each event that is sent."""
    for number, count in enumerate((0, 1, 3)):
        reply = decoupled.http.post("/v2/models/many/generate_stream", {"IN": count})
        assert reply.status == 200 and reply.body.count(b"data: ") == count
        found = of_protocol(decoupled, number)
        assert found[:2] == OF_HTTP[:2]
        assert found.count("INFER_RESPONSE_COMPLETE") == count + 1
        assert [name for name in found if name.startswith("HTTP_SEND")] == OF_HTTP[3:] * count
    # A reply that is no stream is sent once, whatever the model answers.
    decoupled.http.post("/v2/models/many/generate", {"IN": 3})
    found = of_protocol(decoupled, 3)
    assert found.count("INFER_RESPONSE_COMPLETE") == 4
    assert [name for name in found if name.startswith("HTTP_SEND")] == OF_HTTP[3:]


def test_rate_and_one_file_that_ends_with_the_server(traced):
    server = traced("--trace-config", "level=TIMESTAMPS", "--trace-config", "rate=3", frequency=0)
    for _ in range(10):
        infer(server)
    assert server.stop() == 0
    objects = json.loads(server.traces.read_text())
    assert len([one for one in objects if "model_name" in one]) == 3


def test_old_flags(repository, serve, tmp_path):
    repository.add("simple", models.add_sub(6, [1, 16]))
    file = tmp_path / "old.json"
    server = serve(repository, f"--trace-file={file}", "--trace-level=MIN", "--trace-rate=1", "--trace-count=2")
    settings = server.http.get("/v2/trace/setting").json
    assert settings == {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "2", "log_frequency": "0",
                        "trace_file": str(file), "trace_mode": "triton"}  # fmt: skip
    for _ in range(4):
        infer(server)
    objects = read(f"{file}.0")
    assert len([one for one in objects if "model_name" in one]) == 2
    assert server.http.get("/v2/trace/setting").json["trace_count"] == "0"


def test_settings_change_for_all_and_for_a_model(traced):
    server = traced("--trace-config", "level=OFF")
    http = tritonclient.http.InferenceServerClient(server.http_address)
    grpc = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    assert http.get_trace_settings()["trace_level"] == ["OFF"]
    infer(server)
    changed = http.update_trace_settings("simple", {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_count": "3"})
    assert changed["trace_level"] == ["TIMESTAMPS", "TENSORS"] and changed["trace_count"] == "3"
    assert http.get_trace_settings()["trace_level"] == ["OFF"]
    infer(server)
    assert {"tensor", "timestamps"} <= {key for one in numbered(server, 0) for key in one}
    assert http.get_trace_settings("simple")["trace_count"] == "2"
    infer(server, ("A", "B"), "ensemble")
    # What is cleared is that of all models again.
    cleared = grpc.update_trace_settings("simple", {"trace_level": None, "trace_count": None}, as_json=True)
    assert cleared["settings"]["trace_level"]["value"] == ["OFF"]
    infer(server)
    all = grpc.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "trace_rate": "2"}, as_json=True)
    assert (all["settings"]["trace_rate"]["value"], all["settings"]["trace_level"]["value"]) == (["2"], ["TIMESTAMPS"])
    infer(server)
    infer(server)
    assert "model_name" in str(numbered(server, 1))
    assert not Path(f"{server.traces}.2").exists()
    http.close()
    grpc.close()


WRONG = {
    "file": ({"trace_file": "x"}, "trace file location can not be updated through network protocol"),
    "off and on": ({"trace_level": ["OFF", "TIMESTAMPS"]}, "Expect only one trace level 'OFF' is specified"),
    "no number": ({"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
    "too large": ({"log_frequency": "99999999999999999999"},
                  "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: 99999999999999999999"),
    "negative": ({"trace_count": "-2"}, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
    "no rate": ({"trace_rate": "0"}, "Attempting to set invalid trace setting :sample rate must be non-zero"),
}  # fmt: skip


@pytest.mark.parametrize("settings, expected", WRONG.values(), ids=WRONG.keys())
def test_wrong_settings_change_nothing(traced, settings, expected):
    server = traced("--trace-config", "level=TIMESTAMPS")
    before = server.http.get("/v2/trace/setting").json
    reply = server.http.post("/v2/trace/setting", settings)
    assert (reply.status, reply.error) == (501 if "trace_file" in settings else 400, expected)
    client = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    with pytest.raises(InferenceServerException) as refused:
        client.update_trace_settings(settings=settings)
    assert refused.value.message() == expected
    client.close()
    assert server.http.get("/v2/trace/setting").json == before


def test_a_file_that_cannot_be_written_costs_no_answer(repository, serve):
    repository.add("simple", models.add_sub(6, [1, 16]))
    server = serve(repository, "--trace-config=triton,file=/nowhere/trace.json", "--trace-config=level=TIMESTAMPS",
                   "--trace-config=rate=1")  # fmt: skip
    assert infer(server).as_numpy("OUTPUT0") is not None
    server.wait_log("failed creating trace file: /nowhere/trace.json")


def wait_for_counts(server, **counts):
    """Traces are counted a moment after their file is written."""
    end = time.monotonic() + 30
    while True:
        lines = server.metrics_text().splitlines()
        if all(f"halimede_trace_{name} {count}" in lines for name, count in counts.items()):
            return
        assert time.monotonic() < end, [line for line in lines if line.startswith("halimede_trace")]
        time.sleep(0.02)


def test_metrics_count_traces(traced):
    server = traced("--trace-config", "level=TIMESTAMPS")
    infer(server)
    wait_for_counts(server, written=1, dropped=0, failed=0, left_out=0)


def test_a_folder_that_comes_later_gets_the_traces_and_the_log_is_not_flooded(repository, serve, tmp_path):
    repository.add("simple", models.add_sub(6, [1, 16]))
    folder = tmp_path / "later"
    server = serve(repository, f"--trace-config=triton,file={folder}/trace.json", "--trace-config=level=TIMESTAMPS",
                   "--trace-config=rate=1", "--trace-config=triton,log-frequency=1")  # fmt: skip
    for _ in range(3):
        infer(server)
    wait_for_counts(server, written=0, failed=3)
    folder.mkdir()
    infer(server)
    assert read(folder / "trace.json.0")
    server.wait_log("trace files are written again: .*; 3 traces before are lost")
    assert server.log_text().count("failed creating trace file") == 1


def test_a_change_for_all_models_is_made_though_the_count_of_one_is_used_up(traced):
    server = traced("--trace-config", "level=TIMESTAMPS")
    assert server.http.post("/v2/models/simple/trace/setting", {"trace_count": "1"}).status == 200
    infer(server)
    assert server.http.get("/v2/models/simple/trace/setting").json["trace_count"] == "0"
    reply = server.http.post("/v2/trace/setting", {"trace_rate": "7"})
    assert (reply.status, reply.json["trace_rate"]) == (200, "7")


@pytest.mark.halimede_only("tritonserver writes the file of a count at its end where the rate is above 1")
def test_a_count_with_a_rate_has_its_file_at_once(traced):
    server = traced("--trace-config", "level=TIMESTAMPS", "--trace-config", "rate=2", "--trace-config", "count=2", frequency=0)
    for _ in range(6):
        infer(server)
    assert len([one for one in numbered(server, 0) if "model_name" in one]) == 2
