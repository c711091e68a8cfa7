"""Queue limits, priorities, timeouts, preserved order and dynamic batching."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import models


def one(value=0, **parameters):
    request = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [value]}]}
    if parameters:
        request["parameters"] = parameters
    return request


def at_once(server, model, requests):
    """Send requests without waiting for their replies, each once those before it run or wait in the queue of
    the one instance: (reply, time of its arrival) of each, and whether all were there before the first had run."""
    with ThreadPoolExecutor(len(requests)) as pool:
        futures = []
        for request in requests:
            futures.append(pool.submit(lambda r=request: (server.http.infer(model, r), time.monotonic())))
            is_answered = lambda future=futures[-1]: future.done()  # noqa: E731
            if len(futures) > 1:
                server.wait_pending(model, len(futures) - 1, or_else=is_answered)
        has_run = any(f.done() and f.result()[0].status == 200 for f in futures)
        return [f.result() for f in futures], not has_run


def all_at_once(server, model, requests):
    """Send requests at the same time; their replies."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: server.http.infer(model, request), requests))


QUEUE = """dynamic_batching {{
  {extra}
  default_queue_policy {{ {policy} }}
}}
"""


def queue_model(repository, name="queue", delay_ms=400, policy="", extra="", batch=1):
    text = QUEUE.format(extra=extra, policy=policy)
    return repository.add(name, config=models.identity_config(delay_ms=delay_ms, batch=batch, extra=text))


# A machine too busy to send all requests while the first one runs tries again with a slower model.
SLOWER = (1, 5, 25)


def while_the_first_runs(repository, serve, requests, delay_ms=400, **queue):
    """`requests`, sent one after the other while the first of them runs, which takes `delay_ms` or longer:
    (reply, time of its arrival) of each."""
    for factor in SLOWER:
        queue_model(repository, f"queue{factor}", delay_ms=delay_ms * factor, **queue)
    server = serve(repository)
    for factor in SLOWER:
        replies, in_time = at_once(server, f"queue{factor}", requests)
        if in_time:
            return replies
    raise AssertionError(f"{len(requests)} requests took longer than {delay_ms * SLOWER[-1]} ms to send")


def test_full_queue_is_unavailable(repository, serve):
    requests = [one(i) for i in range(8)]
    replies = while_the_first_runs(repository, serve, requests, delay_ms=600, policy="max_queue_size: 2")
    assert sorted(r.status for r, _ in replies) == [200] * 3 + [503] * 5
    full = next(r for r, _ in replies if r.status == 503)
    assert full.error == "[request id: <id_unknown>] Exceeds maximum queue size"


def test_timeout_rejects(repository, serve):
    policy = "timeout_action: REJECT default_timeout_microseconds: 500000"
    replies = while_the_first_runs(repository, serve, [one(0), one(1), one(2)], delay_ms=1500, policy=policy)
    # Of the first two, either may reach the server first.
    assert sorted(reply.status for reply, _ in replies) == [200, 503, 503]
    assert {reply.error for reply, _ in replies if reply.status != 200} == {"Request timeout expired"}


def test_timeout_delays(repository, serve):
    policy = "timeout_action: DELAY default_timeout_microseconds: 100000"
    replies = while_the_first_runs(repository, serve, [one(i) for i in range(3)], policy=policy)
    assert [r.status for r, _ in replies] == [200, 200, 200]


OVERRIDE = [
    # default timeout in microseconds, override allowed, timeout of the request, status of the waiting request
    (60_000_000, "true", 50_000, 503),
    (60_000_000, "false", 50_000, 200),
    (0, "true", 50_000, 200),
]


@pytest.mark.parametrize("default, allowed, asked, status", OVERRIDE)
def test_timeout_of_the_request_only_shortens(repository, serve, default, allowed, asked, status):
    policy = f"default_timeout_microseconds: {default} allow_timeout_override: {allowed}"
    replies = while_the_first_runs(repository, serve, [one(0), one(1), one(2, timeout=asked)], policy=policy)
    assert replies[2][0].status == status


def test_priorities(repository, serve):
    requests = [one(0), one(1), one(2, priority=3), one(3, priority=2), one(4, priority=1), one(5, priority=99)]
    extra = "priority_levels: 3 default_priority_level: 3"
    replies = while_the_first_runs(repository, serve, requests, extra=extra)
    assert all(r.status == 200 for r, _ in replies)
    order = sorted(range(6), key=lambda i: replies[i][1])
    # 0 runs; among the others the smaller number is first, 0 and 99 mean the default.
    waiting = [i for i in order if i >= 2]
    assert waiting == [4, 3, 2, 5]


def test_batches_form(repository, serve):
    queue_model(repository, batch=8, delay_ms=200, extra="max_queue_delay_microseconds: 100000")
    server = serve(repository)
    replies = all_at_once(server, "queue", [one(i) for i in range(9)])
    assert [r.json["outputs"][0]["data"] for r in replies] == [[float(i)] for i in range(9)]
    stats = server.http.get("/v2/models/queue/stats").json["model_stats"][0]
    assert stats["inference_count"] == 9
    assert stats["execution_count"] < 9
    assert max(b["batch_size"] for b in stats["batch_stats"]) > 1
    assert sum(b["batch_size"] * b["compute_infer"]["count"] for b in stats["batch_stats"]) == 9


def test_different_shapes_are_not_batched_together(repository, serve):
    queue_model(repository, batch=8, delay_ms=100, extra="max_queue_delay_microseconds: 50000")
    server = serve(repository)
    requests = [
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, n], "data": [float(n)] * n}]} for n in (1, 2, 3, 1)
    ]
    replies = all_at_once(server, "queue", requests)
    assert [r.json["outputs"][0]["shape"] for r in replies] == [[1, 1], [1, 2], [1, 3], [1, 1]]


def test_the_default_scheduler_runs_one_request_at_a_time(server):
    """One instance with a delay of 300 ms: what three requests compute, one after the other, fills the time."""

    def computed():
        (stats,) = server.http.get("/v2/models/slow/stats").json["model_stats"]
        return stats["inference_stats"]["compute_infer"]["ns"] / 1e9

    request = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
    before, start = computed(), time.monotonic()
    replies = all_at_once(server, "slow", [request] * 3)
    elapsed = time.monotonic() - start
    assert all(r.status == 200 for r in replies)
    assert 3 * 0.3 <= computed() - before <= elapsed


@pytest.mark.halimede_only("the peer's identity model is written in Python, without these parameters")
def test_identity_backend_attaches_its_example_parameters(server):
    request = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
    expected = {"param0": "an example string parameter", "param1": 42, "param2": False, "param3": 123.123}
    assert server.http.infer("slow", request).json["parameters"] == expected


def test_reload_drops_no_request(repository, serve):
    repository.add("slow", config=models.identity_config(delay_ms=100, batch=0))
    http = serve(repository, "--model-control-mode=explicit", "--load-model=slow").http
    request = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
    statuses, end = [], threading.Event()

    def client():
        while not end.is_set():
            statuses.append(http.infer("slow", request).status)

    threads = [threading.Thread(target=client) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        assert http.post("/v2/repository/models/slow/load").status == 200
    end.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200}
