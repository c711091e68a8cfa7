"""Index, load and unload; control modes none, explicit and poll."""

import base64
import json
import os
import signal
import socket
import time

import pytest
from onnx import TensorProto
from tritonclient.grpc import service_pb2 as pb

from support import models
from support.grpc import PREFACE, SETTINGS_ACK, Grpc, frames_of, frames_until

BROKEN = 'backend: "no_such_backend"\nmax_batch_size: 0\n' + models.io("input", "INPUT0", "FP32", [1]) + models.io(
    "output", "OUTPUT0", "FP32", [1]
)


POLL = "failed to load '{}', failed to poll from model repository"


def index(http, body=""):
    reply = http.post("/v2/repository/index", body)
    assert reply.status == 200
    return reply.json


def load(http, name, **parameters):
    return http.post(f"/v2/repository/models/{name}/load", {"parameters": parameters} if parameters else "")


def unload(http, name, **parameters):
    return http.post(f"/v2/repository/models/{name}/unload", {"parameters": parameters} if parameters else "")


@pytest.fixture
def explicit(repository, serve):
    """`add_sub`, `simple`, the ensemble `twice` over `simple`, and a model that cannot load; none loaded."""
    repository.add("add_sub", models.add_sub(TensorProto.FLOAT, [4]))
    repository.add("simple", models.add_sub(TensorProto.INT32, ["batch", 16]), models.BATCHED_INT32)
    repository.add("twice", config=models.ENSEMBLE)
    repository.add("broken", config=BROKEN)
    return serve(repository, "--model-control-mode=explicit")


def states(http):
    return {entry["name"]: entry.get("state") for entry in index(http)}


def test_nothing_is_loaded_at_first(explicit):
    assert index(explicit.http) == [{"name": n} for n in ("add_sub", "broken", "simple", "twice")]
    assert index(explicit.http, '{"ready":true}') == []
    assert explicit.http.get("/v2/models/add_sub").status == 404


