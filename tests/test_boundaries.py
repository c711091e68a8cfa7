"""Paths and names of requests and configurations that try to leave the repository or the shared memory of clients.

Beside the repository lies another folder with a model, a file and a folder of its own: what gets hold of one of them
got out. docs/threat-model.md says who may do what.
"""

import base64
import http.client
import json
import os
import re
import socket
import sys

import grpc
import onnx
import pytest
import tritonclient.utils.shared_memory as shm
from onnx import TensorProto
from tritonclient.grpc import service_pb2 as pb

from support import models
from support.grpc import Grpc, tensor
from support.server import ROOT, Server

pytestmark = pytest.mark.halimede_only("what is said is ours")

SECRET = "the secret"
ADD = {"inputs": [{"name": f"INPUT{i}", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]} for i in range(2)]}


class Place:
    """A server of a repository in `place/models`, and `place/outside`, which no client has to do with."""

    def __init__(self, folder, serve, *flags):
        self.repository = models.Repository(folder / "models")
        self.repository.add("add_sub", models.add_sub(TensorProto.FLOAT, [4]))
        # What is loaded with another configuration.
        self.repository.add("subject", models.add_sub(TensorProto.FLOAT, [4]))
        self.outside = folder / "outside"
        (self.outside / "1").mkdir(parents=True)
        onnx.save(models.add_sub(TensorProto.FLOAT, [4]), self.outside / "1" / "model.onnx")
        (self.outside / "secret").write_bytes((SECRET + "\n").encode() + bytes(64))
        self.folder, self.temporary = folder, folder / "tmp"
        self.temporary.mkdir()
        self.before = self.seen()
        # Where files of load requests go.
        environment = {"TMPDIR": str(self.temporary)}
        self.server = serve(self.repository, "--model-control-mode=explicit", "--load-model=add_sub", *flags, env=environment)
        self.http = self.server.http

    def seen(self):
        """Everything beside the repository and the temporary folder."""
        return sorted(str(path) for path in self.folder.rglob("*") if self.temporary not in (path, *path.parents))

    def load(self, name, **parameters):
        return self.http.post(f"/v2/repository/models/{name}/load", {"parameters": parameters})

    def refuses(self, name, config, *words, **files):
        """A load with this configuration fails with one of the words, and tells nothing of what lies outside."""
        reply = self.load(name, config=json.dumps(config), **files)
        assert reply.status in (400, 500), reply.body
        assert SECRET not in reply.error
        assert any(word in reply.error for word in words), reply.error

    def check(self):
        """Nothing was made or removed, nothing was left behind, and it serves."""
        for name in ("sent", "subject"):
            assert self.http.post(f"/v2/repository/models/{name}/unload").status == 200
        assert self.seen() == self.before
        # The scripts of the Python backend stay as long as the server.
        assert not [path for path in self.temporary.iterdir() if not path.name.startswith("halimede-python-")]
        assert self.http.infer("add_sub", ADD).status == 200
        known = [entry["name"] for entry in self.http.post("/v2/repository/index").json]
        assert [name for name in known if name != "sent"] == ["add_sub", "subject"]


@pytest.fixture(scope="module")
def place(tmp_path_factory, repository_for):
    servers = []

    def serve(repository, *flags, env=None):
        servers.append(Server([repository_for(repository.path)], *flags, env=env))
        return servers[-1]

    yield Place(tmp_path_factory.mktemp("place"), serve)
    for server in servers:
        assert server.stop() == 0


NAMES = [
    "../outside", "..", ".", "", "/", "add_sub/../../outside", "add_sub/..", "./add_sub", "..\\outside", "add_sub\0",
    "../outside\0", "//outside", "add_sub/1", "...", "~", "outside", "x" * 5000, "\n", "\ud7ff",
]  # fmt: skip
ENCODED = ["%2e%2e%2foutside", "..%2foutside", "%2e%2e", "%2E%2E/outside", "add_sub%00", "%", "%zz", "..%5coutside"]


def raw(place, method, path, body=b""):
    """The status of a request whose path no client library would send."""
    with socket.create_connection(("127.0.0.1", place.server.http_port), timeout=60) as connection:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode("utf-8", "surrogatepass") + body)
        reply = http.client.HTTPResponse(connection)
        reply.begin()
        text = reply.read()
        assert SECRET.encode() not in text
        return reply.status


