"""Every recorded request gets the answer of a real tritonserver 2.51.0, to the byte."""

import pytest

from support import recorded

CASES = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted(recorded.FOLDER.glob("http_*.json"))
    for case in recorded.load(path)
]


@pytest.mark.parametrize("case", CASES)
def test_answer(http, case):
    assert recorded.send(http, case) == recorded.expected(case)


def test_every_case_has_an_answer():
    assert len(CASES) > 200
    for case in CASES:
        assert "status" in case.values[0], f"no answer recorded for {case.id}"
