"""ONNX's own backend cases, all of those in the onnx package, against the list of known failures."""

import subprocess
from pathlib import Path

import onnx.backend.test
import pytest

from support.server import ROOT, binary

DATA = Path(onnx.backend.test.__file__).parent / "data"
KINDS = ["node", "simple", "pytorch-converted", "pytorch-operator"]
pytestmark = pytest.mark.halimede_only("runs `halimede check`")


EXPECTED = ROOT / "tests" / "onnx" / "expected_failures.txt"


def check(expected, *options):
    command = [binary(), "check", *(DATA / kind for kind in KINDS), "--expected-failures", expected, *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("passes", ["on", "off"])
def test_only_the_listed_cases_fail(passes):
    check(EXPECTED, "--passes", passes)


# The rounding of the factors is up to 2⁻⁸ of each in bf16, and half a step of the range of all in 8 bits.
@pytest.mark.parametrize("precision, tolerance", [("balanced", "0.01"), ("fast", "0.02")])
def test_no_other_case_fails_in_fewer_bits(precision, tolerance, tmp_path):
    # What fails exactly for more than its last digits may pass within these tolerances.
    lines = EXPECTED.read_text().splitlines()
    listed = tmp_path / "expected_failures.txt"
    listed.write_text("\n".join(f"?{line}" if line.startswith("test_") else line for line in lines) + "\n")
    check(listed, "--precision", precision, "--rtol", tolerance, "--atol", tolerance)