@pytest.mark.parametrize("name", [*NAMES, *ENCODED], ids=lambda name: ascii(name)[:40])
def test_names_of_models_over_http(place, name):
    body = json.dumps(ADD).encode()
    paths = [("POST", f"/v2/repository/models/{name}/{verb}", b"") for verb in ("load", "unload")]
    paths += [("POST", f"/v2/models/{name}/{verb}", body) for verb in ("infer", "generate", "trace/setting")]
    paths += [("GET", f"/v2/models/{name}/{verb}", b"") for verb in ("config", "stats", "ready", "versions/1")]
    for method, path, body in paths:
        status = raw(place, method, path, body)
        # Triton unloads what is not there without an error.
        assert status >= 400 or path.endswith("/unload"), (method, path, status)
    place.check()


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:40])
def test_names_of_models_over_grpc(place, name):
    client = Grpc(place.server.grpc_address)
    infer = pb.ModelInferRequest(model_name=name)
    for index in range(2):
        tensor(infer, f"INPUT{index}", "FP32", [4], fp32_contents=[1, 2, 3, 4])
    calls = {
        "RepositoryModelLoad": pb.RepositoryModelLoadRequest(model_name=name), "ModelInfer": infer,
        "ModelConfig": pb.ModelConfigRequest(name=name), "ModelMetadata": pb.ModelMetadataRequest(name=name),
    }  # fmt: skip
    for method, request in calls.items():
        status, text = client.error(method, request)
        assert status != "UNKNOWN" and SECRET not in text, (method, status)
    place.check()
    client.close()


CONFIG = {"backend": "onnxruntime", "max_batch_size": 0}
PYTHON = {"backend": "python", "max_batch_size": 0,
          "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [1]}],
          "output": [{"name": "B", "data_type": "TYPE_FP32", "dims": [1]}]}  # fmt: skip
OUT = ["../outside/1/model.onnx", "../../outside/1/model.onnx", "../../../outside/1/model.onnx", "1/../../../../outside/1/model.onnx"]


@pytest.mark.parametrize("backend", ["onnxruntime", "python", "identity"])
def test_the_models_file(place, backend):
    for file in [*OUT[1:], str(place.outside / "1" / "model.onnx"), "/etc/passwd"]:
        config = {**(PYTHON if backend == "python" else CONFIG), "backend": backend, "default_model_filename": file}
        place.refuses("subject", config, "is outside the model's directory")
    # In the model's directory, and not there.
    if backend != "identity":
        place.refuses("subject", {**config, "default_model_filename": "../model.onnx"}, "unable to find", "not found")
    place.check()


