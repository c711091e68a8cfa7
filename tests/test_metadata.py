"""Metadata, configuration, readiness and statistics over HTTP and gRPC."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc import service_pb2 as pb

from support import models
from support.grpc import Grpc, add_sub


@pytest.fixture(scope="module")
def grpc(server):
    client = Grpc(server.grpc_address)
    yield client
    client.close()


METADATA = [
    # model, versions, inputs, outputs as name: (datatype, shape)
    ("add_sub", ["1"], dict(INPUT0=("FP32", [4]), INPUT1=("FP32", [4])), dict(OUTPUT0=("FP32", [4]), OUTPUT1=("FP32", [4]))),
    ("simple", ["1"], dict(INPUT0=("INT32", [-1, 16]), INPUT1=("INT32", [-1, 16])),
     dict(OUTPUT0=("INT32", [-1, 16]), OUTPUT1=("INT32", [-1, 16]))),
    ("twice", ["1"], dict(A=("INT32", [-1, 16]), B=("INT32", [-1, 16])), dict(DOUBLE_A=("INT32", [-1, 16]))),
    ("text", ["1"], dict(INPUT0=("BYTES", [-1, -1])), dict(OUTPUT0=("BYTES", [-1, -1]))),
    ("slow", ["1"], dict(INPUT0=("FP32", [-1])), dict(OUTPUT0=("FP32", [-1]))),
    ("versions", ["1", "3"], dict(INPUT0=("FP32", [-1, -1])), dict(OUTPUT0=("FP32", [-1, -1]))),
    *[(f"identity_{t.lower()}", ["1"], dict(INPUT0=(t, [-1, -1])), dict(OUTPUT0=(t, [-1, -1]))) for t in models.DATATYPES],
]  # fmt: skip
IDS = [m[0] for m in METADATA]
PLATFORMS = {"twice": "ensemble", "slow": "identity"}


@pytest.mark.parametrize("model, versions, inputs, outputs", METADATA, ids=IDS)
def test_http_metadata(http, on_peer, model, versions, inputs, outputs):
    reply = http.get(f"/v2/models/{model}").json
    assert list(reply) == ["name", "versions", "platform", "inputs", "outputs"]
    assert (reply["name"], reply["versions"]) == (model, versions)
    for kind, expected in (("inputs", inputs), ("outputs", outputs)):
        assert {t["name"]: (t["datatype"], t["shape"]) for t in reply[kind]} == expected
    if not on_peer:
        assert reply["platform"] == PLATFORMS.get(model, "onnxruntime_onnx")


@pytest.mark.parametrize("model, versions, inputs, outputs", METADATA, ids=IDS)
def test_grpc_metadata(grpc, model, versions, inputs, outputs):
    reply = grpc.stub.ModelMetadata(pb.ModelMetadataRequest(name=model))
    assert (reply.name, list(reply.versions)) == (model, versions)
    for got, expected in ((reply.inputs, inputs), (reply.outputs, outputs)):
        assert {t.name: (t.datatype, list(t.shape)) for t in got} == expected


def test_metadata_of_a_version(http):
    assert http.get("/v2/models/versions/versions/3").json["versions"] == ["3"]


def test_config_prints_every_primitive_field(http, on_peer):
    """Proto names, defaults too, int64 as numbers."""
    config = http.get("/v2/models/simple/config").json
    expected = {
        "name": "simple",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 8,
        "input": [
            {
                "name": name,
                "data_type": "TYPE_INT32",
                "format": "FORMAT_NONE",
                "dims": [16],
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": False,
                "is_non_linear_format_io": False,
            }
            for name in ("INPUT0", "INPUT1")
        ],
        "output": [
            {
                "name": name,
                "data_type": "TYPE_INT32",
                "dims": [16],
                "label_filename": "",
                "is_shape_tensor": False,
                "is_non_linear_format_io": False,
            }
            for name in ("OUTPUT0", "OUTPUT1")
        ],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
        "dynamic_batching": {
            "preferred_batch_size": [8],
            "max_queue_delay_microseconds": 0,
            "preserve_ordering": False,
            "priority_levels": 0,
            "default_priority_level": 0,
            "priority_queue_policy": {},
        },
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }
    varies = {"platform", "backend"} if on_peer else set()
    for key, value in expected.items():
        if key not in varies:
            assert config[key] == value, key
    (group,) = config["instance_group"]
    assert group["kind"] == "KIND_CPU"
    # The peer's copy of the repository gives the group; one that the server adds has the name of the model.
    assert (group["name"], group["passive"], group["host_policy"]) == ("simple_0" if on_peer else "simple", False, "")
    assert group["count"] >= 1


def test_config_of_an_ensemble(http):
    config = http.get("/v2/models/twice/config").json
    steps = config["ensemble_scheduling"]["step"]
    assert [s["model_name"] for s in steps] == ["simple", "simple"]
    assert steps[0]["model_version"] == -1
    assert steps[0]["input_map"] == {"INPUT0": "A", "INPUT1": "B"}
    assert steps[1]["output_map"] == {"OUTPUT0": "DOUBLE_A"}
    assert config["platform"] == "ensemble"


def test_config_of_a_completed_model(http):
    """No config.pbtxt, first dimension unknown everywhere: batches of up to 4, dynamic batching."""
    config = http.get("/v2/models/identity_fp32/config").json
    assert config["max_batch_size"] == 4
    assert [i["dims"] for i in config["input"]] == [[-1]]
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    fixed = http.get("/v2/models/add_sub/config").json
    assert fixed["max_batch_size"] == 0
    assert "dynamic_batching" not in fixed


def test_grpc_config_agrees(grpc, http):
    config = grpc.stub.ModelConfig(pb.ModelConfigRequest(name="simple")).config
    assert (config.name, config.max_batch_size) == ("simple", 8)
    assert list(config.dynamic_batching.preferred_batch_size) == [8]
    assert [i.name for i in config.input] == ["INPUT0", "INPUT1"]


STATISTICS = ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"]


def test_statistics(repository, serve):
    repository.add("simple", models.add_sub(TensorProto.INT32, ["batch", 16]), models.BATCHED_INT32)
    server = serve(repository)
    data = {"shape": [2, 16], "datatype": "INT32", "data": [1] * 32}
    good = {"inputs": [{"name": n, **data} for n in ("INPUT0", "INPUT1")]}
    for _ in range(3):
        assert server.http.infer("simple", good).status == 200
    assert server.http.infer("simple", {"inputs": good["inputs"][:1]}).status == 400
    (stats,) = server.http.get("/v2/models/simple/stats").json["model_stats"]
    assert (stats["name"], stats["version"]) == ("simple", "1")
    assert (stats["inference_count"], stats["execution_count"]) == (6, 3)
    assert stats["last_inference"] > 1_600_000_000_000
    assert list(stats["inference_stats"]) == STATISTICS
    assert stats["inference_stats"]["success"]["count"] == 3
    assert stats["inference_stats"]["success"]["ns"] > 0
    assert [b["batch_size"] for b in stats["batch_stats"]] == [2]
    assert stats["batch_stats"][0]["compute_infer"]["count"] == 3
    assert stats["memory_usage"] == []
    grpc = Grpc(server.grpc_address)
    (same,) = grpc.stub.ModelStatistics(pb.ModelStatisticsRequest(name="simple")).model_stats
    assert (same.inference_count, same.execution_count) == (6, 3)
    assert same.inference_stats.success.count == 3
    grpc.close()


def test_statistics_say_where_the_time_went(serve, repository):
    width, layers = 1024, 16
    names = ["x", *(f"h{i}" for i in range(layers - 1)), "y"]
    nodes = [helper.make_node("MatMul", [a, f"w{i}"], [b]) for i, (a, b) in enumerate(zip(names, names[1:]))]
    weights = [numpy_helper.from_array(np.eye(width, dtype=np.float32), f"w{i}") for i in range(layers)]
    shape = [32, width]
    x, y = (models.info(name, TensorProto.FLOAT, shape) for name in "xy")
    model = models.onnx_model(nodes, [x], [y], weights)
    repository.add("deep", model)
    server = serve(repository)
    request = {"inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": [0.5] * (32 * width)}]}
    for _ in range(2):
        assert server.http.infer("deep", request).status == 200
    (stats,) = server.http.get("/v2/models/deep/stats").json["model_stats"]
    for spent in (stats["inference_stats"], stats["batch_stats"][0]):
        # Half a billion products against a copy of 128 KiB.
        assert spent["compute_infer"]["ns"] > spent["compute_input"]["ns"] > 0
        assert spent["compute_infer"]["ns"] > spent["compute_output"]["ns"] > 0


def test_statistics_of_every_model(http):
    names = [s["name"] for s in http.get("/v2/models/stats").json["model_stats"]]
    assert names == sorted(names)
    assert names.count("versions") == 2


def test_index(http):
    entries = http.post("/v2/repository/index", "").json
    assert {"name": "add_sub", "version": "1", "state": "READY"} in entries
    assert [e["version"] for e in entries if e["name"] == "versions"] == ["1", "3"]
    assert http.post("/v2/repository/index", '{"ready":true}').json == entries


def test_logging_settings(repository, serve):
    from onnx import TensorProto

    repository.add("add_sub", models.add_sub(TensorProto.FLOAT, [4]))
    server = serve(repository)
    changed = {"log_info": False, "log_verbose_level": 2, "log_format": "ISO8601"}
    reply = server.http.post("/v2/logging", changed)
    assert reply.status == 200
    assert reply.json == {"log_file": "", "log_warning": True, "log_error": True, **changed}
    assert server.http.get("/v2/logging").json == reply.json
    grpc = Grpc(server.grpc_address)
    settings = grpc.stub.LogSettings(pb.LogSettingsRequest()).settings
    assert settings["log_verbose_level"].uint32_param == 2
    assert settings["log_info"].bool_param is False
    assert settings["log_format"].string_param == "ISO8601"
    grpc.infer(add_sub())
    grpc.close()
