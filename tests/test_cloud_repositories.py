"""Model repositories in object storage, against real servers of its protocols."""

import http.server
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from onnx import TensorProto

from support import models
from support.object_storage import AzureContainer, GcsBucket, S3Bucket, azurite, check_build, fetched, gcs_emulator, guarded_moto, moto
from support.server import Server
from support.waiting import wait_until

pytestmark = pytest.mark.halimede_only("tritonserver of the peer is built without object storage")

PYTHON_CONFIG = 'backend: "python"\n' + models.io("input", "INPUT0", "FP32", [2]) + models.io("output", "OUTPUT0", "FP32", [2])
PYTHON = """
import json, os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(args["model_repository"], args["model_version"], "factor.json")
        self.factor = json.load(open(path))

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        outputs = [pb_utils.Tensor("OUTPUT0", (one * self.factor).astype(np.float32)) for one in inputs]
        return [pb_utils.InferenceResponse([output]) for output in outputs]
"""


@pytest.fixture(scope="module")
def s3():
    check_build()
    storage = moto()
    yield storage
    storage.close()


@pytest.fixture
def bucket(s3, request):
    """A bucket of the test's own."""
    return S3Bucket(s3, request.node.name.replace("_", "-").replace("[", ".").replace("]", "")[:60].rstrip("-."))


@pytest.fixture
def cloud(serve, tmp_path):
    """Starts servers with repositories in object storage, with a cache of the test's own."""

    def start(*repositories, env=None, flags=(), **options):
        env = {**S3Bucket.env, "TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path / "cache"), **(env or {})}
        first, *others = repositories
        python = f"--backend-config=python,interpreter={sys.executable}"
        flags = [*(f"--model-repository={one}" for one in others), python, *flags]
        return serve(first, *flags, env=env, **options)

    (tmp_path / "cache").mkdir()
    return start


def index(server):
    entries = server.http.post("/v2/repository/index", "").json
    return {(entry["name"], entry.get("version")): entry.get("state") for entry in entries}


def load(server, name, **parameters):
    return server.http.post(f"/v2/repository/models/{name}/load", {"parameters": parameters} if parameters else "")


def respond(server, model, values, datatype="FP32"):
    tensor = {"name": "INPUT0", "shape": [len(values)], "datatype": datatype, "data": values}
    return server.http.infer(model, {"inputs": [tensor]})


def ask(server, model, values, datatype="FP32"):
    answer = respond(server, model, values, datatype)
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]


def identity(values):
    return models.identity(TensorProto.FLOAT, [values]).SerializeToString()


def constant(value):
    """A model whose answers tell which of several it is."""
    from onnx import helper

    table = helper.make_tensor("value", TensorProto.FLOAT, [1], [value])
    nodes = [helper.make_node("Add", ["INPUT0", "value"], ["OUTPUT0"])]
    vector = [models.info(name, TensorProto.FLOAT, [1]) for name in ("INPUT0", "OUTPUT0")]
    return models.onnx_model(nodes, vector[:1], vector[1:], [table]).SerializeToString()


def add_python(repository, name, factor):
    repository.add(name, None, PYTHON_CONFIG)
    folder = repository.path / name / "1"
    (folder / "model.py").write_text(PYTHON)
    (folder / "factor.json").write_text(json.dumps(factor))


