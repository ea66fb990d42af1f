"""Which records of a journal compare a tuned model with its base."""

import dataclasses

import pytest

from brimful.base.types import JsonDict
from brimful.training.base_comparison import BaseComparison

WHOLE = BaseComparison(lambda model: {}, 1.0, None)
HALF = BaseComparison(lambda model: {}, 0.5, None)
VALUES = {"loss": 2.0, "tokens": 7, "seconds": 0.1, "batch_sizes": [4]}


def test_a_record_says_whose_score_it_is_and_of_what() -> None:
    assert HALF.record("base", 0, VALUES) == {
        "kind": "base",
        "step": 0,
        "model": "base",
        "share": 0.5,
        "max_sequences": None,
        "loss": 2.0,
        "tokens": 7,
        "seconds": 0.1,
    }


@pytest.mark.parametrize(
    ("scored", "expected"),
    [(HALF, True), (WHOLE, False), (dataclasses.replace(HALF, max_sequences=3), False)],
    ids=["same", "other-share", "other-number"],
)
def test_a_score_is_taken_over_if_it_is_of_the_same_sequences(
    scored: BaseComparison, expected: bool
) -> None:
    records = [{"kind": "step", "step": 1}, scored.record("base", 0, VALUES)]

    assert (HALF.of_base(records) is not None) is expected


def test_the_tuned_model_is_scored_once_and_only_on_a_part_of_the_sequences() -> None:
    base: JsonDict = HALF.record("base", 0, VALUES)

    assert HALF.lacks_tuned([base])
    assert not HALF.lacks_tuned([])
    assert not HALF.lacks_tuned([base, HALF.record("tuned", 8, VALUES)])
    assert not WHOLE.lacks_tuned([WHOLE.record("base", 0, VALUES)])
