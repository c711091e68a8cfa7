"""The rate limiter: resources and priorities across models, what does not load, flags."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton

from support import models
from support.server import ROOT, binary

# The configuration of the documentation.
CONFIG = (ROOT / "docs" / "rate-limiter.md").read_text().split("```pbtxt\n")[1].split("```")[0]
IO = models.io("input", "INPUT0", "FP32", [-1]) + models.io("output", "OUTPUT0", "FP32", [-1])
LIMITED = "--rate-limit=execution_count"


def config(resources="", priority=0, count=1, delay_ms=0, more=""):
    limiter = f"rate_limiter {{ resources [ {resources} ] priority: {priority} }}"
    return (
        f'backend: "identity" max_batch_size: 4 {IO} {more}\n'
        f"instance_group {{ kind: KIND_CPU count: {count} {limiter} }}\n"
        f'parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay_ms}" }} }}\n'
    )


def resource(name, count, is_global=False):
    return f'{{ name: "{name}" count: {count} global: {str(is_global).lower()} }}'


def ask(client, model, value):
    tensor = triton.InferInput("INPUT0", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[value]], np.float32))
    assert client.infer(model, [tensor]).as_numpy("OUTPUT0") == np.float32(value)


def ask_all(server, questions):
    """Asks for the pairs of model and value, all at the same time."""
    with triton.InferenceServerClient(server.grpc_address) as client, ThreadPoolExecutor(len(questions)) as threads:
        list(threads.map(lambda question: ask(client, *question), questions))


def stats(server, model):
    return server.http.get(f"/v2/models/{model}/stats").json["model_stats"][0]


def test_models_that_share_a_resource_take_turns(repository, serve):
    repository.add("m", config=CONFIG)
    repository.add("other", config=config(resource("bandwidth", 1), delay_ms=1))
    repository.add("free", config=config())
    server = serve(repository, LIMITED)
    ask_all(server, [(model, float(i)) for i in range(8) for model in ("m", "other", "free")])
    for model in ("m", "other", "free"):
        assert stats(server, model)["inference_stats"]["success"]["count"] == 8
        assert stats(server, model)["inference_count"] == 8


def test_what_can_never_run_does_not_load(repository, serve):
    repository.add("m", config=CONFIG)
    flags = ("--rate-limit-resource=bandwidth:3", "--rate-limit-resource=licence:1:7")
    server = serve(repository, LIMITED, *flags, "--model-control-mode=explicit")
    limited = (
        'Resource count for "bandwidth" is limited to 3 which will prevent scheduling of one or more model instances, '
        "the minimum required count is 4"
    )
    assert limited in server.http.post("/v2/repository/models/m/load", {}).error
    repository.add("m", config=CONFIG.replace("count: 4", "count: 3"))
    assert server.http.post("/v2/repository/models/m/load", {}).status == 200
    repository.add("clash", config=config(resource("bandwidth", 1, is_global=True)))
    both = 'Resource "bandwidth" is present as both global and device-specific resource in the model configuration.'
    assert both in server.http.post("/v2/repository/models/clash/load", {}).error
    ask_all(server, [("m", float(i)) for i in range(10)])


def test_off_is_the_default_and_says_so(repository, serve):
    repository.add("m", config=CONFIG)
    server = serve(repository, "--rate-limit-resource=bandwidth:1")
    ask_all(server, [("m", 1.0)])
    assert re.search(r"instance_group 'm_0' rate_limiter is ignored: the rate limiter is off", server.log_text())


@pytest.mark.parametrize(
    "flag, text",
    [
        ("--rate-limit=often", "invalid argument for --rate-limit"),
        (
            "--rate-limit-resource=R1",
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            "Got R1",
        ),
    ],
)
def test_wrong_flags(repository, flag, text):
    command = [str(binary()), "serve", "--model-repository", str(repository.path), flag]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and text in done.stdout + done.stderr
