"""What `--log-verbose` tells beyond the log: lines of Triton's that operators and its QA suites look for."""

import json
import queue
import re

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support import models
from support.python_models import DECOUPLED, INTERPRETER, add

WARMED = """
model_warmup [
  { name: "zeros" count: 2 batch_size: 1 inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } },
  { name: "random" batch_size: 1 inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: 4 random_data: true } } }
]
"""


def tensor():
    one = grpcclient.InferInput("INPUT0", [1, 1], "FP32")
    one.set_data_from_numpy(np.zeros((1, 1), np.float32))
    return one


def test_warm_up(repository, serve):
    repository.add("warmed", config=models.identity_config(extra=WARMED))
    text = serve(repository, "--log-verbose=1").log_text()
    lines = re.findall(r"model 'warmed' instance warmed_0_0 is running warmup sample '(\w+)' for iteration (\d)", text)
    assert lines == [("zeros", "1"), ("zeros", "2"), ("random", "1")]
    assert "failed to run warmup" not in text
    assert "is running warmup" not in serve(repository).log_text()


@pytest.mark.parametrize("code, expected", [
    ("responses.append(pb_utils.InferenceResponse([], pb_utils.TritonError('An Error Occurred')))",
     "failed to run warmup sample 'zeros': An Error Occurred;"),
    ("request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)", None),
], ids=["a model that fails", "a decoupled model without responses"])  # fmt: skip
def test_warm_up_of_python_models(repository, serve, code, expected):
    execute = f"""
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            {code}
        return responses or None
"""
    settings = models.identity_config(extra=WARMED + ("" if expected else DECOUPLED)).replace('"identity"', '"python"')
    add(repository, "warmed", execute, settings)
    server = serve(repository, INTERPRETER, "--log-verbose=1", wait=not expected)
    if expected:
        assert server.wait_exit() == 1
    assert "instance warmed_0_0 is running warmup sample 'zeros' for iteration 1" in server.log_text()
    assert (expected or "READY") in server.log_text()
    assert ("failed to run warmup" in server.log_text()) == bool(expected)


@pytest.mark.parametrize("flags, size, said", [
    ((), "4", "Adding default backend config setting: default-max-batch-size,4"),
    (("--backend-config=default-max-batch-size=5",), "5", "Found overwritten default setting: default-max-batch-size,5"),
    (("--backend-config=default-max-batch-size=5", "--backend-config=onnxruntime,default-max-batch-size=6"), "6",
     "Found overwritten default setting: default-max-batch-size,6"),
])  # fmt: skip
def test_settings_of_the_backend(repository, serve, flags, size, said):
    for name in ("one", "other"):
        repository.add(name, models.add_sub(1, ["batch", 16]))
    server = serve(repository, *flags, "--backend-config=onnxruntime,a=0", "--log-verbose=1")
    text = server.log_text()
    assert text.count(said) == 2
    (told,) = re.findall(r'"backend configuration:\\n(.*)"', text)
    settings = json.loads(json.loads(f'"{told}"'))["cmdline"]
    assert settings.items() >= {"a": "0", "default-max-batch-size": size, "auto-complete-config": "true"}.items()
    assert settings.keys() >= {"backend-directory", "min-compute-capability"}
    assert "Starting dynamic-batcher thread for one at default nice..." in text
    assert server.http.get("/v2/models/one/config").json["max_batch_size"] == int(size)


def test_a_setting_without_a_value_is_refused(repository, serve):
    for wrong in (",default-max-batch-size=3", "default-max-batch-size=", "default-max-batch-size"):
        server = serve(repository, f"--backend-config={wrong}", wait=False)
        assert server.wait_exit() == 1
        assert "--backend-config option format is" in server.log_text()


def test_cancelled_calls(repository, serve):
    repository.add("slow", config=models.identity_config(delay_ms=300, batch=1))
    server = serve(repository, "--log-verbose=2")
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        client.infer("slow", [tensor()])
        server.wait_log("StateRelease, 0 Step FINISH")
        assert "Cancellation notification" not in server.log_text()
        call = client.async_infer("slow", [tensor()], lambda result, error: None)
        server.wait_log("ModelInfer[^$]*ModelInfer")
        call.cancel()
        server.wait_log("Cancellation notification received for ModelInferHandler, call 1")
        server.wait_log("StateRelease, 1 Step FINISH")
        client.start_stream(lambda result, error: None)
        client.async_stream_infer("slow", [tensor()])
        server.wait_log("ModelStreamInfer")
        client.stop_stream(cancel_requests=True)
        server.wait_log("Cancellation notification received for ModelStreamInferHandler, call 2")
        server.wait_log("StateRelease, 2 Step FINISH")


