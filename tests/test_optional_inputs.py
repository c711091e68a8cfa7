"""Optional inputs: which requests share a batch, and what flows through ensembles when some are not given."""

import sys

import numpy as np
import pytest

from support import models
from support.server import Server
from support.together import WAIT, executions, outputs, together

OPTIONAL = "".join(models.io("input", name, "FP32", [1], "optional: true") for name in ("INPUT0", "INPUT1"))
OUTPUTS = "".join(models.io("output", name, "FP32", [1]) for name in ("OUTPUT0", "OUTPUT1"))
BATCHED = "max_batch_size: 4\n" + OPTIONAL + OUTPUTS

# Gives the outputs whose inputs were given.
PYTHON = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        def given(request):
            return {number: pb_utils.get_input_tensor_by_name(request, f"INPUT{number}") for number in (0, 1)}

        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(f"OUTPUT{n}", array.as_numpy()) for n, array in given(request).items() if array is not None]
            )
            for request in requests
        ]
"""


def step(model, inputs, outputs):
    maps = [("input_map", one) for one in inputs.items()] + [("output_map", one) for one in outputs.items()]
    maps = " ".join(f'{kind} {{ key: "{key}" value: "{value}" }}' for kind, (key, value) in maps)
    return f'{{ model_name: "{model}" model_version: -1 {maps} }}'


def ensemble(*steps):
    return 'platform: "ensemble"\n' + BATCHED + f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}\n"


IN = {"INPUT0": "INPUT0", "INPUT1": "INPUT1"}
OUT = {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"}


@pytest.fixture(scope="module")
def served(tmp_path_factory, repository_for):
    repository = models.Repository(tmp_path_factory.mktemp("optional"))
    for name in ("same", "mixed", "member"):
        repository.add(name, config='backend: "identity"\n' + BATCHED + WAIT)
    repository.add("plain", config='backend: "identity"\n' + BATCHED)
    repository.add("python", config='backend: "python"\n' + BATCHED)
    (repository.path / "python" / "1" / "model.py").write_text(PYTHON)
    repository.add("around", config=ensemble(step("member", IN, OUT)))
    repository.add("pipeline", config=ensemble(
        step("plain", IN, {"OUTPUT0": "between"}), step("plain", {"INPUT1": "between"}, OUT)))  # fmt: skip
    repository.add("connected", config=ensemble(
        step("python", IN, {"OUTPUT0": "first", "OUTPUT1": "second"}), step("python", {"INPUT0": "first", "INPUT1": "second"}, OUT)))  # fmt: skip
    with Server([repository_for(repository.path)], f"--backend-config=python,interpreter={sys.executable}") as server:
        yield server


def given(*numbers, value=1.0):
    return {f"INPUT{number}": np.full((1, 1), value + number, np.float32) for number in numbers}


def test_requests_with_the_same_inputs_share_a_batch(served):
    requests = [given(1, value=float(number)) for number in range(4)]
    found = together(served, "same", requests)
    for number, (result, error) in enumerate(found):
        assert error is None
        assert result.as_numpy("OUTPUT1") == number + 1
        assert result.as_numpy("OUTPUT0") == 0
    assert executions(served, "same") == (1, 4)


def test_requests_with_other_inputs_do_not(served):
    """One that gives other inputs ends the batch before it; the last four are a full one."""
    requests = [given(0), given(1), given(1), given(0), *[given(0, 1)] * 4]
    for got, arrays in zip(outputs(served, "mixed", requests, "OUTPUT0"), requests, strict=True):
        assert got == arrays.get("INPUT0", 0)
    assert executions(served, "mixed") == (4, 8)


def test_members_of_ensembles_batch_by_what_was_given(served):
    assert [got.item() for got in outputs(served, "around", [given(0)] * 4, "OUTPUT0")] == [1.0] * 4
    assert executions(served, "member") == (1, 4)
    assert executions(served, "around") == (4, 4)


def test_a_step_may_leave_optional_inputs_unconnected(served):
    ((result, error),) = together(served, "pipeline", [given(0, 1)])
    assert error is None
    assert result.as_numpy("OUTPUT0") == 0 and result.as_numpy("OUTPUT1") == 1


def test_what_a_step_does_not_give_is_left_out_of_the_next(served):
    """The second tensor is connected, but not there."""
    ((result, error),) = together(served, "connected", [given(0)])
    assert error is None
    assert result.as_numpy("OUTPUT0") == 1 and result.as_numpy("OUTPUT1") is None
