"""The response cache, in the server's memory and in a real Redis server."""

import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
import tritonclient.grpc


from support import models
from support.server import Server, free_ports

CACHED = "response_cache { enable: true }"


@pytest.fixture
def cached(repository):
    """A model whose answers may be kept."""
    return repository.add("echo", None, models.identity_config(extra=CACHED))


def ask(server, value, shape=(1, 4)):
    data = np.full(shape, value, np.float32)
    body = {"inputs": [{"name": "INPUT0", "shape": list(shape), "datatype": "FP32", "data": data.ravel().tolist()}]}
    reply = server.http.infer("echo", body)
    assert reply.status == 200, reply.body
    assert reply.json["outputs"][0]["data"] == data.ravel().tolist()
    assert reply.json["outputs"][0]["shape"] == list(shape)


def counts(server):
    """Successes, hits, misses and executions, as the statistics tell them."""
    all = server.http.get("/v2/models/echo/stats").json["model_stats"][0]
    inference = all["inference_stats"]
    return (*(inference[name]["count"] for name in ("success", "cache_hit", "cache_miss")), all["execution_count"])


@pytest.mark.parametrize("flags", [["--cache-config=local,size=1048576"], ["--response-cache-byte-size=1048576"]])
def test_a_repeated_request_is_answered_from_the_cache(cached, serve, flags):
    server = serve(cached, *flags)
    for value in (1, 2, 1, 2, 1):
        ask(server, value)
    assert counts(server) == (5, 3, 2, 2)
    # The same bytes in another shape are another request.
    ask(server, 1, (2, 2))
    assert counts(server) == (6, 3, 3, 3)
    grpc = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    tensor = tritonclient.grpc.InferInput("INPUT0", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.full((1, 4), 2, np.float32))
    assert grpc.infer("echo", [tensor], request_id="mine").get_response().id == "mine"
    statistics = grpc.get_inference_statistics("echo").model_stats[0].inference_stats
    assert (statistics.cache_hit.count, statistics.cache_miss.count) == (4, 3)
    assert 0 < statistics.cache_hit.ns < statistics.success.ns
    grpc.close()
    for metric, value in {"nv_cache_num_hits_per_model": 4, "nv_cache_num_misses_per_model": 3,
                          "nv_inference_request_success": 7, "nv_inference_count": 4}.items():  # fmt: skip
        assert server.metric(metric, "echo") == value, metric
    text = server.metrics_text()
    for line in ("nv_cache_num_entries 3", "nv_cache_num_lookups 7", "nv_cache_num_hits 4", "nv_cache_num_misses 3",
                 "nv_cache_num_evictions 0"):  # fmt: skip
        assert line in text.splitlines()


def test_summaries_of_the_cache(cached, serve):
    server = serve(cached, "--cache-config=local,size=100000", "--metrics-config=summary_latencies=true")
    for _ in range(3):
        ask(server, 1)
    assert server.metric("nv_cache_hit_summary_per_model_count", "echo") == 2
    assert server.metric("nv_cache_miss_summary_per_model_count", "echo") == 1
    text = server.metrics_text()
    assert "nv_inference_request_summary_us_count{" not in text
    for what in ("hit", "miss"):
        help_text = f"Summary of cache {what} counts/durations per model, in microseconds."
        assert f"# HELP nv_cache_{what}_summary_per_model {help_text}" in text.splitlines()


def test_what_does_not_fit_makes_room_or_is_left_out(cached, serve):
    server = serve(cached, "--cache-config=local,size=1000")
    for value in range(6):
        ask(server, value)
    lines = dict(line.split() for line in server.metrics_text().splitlines() if line.startswith("nv_cache_") and "{" not in line)
    assert float(lines["nv_cache_num_evictions"]) > 0 and float(lines["nv_cache_util"]) <= 1
    ask(server, 1, (8, 200))
    server.wait_log(r"Failed to insert key \[\w+\] into response cache: Requested byte_size: \d+ is greater than total")


def test_without_a_cache_the_model_is_served_as_it_is(cached, serve):
    server = serve(cached)
    ask(server, 1)
    ask(server, 1)
    assert counts(server) == (2, 0, 0, 2)
    assert "nv_cache_num_lookups" not in server.metrics_text()
    # Somebody who wrote that answers are kept hears that they are not.
    server.wait_log(r"W.* response_cache is ignored: this server has no response cache: start it with --cache-config")


WRONG = {
    "two caches": (["local,size=8192", "redis,key=value"], "found multiple cache configurations"),
    "no address": (["redis,port=1"], "Must at a minimum specify 'host' and 'port'"),
    "nobody there": (["redis,host=localhost", "redis,port=nonexistent"], "Failed to connect to Redis: Connection refused"),
    "no such cache": (["other,size=1"], "unable to find 'libtritoncache_other.so' for cache"),
}


@pytest.mark.parametrize("settings, expected", WRONG.values(), ids=WRONG.keys())
def test_wrong_settings_end_the_server(cached, settings, expected):
    server = Server([cached.path], *(f"--cache-config={setting}" for setting in settings), wait=False)
    assert server.wait_exit() == 1
    assert expected in server.log_text()


def test_models_that_answer_otherwise_refuse_the_cache(repository, serve):
    repository.add("echo", None, models.identity_config())
    repository.add("repeat", None, 'backend: "repeat" model_transaction_policy { decoupled: true }' + CACHED)
    server = serve(repository, "--cache-config=local,size=1000", "--exit-on-error=false", "--strict-readiness=false")
    server.wait_log("Response Cache does not currently support model repeat with 'decoupled' transaction policy")
    assert server.http.get("/v2/models/repeat/ready").status == 400


