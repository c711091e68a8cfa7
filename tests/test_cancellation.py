"""A request whose client went away does not run."""

import http.client
import json
import queue
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from support import models

WAITING = 4


@pytest.fixture
def server(repository, serve):
    """One instance, 500 ms for each request, nothing batched."""
    text = "dynamic_batching { }\n"
    repository.add("slow", config=models.identity_config(delay_ms=500, batch=1, extra=text))
    return serve(repository)


def executions(server):
    (stats,) = server.http.get("/v2/models/slow/stats").json["model_stats"]
    return stats["execution_count"]


@pytest.mark.halimede_only("2.51.0 notices a closed HTTP connection only when it answers")
def test_http_connection_closed(server):
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]})
    connections = []
    for _ in range(1 + WAITING):
        connection = http.client.HTTPConnection(server.http_address)
        connection.request("POST", "/v2/models/slow/infer", body)
        connections.append(connection)
    server.wait_pending("slow", WAITING)
    for connection in connections:
        connection.close()
    server.wait_answered("slow", 1 + WAITING)
    assert executions(server) < 1 + WAITING
    assert server.http.infer("slow", body).status == 200


def test_grpc_call_cancelled(server):
    errors = []
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        tensor = grpcclient.InferInput("INPUT0", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
        calls = []
        for _ in range(1 + WAITING):
            calls.append(client.async_infer("slow", [tensor], lambda result, error: errors.append(error)))
        server.wait_pending("slow", WAITING)
        for call in calls:
            call.cancel()
        server.wait_answered("slow", 1 + WAITING)
        end = time.monotonic() + 60
        while len(errors) < 1 + WAITING:
            assert time.monotonic() < end, errors
            time.sleep(0.02)
    assert executions(server) < 1 + WAITING
    assert all("CANCELLED" in str(error.status()) for error in errors)
    assert len(errors) == 1 + WAITING


def test_a_closed_stream_cancels(server):
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        tensor = grpcclient.InferInput("INPUT0", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
        client.start_stream(lambda result, error: None)
        for _ in range(1 + WAITING):
            client.async_stream_infer("slow", [tensor])
        server.wait_pending("slow", WAITING)
        client.stop_stream(cancel_requests=True)
    server.wait_answered("slow", 1 + WAITING)
    assert executions(server) < 1 + WAITING


TWICE = """
platform: "ensemble" max_batch_size: 1
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "slow" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "once" } },
  { model_name: "slow" model_version: -1 input_map { key: "INPUT0" value: "once" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
] }
"""


def test_an_ensemble_that_is_cancelled_begins_no_further_step(repository, serve):
    repository.add("slow", config=models.identity_config(delay_ms=500, batch=1))
    repository.add("twice", config=TWICE)
    server = serve(repository, "--log-verbose=1")
    errors = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        tensor = grpcclient.InferInput("INPUT0", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
        call = client.async_infer("twice", [tensor], lambda result, error: errors.put(error))
        server.wait_log("ModelInfer")
        call.cancel()
        server.wait_answered("twice", 1)
    assert executions(server) < 2
    assert "CANCELLED" in str(errors.get(timeout=60).status())
