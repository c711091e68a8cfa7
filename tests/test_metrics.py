"""The metrics endpoint: names, help texts, types and labels of tritonserver 2.51.0."""

import re
import time
import urllib.error
import urllib.request

import pytest
from onnx import TensorProto

from support import models

FAMILIES = {
    "nv_inference_request_success": ("counter", "Number of successful inference requests, all batch sizes"),
    "nv_inference_request_failure": ("counter", "Number of failed inference requests, all batch sizes"),
    "nv_inference_count": ("counter", "Number of inferences performed (does not include cached requests)"),
    "nv_inference_exec_count": ("counter", "Number of model executions performed (does not include cached requests)"),
    "nv_inference_request_duration_us": (
        "counter", "Cumulative inference request duration in microseconds (includes cached requests)"),
    "nv_inference_queue_duration_us": (
        "counter", "Cumulative inference queuing duration in microseconds (includes cached requests)"),
    "nv_inference_compute_input_duration_us": (
        "counter", "Cumulative compute input duration in microseconds (does not include cached requests)"),
    "nv_inference_compute_infer_duration_us": (
        "counter", "Cumulative compute inference duration in microseconds (does not include cached requests)"),
    "nv_inference_compute_output_duration_us": (
        "counter", "Cumulative inference compute output duration in microseconds (does not include cached requests)"),
    "nv_inference_pending_request_count": (
        "gauge", "Instantaneous number of pending requests awaiting execution per-model."),
    "nv_pinned_memory_pool_total_bytes": ("gauge", "Pinned memory pool total memory size, in bytes"),
    "nv_pinned_memory_pool_used_bytes": ("gauge", "Pinned memory pool used memory size, in bytes"),
    "nv_cpu_utilization": ("gauge", "CPU utilization rate [0.0 - 1.0]"),
    "nv_cpu_memory_total_bytes": ("gauge", "CPU total memory (RAM), in bytes"),
    "nv_cpu_memory_used_bytes": ("gauge", "CPU used memory (RAM), in bytes"),
}  # fmt: skip
LINE = re.compile(r'([a-z_]+)(?:\{(.*)\})? (\S+)$')


def scrape(address):
    """The metrics service may start a moment after the server is ready."""
    for _ in range(100):
        try:
            return urllib.request.urlopen(f"http://{address}/metrics", timeout=20)
        except urllib.error.URLError:
            time.sleep(0.05)
    raise AssertionError("no metrics service")


def eventually(address, name, **labels):
    """A counter once it has moved: it may count a request just after its reply."""
    for _ in range(100):
        value = Metrics(address).of(name, **labels)
        if value > 0:
            return value
        time.sleep(0.05)
    raise AssertionError(f"{name} {labels} stays at 0:\n{Metrics(address).text}")


class Metrics:
    """The parsed text of one scrape."""

    def __init__(self, address):
        with scrape(address) as reply:
            self.type = reply.headers["Content-Type"]
            self.text = reply.read().decode()
        self.help, self.types, self.values = {}, {}, {}
        for line in self.text.splitlines():
            if line.startswith("# HELP "):
                _, _, name, text = line.split(" ", 3)
                self.help[name] = text
            elif line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                self.types[name] = kind
            else:
                name, labels, value = LINE.match(line).groups()
                pairs = frozenset(re.findall(r'(\w+)="([^"]*)"', labels or ""))
                self.values[name, pairs] = float(value)

    def of(self, name, **labels):
        return self.values[name, frozenset(labels.items())]


@pytest.fixture
def small(repository, serve):
    """A server with `simple`, and with `pick`, which can be made to fail."""
    repository.add("simple", models.add_sub(TensorProto.INT32, ["batch", 16]), models.BATCHED_INT32)
    repository.add("pick", models.pick())
    repository.add("queue", config=models.identity_config(
        delay_ms=400, batch=1,
        extra="dynamic_batching { default_queue_policy { default_timeout_microseconds: 100000 } }\n"))  # fmt: skip
    return serve(repository, "--metrics-interval-ms=200")


