import json
from pathlib import Path

import pytest

from brimful.verify.judge import judge
from brimful.verify.kinds.mbpp import VERIFIER
from brimful.verify.sandbox import Sandbox

ROW = VERIFIER.examples[0].reference


def test_real_problems_accept_their_own_solutions(shared_data: Path, sandbox: Sandbox) -> None:
    rows = [
        json.loads(line)
        for line in (shared_data / "mbpp" / "mbpp.jsonl").read_text(encoding="utf-8").splitlines()
    ][:974:200]
    for row in rows:
        VERIFIER.check(row)
    verdicts = judge(
        VERIFIER, [f"Here you are:\n```python\n{row['code']}\n```" for row in rows], rows, sandbox
    )
    assert [verdict and verdict.status for verdict in verdicts] == ["correct"] * len(rows)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (7, "is a row with"),
        ({"code": ""}, "without test_list"),
        ({**ROW, "test_list": ["assert ("]}, "are no Python"),
        ({**ROW, "test_list": []}, "no tests"),
    ],
)
def test_a_row_that_makes_no_tests_is_refused(row: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        VERIFIER.check(row)
