"""Traces sent to a collector of OpenTelemetry, over HTTP and gRPC; collectors of our own read them with the published
descriptors."""

import re
import threading
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service

from support import models
from test_tracing import OF_GRPC, OF_HTTP, OF_A_MODEL, add_models, tensors

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
TRACE, SPAN = "0af7651916cd43dd8448eb211c12666c", "b7ad6b7169242424"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
COMPUTE = [name for name in OF_A_MODEL if name.startswith("COMPUTE_")]
REQUEST = [name for name in OF_A_MODEL if not name.startswith("COMPUTE_")]


class Collector:
    """Keeps what it is sent, and the headers. `status` is what HTTP answers, `refusal` why gRPC does not take it."""

    def __init__(self):
        self.messages, self.status, self.refusal = [], 200, None
        self.paths, self.headers = [], []

    def take(self, body):
        self.messages.append(service.ExportTraceServiceRequest.FromString(body))
        return service.ExportTraceServiceResponse()

    def spans(self):
        return [span for message in self.messages for resource in message.resource_spans
                for scope in resource.scope_spans for span in scope.spans]  # fmt: skip

    def wait(self, count, seconds=30):
        """So many spans; then no more come."""
        end = time.monotonic() + seconds
        while len(self.spans()) < count:
            assert time.monotonic() < end, f"{len(self.spans())} spans instead of {count}"
            time.sleep(0.02)
        assert len(self.spans()) == count
        return self.spans()