def test_families(small):
    metrics = Metrics(small.metrics_address)
    assert metrics.type.startswith("text/plain")
    for name, (kind, text) in FAMILIES.items():
        assert (metrics.types.get(name), metrics.help.get(name)) == (kind, text), name


def test_counts(small):
    data = {"shape": [2, 16], "datatype": "INT32", "data": [1] * 32}
    good = {"inputs": [{"name": n, **data} for n in ("INPUT0", "INPUT1")]}
    for _ in range(3):
        assert small.http.infer("simple", good).status == 200
    metrics = Metrics(small.metrics_address)
    labels = {"model": "simple", "version": "1"}
    assert metrics.of("nv_inference_request_success", **labels) == 3
    assert metrics.of("nv_inference_count", **labels) == 6
    assert metrics.of("nv_inference_exec_count", **labels) == 3
    assert metrics.of("nv_inference_request_duration_us", **labels) > 0
    assert metrics.of("nv_inference_pending_request_count", **labels) == 0
    for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
        assert metrics.of("nv_inference_request_failure", reason=reason, **labels) == 0


@pytest.mark.halimede_only("the Python backend of the peer counts the failure as a success")
def test_failures_have_a_reason(small):
    failing = {"inputs": [{"name": "INPUT0", "datatype": "INT64", "shape": [2], "data": [0, 9]}]}
    assert small.http.infer("pick", failing).status != 200
    failures = eventually(
        small.metrics_address, "nv_inference_request_failure", model="pick", version="1", reason="BACKEND"
    )
    assert failures == 1
    metrics = Metrics(small.metrics_address)
    assert metrics.of("nv_inference_request_success", model="pick", version="1") == 0


def test_requests_rejected_for_their_timeout(small):
    from test_schedule_policy import all_at_once, one

    replies = [reply.status for reply in all_at_once(small, "queue", [one(i) for i in range(6)])]
    assert 503 in replies
    labels = {"model": "queue", "version": "1", "reason": "REJECTED"}
    assert eventually(small.metrics_address, "nv_inference_request_failure", **labels) == replies.count(503)


def test_cpu_memory_is_plausible(small):
    total = eventually(small.metrics_address, "nv_cpu_memory_total_bytes")
    used = eventually(small.metrics_address, "nv_cpu_memory_used_bytes")
    assert 2**28 < used < total < 2**46
    assert 0 <= Metrics(small.metrics_address).of("nv_cpu_utilization") <= 1