def test_models_of_every_kind(bucket, repository, cloud, tmp_path):
    repository.add("simple", models.add_sub(TensorProto.INT32, ["batch", 16]), models.BATCHED_INT32)
    repository.add("twice", config=models.ENSEMBLE)
    repository.add("echo", None, models.identity_config())
    add_python(repository, "triple", 3)
    bucket.upload(repository.path, "some/path/")
    bucket.put("some/path/readme.txt", b"no model")
    local = models.Repository(tmp_path / "local").add("here", models.identity(TensorProto.FLOAT, [2]))
    other = S3Bucket(bucket.storage, bucket.name + ".2")
    other.put("there/1/model.onnx", identity(2))
    server = cloud(f"{bucket.address}/some/path", local.path, f"s3://http://localhost:{bucket.storage.port}/{other.name}/")
    names = {"simple", "twice", "echo", "triple", "here", "there"}
    assert index(server) == {(name, "1"): "READY" for name in names}
    assert ask(server, "triple", [1, 2]) == [3, 6]
    assert ask(server, "here", [1, 2]) == ask(server, "there", [1, 2]) == [1, 2]
    twice = [{"name": name, "shape": [1, 16], "datatype": "INT32", "data": [value] * 16} for name, value in (("A", 5), ("B", 7))]
    assert server.http.infer("twice", {"inputs": twice}).json["outputs"][0]["data"] == [10] * 16
    # The same model twice is served from neither.
    other.put("here/1/model.onnx", identity(2))
    refused = Server([local.path, other.address], env={**S3Bucket.env}, wait=False)
    assert refused.wait_exit() == 1
    assert "failed to poll model 'here': not unique across all model repositories" in refused.log_text()


def test_models_are_loaded_on_demand(bucket, repository, cloud):
    repository.add("simple", models.add_sub(TensorProto.INT32, ["batch", 16]), models.BATCHED_INT32)
    repository.add("twice", config=models.ENSEMBLE)
    add_python(repository, "scale", 2)
    bucket.upload(repository.path)
    server = cloud(bucket.address, flags=["--model-control-mode=explicit"])
    assert index(server) == {(name, None): None for name in ("simple", "twice", "scale")}
    assert not [name for name in fetched(bucket.storage) if name.startswith(bucket.name)]
    assert load(server, "twice").status == 200
    assert index(server)["simple", "1"] == index(server)["twice", "1"] == "READY"
    reply = load(server, "nothing")
    assert (reply.status, reply.error) == (500, "failed to load 'nothing', failed to poll from model repository")
    # With a configuration of the request, and then with files of the request.
    config = server.http.get("/v2/models/simple/config").json
    config["max_batch_size"] = 3
    config["dynamic_batching"]["preferred_batch_size"] = []
    assert load(server, "simple", config=json.dumps(config)).status == 200
    assert server.http.get("/v2/models/simple/config").json["max_batch_size"] == 3
    assert load(server, "scale").status == 200
    assert ask(server, "scale", [1, 2]) == [2, 4]
    bucket.put("scale/1/factor.json", b"5")
    assert load(server, "scale").status == 200
    assert ask(server, "scale", [1, 2]) == [5, 10]
    assert server.http.post("/v2/repository/models/scale/unload", "").status == 200
    wait_until(lambda: index(server)["scale", "1"] == "UNAVAILABLE")
    # What it was loaded from is gone, and what was fetched is still there.
    before = len(fetched(bucket.storage))
    assert load(server, "scale").status == 200
    assert ask(server, "scale", [1, 2]) == [5, 10]
    assert len(fetched(bucket.storage)) == before


def test_changes_are_polled(bucket, cloud):
    for name in ("changed", "removed", "same"):
        bucket.put(f"{name}/1/model.onnx", constant(1))
    server = cloud(bucket.address, flags=["--model-control-mode=poll", "--repository-poll-secs=1"])
    assert [ask(server, name, [0]) for name in ("changed", "removed", "same")] == [[1]] * 3
    # Of the same length and within the same second: neither tells them apart.
    bucket.put("changed/1/model.onnx", constant(2))
    wait_until(lambda: ask(server, "changed", [0]) == [2])
    bucket.put("changed/2/model.onnx", constant(3))
    bucket.put("new/1/model.onnx", constant(4))
    bucket.delete("removed/1/model.onnx")
    wait_until(lambda: index(server).get(("changed", "2")) == "READY" and ("new", "1") in index(server))
    assert (ask(server, "changed", [0]), ask(server, "new", [0])) == ([3], [4])
    wait_until(lambda: ("removed", "1") not in index(server))
    assert server.http.get("/v2/models/removed/ready").status == 400
    assert index(server)["changed", "1"] == "UNAVAILABLE"
    # What did not change was fetched once, of what did each state once.
    wait_until(lambda: fetched(bucket.storage).count(f"{bucket.name}/new/1/model.onnx") == 1)
    counts = {name: fetched(bucket.storage).count(f"{bucket.name}/{name}/1/model.onnx") for name in ("same", "changed")}
    assert counts == {"same": 1, "changed": 2}


