"""How the process starts and ends: exit codes, signals, flags."""

import base64
import http.client
import json
import signal
import socket
import subprocess
import threading
import time

import pytest
from onnx import TensorProto

from support import models
from support.grpc import Grpc, pb
from support.http import Http
from support.server import Server, binary, peer_command
from support.waiting import wait_until
from test_repository_control import BROKEN


def run(*arguments):
    command = [peer_command()] if peer_command() else [str(binary()), "serve"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)


@pytest.fixture
def small(repository):
    return repository.add("add_sub", models.add_sub(TensorProto.FLOAT, [4]))


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_a_signal_ends_it_with_status_0(small, serve, sig):
    assert serve(small).stop(sig) == 0


WRONG = {
    "unknown flag": ["--no-such-flag=1"],
    "value of the wrong type": ["--http-port=abc"],
    "control mode unknown": ["--model-control-mode=nope"],
    "repository missing": ["--model-repository=/no/such/folder"],
    "no repository": [],
    "trace level unknown": ["--trace-config=level=NOPE"],
}


@pytest.mark.parametrize("flags", WRONG.values(), ids=WRONG.keys())
def test_wrong_flags_end_it_with_status_1(small, repository_for, flags, request):
    if request.node.callspec.id not in ("repository missing", "no repository"):
        flags = [f"--model-repository={repository_for(small.path)}", *flags]
    result = run(*flags, "--http-port=0", "--grpc-port=0", "--metrics-port=0")
    assert result.returncode == 1
    assert result.stderr != "" or result.stdout != ""


def test_help_has_status_1_as_tritonserver():
    if not peer_command():
        pytest.skip("`halimede --help` is an answer, not an error; see test_help_of_the_other_name")
    assert run("--help").returncode == 1


@pytest.mark.parametrize("service", ["http", "grpc", "metrics"])
def test_a_port_that_is_none_matters_only_where_it_is_opened(small, repository_for, serve, service):
    flags = [f"--{other}-port=0" for other in ("http", "grpc", "metrics")]
    result = run(f"--model-repository={repository_for(small.path)}", *flags, f"--{service}-port=-47")
    assert result.returncode == 1
    server = Server([repository_for(small.path)], f"--{service}-port=-47", f"--allow-{service}=0", wait=False)
    try:
        if service != "http":
            server.wait_ready()
        else:
            with socket.socket() as probe:
                wait_until(lambda: probe.connect_ex(("127.0.0.1", server.grpc_port)) == 0)
    finally:
        assert server.stop() == 0


def test_without_exit_on_error_a_missing_repository_makes_a_dead_server(serve):
    with Server(["/no/such/folder"], "--exit-on-error=false", wait=False) as server:
        server.wait_ready("/v2")
        assert server.http.get("/v2").json["name"] == "triton"
        assert server.http.get("/v2/health/live").status == 400
        assert server.http.get("/v2/health/ready").status == 400
        assert server.stop() == 0


@pytest.mark.halimede_only
def test_help_of_the_other_name(tmp_path):
    """Started under the name tritonserver, the flags stand without a verb and --help has status 1."""
    link = tmp_path / "tritonserver"
    link.symlink_to(binary())
    result = subprocess.run([str(link), "--help"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "--model-repository" in result.stdout + result.stderr


@pytest.mark.halimede_only
def test_serves_under_the_name_tritonserver(tmp_path, small, monkeypatch):
    link = tmp_path / "tritonserver"
    link.symlink_to(binary())
    monkeypatch.setenv("TRITONSERVER", str(link))
    with Server([small.path]) as server:
        assert server.http.get("/v2").json["name"] == "triton"


def ask(connection):
    connection.request("GET", "/v2/health/live")
    reply = connection.getresponse()
    reply.read()
    return reply.status


@pytest.mark.halimede_only
@pytest.mark.parametrize("patient", [True, False])
def test_open_connections_at_the_end(tmp_path, small, monkeypatch, patient):
    """As tritonserver it serves them on until their clients close them; as halimede it does not wait."""
    if patient:
        link = tmp_path / "tritonserver"
        link.symlink_to(binary())
        monkeypatch.setenv("TRITONSERVER", str(link))
    server = Server([small.path])
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
    assert ask(connection) == 200
    server.process.send_signal(signal.SIGTERM)
    if patient:
        end = time.monotonic() + 60
        while listening(server.http_port):
            assert time.monotonic() < end, "new connections are still accepted"
            time.sleep(0.02)
        assert ask(connection) == 200
        assert server.process.poll() is None
        assert server.log_text().count("Timeout 30: ") == 1
        connection.close()
    assert server.wait_exit() == 0
    assert "Waiting for in-flight requests to complete." in server.log_text()
    connection.close()


@pytest.mark.halimede_only("tritonserver serves open connections until its exit timeout is over")
@pytest.mark.parametrize("service", ["http_port", "metrics_port"])
def test_half_a_head_does_not_delay_the_end(small, service):
    server = Server([small.path])
    with socket.create_connection(("127.0.0.1", getattr(server, service))) as client:
        client.sendall(b"GET /v2/heal")
        # Connections are accepted in order.
        assert Http(f"127.0.0.1:{getattr(server, service)}").get("/v2/health/live").status
        server.process.send_signal(signal.SIGTERM)
        began = server.wait_log("Waiting for in-flight requests to complete.") and time.monotonic()
        assert server.wait_exit() == 0
        # It would be waited for 5 seconds.
        assert time.monotonic() - began < 4


@pytest.mark.halimede_only
def test_half_a_beginning_of_http2_does_not_delay_the_end(small):
    server = Server([small.path])
    with socket.create_connection(("127.0.0.1", server.grpc_port)) as client:
        client.sendall(b"PRI * HT")
        # Connections are accepted in order.
        grpc = Grpc(server.grpc_address)
        assert grpc.stub.ServerLive(pb.ServerLiveRequest()).live
        grpc.close()
        server.process.send_signal(signal.SIGTERM)
        began = server.wait_log("Waiting for in-flight requests to complete.") and time.monotonic()
        assert server.wait_exit() == 0
        assert time.monotonic() - began < 4


def test_port_in_use(small, repository_for):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = Server([repository_for(small.path)], f"--http-port={port}", wait=False)
        assert server.wait_exit() == 1


def test_a_failed_model_ends_it(small, repository_for):
    small.add("broken", config=BROKEN)
    server = Server([repository_for(small.path)], wait=False)
    assert server.wait_exit() == 1
    assert "creating server: Internal - failed to load all models" in server.log_text()


@pytest.mark.halimede_only("a line of ours")
def test_a_model_without_a_version_is_named(small, serve):
    (small.path / "add_sub" / "1").rename(small.path / "add_sub" / "01")
    server = serve(small, wait=False)
    assert server.wait_exit() == 1
    text = "failed to load 'add_sub': Invalid argument: at least one version must be available under the version policy of"
    assert text in server.log_text()


def test_exit_on_error_false_serves_the_rest(small, serve):
    small.add("broken", config=BROKEN)
    server = serve(small, "--exit-on-error=false", wait=False)
    server.wait_ready("/v2/health/live")
    assert server.http.get("/v2/health/ready").status == 400
    wait_until(lambda: server.http.get("/v2/models/add_sub/ready").status == 200)


def test_strict_readiness_off(small, serve):
    small.add("broken", config=BROKEN)
    server = serve(small, "--exit-on-error=false", "--strict-readiness=false")
    assert server.http.get("/v2/health/ready").status == 200


def test_a_request_in_flight_is_answered_before_the_end(repository, serve):
    repository.add("slow", config=models.identity_config(delay_ms=500, batch=0))
    server = serve(repository)
    request = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [7]}]}
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(server.http.infer("slow", request))) for _ in range(2)]
    for thread in threads:
        thread.start()
    # One runs and one waits.
    server.wait_pending("slow", 1)
    assert server.stop() == 0
    for thread in threads:
        thread.join()
    assert [reply.status for reply in replies] == [200, 200]


