"""ONNX's own backend cases, all of those in the onnx package, against the list of known failures."""

import subprocess
from pathlib import Path

import onnx.backend.test
import pytest

from support.server import ROOT, binary

DATA = Path(onnx.backend.test.__file__).parent / "data"
KINDS = ["node", "simple", "pytorch-converted", "pytorch-operator"]
pytestmark = pytest.mark.halimede_only("runs `halimede check`")


@pytest.mark.parametrize("passes", ["on", "off"])
def test_only_the_listed_cases_fail(passes):
    command = [binary(), "check", *(DATA / kind for kind in KINDS), "--passes", passes]
    command += ["--expected-failures", ROOT / "tests" / "onnx" / "expected_failures.txt"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