@pytest.fixture
def collector():
    own = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            own.paths.append((self.path, self.headers["content-type"]))
            own.headers.append({name.lower(): value for name, value in self.headers.items()})
            if own.status == 200:
                own.take(body)
            self.send_response(own.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()

    def export(message, context):
        own.headers.append({name: value for name, value in context.invocation_metadata()})
        if own.refusal is not None:
            context.abort(grpc.StatusCode.UNAVAILABLE, own.refusal)
        return own.take(message)

    handler = grpc.method_handlers_generic_handler(
        EXPORT[1:].rsplit("/", 1)[0],
        {"Export": grpc.unary_unary_rpc_method_handler(
            export, response_serializer=service.ExportTraceServiceResponse.SerializeToString)},
    )  # fmt: skip
    rpc = grpc.server(futures.ThreadPoolExecutor(2))
    rpc.add_generic_rpc_handlers([handler])
    own.flags = {
        "http": [f"url=127.0.0.1:{http.server_port}/v1/traces"],
        "grpc": [f"url=http://127.0.0.1:{rpc.add_insecure_port('127.0.0.1:0')}", "protocol=grpc"],
    }
    rpc.start()
    yield own
    rpc.stop(None)
    http.shutdown()
    http.server_close()


@pytest.fixture
def traced(repository, serve, collector):
    """A server that sends its traces at once, unless told otherwise."""
    add_models(repository)

    def start(*settings, to="http", level="TIMESTAMPS", rate=1, delay=10, env=None):
        given = [f"level={level}", f"rate={rate}", "mode=opentelemetry"]
        own = [*collector.flags[to], f"bsp_schedule_delay={delay}", *settings]
        flags = [*given, *(f"opentelemetry,{setting}" for setting in own)]
        return serve(repository, *(f"--trace-config={flag}" for flag in flags), env=env)

    return start


def ask(server, module=tritonclient.http, model="simple", names=("INPUT0", "INPUT1"), **options):
    address = server.http_address if module is tritonclient.http else server.grpc_address
    with module.InferenceServerClient(address) as client:
        return client.infer(model, tensors(module, names), **options)


SDK = {"telemetry.sdk.name": "halimede", "telemetry.sdk.language": "rust"}


def resource_of(collector):
    """What the server says of itself."""
    (resource,) = collector.messages[0].resource_spans
    return {one.key: one.value.string_value for one in resource.resource.attributes}


def names(span):
    return [event.name for event in span.events]


@pytest.mark.parametrize("to", ["http", "grpc"])
def test_a_request(traced, collector, to):
    before = time.time_ns()
    server = traced("resource=service.name=mine", "resource=test.key=test=value", to=to)
    ask(server, request_id="seven")
    root, request, compute = collector.wait(3)
    assert [root.name, request.name, compute.name] == ["InferRequest", "simple", "compute"]
    assert {span.kind for span in collector.spans()} == {2}
    assert len({span.trace_id for span in collector.spans()}) == 1 and len(root.trace_id) == 16
    assert len({span.span_id for span in collector.spans()}) == 3 and len(root.span_id) == 8
    assert root.parent_span_id == b"" and request.parent_span_id == root.span_id and compute.parent_span_id == request.span_id
    assert sorted(names(root)) == sorted(OF_HTTP) and names(request) == REQUEST and names(compute) == COMPUTE
    start, end = root.start_time_unix_nano, root.end_time_unix_nano
    assert before <= start < end <= time.time_ns()
    for span in (request, compute):
        assert start <= span.start_time_unix_nano <= span.end_time_unix_nano <= end
        times = [event.time_unix_nano for event in span.events]
        assert times == sorted(times) and (times[0], times[-1]) == (span.start_time_unix_nano, span.end_time_unix_nano)
    found = {one.key: one.value.string_value or one.value.int_value for one in request.attributes}
    assert found.pop("triton.trace_id") > 0
    assert found == {"triton.model_name": "simple", "triton.model_version": 1, "triton.trace_parent_id": 0,
                     "triton.request_id": "seven"}  # fmt: skip
    attributes = resource_of(collector)
    version = attributes.pop("telemetry.sdk.version")
    assert attributes == {"service.name": "mine", "test.key": "test=value", **SDK} and re.fullmatch(r"\d+\.\d+\.\d+\S*", version)
    (scope,) = collector.messages[0].resource_spans[0].scope_spans
    assert (scope.scope.name, scope.scope.version) == ("triton-server", "")
    # Nothing of a message is unknown to the published descriptors.
    for message in collector.messages:
        clean = type(message)()
        clean.CopyFrom(message)
        clean.DiscardUnknownFields()
        assert clean == message
    if to == "http":
        assert collector.paths == [("/v1/traces", "application/x-protobuf")]


def test_a_request_over_grpc_and_an_ensemble(traced, collector):
    server = traced()
    ask(server, tritonclient.grpc)
    assert sorted(names(collector.wait(3)[0])) == sorted(OF_GRPC)
    collector.messages.clear()
    ask(server, model="ensemble", names=("A", "B"))
    spans = {span.name: span for span in collector.wait(4)}
    assert spans["simple"].parent_span_id == spans["ensemble"].span_id
    assert spans["ensemble"].parent_span_id == spans["InferRequest"].span_id
    assert spans["compute"].parent_span_id == spans["simple"].span_id


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_traces_of_clients_go_on(traced, collector, module):
    """Whatever the rate is; 0 leaves those alone."""
    server = traced(rate=0)
    ask(server, module)
    ask(server, module, headers=dict(TRACEPARENT))
    for wrong in [f"00-{TRACE}-{SPAN}", f"00-{'0' * 32}-{SPAN}-01", "nonsense"]:
        ask(server, module, headers={"traceparent": wrong})
    root, request, _ = collector.wait(3)
    assert root.trace_id.hex() == request.trace_id.hex() == TRACE
    assert root.parent_span_id.hex() == SPAN
    # Tracing that is off is off for them, too.
    server.http.post("/v2/trace/setting", {"trace_level": ["OFF"]})
    ask(server, module, headers=dict(TRACEPARENT))
    server.http.post("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]})
    ask(server, module, headers=dict(TRACEPARENT))
    collector.wait(6)


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_what_other_systems_say_of_a_trace_goes_on(traced, collector, module):
    server = traced()
    longest = ",".join(f"k{number}={'v' * 123}" for number in range(4))
    assert len(longest) == 4 * 126 + 3
    for count, (given, kept) in enumerate([
        ("a=1,b=2", "a=1,b=2"), (longest, longest), (None, ""), ("a=1,B=2", ""), ("nonsense", ""),
    ], start=1):  # fmt: skip
        state = {} if given is None else {"tracestate": given}
        ask(server, module, headers={**TRACEPARENT, **state})
        collector.wait(3 * count)
        assert [span.trace_state for span in collector.spans()[-3:]] == [kept] * 3, given
    # Without a trace to belong to it says nothing.
    ask(server, module, headers={"tracestate": "a=1"})
    assert collector.wait(18)[-1].trace_state == ""


ENVIRONMENT = {
    "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=prod,a=b%2Cc,service.name=other",
    "OTEL_SERVICE_NAME": "mine",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20geheim,x-k=1",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-k=2",
}


@pytest.mark.parametrize("to", ["http", "grpc"])
def test_the_variables_of_opentelemetry(traced, collector, to):
    server = traced(to=to, env=ENVIRONMENT)
    ask(server)
    collector.wait(3)
    found = resource_of(collector)
    del found["telemetry.sdk.version"]
    assert found == {"deployment.environment": "prod", "a": "b,c", "service.name": "mine", **SDK}
    (headers,) = collector.headers
    assert (headers["authorization"], headers["x-k"]) == ("Bearer geheim", "2")
    assert server.http.get("/v2/trace/setting").json.get("resource") is None
    assert server.stop() == 0 and "geheim" not in server.log_text()


def test_flags_win_over_variables(traced, collector):
    server = traced("resource=service.name=flag", "resource=a=flag", env=ENVIRONMENT)
    ask(server)
    collector.wait(3)
    found = resource_of(collector)
    assert (found["service.name"], found["a"], found["deployment.environment"]) == ("flag", "flag", "prod")


def test_a_variable_that_is_malformed_counts_as_not_set(traced, collector):
    wrong = {"OTEL_RESOURCE_ATTRIBUTES": "a=1,secretword", "OTEL_EXPORTER_OTLP_HEADERS": "x-k=secretword%zz"}
    server = traced(env={**wrong, "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-t=1"})
    ask(server)
    collector.wait(3)
    assert "a" not in resource_of(collector) and "x-k" not in collector.headers[0] and collector.headers[0]["x-t"] == "1"
    for name in wrong:
        assert server.log_text().count(f"the variable {name} of the environment counts as not set: ") == 1
    assert "secretword" not in server.log_text()


def test_the_settings(traced, collector):
    server = traced("resource=a=b", "bsp_max_queue_size=100", rate=5)
    found = server.http.get("/v2/trace/setting").json
    (url, *_) = collector.flags["http"]
    assert found == {"trace_level": ["TIMESTAMPS"], "trace_rate": "5", "trace_count": "-1", "trace_mode": "opentelemetry",
                     "bsp_max_export_batch_size": "512", "bsp_max_queue_size": "100", "bsp_schedule_delay": "10",
                     "url": url.removeprefix("url="), "resource": "a=b"}  # fmt: skip
    with tritonclient.grpc.InferenceServerClient(server.grpc_address) as client:
        settings = client.get_trace_settings(as_json=True)["settings"]
    assert settings["trace_mode"]["value"] == ["opentelemetry"] and "trace_file" not in settings
    server.http.post("/v2/trace/setting", {"trace_rate": "1", "trace_count": "2"})
    for _ in range(4):
        ask(server)
    collector.wait(6)


def test_tensors_alone_cannot_be_sent(traced, collector):
    server = traced(level="TENSORS")
    assert "requests are not traced: a collector takes no tensors" in server.log_text()
    ask(server)
    reply = server.http.post("/v2/trace/setting", {"trace_rate": "2"})
    assert reply.status == 400 and "a collector takes no tensors" in reply.json["error"]
    assert server.http.post("/v2/trace/setting", {"trace_level": ["TIMESTAMPS", "TENSORS"]}).status == 200
    ask(server)
    collector.wait(3)


def test_portions(traced, collector):
    """A portion is sent when it is full, and what is left at the end."""
    server = traced("bsp_max_export_batch_size=6", delay=3_600_000)
    for _ in range(5):
        ask(server)
    collector.wait(12)
    assert server.stop() == 0
    sizes = [len(resource.scope_spans[0].spans) for message in collector.messages for resource in message.resource_spans]
    assert sizes == [6, 6, 3]


def test_a_trace_that_is_longer_than_the_queue(traced, collector):
    server = traced("bsp_max_queue_size=2", "bsp_max_export_batch_size=2")
    for count in (1, 2):
        ask(server)
        collector.wait(3 * count)
    wait_metric(server, "halimede_trace_written", 2)
    wait_metric(server, "halimede_trace_dropped", 0)


def test_a_collector_that_does_not_take_traces(traced, collector):
    collector.status = 503
    server = traced()
    ask(server)
    server.wait_log("does not take them: it answered with status 503")
    ask(server)
    wait_metric(server, "halimede_trace_failed", 2)
    collector.status = 200
    ask(server)
    server.wait_log("takes traces again")
    wait_metric(server, "halimede_trace_written", 1)
    assert server.log_text().count("does not take them") == 1


def test_why_a_collector_does_not_take_traces_over_grpc(traced, collector):
    collector.refusal = 'no room: 100%\nE1126 forged "\x1b[31m ü' + "x" * 1000
    server = traced(to="grpc")
    ask(server)
    server.wait_log("does not take them")
    (line,) = [line for line in server.log_text().splitlines() if "does not take them" in line]
    assert "it answered with status 14 of gRPC: no room: 100%" in line and "ü" + "x" * 100 in line and len(line) < 700
    assert "\x1b" not in line and not any(one.startswith("E1126 forged") for one in server.log_text().splitlines())


def wait_metric(server, name, value):
    end = time.monotonic() + 30
    while (found := float(re.search(rf"^{name} (\S+)$", server.metrics_text(), re.M)[1])) != value:
        assert time.monotonic() < end and found <= value, f"{name} is {found}"
        time.sleep(0.02)


def test_nobody_is_there(repository, serve):
    repository.add("simple", models.add_sub(6, [1, 16]), "max_batch_size: 0")
    flags = ["level=TIMESTAMPS", "rate=1", "mode=opentelemetry", "opentelemetry,url=127.0.0.1:9/v1", "opentelemetry,bsp_schedule_delay=1"]
    server = serve(repository, *(f"--trace-config={flag}" for flag in flags))
    np.testing.assert_array_equal(ask(server).as_numpy("OUTPUT0")[0], 2 * np.arange(16))
    server.wait_log("traces are lost, for the collector at 'http://127.0.0.1:9/v1' does not take them: Connection refused")


@pytest.mark.parametrize("setting, said", [
    ("url=https://collector/v1/traces", "is not of the form http://host:port/path"),
    ("url=http:///v1", "the address of the collector, 'http:///v1'"),
    ("url=http://localhost:99999/v1", "'99999' is no port, which is a number from 1 to 65535"),
    ("url=[::1]:0", "'0' is no port"),
    ("url=http://me:secret@localhost:4318/v1", "must not contain a user or a password"),
    ("protocol=http/json", 'Available options are "http/protobuf" and "grpc"'),
    ("bsp_max_queue_size=0", "'0' is no number above 0"),
    ("resource=novalue", "opentelemetry,resource=<name>=<value>"),
])  # fmt: skip
def test_wrong_settings(repository, serve, setting, said):
    server = serve(repository, "--trace-config=mode=opentelemetry", f"--trace-config=opentelemetry,{setting}", wait=False)
    assert server.process.wait(20) == 1
    assert said in server.log_text()


@pytest.mark.parametrize("variable", ["OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"])
def test_wrong_variables(repository, serve, variable):
    server = serve(repository, "--trace-config=mode=opentelemetry", env={variable: "bad_value"}, wait=False)
    assert server.process.wait(20) == 1
    assert f'Bad option: "{variable}"' in server.log_text()


def test_variables_count_where_spans_are_sent_alone(repository, serve):
    repository.add("simple", models.add_sub(6, [1, 16]), "max_batch_size: 0")
    with_flag = ("--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,bsp_schedule_delay=7")
    for flags in [(), with_flag]:
        serve(repository, *flags, env={"OTEL_BSP_SCHEDULE_DELAY": "bad_value"})