def test_a_stream_that_ends_with_a_status_is_not_cancelled(repository, serve):
    add(repository, "fails", """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("no")
""", models.identity_config().replace('"identity"', '"python"'))  # fmt: skip
    server = serve(repository, INTERPRETER, "--log-verbose=2")
    ends = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: ends.put(error), headers={"triton_grpc_error": "true"})
        client.async_stream_infer("fails", [tensor()])
        assert "no" in str(ends.get(timeout=60))
        server.wait_log("StateRelease, 0 Step FINISH")
    assert "Cancellation notification" not in server.log_text()


def test_a_pause_before_the_answer_of_an_inference(repository, serve):
    """The response is there, and the call is cancelled before it goes to the client."""
    repository.add("quick", config=models.identity_config())
    server = serve(repository, "--log-verbose=1", env={"TRITONSERVER_DELAY_RESPONSE_COMPLETION": "600000"})
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        call = client.async_infer("quick", [tensor()], lambda result, error: None)
        server.wait_answered("quick", 1)
        call.cancel()
        server.wait_log("Cancellation notification received for ModelInferHandler, call 0")


def test_a_pause_before_other_answers(repository, serve):
    repository.add("quick", config=models.identity_config())
    server = serve(repository, env={"TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC": "600"})
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        for ask in (client.is_server_live, client.get_server_metadata, client.get_log_settings, client.get_trace_settings):
            with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
                ask(client_timeout=0.1)
        np.testing.assert_array_equal(client.infer("quick", [tensor()]).as_numpy("OUTPUT0"), [[0]])


def test_replaced_and_loaded_models(repository, serve):
    repository.add("m", config=models.identity_config())
    server = serve(repository, "--model-control-mode=explicit", "--load-model=m", "--log-verbose=2")
    new = json.dumps({"backend": "identity", "max_batch_size": 2})
    assert server.http.post("/v2/repository/models/m/load", json.dumps({"parameters": {"config": new}})).status == 200
    server.wait_log("successfully unloaded 'm' version 1")
    assert server.http.post("/v2/repository/models/m/unload", "{}").status == 200
    server.wait_log("(successfully unloaded 'm' version 1[^$]*){2}")
    order = re.findall(r"(OnLoadFinal|AsyncUnload)\(\) 'm'", server.log_text())
    assert order == ["OnLoadFinal", "OnLoadFinal", "AsyncUnload"]


def test_resources_of_the_rate_limiter(repository, serve):
    def add_limited(count):
        limiter = f"instance_group [ {{ kind: KIND_CPU rate_limiter {{ resources [ {{ name: 'R1' count: {count} }} ] }} }} ]"
        config = models.identity_config().replace("instance_group [ { kind: KIND_CPU count: 1 } ]", limiter)
        repository.add("limited", config=config)

    add_limited(4)
    flags = ("--rate-limit=execution_count", "--log-verbose=1", "--model-control-mode=explicit", "--load-model=limited")
    server = serve(repository, *flags)
    assert r"\t\tResource: R1\t Count: 4\n" in server.log_text()
    # Once the instance that needed four has ended, there are three.
    add_limited(3)
    assert server.http.post("/v2/repository/models/limited/load", "{}").status == 200
    server.wait_log(r"Resource: R1\\t Count: 3\\n")


def test_a_model_whose_initialize_failed_is_not_finalized(repository, serve):
    """So that a second attempt finds what the first left, as NVIDIA's test of retries does."""
    add(repository, "again", """
class TritonPythonModel:
    def initialize(self, args):
        self.mark = os.path.join(args["model_repository"], "mark")
        if not os.path.exists(self.mark):
            open(self.mark, "x").close()
            raise ValueError("the first attempt fails")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def finalize(self):
        os.remove(self.mark)
""", models.identity_config().replace('"identity"', '"python"'))  # fmt: skip
    server = serve(repository, INTERPRETER, "--model-load-retry-count=1")
    assert server.log_text().count("the first attempt fails") == 1
    assert (repository.path / "again" / "mark").exists()
    assert server.stop() == 0
    assert not (repository.path / "again" / "mark").exists()