def test_models_serve_on_while_the_storage_is_away(s3, cloud, tmp_path):
    storage = moto()
    try:
        bucket = S3Bucket(storage, "away")
        bucket.put("one/1/model.onnx", constant(1))
        server = cloud(bucket.address, flags=["--model-control-mode=poll", "--repository-poll-secs=1"])
        storage.stop()
        server.wait_log(r"failed to poll model repository 's3://[^']+': Failed to list objects")
        assert ask(server, "one", [0]) == [1]
        assert index(server) == {("one", "1"): "READY"}
        storage.start()
        bucket = S3Bucket(storage, "away")
        bucket.put("one/1/model.onnx", constant(2))
        # A look at the bucket before the model is in it again takes the model away until the next one.
        wait_until(lambda: (answer := respond(server, "one", [0])).status == 200 and answer.json["outputs"][0]["data"] == [2])
    finally:
        storage.close()


class LoginPage(http.server.BaseHTTPRequestHandler):
    """What proxies answer to anything."""

    page = b"<html>Please log in</html>"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *_):
        pass


def test_a_page_in_the_place_of_a_listing_is_no_empty_repository(s3, cloud):
    storage = moto()
    try:
        bucket = S3Bucket(storage, "paged")
        bucket.put("one/1/model.onnx", constant(1))
        server = cloud(bucket.address, flags=["--model-control-mode=poll", "--repository-poll-secs=1"])
        storage.stop()
        with http.server.ThreadingHTTPServer(("localhost", storage.port), LoginPage) as proxy:
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            server.wait_log("the answer is no listing, but begins with '<html>Please log in</html>'")
            proxy.shutdown()
        assert ask(server, "one", [0]) == [1]
        assert index(server) == {("one", "1"): "READY"}
    finally:
        storage.close()


def test_what_lies_elsewhere_is_loaded_while_the_storage_is_away(repository, cloud):
    storage = moto()
    try:
        bucket = S3Bucket(storage, "elsewhere")
        bucket.put("far/1/model.onnx", constant(1))
        repository.add("near", models.identity(TensorProto.FLOAT, [1]))
        server = cloud(repository.path, bucket.address, flags=["--model-control-mode=explicit"])
        storage.stop()
        assert load(server, "near").status == 200
        assert ask(server, "near", [3]) == [3]
        server.wait_log(r"failed to poll model repository 's3://[^']+': .*; 'near' lies in another one")
        assert load(server, "far").status == 500
    finally:
        storage.close()


