import gzip
import json
from pathlib import Path

import pytest

from brimful.verify.judge import judge
from brimful.verify.kinds.humaneval import VERIFIER
from brimful.verify.sandbox import Sandbox

ROW = VERIFIER.examples[0].reference


def test_real_problems_accept_their_own_solutions(shared_data: Path, sandbox: Sandbox) -> None:
    text = gzip.decompress((shared_data / "human_eval" / "HumanEval.jsonl.gz").read_bytes()).decode(
        "utf-8"
    )
    rows = [json.loads(line) for line in text.splitlines()][:164:40]
    for row in rows:
        VERIFIER.check(row)
    verdicts = judge(VERIFIER, [row["canonical_solution"] for row in rows], rows, sandbox)
    assert [verdict and verdict.status for verdict in verdicts] == ["correct"] * len(rows)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("text", "is a row with"),
        ({}, "without prompt, test, entry_point"),
        ({**ROW, "test": "def ("}, "tests are no Python"),
    ],
)
def test_a_row_that_makes_no_tests_is_refused(row: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        VERIFIER.check(row)
