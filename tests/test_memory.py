"""Memory admission: models that would not fit, requests while memory is scarce, and the flag."""

import platform
import queue
import re
import subprocess

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper, numpy_helper

from support import models
from support.server import ROOT, Server, binary
from support.waiting import wait_until

pytestmark = pytest.mark.halimede_only("Triton has no limit of memory")

# The configuration of the documentation.
CONFIG = (ROOT / "docs" / "memory.md").read_text().split("```pbtxt\n")[1].split("```")[0]
MIB = 1 << 20
EXPLICIT = "--model-control-mode=explicit"


def product(weights_mib):
    """A model of one product, whose weights have this size, and how many numbers it takes."""
    rows = weights_mib * MIB // 4 // 1024
    weights = numpy_helper.from_array(np.zeros((rows, 1024), np.float32), "weights")
    node = helper.make_node("MatMul", ["INPUT0", "weights"], ["OUTPUT0"])
    inputs = [models.info("INPUT0", TensorProto.FLOAT, ["batch", rows])]
    outputs = [models.info("OUTPUT0", TensorProto.FLOAT, ["batch", 1024])]
    return models.onnx_model([node], inputs, outputs, [weights]), rows


def gauge(server, name):
    found = re.search(rf"^{name} (\S+)$", server.metrics_text(), re.MULTILINE)
    return found and float(found[1])


def private_bytes(serve, repository):
    """What a server holds that has loaded nothing."""
    server = serve(repository, EXPLICIT)
    bytes = gauge(server, "halimede_process_private_bytes")
    assert server.stop() == 0
    return int(bytes)


def load(server, model):
    return server.http.post(f"/v2/repository/models/{model}/load", "")


def test_a_model_that_would_not_fit_does_not_load(repository, serve):
    big, _ = product(96)
    repository.add("big", big)
    repository.add("small", product(8)[0])
    wide, rows = product(8)
    config = f"max_batch_size: 8192\n{models.io('input', 'INPUT0', 'FP32', [rows])}{models.io('output', 'OUTPUT0', 'FP32', [1024])}"
    repository.add("wide", wide, config + "instance_group [ { count: 3 kind: KIND_CPU } ]")
    limit = private_bytes(serve, repository) + 64 * MIB
    server = serve(repository, EXPLICIT, f"--memory-limit={limit}")
    refused = load(server, "big")
    assert refused.status >= 400
    numbers = re.search(
        r"model 'big' would not fit into memory: it needs at least (\d+) bytes \((\d+) for weights\), and (\d+) bytes of the "
        rf"limit of {limit} bytes \(--memory-limit\) are left; the server holds (\d+)\. ",
        refused.error,
    )
    assert numbers, refused.error
    need, weights, left, held = map(int, numbers.groups())
    assert need == weights == 96 * MIB and left + held == limit and left < need
    # Weights fit, and instances do not: each has 32 MiB of outputs.
    refused = load(server, "wide").error
    assert "would not fit into memory: it needs at least" in refused and "for each of 3 instances" in refused
    assert load(server, "small").status == 200
    assert gauge(server, "halimede_memory_refused_models") == 2
    assert gauge(server, "halimede_memory_limit_bytes") == limit
    assert 0 < gauge(server, "halimede_memory_left_bytes") < 64 * MIB
    # Without a limit it loads.
    free = serve(repository, EXPLICIT, "--memory-limit=off")
    assert load(free, "big").status == 200
    assert gauge(free, "halimede_memory_limit_bytes") is None


def small(server):
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    return server.http.infer("quick", {"inputs": [tensor]})


def is_told_scarce(server):
    """Whether memory is scarce for as long as it takes to be told so in every way."""
    refused = small(server)
    if refused.status == 200:
        return False
    assert refused.status == 503 and refused.headers["retry-after"] == "1"
    assert "too little memory left to take requests" in refused.error
    return pushback(server) == "1000" and gauge(server, "halimede_memory_scarce") == 1


def test_requests_are_refused_while_memory_is_scarce(repository, serve):
    repository.add("m", config=CONFIG).add("quick", config=models.identity_config())
    limit = private_bytes(serve, repository) + 64 * MIB
    server = serve(repository, f"--memory-limit={limit}")
    values = np.arange(MIB, dtype=np.float32)
    tensor = triton.InferInput("INPUT0", [1, len(values)], "FP32")
    tensor.set_data_from_numpy(values.reshape(1, -1))
    answers = queue.Queue()
    with triton.InferenceServerClient(server.grpc_address) as client:
        sent = 0
        # Requests wait in the queue, and hold 4 MiB each; those that are finished give it back meanwhile.
        while not is_told_scarce(server):
            client.async_infer("m", [tensor], lambda result, error: answers.put((result, error)))
            sent += 1
            assert sent < 100, "memory was never scarce"
        # What runs is finished.
        taken = 0
        for _ in range(sent):
            result, error = answers.get(timeout=60)
            if error is None:
                taken += 1
                assert np.array_equal(result.as_numpy("OUTPUT0")[0], values)
            else:
                assert error.status() == "StatusCode.UNAVAILABLE" and "too little memory left" in error.message()
        assert taken >= 3
    wait_until(lambda: small(server).status == 200)
    assert gauge(server, "halimede_memory_scarce") == 0
    assert gauge(server, "halimede_memory_refused_requests") >= 3
    server.wait_log("memory is scarce")
    server.wait_log("memory is no longer scarce")


def pushback(server):
    """What a refused gRPC client is told to wait, in milliseconds; nothing where it is answered."""
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="quick")
    tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    tensor.contents.fp32_contents.append(1)
    with grpc.insecure_channel(server.grpc_address) as channel:
        try:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            return dict(error.trailing_metadata())["grpc-retry-pushback-ms"]
    return None


def test_defaults_are_of_the_name(repository, serve, tmp_path, monkeypatch):
    repository.add("m", config=models.identity_config())
    server = serve(repository)
    assert 0 < gauge(server, "halimede_memory_left_bytes") < gauge(server, "nv_cpu_memory_total_bytes")
    link = tmp_path / "tritonserver"
    link.symlink_to(binary())
    monkeypatch.setenv("TRITONSERVER", str(link))
    with Server([repository.path]) as triton_like:
        assert gauge(triton_like, "halimede_memory_limit_bytes") is None


def test_wrong_limits(repository):
    command = [str(binary()), "serve", "--model-repository", str(repository.path), "--memory-limit=1.5G"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "invalid argument for --memory-limit: '1.5G' is none of auto, off and a number of bytes" in done.stderr


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the server does this on glibc alone")
def test_memory_of_requests_goes_back_while_nobody_asks(repository, serve):
    repository.add("echo", config=CONFIG.replace('string_value: "200"', 'string_value: "0"'))
    server = serve(repository)
    client = triton.InferenceServerClient(server.grpc_address)
    # Less than what the allocator gives back at once.
    tensor = triton.InferInput("INPUT0", [1, 3 * MIB // 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 3 * MIB // 4), np.float32))
    for _ in range(20):
        client.infer("echo", [tensor])
    kept = gauge(server, "halimede_process_private_bytes")
    least = kept - 2 * MIB
    wait_until(lambda: gauge(server, "halimede_process_private_bytes") < least, "memory goes back", 20)
    client.infer("echo", [tensor])