def test_exit_timeout(repository, repository_for):
    repository.add("slow", config=models.identity_config(delay_ms=60000, batch=0))
    server = Server([repository_for(repository.path)], "--exit-timeout-secs=1")
    request = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [7]}]}

    def send():
        try:
            server.http.infer("slow", request)
        except OSError:
            pass

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    server.wait_pending("slow", 1)
    assert server.stop() == 1
    assert "Exit timeout expired. Exiting immediately." in server.log_text()
    for thread in threads:
        thread.join()


def test_server_id(small, serve):
    assert serve(small, "--id=mine").http.get("/v2").json["name"] == "mine"


OFF = [("--allow-http=false", "http_port"), ("--allow-grpc=false", "grpc_port"), ("--allow-metrics=false", "metrics_port")]


@pytest.mark.parametrize("flag, port", OFF, ids=[o[0] for o in OFF])
def test_a_service_switched_off_does_not_listen(small, serve, flag, port):
    server = serve(small, flag, wait=False)
    ports = {"http_port", "grpc_port", "metrics_port"} - {port}
    end = time.monotonic() + 60
    while not all(listening(getattr(server, p)) for p in ports):
        assert time.monotonic() < end and server.process.poll() is None, server.log_text()
        time.sleep(0.05)
    assert not listening(getattr(server, port))


def listening(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


REFUSED = {
    "TLS without support or without files": ["--grpc-use-ssl=true"],
    "mutual TLS": ["--grpc-use-ssl-mutual=true"],
}


@pytest.mark.halimede_only("tritonserver protects; what does not protect yet must not start")
@pytest.mark.parametrize("flags", REFUSED.values(), ids=REFUSED.keys())
def test_a_flag_that_protects_is_never_ignored(small, flags):
    """Either the server refuses to start, or it really refuses unprotected requests."""
    server = Server([small.path], *flags, wait=False)
    try:
        status = server.process.wait(5)
        assert status == 1
    except subprocess.TimeoutExpired:
        from support.grpc import Grpc, add_sub

        assert Grpc(server.grpc_address).error("ModelInfer", add_sub())[0] == "UNAVAILABLE"
        server.stop()


@pytest.mark.halimede_only("Triton leaves them")
def test_files_of_load_requests_of_a_server_that_was_killed_are_removed(repository, tmp_path):
    repository.add("add_sub", models.add_sub(TensorProto.FLOAT, [4]))
    place = tmp_path / "tmp"
    place.mkdir()
    files = {"file:1/model.onnx": base64.b64encode(models.identity(TensorProto.FLOAT, [2]).SerializeToString()).decode()}
    sent = {"parameters": {"config": json.dumps({"backend": "onnxruntime"}), **files}}

    def start():
        return Server([repository.path], "--model-control-mode=explicit", env={"TMPDIR": str(place)})

    with start() as other:
        # A server that lives keeps its own.
        assert other.http.post("/v2/repository/models/sent/load", sent).status == 200
        (kept,) = place.iterdir()
        killed = start()
        assert killed.http.post("/v2/repository/models/sent/load", sent).status == 200
        assert len(list(place.iterdir())) == 2
        killed.process.kill()
        killed.process.wait()
        killed.log.close()
        with start():
            assert list(place.iterdir()) == [kept]
    assert not list(place.iterdir())