def test_copies_are_kept_and_checked(bucket, cloud, tmp_path):
    objects = {f"{name}/1/model.onnx": constant(value) for name, value in (("a", 1), ("b", 2), ("c", 2))}
    for name, content in objects.items():
        bucket.put(name, content)

    def read():
        return sorted(name.removeprefix(f"{bucket.name}/") for name in fetched(bucket.storage) if name.startswith(f"{bucket.name}/"))

    server = cloud(bucket.address)
    assert server.stop() == 0
    assert read() == sorted(objects)
    contents = tmp_path / "cache" / "content"
    # The same content is kept once.
    assert len(list(contents.iterdir())) == 2
    # What models were loaded from goes with them.
    assert list((tmp_path / "cache" / "models").glob("*/*/*")) == []
    server = cloud(bucket.address)
    assert ask(server, "a", [0]) == [1] and read() == sorted(objects)
    assert server.stop() == 0
    (damaged,) = (path for path in contents.iterdir() if path.read_bytes() == objects["a/1/model.onnx"])
    damaged.unlink()
    damaged.write_bytes(constant(7))
    server = cloud(bucket.address)
    assert "is damaged: it is fetched again" in server.log_text()
    assert ask(server, "a", [0]) == [1] and read() == sorted([*objects, "a/1/model.onnx"])
    # A second server shares the copies, and one that is killed leaves nothing for long.
    second = cloud(bucket.address)
    assert ask(second, "b", [0]) == [2] and len(read()) == 4
    second.stop(signal.SIGKILL)
    assert len(list((tmp_path / "cache" / "models").iterdir())) == 2
    third = cloud(bucket.address)
    assert len(list((tmp_path / "cache" / "models").iterdir())) == 2
    assert ask(third, "c", [0]) == ask(server, "b", [0]) == [2]


def test_an_object_that_cannot_be_read_fails_its_model_alone(bucket, cloud):
    bucket.put("fine/1/model.onnx", constant(1))
    bucket.put("frozen/config.pbtxt", b'backend: "onnxruntime"')
    # Objects in that class are not readable before they are restored.
    bucket.put("frozen/1/model.onnx", constant(2), x_amz_storage_class="GLACIER")
    bucket.put("frozen/1/labels.txt", b"one")
    flags = ["--exit-on-error=false", "--strict-readiness=false", "--model-control-mode=poll", "--repository-poll-secs=1"]
    server = cloud(bucket.address, flags=flags)
    assert ask(server, "fine", [0]) == [1]
    entries = server.http.post("/v2/repository/index", "").json
    entry = next(entry for entry in entries if entry["name"] == "frozen")
    assert (entry["version"], entry["state"]) == ("1", "UNAVAILABLE")
    assert f"Failed to get object at {bucket.address}/frozen/1/model.onnx due to exception: AccessDenied" in entry["reason"]
    assert "Give the server's credentials the right to list and read it." in entry["reason"]
    # A model is all of its files or none of them.
    assert not list(Path(server_cache(server)).glob("models/*/*/frozen/**/labels.txt"))
    bucket.put("frozen/1/model.onnx", constant(2))
    wait_until(lambda: index(server)["frozen", "1"] == "READY")
    assert ask(server, "frozen", [0]) == [2]
    # What served before serves on.
    bucket.put("frozen/1/model.onnx", constant(3), x_amz_storage_class="GLACIER")
    wait_until(lambda: server.log_text().count("frozen/1/model.onnx due to exception") >= 3)
    assert ask(server, "frozen", [0]) == [2]


def server_cache(server):
    return dict(line.split("=", 1) for line in Path(f"/proc/{server.process.pid}/environ").read_text().split("\0") if line)[
        "TRITON_AWS_MOUNT_DIRECTORY"
    ]


def test_names_of_objects_lead_nowhere(bucket, cloud, tmp_path):
    """Who can write into the bucket cannot write on this machine."""
    bucket.put("fine/1/model.onnx", constant(1))
    bucket.put("up/1/model.onnx", constant(2))
    bucket.put("folder/1/model.onnx/x", b"1")
    bucket.put("folder/1/model.onnx", constant(2))
    for name in ("up/../../../../../../../../tmp/halimede-outside", "up/..%5Cx", "up//absolute"):
        boto(bucket).put_object(Bucket=bucket.name, Key=name, Body=b"outside")
    flags = ["--exit-on-error=false", "--strict-readiness=false"]
    server = cloud(bucket.address, flags=flags)
    assert ask(server, "fine", [0]) == [1]
    assert index(server)["fine", "1"] == "READY" and index(server)["up", None] == "UNAVAILABLE"
    server.wait_log("Poll failed for model directory 'up': .*Rename or delete that object")
    server.wait_log("Poll failed for model directory 'folder': .*folder/1/model.onnx' has the name of a folder")
    assert not os.path.exists("/tmp/halimede-outside")
    cache = tmp_path / "cache"
    assert not [path for path in cache.rglob("*") if path.is_file() and path.read_bytes() == b"outside"]