def output(**more):
    return {"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4], **more}


INPUTS = [{"name": f"INPUT{i}", "data_type": "TYPE_FP32", "dims": [4]} for i in range(2)]


@pytest.mark.parametrize("up", ["../", "../../", "../../../", "/", "x/../../../"])
def test_files_that_a_configuration_names(place, up):
    file = f"{up}outside/secret" if up != "/" else str(place.outside / "secret")
    signature = {**CONFIG, "input": INPUTS}
    place.refuses("subject", {**signature, "output": [output(label_filename=file)]}, "is outside model directory")
    warm = {"key": "INPUT0", "value": {"data_type": "TYPE_FP32", "dims": [4], "input_data_file": file}}
    sample = {"name": "w", "batch_size": 1, "inputs": {warm["key"]: warm["value"]}}
    place.refuses("subject", {**signature, "output": [output()], "model_warmup": [sample]}, "outside the model's directory")
    state = {
        "input_name": "INPUT1", "output_name": "OUTPUT1", "data_type": "TYPE_FP32", "dims": [4],
        "initial_state": [{"name": "first", "data_type": "TYPE_FP32", "dims": [4], "data_file": file}],
    }  # fmt: skip
    sequence = {**CONFIG, "input": INPUTS[:1], "output": [output()], "sequence_batching": {"state": [state]}}
    place.refuses("subject", sequence, "outside the model's directory")
    calibration = {"parameters": {"calibration": {"string_value": file}, "precision": {"string_value": "fast"}}}
    place.refuses("subject", {**CONFIG, **calibration}, "is not inside of the model's folder")
    place.check()


@pytest.mark.parametrize("name", ["../outside", "..", "/etc", "add_sub/../../outside"])
def test_names_in_a_configuration(place, name):
    """Of the model itself, of an ensemble's member, of a backend."""
    place.refuses("subject", {**CONFIG, "name": name}, "name")
    step = {"model_name": name, "model_version": -1, "input_map": {"A": "IN"}, "output_map": {"B": "OUT"}}
    ensemble = {
        "platform": "ensemble", "max_batch_size": 0, "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]}], "ensemble_scheduling": {"step": [step]},
    }  # fmt: skip
    place.refuses("subject", ensemble, "failed to load", "failed to poll", "depends on")
    place.refuses("subject", {**PYTHON, "backend": name}, "backend")
    place.refuses("subject", {**PYTHON, "runtime": name}, "backend", "runtime")
    place.check()


FILES = [
    "../outside/new", "/tmp/new", "1/../../new", "1/../../../outside/1/model.onnx", "", ".", "..", "1/model.onnx\0", "1//../../x",
]  # fmt: skip


@pytest.mark.parametrize("name", FILES, ids=ascii)
def test_files_of_a_load_request(place, name):
    content = base64.b64encode(b"anything").decode()
    reply = place.load("sent", config='{"backend":"onnxruntime"}', **{f"file:{name}": content})
    assert reply.status in (400, 500), reply.body
    client = Grpc(place.server.grpc_address)
    request = pb.RepositoryModelLoadRequest(model_name="sent")
    request.parameters["config"].string_param = '{"backend":"onnxruntime"}'
    request.parameters[f"file:{name}"].bytes_param = b"anything"
    client.error("RepositoryModelLoad", request)
    client.close()
    place.check()


def test_files_that_stand_in_each_others_way(place):
    content = base64.b64encode(b"anything").decode()
    files = {"file:1": content, "file:1/model.onnx": content}
    assert place.load("sent", config='{"backend":"onnxruntime"}', **files).status in (400, 500)
    place.check()


def test_external_data_of_a_model_that_was_sent(place):
    """Its weights would be the bytes of a file outside."""
    weights = onnx.helper.make_tensor("w", TensorProto.FLOAT, [4], [])
    weights.ClearField("float_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", str(place.outside / "secret")), ("offset", "0"), ("length", "16")):
        weights.external_data.add(key=key, value=value)
    node = onnx.helper.make_node("Add", ["INPUT0", "w"], ["OUTPUT0"])
    graph = onnx.helper.make_graph([node], "g", [models.info("INPUT0", TensorProto.FLOAT, [4])],
                                   [models.info("OUTPUT0", TensorProto.FLOAT, [4])], [weights])  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    for location in (str(place.outside / "secret"), "../../outside/secret", "../../models/add_sub/1/model.onnx"):
        model.graph.initializer[0].external_data[0].value = location
        content = base64.b64encode(model.SerializeToString()).decode()
        place.refuses("sent", {"backend": "onnxruntime"}, "outside the model's directory", **{"file:1/model.onnx": content})
    place.check()


def test_files_that_are_written(place):
    """No client chooses where the log or the traces go."""
    target = str(place.outside / "new")
    for path in ("/v2/logging", "/v2/trace/setting", "/v2/models/add_sub/trace/setting"):
        for name in ("log_file", "trace_file"):
            reply = place.http.post(path, {name: target})
            known = name.startswith("log") == path.endswith("logging")
            assert reply.status == (501 if known else 200), (path, name, reply.body)
    client = Grpc(place.server.grpc_address)
    logging = pb.LogSettingsRequest()
    logging.settings["log_file"].string_param = target
    assert client.error("LogSettings", logging)[0] == "UNIMPLEMENTED"
    tracing = pb.TraceSettingRequest()
    tracing.settings["trace_file"].value.append(target)
    assert client.error("TraceSetting", tracing)[0] == "UNIMPLEMENTED"
    client.close()
    place.check()