def test_load_and_unload(explicit):
    http = explicit.http
    assert load(http, "add_sub").status == 200
    assert http.get("/v2/models/add_sub/ready").status == 200
    assert index(http, '{"ready":true}') == [{"name": "add_sub", "version": "1", "state": "READY"}]
    assert unload(http, "add_sub").status == 200
    wait_for(lambda: states(http)["add_sub"] == "UNAVAILABLE")
    entry = next(e for e in index(http) if e["name"] == "add_sub")
    assert entry == {"name": "add_sub", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
    reply = http.get("/v2/models/add_sub")
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'add_sub' has no available versions")
    assert http.get("/v2/health/ready").status == 200


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


def test_a_client_that_does_not_wait(explicit):
    for body in (b"", b"{}"):
        # All of it is there, and the client is gone, before the server looks.
        with socket.create_connection(("127.0.0.1", explicit.http_port)) as connection:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
            os.kill(explicit.process.pid, signal.SIGSTOP)
            connection.sendall(b"POST /v2/repository/models/simple/load HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        os.kill(explicit.process.pid, signal.SIGCONT)
        explicit.wait_ready("/v2/models/simple/ready")
        assert explicit.http.post("/v2/repository/models/simple/unload").status == 200


@pytest.mark.halimede_only("2.51.0 drops a call whose connection ends right behind it")
@pytest.mark.parametrize("is_new", [False, True])
def test_a_grpc_client_that_does_not_wait(explicit, is_new):
    def send(method, request):
        with socket.create_connection(("127.0.0.1", explicit.grpc_port), timeout=60) as connection:
            if not is_new:
                connection.sendall(PREFACE)
                with connection.makefile("rb") as stream:
                    assert (4, 1, b"") in frames_until(stream, lambda frame: frame[:2] == (4, 1))
                connection.sendall(SETTINGS_ACK)
            os.kill(explicit.process.pid, signal.SIGSTOP)
            connection.sendall((PREFACE if is_new else b"") + frames_of(method, request))
        os.kill(explicit.process.pid, signal.SIGCONT)

    for _ in range(3):
        send("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="simple"))
        explicit.wait_ready("/v2/models/simple/ready")
        send("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="simple"))
        wait_for(lambda: states(explicit.http)["simple"] == "UNAVAILABLE")


def test_unknown_models(explicit):
    reply = load(explicit.http, "nope")
    assert (reply.status, reply.error) == (500, POLL.format("nope"))
    assert unload(explicit.http, "nope").status == 200


@pytest.mark.halimede_only("2.51.0 tells the reason in its log alone")
def test_a_reason_without_a_version(repository, serve):
    repository.add("add_sub", models.add_sub(TensorProto.FLOAT, [4]))
    repository.add("wrong", models.add_sub(TensorProto.FLOAT, [4]), "max_batch_sise: 3")
    repository.add("twice", config=models.ENSEMBLE)
    server = serve(repository, "--exit-on-error=false", "--strict-readiness=false")
    entries = {entry["name"]: entry for entry in index(server.http)}
    assert entries["add_sub"] == {"name": "add_sub", "version": "1", "state": "READY"}
    for name, reason in (("wrong", "no field named \"max_batch_sise\""), ("twice", "not available or ambiguous: simple")):
        assert entries[name].keys() == {"name", "state", "reason"} and entries[name]["state"] == "UNAVAILABLE"
        assert reason in entries[name]["reason"]
    told = Grpc(server.grpc_address).stub.RepositoryIndex(pb.RepositoryIndexRequest(), timeout=20)
    assert {entry.name: entry.reason for entry in told.models} == {
        name: entry.get("reason", "") for name, entry in entries.items()
    }
    assert [entry["name"] for entry in index(server.http, '{"ready":true}')] == ["add_sub"]


@pytest.mark.halimede_only("2.51.0 tells the reason in its log alone")
def test_a_missing_member_is_named_to_the_client(repository, serve):
    repository.add("twice", config=models.ENSEMBLE)
    http = serve(repository, "--model-control-mode=explicit").http
    reply = load(http, "twice")
    why = "failed to poll model 'simple', which ensemble 'twice' uses: model not found in any model repository."
    assert (reply.status, reply.error) == (500, f"{POLL.format('twice')}: {why}")
    assert index(http) == [{"name": "twice", "state": "UNAVAILABLE", "reason": f"Not found: {why}"}]
    assert unload(http, "twice").status == 200
    assert index(http) == [{"name": "twice"}]


def test_a_model_that_cannot_load(explicit):
    reply = load(explicit.http, "broken")
    assert reply.status == 400
    assert reply.error.startswith("load failed for model 'broken': version 1 is at UNAVAILABLE state: ")
    assert reply.error.endswith(";\n")
    assert states(explicit.http)["broken"] == "UNAVAILABLE"
    assert explicit.http.get("/v2/health/ready").status == 400
    assert explicit.http.get("/v2/health/live").status == 200


def test_ensemble_loads_and_follows_its_members(explicit):
    http = explicit.http
    assert load(http, "twice").status == 200
    assert states(http)["simple"] == states(http)["twice"] == "READY"
    assert unload(http, "simple").status == 200
    wait_for(lambda: states(http)["twice"] == "UNAVAILABLE")
    assert load(http, "simple").status == 200
    wait_for(lambda: states(http)["twice"] == "READY")


def test_unload_with_dependents(explicit):
    http = explicit.http
    assert load(http, "twice").status == 200
    assert unload(http, "twice", unload_dependents=True).status == 200
    wait_for(lambda: states(http)["simple"] == "UNAVAILABLE")


def test_unload_without_dependents(explicit):
    http = explicit.http
    assert load(http, "twice").status == 200
    assert unload(http, "twice").status == 200
    wait_for(lambda: states(http)["twice"] == "UNAVAILABLE")
    assert states(http)["simple"] == "READY"


def test_load_with_another_configuration(explicit):
    http = explicit.http
    assert load(http, "simple").status == 200
    config = http.get("/v2/models/simple/config").json
    assert config["max_batch_size"] == 8
    config["max_batch_size"] = 3
    config["dynamic_batching"]["preferred_batch_size"] = []
    assert load(http, "simple", config=json.dumps(config)).status == 200
    assert http.get("/v2/models/simple/config").json["max_batch_size"] == 3


@pytest.mark.halimede_only("the peer of these tests has no ONNX backend")
def test_load_from_files_in_the_request(explicit):
    http = explicit.http
    content = base64.b64encode(models.identity(TensorProto.FLOAT, [2]).SerializeToString()).decode()
    reply = load(http, "sent", **{"config": '{"backend":"onnxruntime"}', "file:1/model.onnx": content})
    assert reply.status == 200, reply.body
    request = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    assert http.infer("sent", request).json["outputs"][0]["data"] == [1.0, 2.0]


def test_files_without_a_configuration(explicit):
    reply = load(explicit.http, "add_sub", **{"file:1/model.onnx": "AAAA"})
    # Ours goes on with the reason, which tritonserver only logs.
    assert (reply.status, reply.error[: len(POLL.format("add_sub"))]) == (500, POLL.format("add_sub"))


def test_configuration_that_is_not_json(explicit):
    reply = load(explicit.http, "add_sub", config="{nope")
    # Ours goes on with the reason, which tritonserver only logs.
    assert (reply.status, reply.error[: len(POLL.format("add_sub"))]) == (500, POLL.format("add_sub"))


LOAD_BODIES = [
    # body, status, text
    ('{"parameters":{"config":5}}', 500, "attempt to access JSON non-string as string"),
    ('{"parameters":{"nope":"x"}}', 500, "unexpected error on creating Triton parameter"),
    ('{"parameters":{"nope":5}}', 500, "attempt to access JSON non-string as string"),
    ('{"parameters":5}', 500, "attempt to get members for non-object"),
    ("{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
    ("[]", 200, ""),
]


@pytest.mark.parametrize("body, status, text", LOAD_BODIES, ids=[b[0] for b in LOAD_BODIES])
def test_load_body(explicit, body, status, text):
    reply = explicit.http.post("/v2/repository/models/add_sub/load", body)
    assert (reply.status, reply.body.decode() and reply.error) == (status, text)


def test_grpc_control(explicit):
    grpc = Grpc(explicit.grpc_address)
    load_request = pb.RepositoryModelLoadRequest(model_name="add_sub")
    grpc.stub.RepositoryModelLoad(load_request)
    ready = grpc.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True))
    assert [(m.name, m.version, m.state) for m in ready.models] == [("add_sub", "1", "READY")]
    grpc.stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="add_sub"))
    wait_for(lambda: states(explicit.http)["add_sub"] == "UNAVAILABLE")
    status, text = grpc.error("ModelMetadata", pb.ModelMetadataRequest(name="add_sub"))
    assert (status, text) == ("NOT_FOUND", "Request for unknown model: 'add_sub' has no available versions")
    status, text = grpc.error("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="nope"))
    assert (status, text) == ("INTERNAL", POLL.format("nope"))
    assert grpc.stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="nope")) is not None
    grpc.close()


