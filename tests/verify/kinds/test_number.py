from collections import Counter
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.verify.kinds.number import VERIFIER
from brimful.verify.numbers import read_number


@pytest.mark.parametrize("reference", [120, 120.0, "120", "1,200", "#### 5", "3/4", 1e22])
def test_numbers_of_any_kind_are_references(reference: object) -> None:
    VERIFIER.check(reference)


@pytest.mark.parametrize("reference", ["Paris", float("nan"), float("inf"), "1 or 2"])
def test_what_is_no_number_is_no_reference(reference: object, refuses: Refuses) -> None:
    with refuses(ValueError):
        VERIFIER.check(reference)


def test_every_answer_of_gsm8k_is_right_about_itself(shared_data: Path) -> None:
    """The test split: 1319 solutions that end with `#### NUMBER`."""
    import json

    answers = [
        json.loads(line)["answer"]
        for line in (shared_data / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert VERIFIER.verify is not None
    assert Counter(
        VERIFIER.verify(answer, answer.rpartition("####")[2]).status for answer in answers
    ) == {"correct": 1319}
    assert read_number(answers[0]).text == "18"