KEYS = ["", "/", ".", "..", "/..", "../../etc/passwd", "/../../etc/passwd", "//etc/passwd", "/etc/passwd", "a/b", "/a/../b",
        "x" * 5000, "a\0b", "/dev/shm/x", "/proc/self/mem", "\n"]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=lambda key: ascii(key)[:30])
def test_keys_of_shared_memory(place, key):
    reply = place.http.post("/v2/systemsharedmemory/region/r/register", {"key": key, "offset": 0, "byte_size": 16})
    assert reply.status in (400, 500), reply.body
    client = Grpc(place.server.grpc_address)
    client.error("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="r", key=key, offset=0, byte_size=16))
    client.close()
    assert place.http.get("/v2/systemsharedmemory/status").json == []
    place.check()


@pytest.mark.parametrize(("offset", "size"), [(0, 2**63), (2**63, 1), (2**64 - 1, 2**64 - 1), (4096, 1), (0, 4097), (1, 4096)])
def test_ranges_of_shared_memory(place, offset, size):
    key = f"/halimede_range_{os.getpid()}"
    region = shm.create_shared_memory_region("r", key, 4096)
    try:
        body = {"key": key, "offset": offset, "byte_size": size}
        assert place.http.post("/v2/systemsharedmemory/region/r/register", body).status in (400, 500)
        assert place.http.get("/v2/systemsharedmemory/status").json == []
    finally:
        shm.destroy_shared_memory_region(region)
    place.check()


ECHO = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("B", pb_utils.get_input_tensor_by_name(r, "A").as_numpy())])
                for r in requests]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="objects of shared memory are listed on Linux alone")
def test_shared_memory_of_python_models(tmp_path, serve):
    """Tensors of requests lie in objects without names; and names like theirs are refused."""
    repository = models.Repository(tmp_path / "models")
    repository.add("echo", config=python_config())
    (repository.path / "echo" / "1" / "model.py").write_text(ECHO)
    server = serve(repository, f"--backend-config=python,interpreter={sys.executable}")
    request = {"inputs": [{"name": "A", "datatype": "FP32", "shape": [1], "data": [7]}]}
    assert server.http.infer("echo", request).json["outputs"][0]["data"] == [7]
    prefix = f"hm{server.process.pid:x}-"
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]
    for key in (f"/{prefix}1-0", f"{prefix}1-0", "/triton_python_backend_shm_region_1"):
        reply = server.http.post("/v2/systemsharedmemory/region/r/register", {"key": key, "offset": 0, "byte_size": 16})
        assert reply.status == 400 and "reserved prefix" in reply.error


def python_config():
    return 'backend: "python"\nmax_batch_size: 0\n' + models.io("input", "A", "FP32", [1]) + models.io("output", "B", "FP32", [1])


@pytest.mark.parametrize("path", ["/ui/../Cargo.toml", "/ui/%2e%2e/state", "/ui//etc/passwd", "/ui/..", "/../etc/passwd", "/v2/../ui/",
                                  "//v2/models/add_sub", "/v2/models/add_sub/versions/../config"])  # fmt: skip
def test_paths_that_are_no_routes(place, path):
    assert raw(place, "GET", path) in (400, 404)
    place.check()


def answer_to(place, sent):
    """The status line that the server has for these bytes, or nothing where it closes the connection."""
    with socket.create_connection(("127.0.0.1", place.server.http_port), timeout=60) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(64)
        except OSError:
            return b""


HEAD = b"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: x\r\n"
SIZES = {
    "a path of a megabyte": b"GET /v2/models/" + b"x" * (1 << 20) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "ten thousand headers": HEAD + b"".join(b"x-%d: 1\r\n" % i for i in range(10_000)) + b"\r\n",
    "a length beyond 64 bits": HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    "a length and chunks": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk beyond 64 bits": HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}",
    "a header of the other bytes": HEAD + b"x: \xff\xfe\x00\r\n\r\n",
    "a line in a header": HEAD + b"x: a\r\n b\r\n\r\n",
    "a binary part beyond the body": HEAD + b"Inference-Header-Content-Length: 4294967296\r\nContent-Length: 2\r\n\r\n{}",
    "a negative binary part": HEAD + b"Inference-Header-Content-Length: -1\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("sent", SIZES.values(), ids=SIZES.keys())
def test_sizes_in_heads(place, sent):
    answer = answer_to(place, sent)
    assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")), answer
    place.check()


DEEP = {
    "parameters": '{"parameters":{"a":%s},"inputs":[]}',
    "a shape": '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":%s,"data":[1]}]}',
    "the whole": "%s",
}


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP.keys())
@pytest.mark.parametrize("path", ["/v2/models/add_sub/infer", "/v2/models/add_sub/generate", "/v2/repository/models/sent/load",
                                  "/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/region/r/register"])  # fmt: skip