def test_load_model_flag(repository, serve):
    repository.add("a", models.add_sub(TensorProto.FLOAT, [4]))
    repository.add("b", models.add_sub(TensorProto.FLOAT, [4]))
    server = serve(repository, "--model-control-mode=explicit", "--load-model=b")
    assert states(server.http) == {"a": None, "b": "READY"}


def test_load_model_star(repository, serve):
    repository.add("a", models.add_sub(TensorProto.FLOAT, [4]))
    repository.add("b", models.add_sub(TensorProto.FLOAT, [4]))
    server = serve(repository, "--model-control-mode=explicit", "--load-model=*")
    assert states(server.http) == {"a": "READY", "b": "READY"}


def test_a_poll_every_0_seconds_is_none(repository, serve, on_peer):
    """As in Triton: and not one poll after the other, without a pause."""
    if on_peer:
        pytest.skip("the peer serves a converted copy of the repository")
    repository.add("a", models.identity(TensorProto.FLOAT, [2]))
    server = serve(repository, "--model-control-mode=poll", "--repository-poll-secs=0")
    repository.add("b", models.identity(TensorProto.FLOAT, [2]))
    time.sleep(0.5)
    assert states(server.http).get("a") == "READY" and states(server.http).get("b") != "READY"


def test_poll_mode(repository, serve, on_peer):
    if on_peer:
        pytest.skip("the peer serves a converted copy of the repository")
    repository.add("a", models.add_sub(TensorProto.FLOAT, [4]))
    server = serve(repository, "--model-control-mode=poll", "--repository-poll-secs=1")
    assert states(server.http) == {"a": "READY"}
    assert load(server.http, "a").status == 503
    repository.add("b", models.identity(TensorProto.FLOAT, [2]))
    wait_for(lambda: states(server.http).get("b") == "READY")
    (repository.path / "a" / "1" / "model.onnx").unlink()
    (repository.path / "a" / "1").rmdir()
    (repository.path / "a").rmdir()
    wait_for(lambda: states(server.http).get("a") != "READY")


def test_version_policies(repository, serve):
    policies = {
        "latest": "version_policy { latest { num_versions: 2 } }\n",
        "all": "version_policy { all { } }\n",
        "specific": "version_policy { specific { versions: [ 1 ] } }\n",
        "default": "",
    }
    for name, policy in policies.items():
        for version in (1, 2, 10):
            model = models.identity(TensorProto.FLOAT, [-1, -1])
            repository.add(name, model, models.copy_config("FP32", extra=policy), version)
        # Neither a number with a leading zero nor a word is a version.
        (repository.path / name / "011").mkdir()
        (repository.path / name / "draft").mkdir()
    server = serve(repository)
    versions = {name: server.http.get(f"/v2/models/{name}").json["versions"] for name in policies}
    assert versions == {"latest": ["2", "10"], "all": ["1", "2", "10"], "specific": ["1"], "default": ["10"]}
    reply = server.http.infer("all", {"inputs": [
        {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).json  # fmt: skip
    assert reply["model_version"] == "10"


def test_two_repositories(tmp_path, repository_for, serve):
    one, two = models.Repository(tmp_path / "one"), models.Repository(tmp_path / "two")
    one.add("a", models.add_sub(TensorProto.FLOAT, [4]))
    two.add("b", models.add_sub(TensorProto.FLOAT, [4]))
    server = serve(one, f"--model-repository={repository_for(two.path)}")
    assert states(server.http) == {"a": "READY", "b": "READY"}
