"""Corrections for many comparisons, and spreads over seeds."""

import math

import pytest

from brimful.evaluation.several import holm, seeds_difference, seeds_interval


def test_holm_multiplies_the_smallest_most_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_one_comparison_needs_no_correction() -> None:
    assert holm([0.04]) == [0.04]


def test_the_mean_over_seeds_has_students_interval() -> None:
    interval = seeds_interval([1.0, 2.0, 3.0])

    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx(
        (2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3))
    )


@pytest.mark.parametrize(
    ("count", "t"), [(2, 12.706), (11, 2.228), (12, 2.201), (31, 2.042), (1001, 1.962)]
)
def test_the_interval_narrows_as_students_t_does(count: int, t: float) -> None:
    values = [float(number % 2) for number in range(count)]
    interval = seeds_interval(values)

    assert interval is not None
    mean = sum(values) / count
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    assert (interval.high - mean) / deviation * math.sqrt(count) == pytest.approx(t, abs=0.003)


def test_one_seed_says_nothing_about_seeds() -> None:
    assert seeds_interval([1.0]) is None
    assert seeds_difference([1.0], [2.0, 3.0]) is None


def test_the_difference_of_two_variants_over_seeds_is_welchs() -> None:
    interval = seeds_difference([10.0, 12.0], [1.0, 3.0])

    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx(
        (9 - 4.302653 * math.sqrt(2), 9 + 4.302653 * math.sqrt(2))
    )


def test_a_model_that_no_seed_changes_leaves_the_spread_of_the_other() -> None:
    interval, alone = seeds_difference(4.0, [1.0, 2.0, 3.0]), seeds_interval([1.0, 2.0, 3.0])

    assert interval is not None
    assert alone is not None
    assert (interval.low, interval.high) == pytest.approx((4 - alone.high, 4 - alone.low))
    assert seeds_difference(4.0, [1.0]) is None


def test_seeds_that_agree_exactly_leave_no_spread() -> None:
    interval = seeds_difference([2.0, 2.0], [1.0, 1.0])

    assert interval is not None
    assert (interval.low, interval.high) == (1.0, 1.0)