def boto(bucket, key="test", secret="test"):
    import boto3

    endpoint = f"http://127.0.0.1:{bucket.storage.port}"
    return boto3.client("s3", endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1")


@pytest.fixture(scope="module")
def guarded(s3):
    """A storage that lets in only who has the right keys, which come along."""
    storage = guarded_moto("somebody", "topsecret")
    bucket = S3Bucket.__new__(S3Bucket)
    bucket.storage, bucket.name, bucket.key, bucket.secret = storage, "guarded", "somebody", "topsecret"
    client = boto(bucket, bucket.key, bucket.secret)
    client.create_bucket(Bucket=bucket.name)
    client.put_object(Bucket=bucket.name, Key="models/one two/1/model.onnx", Body=constant(1))
    yield bucket
    storage.close()


@pytest.mark.parametrize("path", ["", "models"])
def test_a_slash_too_many_beside_the_models_is_nobodys(bucket, cloud, path):
    folder = f"{path}/" if path else ""
    bucket.put(f"{folder}fine/1/model.onnx", constant(1))
    bucket.put(f"{folder}up/1/model.onnx", constant(2))
    for name in ("/fine/2/model.onnx", "../x", "up//absolute"):
        boto(bucket).put_object(Bucket=bucket.name, Key=folder + name, Body=constant(3))
    flags = ["--exit-on-error=false", "--strict-readiness=false", "--model-control-mode=poll", "--repository-poll-secs=1"]
    server = cloud(f"{bucket.address}/{folder}", flags=flags)
    assert ask(server, "fine", [0]) == [1]
    assert index(server) == {("fine", "1"): "READY", ("up", None): "UNAVAILABLE"}
    server.wait_log("object '[^']*' (has a part without a name|would leave its folder): it belongs to no model")
    bucket.put(f"{folder}fine/1/model.onnx", constant(4))
    wait_until(lambda: ask(server, "fine", [0]) == [4])
    assert server.log_text().count("it belongs to no model") == 1


def test_keys_from_the_environment_a_profile_and_a_file(guarded, cloud, tmp_path):
    address = f"{guarded.address}/models"
    keys = {"AWS_ACCESS_KEY_ID": guarded.key, "AWS_SECRET_ACCESS_KEY": guarded.secret}
    nothing = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(tmp_path)}
    # Nobody there says which role the machine has.
    no_role = {"AWS_METADATA_ENDPOINT": "http://127.0.0.1:1"}
    profile = tmp_path / ".aws" / "credentials"
    profile.parent.mkdir()
    profile.write_text(f"[roles]\nrole_arn = arn\n[work]\naws_access_key_id = {guarded.key}\naws_secret_access_key = {guarded.secret}\n")
    credential = {"key_id": guarded.key, "secret_key": guarded.secret, "region": "us-east-1"}
    wrong = {"key_id": "wrong", "secret_key": "wrong"}
    by_prefix = tmp_path / "credentials.json"
    by_prefix.write_text(json.dumps({"s3": {"": wrong, guarded.address: credential}}))
    for env in (keys, {**nothing, "AWS_PROFILE": "work"}, {**nothing, "TRITON_CLOUD_CREDENTIAL_PATH": str(by_prefix)}):
        server = cloud(address, env=env)
        assert index(server) == {("one two", "1"): "READY"}
        assert server.stop() == 0
        shutil.rmtree(tmp_path / "cache")
    refused = "Unable to create S3 filesystem client. Check account credentials. Exception: '' Message: 'No response body.'"
    by_prefix.write_text(json.dumps({"s3": {"s3://other": credential}}))
    for env, text in [
        ({**keys, "AWS_SECRET_ACCESS_KEY": "[Invalid]"}, refused),
        ({**nothing, "AWS_PROFILE": "nobody"}, "there is no AWS profile 'nobody'"),
        ({**nothing, "TRITON_CLOUD_CREDENTIAL_PATH": str(by_prefix)}, f"Cannot match credential for path  {address}"),
        ({**nothing, **no_role, "AWS_PROFILE": "roles"}, "the AWS profile 'roles' has no aws_access_key_id"),
        ({"TRITON_CLOUD_CREDENTIAL_PATH": "/none"}, "failed to open text file for read /none"),
        ({**nothing, **no_role, "AWS_ACCESS_KEY_ID": "half"}, "only one of AWS_ACCESS_KEY_ID (key_id) and AWS_SECRET_ACCESS_KEY"),
        ({**nothing, **no_role}, "No keys are given (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)"),
    ]:
        server = Server([address], env={**S3Bucket.env, **env}, wait=False)
        assert server.wait_exit() == 1
        assert text in server.log_text(), server.log_text()
        assert guarded.secret not in server.log_text()


