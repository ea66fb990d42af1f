"""What a report and a stop need to know of a drawing, counted by hand."""

import json
from typing import Any

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.base.intervals import wilson_interval
from brimful.selection.choose import SelectionRules, choose
from brimful.selection.sample import JudgedSample, SampledPrompt
from brimful.selection.statistics import (
    KindCounts,
    Lengths,
    RejectionReason,
    Share,
    Statistics,
    refuse_nothing_kept,
    statistics_of,
)

RULES = SelectionRules(samples_per_prompt=4, keep_per_prompt=2)
QUESTIONS = [
    SampledPrompt("a", "What is a?", (1,), "letters"),
    SampledPrompt("b", "What is b?", (1,), "letters"),
    SampledPrompt("1", "What is 1?", (1,), "digits"),
]


@pytest.fixture(scope="module")
def counted(sample: Any) -> list[JudgedSample]:
    """Asked a: three distinct correct ones and a repeated one; b: one correct; 1: none."""
    a = [
        sample(number, question="a", tokens=10 * (number + 1), path="xyzz"[number])
        for number in range(4)
    ]
    b = [
        sample(0, question="b"),
        sample(1, question="b", finish="length"),
        sample(2, question="b", status="wrong", detail="off", completion="x" * 500),
    ]
    of_1 = [
        sample(number, question="1", status="unparsed", detail="no final answer")
        for number in range(3)
    ]
    return [chosen for drawn in (a, b, of_1) for chosen in choose(drawn, RULES)]


@pytest.fixture(scope="module")
def statistics(counted: list[JudgedSample]) -> Statistics:
    return statistics_of(QUESTIONS, counted, RULES)


def test_samples_are_counted_by_fate(statistics: Statistics) -> None:
    assert (statistics.questions, statistics.samples, statistics.kept) == (3, 10, 3)
    assert {fate: count for fate, count in statistics.fates.items() if count} == {
        "kept": 3,
        "enough": 1,
        "repeated-path": 1,
        "unended": 1,
        "wrong": 1,
        "unparsed": 3,
    }
    assert sum(statistics.fates.values()) == 10


def test_questions_are_counted_by_what_they_gave(statistics: Statistics) -> None:
    assert statistics.questions_by_kept == [1, 1, 1]
    assert statistics.questions_by_paths == [1, 1, 0, 1]
    assert statistics.questions_by_correct == [1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1], (
        "none, two of three, all"
    )


def test_shares_have_the_interval_of_the_evaluation(statistics: Statistics) -> None:
    share = statistics.correct
    assert share is not None
    assert (share.count, share.total, share.share) == (6, 10, 0.6)
    for count in (0, 1, 6, 10):
        drawn = [
            JudgedSample(
                "a", n, "", "stop", 1, 1, None, "", "correct" if n < count else "wrong", "", str(n)
            )
            for n in range(10)
        ]
        found = statistics_of(QUESTIONS[:1], choose(drawn, RULES), RULES).correct
        assert isinstance(found, Share)
        interval = wilson_interval(count, 10)
        assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert statistics.answered is not None
    assert statistics.answered.count == 7


def test_kinds_are_counted_apart(statistics: Statistics) -> None:
    letters, digits = statistics.kinds["letters"], statistics.kinds["digits"]

    assert (letters.questions, letters.questions_with_kept, letters.kept) == (2, 2, 3)
    assert isinstance(digits, KindCounts)
    assert (digits.questions, digits.questions_with_kept, digits.kept) == (1, 0, 0)
    assert letters.correct is not None
    assert (letters.correct.count, letters.correct.total) == (6, 7)


def test_lengths_are_those_of_all_and_of_kept_samples(statistics: Statistics) -> None:
    assert statistics.lengths == Lengths(minimum=10, median=10, percentile_90=30, maximum=40)
    assert statistics.lengths_kept == Lengths(minimum=10, median=10, percentile_90=20, maximum=20)


def test_reasons_come_by_frequency_with_an_example_cut_short(statistics: Statistics) -> None:
    assert statistics.reasons[0] == RejectionReason(
        "unparsed", "no final answer", 3, "What is 1?", "text 0"
    )
    wrong = next(reason for reason in statistics.reasons if reason.fate == "wrong")
    assert wrong.detail == "off"
    assert wrong.completion == "x" * 157 + "..."
    assert len(statistics.reasons) == 5


def test_statistics_are_a_json_value(statistics: Statistics) -> None:
    record = json.loads(json.dumps(statistics.to_json(), allow_nan=False))
    assert record["fates"]["kept"] == 3
    assert record["kinds"]["letters"]["correct"]["count"] == 6


def test_nothing_kept_stops_with_the_reasons_and_what_helps(
    sample: Any, statistics: Statistics, snapshot: SnapshotAssertion
) -> None:
    refuse_nothing_kept(statistics)

    drawn = [
        sample(0, question="a", finish="length", completion="and so on"),
        sample(1, question="a", finish="length"),
        sample(2, question="a", status="wrong", detail="off"),
    ]
    with pytest.raises(DataError) as stopped:
        refuse_nothing_kept(statistics_of(QUESTIONS, choose(drawn, RULES), RULES))
    told = str(stopped.value).splitlines()
    assert told == snapshot


def test_answers_that_repeat_themselves_are_not_told_to_be_longer(
    sample: Any, snapshot: SnapshotAssertion
) -> None:
    loop = " ".join(f"{number} + 1 = {number + 1}." for number in range(243, 263))
    drawn = [sample(number, question="a", finish="length", completion=loop) for number in range(3)]
    with pytest.raises(DataError) as stopped:
        refuse_nothing_kept(statistics_of(QUESTIONS, choose(drawn, RULES), RULES))
    told = str(stopped.value).splitlines()
    assert told == snapshot


def test_no_samples_at_all_are_no_error_until_they_are_to_be_trained_on(refuses: Refuses) -> None:
    empty = statistics_of([], [], RULES)

    assert (empty.samples, empty.correct, empty.lengths, empty.questions_by_kept) == (
        0,
        None,
        None,
        [0, 0, 0],
    )
    with refuses(DataError):
        refuse_nothing_kept(empty)