def test_summaries(repository, serve):
    repository.add("add_sub", models.add_sub(TensorProto.FLOAT, [4]))
    server = serve(repository, "--metrics-config=summary_latencies=true", "--metrics-config=counter_latencies=false")
    data = {"shape": [4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    assert server.http.infer("add_sub", {"inputs": [{"name": n, **data} for n in ("INPUT0", "INPUT1")]}).status == 200
    metrics = Metrics(server.metrics_address)
    assert metrics.types["nv_inference_request_summary_us"] == "summary"
    assert "nv_inference_request_duration_us" not in metrics.types
    labels = {"model": "add_sub", "version": "1"}
    assert metrics.of("nv_inference_request_summary_us_count", **labels) == 1
    quantiles = {dict(pairs)["quantile"] for name, pairs in metrics.values if name == "nv_inference_request_summary_us"}
    assert quantiles == {"0.5", "0.9", "0.95", "0.99", "0.999"}


@pytest.mark.halimede_only("a metric of its own")
def test_operators_reach_a_speed(repository, serve):
    """Every figure follows from a product of known size: 2 · 8 · 64 · 32 operations."""
    repository.add("product", models.product([8, 64], [64, 32]))
    repository.add("empty", models.identity(TensorProto.FLOAT, [4]))
    server = serve(repository, "--precision=exact")
    data = {"name": "X", "shape": [8, 64], "datatype": "FP32", "data": [0.5] * 512}
    for _ in range(3):
        assert server.http.infer("product", {"inputs": [data]}).status == 200
    labels = {"model": "product", "version": "1", "operator": "Contract", "factors": "as stored"}
    address = server.metrics_address
    assert eventually(address, "halimede_operator_operations", **labels) == 2 * 8 * 64 * 32
    metrics = Metrics(address)
    assert metrics.of("halimede_operator_bytes", **labels) == 4 * (8 * 64 + 64 * 32 + 8 * 32)
    seconds = metrics.of("halimede_operator_duration_us", **labels) / 1e6
    assert 0 < seconds < 10
    for rate, amount in [("flops", "operations"), ("bytes_per_second", "bytes")]:
        expected = metrics.of(f"halimede_operator_{amount}", **labels) / seconds
        assert metrics.of(f"halimede_operator_{rate}", **labels) == pytest.approx(expected, rel=1e-3)
    assert not any(dict(pairs).get("model") == "empty" for name, pairs in metrics.values if "operator" in name)


@pytest.mark.halimede_only("a metric of its own")
def test_where_memory_goes(repository, serve):
    """A constant of 64 x 32 numbers, packed once for two instances, of which each has its own arena."""
    config = 'platform: "onnxruntime_onnx"\ninstance_group [{ count: 2 }]\n'
    repository.add("product", models.product([8, 64], [64, 32]), config)
    server = serve(repository, "--precision=exact", "--packed-weights=off")
    labels = {"model": "product", "version": "1"}
    metrics = Metrics(server.metrics_address)
    weights = 4 * 64 * 32
    assert metrics.of("halimede_model_weights_bytes", **labels) == weights
    for part, backing, least, most in [("packed", "private", weights, weights), ("packed", "mapped", 0, 0),
                                       ("constants", "private", 0, 64), ("plans", "private", 0, 4096),
                                       ("sources", "private", weights, weights + 64)]:  # fmt: skip
        assert least <= metrics.of("halimede_model_memory_bytes", part=part, backing=backing, **labels) <= most, part
    assert not any(name == "halimede_instance_memory_bytes" for name, _ in metrics.values), "before the first request"
    data = {"name": "X", "shape": [8, 64], "datatype": "FP32", "data": [0.5] * 512}
    assert server.http.infer("product", {"inputs": [data]}).status == 200
    held = [bytes for (name, _), bytes in Metrics(server.metrics_address).values.items()
            if name == "halimede_instance_memory_bytes"]  # fmt: skip
    assert len(held) == 1 and 4 * 8 * 32 <= held[0] < 2**20
    private, resident = (metrics.of(f"halimede_process_{kind}_bytes") for kind in ("private", "resident"))
    assert weights < private < resident


@pytest.mark.halimede_only("tritonserver 2.51.0 does not have it")
def test_first_responses_by_buckets(repository, serve):
    repository.add("usual", None, models.identity_config(delay_ms=120))
    own = 'model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" } '
    own += "histogram_options { buckets: [ 1, 90000 ] } } }"
    repository.add("own", None, models.identity_config(delay_ms=5, extra=own))
    body = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
    name = "nv_inference_first_response_histogram_ms"
    assert name not in serve(repository).metrics_text()
    server = serve(repository, "--metrics-config=histogram_latencies=true")
    for model in ("usual", "usual", "own"):
        assert server.http.infer(model, body).status == 200
    lines = dict(line.rsplit(" ", 1) for line in server.metrics_text().splitlines() if line.startswith(name))
    of = {model: f'{{model="{model}",version="1"' for model in ("usual", "own")}
    assert lines[f'{name}_count{of["usual"]}}}'] == "2" and float(lines[f'{name}_sum{of["usual"]}}}']) >= 240
    assert lines[f'{name}_bucket{of["usual"]},le="100"}}'] == "0"
    assert lines[f'{name}_bucket{of["usual"]},le="+Inf"}}'] == "2"
    bounds = [line.partition('le="')[2].strip('"}') for line in lines if "_bucket" in line and '"own"' in line]
    assert bounds == ["1", "90000", "+Inf"]
    assert lines[f'{name}_bucket{of["own"]},le="90000"}}'] == "1"