def test_depth_of_bodies(place, body, path):
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        reply = place.http.post(path, body % (opening * 200_000 + "1" + closing * 200_000))
        assert reply.status in (200, 400, 500), reply.body[:200]
    place.check()


def test_depth_of_a_configuration(place):
    """In the configuration of a load request, which is JSON within JSON."""
    for text in ("[" * 200_000, '{"parameters":' * 200_000, '{"input":[' * 100_000):
        assert place.load("subject", config=text).status in (400, 500)
    place.check()


COUNTS = {
    "dimensions": {"name": "INPUT0", "datatype": "FP32", "shape": [1] * 100_000, "data": [1]},
    "elements that are not there": {"name": "INPUT0", "datatype": "FP32", "shape": [2**40], "data": []},
    "a negative dimension": {"name": "INPUT0", "datatype": "FP32", "shape": [-4], "data": [1, 2, 3, 4]},
    "binary data without bytes": {"name": "INPUT0", "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 2**62}},
}


FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:1"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=lambda headers: "-".join(headers.values()))
def test_pages_of_other_sites(place, headers):
    """A browser sends what any page wants, as text, and hides the answer from it."""
    own = {"Origin": f"http://{place.server.http_address}"}
    load = "/v2/repository/models/subject/load"
    for path in (
        load,
        "/v2/repository/models/add_sub/unload",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/add_sub/trace/setting",
        "/v2/systemsharedmemory/region/x/register",
        "/v2/systemsharedmemory/unregister",
        "/v2/cudasharedmemory/unregister",
    ):
        reply = place.http.post(path, "{}", headers={"Content-Type": "text/plain", **headers})
        assert (reply.status, "a page of another site" in reply.error) == (403, True), path
    # What changes nothing is answered, and so is the server's own page.
    assert place.http.post("/v2/repository/index", "", headers=headers).status == 200
    assert place.http.post("/v2/models/add_sub/infer", ADD, headers=headers).status == 200
    assert place.http.get("/v2/logging", headers=headers).status == 200
    for fine in (own, {**headers, "Sec-Fetch-Site": "same-origin"}, {}):
        assert place.http.post(load, "", headers=fine).status == 200, fine


@pytest.mark.parametrize("given", COUNTS.values(), ids=COUNTS.keys())
def test_counts_in_requests(place, given):
    reply = place.http.infer("add_sub", {"inputs": [given, ADD["inputs"][1]]})
    assert reply.status in (400, 500), reply.body[:200]
    place.check()


def test_a_message_that_says_it_is_larger_than_it_is(place):
    """gRPC's frame counts its bytes in 32 bits."""
    with grpc.insecure_channel(place.server.grpc_address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for message in (b"\xff" * 1000, b"\x0a\xff\xff\xff\xff\x0f", b"\x2a" + b"\x80" * 12, b"\x0a\x07add_sub" + b"\x2b" * 5000):
            with pytest.raises(grpc.RpcError) as error:
                call(message, timeout=20)
            assert error.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT), error.value
    place.check()


def test_the_tests_that_the_threat_model_names_are_there():
    named = set(re.findall(r"`((?:test|other|no)_\w+)`", (ROOT / "docs" / "threat-model.md").read_text()))
    sources = [*(ROOT / "tests").glob("*.py"), *(ROOT / "crates").glob("*/src/**/*.rs")]
    there = {name for path in sources for name in re.findall(r"\b(?:def|fn) (\w+)", path.read_text())}
    assert len(named) > 15 and named <= there, named - there
