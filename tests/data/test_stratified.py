"""Held-out rows have the mix of the rest, equal texts stay together, and another row moves few."""

import random
from collections import Counter

import pytest

from brimful.data.stratified import STRATIFIED_SEED, hold_out


def made(count: int, shares: dict[str, float], seed: int = 0) -> tuple[list[str], list[str]]:
    drawn = random.Random(seed)
    return [f"text {number}" for number in range(count)], drawn.choices(
        list(shares), list(shares.values()), k=count
    )


@pytest.mark.parametrize("count", [30, 1000, 5574])
def test_each_label_has_its_share_in_each_split_to_within_one_row(count: int) -> None:
    """Where every text stands once."""
    texts, labels = made(count, {"ham": 0.866, "spam": 0.134})
    splits = hold_out(texts, labels, validation=0.1, test=0.15)
    found, totals = Counter(zip(labels, splits, strict=True)), Counter(labels)
    for label, total in totals.items():
        for split, share in (("validation", 0.1), ("test", 0.15)):
            assert abs(found[label, split] - share * total) <= 1
            assert found[label, split] >= 1


def test_equal_texts_stay_together_and_the_shares_are_kept_to_within_one_group() -> None:
    """A text that stands there 300 times goes where it does not overshoot."""
    drawn = random.Random(1)
    texts = ["the same"] * 300 + [f"text {drawn.randrange(400)}" for _ in range(1000)]
    labels = ["a"] * 1300
    splits = hold_out(texts, labels, validation=0.1, test=0.1)
    assert (
        max(
            len({split for text, split in zip(texts, splits, strict=True) if text == one})
            for one in set(texts)
        )
        == 1
    )
    largest = max(count for text, count in Counter(texts).items() if text != "the same")
    assert all(abs(Counter(splits)[split] - 130) <= largest for split in ("validation", "test"))


def test_a_text_with_several_labels_counts_for_the_first() -> None:
    """It is one group."""
    assert (
        len(
            set(
                hold_out(
                    ["x", "x", *(f"{number}" for number in range(50))],
                    ["a", "b", *"ab" * 25],
                    0.5,
                    0.0,
                )[:2]
            )
        )
        == 1
    )


def test_a_rare_label_goes_to_training_first_then_validation_then_test() -> None:
    """One text, two texts, three texts."""
    for count, expected in (
        (1, {"train": 1}),
        (2, {"train": 1, "validation": 1}),
        (3, {"train": 1, "validation": 1, "test": 1}),
    ):
        texts, labels = made(1000, {"common": 1.0})
        splits = hold_out(
            [*texts, *(f"rare {number}" for number in range(count))],
            [*labels, *["rare"] * count],
            0.05,
            0.05,
        )
        assert Counter(splits[1000:]) == expected


def test_nothing_is_held_out_for_a_share_of_nothing() -> None:
    """A source may bring its own validation."""
    texts, labels = made(200, {"a": 0.5, "b": 0.5})
    assert set(hold_out(texts, labels, 0.0, 0.2)) == {"train", "test"}
    assert set(hold_out(texts, labels, 0.2, 0.0)) == {"train", "validation"}


def test_the_same_rows_are_held_out_every_time_and_in_every_order() -> None:
    """The text decides."""
    texts, labels = made(500, {"a": 0.7, "b": 0.3})
    order = random.Random(2).sample(range(500), 500)
    first = hold_out(texts, labels, 0.1, 0.1)
    mixed = hold_out(
        [texts[number] for number in order], [labels[number] for number in order], 0.1, 0.1
    )
    assert [first[number] for number in order] == mixed
    assert first != hold_out(texts, labels, 0.1, 0.1, seed=STRATIFIED_SEED + 1)


def test_another_row_moves_few_others() -> None:
    """At most one at each border of its label."""
    texts, labels = made(2000, {"a": 0.7, "b": 0.3})
    before = hold_out(texts, labels, 0.1, 0.1)
    for number in range(20):
        after = hold_out([*texts, f"another {number}"], [*labels, "a"], 0.1, 0.1)[:2000]
        assert sum(one != other for one, other in zip(before, after, strict=True)) <= 3