def certificate(folder):
    """A certificate for localhost that signs itself, and its key."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    return folder / "cert.pem", folder / "key.pem"


def test_connections_are_encrypted(s3, cloud, tmp_path):
    cert, key = certificate(tmp_path)
    storage = moto(tls=(cert, key))
    try:
        bucket = S3Bucket(storage, "encrypted")
        bucket.put("one/1/model.onnx", constant(1))
        address = f"s3://https://localhost:{storage.port}/encrypted"
        server = cloud(address, env={"SSL_CERT_FILE": str(cert)})
        assert ask(server, "one", [0]) == [1]
        # A certificate that nobody vouches for is refused.
        other = Server([address], env={**S3Bucket.env, "SSL_CERT_FILE": "", "SSL_CERT_DIR": str(tmp_path / "none")}, wait=False)
        assert other.wait_exit() == 1
        assert "Unable to create S3 filesystem client" in other.log_text() and "UnknownIssuer" in other.log_text()
    finally:
        storage.close()


def test_places_that_are_none(bucket, tmp_path):
    empty = S3Bucket(bucket.storage, bucket.name + ".empty")
    for address, text in [
        ("s3://", "No bucket name found in path: s3://"),
        (f"{bucket.address}-none", "Unable to create S3 filesystem client. Check account credentials."),
        (f"{empty.address}/models", f"repository path is not a valid directory: {empty.address}/models"),
        ("s3://127.0.0.1:1/bucket", "Unable to create S3 filesystem client. Check account credentials."),
        ("hdfs://x/y", "hdfs:// file-system not supported: there are s3://, gs://, as:// and local directories"),
    ]:
        server = Server([address], env={**S3Bucket.env, "TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path)}, wait=False)
        assert server.wait_exit() == 1
        assert text in server.log_text(), server.log_text()


def test_a_server_ends_while_it_fetches(bucket, cloud):
    """A storage that has stopped to answer does not hold up the end."""
    bucket.put("one/1/model.onnx", constant(1))
    storage = moto()
    try:
        slow = S3Bucket(storage, "slow")
        slow.put("two/1/model.onnx", constant(2))
        server = cloud(slow.address, flags=["--model-control-mode=poll", "--repository-poll-secs=1"])
        storage.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: waits(server, storage.port))
        start = time.monotonic()
        assert server.stop() == 0
        # Far from the half minute that an answer may take.
        assert time.monotonic() - start < 15
    finally:
        storage.process.send_signal(signal.SIGCONT)
        storage.close()


def test_the_page_asks_the_storage_seldom_and_waits_for_none(bucket, cloud):
    storage = moto()
    try:
        slow = S3Bucket(storage, "slow")
        for name in ("one", "two"):
            slow.put(f"{name}/1/model.onnx", constant(1))

        def listings():
            return storage.log.read_text().count("list-type")

        def shown(server):
            models = server.http.get("/ui/state").json["models"]
            return {(model["name"], model["version"]): model["state"] for model in models}

        everything = cloud(slow.address)
        known = {("one", 1): "READY", ("two", 1): "READY"}
        before = listings()
        assert [shown(everything) for _ in range(5)] == [known] * 5 and listings() == before
        # What was never looked at is looked for once, while nobody waits.
        one = cloud(slow.address, flags=["--model-control-mode=explicit", "--load-model=one"])
        before = listings()
        wait_until(lambda: shown(one) == {("one", 1): "READY", ("two", None): None})
        assert shown(one) and listings() == before + 1
        storage.process.send_signal(signal.SIGSTOP)
        assert shown(everything) == known
    finally:
        storage.process.send_signal(signal.SIGCONT)
        storage.close()


def waits(server, port):
    """Whether the server has asked something that is not read yet."""
    lines = Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    # What lies unread at the storage's end of a connection.
    return any(row[1].endswith(f":{port:04X}") and row[3] == "01" and int(row[4].split(":")[1], 16) > 0 for row in rows)


OTHERS = {"azure": (azurite, AzureContainer), "google": (gcs_emulator, GcsBucket)}


@pytest.fixture(params=OTHERS)
def other(request):
    """A container or bucket of another storage than S3."""
    check_build()
    start, kind = OTHERS[request.param]
    storage = start()
    yield kind(storage, "models-1")
    storage.close()


def test_other_storages(other, repository, cloud, tmp_path):
    repository.add("simple", models.add_sub(TensorProto.INT32, ["batch", 16]), models.BATCHED_INT32)
    repository.add("twice", config=models.ENSEMBLE)
    add_python(repository, "scale", 2)
    other.upload(repository.path, "a b/c/")
    other.put("a b/c/one/1/model.onnx", constant(1))
    other.put("readme.txt", b"no model")
    other.put("a b/c//stray/1/model.onnx", constant(1))
    kept = {"TRITON_AZURE_MOUNT_DIRECTORY": str(tmp_path / "cache"), "TRITON_GCS_MOUNT_DIRECTORY": str(tmp_path / "cache")}
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    server = cloud(f"{other.address}/a b/c", env={**other.env, **kept}, flags=flags)
    ready = {(name, "1"): "READY" for name in ("simple", "twice", "scale", "one")}
    assert index(server) == ready
    assert (ask(server, "scale", [1, 2]), ask(server, "one", [0])) == ([2, 4], [1])
    # Of the same length and within the same second.
    other.put("a b/c/one/1/model.onnx", constant(2))
    wait_until(lambda: ask(server, "one", [0]) == [2])
    other.delete("a b/c/scale/1/model.py")
    server.wait_log("failed to load 'scale'")
    assert ask(server, "scale", [1, 2]) == [2, 4]
    other.delete("a b/c/scale/1/factor.json")
    other.delete("a b/c/scale/config.pbtxt")
    wait_until(lambda: ("scale", "1") not in index(server))
    assert server.stop() == 0
    # Copies are there the next time, and the log says how much was fetched.
    again = cloud(f"{other.address}/a b/c", env={**other.env, **kept})
    assert ask(again, "one", [0]) == [2]
    assert "fetched 0 of 1 objects of 'one'" in again.log_text()


def test_models_on_demand_of_other_storages(other, cloud, tmp_path):
    for value in (1, 2):
        other.put(f"m{value}/1/model.onnx", constant(value))
    flags = ["--model-control-mode=explicit", "--load-model=m1"]
    server = cloud(other.address, env=other.env, flags=flags)
    assert index(server) == {("m1", "1"): "READY", ("m2", None): None}
    assert load(server, "m2").status == 200 and load(server, "m3").status == 500
    assert ask(server, "m2", [0]) == [2]
    none = Server([f"{other.address}-none"], env=other.env, wait=False)
    assert none.wait_exit() == 1
    assert f"Failed to list objects of {other.address}-none" in none.log_text()
