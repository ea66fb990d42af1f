"""Kept are the first correct samples with distinct paths, whatever order they came in."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brimful.base.types import JsonDict
from brimful.selection.choose import SelectionRules, choose, obstacle, prefix, settled
from brimful.selection.sample import JudgedSample

RULES = SelectionRules(samples_per_prompt=6, keep_per_prompt=2)
EARLY = replace(RULES, stop_early=True)


def fates(samples: Any, rules: SelectionRules = RULES) -> list[Any]:
    return [sample.fate for sample in choose(samples, rules)]


def test_the_first_distinct_correct_samples_are_kept(sample: Any) -> None:
    drawn = [
        sample(0, status="wrong"),
        sample(1, path="a"),
        sample(2, path="a"),
        sample(3, path="b"),
        sample(4, path="c"),
        sample(5, path="c"),
    ]

    assert fates(drawn) == ["wrong", "kept", "repeated-path", "kept", "enough", "repeated-path"]


def test_the_order_of_arrival_does_not_matter(sample: Any) -> None:
    drawn = [sample(number, path="ab"[number % 2]) for number in range(6)]
    expected = choose(drawn, RULES)

    for seed in range(5):
        random.Random(seed).shuffle(drawn)
        assert choose(drawn, RULES) == expected


@pytest.mark.parametrize(
    ("changes", "fate"),
    [
        ({"finish": "length"}, "unended"),
        ({"finish": "length", "status": "unparsed"}, "unended"),
        ({"status": "unparsed"}, "unparsed"),
        ({"status": "wrong", "tokens": 1}, "wrong"),
        ({"tokens": 4}, "too-short"),
        ({"contaminated_by": "test 1"}, "contaminated"),
        ({"tokens": 5}, None),
        ({"tokens": 20, "finish": "stop"}, None),
    ],
)
def test_what_may_not_be_kept_says_why(sample: Any, changes: JsonDict, fate: str | None) -> None:
    rules = replace(RULES, min_answer_tokens=5)

    assert obstacle(sample(**changes), rules) == fate
    assert fates([sample(**changes)], rules) == [fate or "kept"]


def test_a_refused_sample_does_not_take_the_path_from_a_later_one(sample: Any) -> None:
    assert fates([sample(0, path="a", finish="length"), sample(1, path="a")]) == ["unended", "kept"]


def test_without_an_early_stop_a_question_is_settled_when_all_its_samples_are_there(
    sample: Any,
) -> None:
    drawn = [sample(number) for number in range(6)]

    assert not settled(drawn[:5], RULES)
    assert settled(drawn, RULES)
    assert settled(reversed(drawn), RULES)


def test_with_an_early_stop_a_question_is_settled_when_its_places_are_filled_without_a_gap(
    sample: Any,
) -> None:
    assert settled([sample(0), sample(1)], EARLY)
    assert not settled([sample(0), sample(2)], EARLY), (
        "number 1 may still be kept in place of number 2"
    )
    assert not settled([sample(0, path="a"), sample(1, path="a")], EARLY)
    assert settled([sample(number, status="wrong") for number in range(6)], EARLY)


def test_what_was_drawn_beyond_the_deciding_sample_is_cut(sample: Any) -> None:
    drawn = [sample(0), sample(1, status="wrong"), sample(2), sample(3), sample(4)]

    assert [chosen.number for chosen in prefix(drawn, EARLY)] == [0, 1, 2]
    assert [chosen.number for chosen in prefix(drawn, RULES)] == [0, 1, 2, 3, 4]
    assert [chosen.number for chosen in prefix(drawn[1:], EARLY)] == []


def test_samples_beyond_the_most_are_cut_so_that_fewer_may_be_asked_for_later(sample: Any) -> None:
    drawn = [sample(number) for number in range(6)]

    assert prefix(drawn, replace(RULES, samples_per_prompt=4)) == choose(drawn[:4], RULES)


def test_cutting_again_changes_nothing_and_later_samples_change_nothing_of_a_settled_question(
    sample: Any,
) -> None:
    for seed in range(50):
        draw = random.Random(seed)
        drawn = [
            sample(number, path=draw.choice("abc"), status=draw.choice(["correct", "wrong"]))
            for number in range(6)
        ]
        first = draw.sample(drawn, 4)
        cut = prefix(first, EARLY)
        assert prefix(cut, EARLY) == cut
        if settled(first, EARLY):
            assert prefix(drawn, EARLY) == cut


def test_a_path_that_an_earlier_round_kept_is_a_repetition(
    sample: Callable[..., JudgedSample],
) -> None:
    """And takes none of the places."""
    samples = [sample(0, path="old"), sample(1, path="new"), sample(2, path="other")]
    fates = [
        each.fate
        for each in choose(
            samples, SelectionRules(samples_per_prompt=3, keep_per_prompt=1), known={"old"}
        )
    ]
    assert fates == ["repeated-path", "kept", "enough"]