class Redis:
    """A Redis server on a port of its own, which keeps nothing on disk."""

    def __init__(self, *options):
        (self.port,) = free_ports(1)
        self.options = options
        self.start()

    def start(self):
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while b"PONG" not in self.ask(b"PING\r\n") and b"NOAUTH" not in self.ask(b"PING\r\n"):
            assert time.monotonic() < end and self.process.poll() is None, "the Redis server does not answer"
            time.sleep(0.02)

    def ask(self, line):
        import socket

        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(line)
                return connection.recv(65536)
        except OSError:
            return b""

    def flags(self, **settings):
        return [f"--cache-config=redis,{name}={value}" for name, value in
                {"host": "127.0.0.1", "port": self.port, **settings}.items()]  # fmt: skip

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def redis():
    """Starts Redis servers that end with the test."""
    if shutil.which("redis-server") is None:
        assert not os.environ.get("HALIMEDE_EXPECT_REDIS"), "redis-server is missing (Debian's package of that name)"
        pytest.skip("redis-server is not installed")
    running = []

    def start(*options):
        running.append(Redis(*options))
        return running[-1]

    yield start
    for one in running:
        one.stop()


def until_counted(server, expected):
    """What is kept elsewhere is kept a moment after the answer."""
    end = time.monotonic() + 20
    while counts(server) != expected:
        assert time.monotonic() < end, (counts(server), expected)
        time.sleep(0.02)


def test_servers_share_a_redis_server(cached, serve, redis):
    flags = redis().flags(pool_size=2)
    first = serve(cached, *flags)
    for value in (1, 2):
        ask(first, value)
    until_counted(first, (2, 0, 2, 2))
    ask(first, 1)
    assert counts(first) == (3, 1, 2, 2)
    assert first.stop() == 0
    second = serve(cached, *flags)
    ask(second, 1)
    ask(second, 2)
    assert counts(second) == (2, 2, 0, 0)


def test_passwords_and_databases(cached, serve, redis, monkeypatch):
    server = redis("--requirepass", "redis123!")
    for settings, expected in [({}, "NOAUTH Authentication required"), ({"password": "wrong"}, "WRONGPASS")]:
        refused = Server([cached.path], *server.flags(**settings), wait=False)
        assert refused.wait_exit() == 1
        assert expected in refused.log_text()
    serve(cached, *server.flags(password="redis123!", user="default", db=3))
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "redis123!")
    running = serve(cached, *server.flags())
    ask(running, 1)
    until_counted(running, (1, 0, 1, 1))
    ask(running, 1)
    assert counts(running) == (2, 1, 1, 1)


def test_models_answer_when_the_redis_server_is_gone_and_when_it_is_back(cached, serve, redis):
    store = redis()
    server = serve(cached, *store.flags())
    ask(server, 1)
    until_counted(server, (1, 0, 1, 1))
    store.stop()
    ask(server, 1)
    ask(server, 2)
    assert counts(server)[3] == 3
    server.wait_log("the Redis server cannot be reached, models answer without it")
    store.start()
    end = time.monotonic() + 30
    while True:
        hits = counts(server)[1]
        ask(server, 3)
        if counts(server)[1] > hits:
            break
        assert time.monotonic() < end, "the cache is not used again"
    server.wait_log("the Redis server is back after")


def test_a_redis_server_that_hangs_is_left_alone_and_said_once(cached, serve, redis):
    store = redis()
    server = serve(cached, *store.flags(socket_timeout=50))
    ask(server, 1)
    until_counted(server, (1, 0, 1, 1))
    store.process.send_signal(signal.SIGSTOP)
    for value in range(2, 30):
        ask(server, value)
    server.wait_log(r"(?m)^E.*the Redis server cannot be reached")
    store.process.send_signal(signal.SIGCONT)
    end = time.monotonic() + 60
    while "the Redis server is back after" not in server.log_text():
        ask(server, 1)
        assert time.monotonic() < end, "the Redis server is not asked again"
        time.sleep(0.02)
    assert server.log_text().count("the Redis server cannot be reached") == 1


def test_a_redis_server_that_is_full_is_said_once_and_still_asked(cached, serve, redis):
    store = redis()
    server = serve(cached, *store.flags())
    ask(server, 1)
    until_counted(server, (1, 0, 1, 1))
    store.ask(b"CONFIG SET maxmemory 1\r\n")
    for value in (2, 3, 4):
        ask(server, value)
    until_counted(server, (4, 0, 4, 4))
    ask(server, 1)
    assert counts(server)[1] == 1
    assert server.log_text().count("the Redis server refuses insertions: OOM") == 1
    store.ask(b"CONFIG SET maxmemory 0\r\n")
    ask(server, 5)
    server.wait_log("the Redis server accepts insertions again")


def test_what_others_wrote_under_a_key_is_no_answer(cached, serve, redis):
    store = redis()
    server = serve(cached, *store.flags())
    ask(server, 1)
    until_counted(server, (1, 0, 1, 1))
    keys = [part.decode() for part in store.ask(b"KEYS *\r\n").split(b"\r\n") if part.startswith(b"halimede:")]
    assert len(keys) == 1
    store.ask(f"SET {keys[0]} broken\r\n".encode())
    ask(server, 1)
    assert counts(server)[3] == 2
