"""Intervals hold what they promise."""

import numpy as np
import pytest
from fixture_types import Refuses

from brimful.base.intervals import wilson_interval
from brimful.evaluation.stats import (
    bootstrap_interval,
    example_interval,
    mean_interval,
    paired_difference,
    perplexity_of,
    sign_flip_p_value,
)


def test_the_interval_holds_the_true_ratio_about_95_times_in_100() -> None:
    generator = np.random.default_rng(0)
    held = 0
    for repetition in range(200):
        weights_N = generator.integers(1, 65, 120)
        sums_N = weights_N * generator.gamma(4.0, 0.75, 120)
        interval = mean_interval(sums_N, weights_N, seed=repetition)
        assert interval is not None
        held += interval.low <= 3.0 <= interval.high
    assert 0.88 <= held / 200 <= 0.99


def test_the_interval_of_equal_weights_is_that_of_the_normal_approximation() -> None:
    sums_N = np.random.default_rng(1).normal(5.0, 2.0, 900)
    interval = mean_interval(sums_N, np.ones(900), resamples=4000)
    error = sums_N.std(ddof=1) / np.sqrt(900)
    assert interval is not None
    assert [interval.low, interval.high] == pytest.approx(
        [sums_N.mean() - 1.96 * error, sums_N.mean() + 1.96 * error], abs=0.1 * error
    )


def test_the_same_seed_gives_the_same_interval() -> None:
    sums_N, weights_N = np.random.default_rng(2).random((2, 50))
    assert mean_interval(sums_N, weights_N, seed=4) == mean_interval(sums_N, weights_N, seed=4)
    assert mean_interval(sums_N, weights_N, seed=4) != mean_interval(sums_N, weights_N, seed=5)


def test_windows_that_resemble_their_neighbours_widen_the_interval() -> None:
    """20 windows a document, all alike: windows count for much less than their number, blocks know
    it.
    """
    sums_N = np.repeat(np.random.default_rng(3).normal(5.0, 1.0, 100), 20)
    alone, blocked = (
        mean_interval(sums_N, np.ones(2000), max_blocks=blocks) for blocks in (2000, 100)
    )
    assert alone is not None
    assert blocked is not None
    assert 3.5 < (blocked.high - blocked.low) / (alone.high - alone.low) < 5.5


@pytest.mark.parametrize(
    "sums", [[], [3.0], [3.0, float("nan"), 2.0]], ids=["nothing", "one window", "NaN"]
)
def test_where_nothing_can_be_said_there_is_no_interval(sums: list[float]) -> None:
    assert mean_interval(sums, np.ones(len(sums))) is None


def test_windows_without_tokens_change_nothing() -> None:
    sums_N, weights_N = np.random.default_rng(6).random((2, 40))
    assert mean_interval([*sums_N, 0.0, 0.0], [*weights_N, 0.0, 0.0]) == mean_interval(
        sums_N, weights_N
    )


def test_an_interval_scales_into_another_unit() -> None:
    interval = mean_interval([1.0, 2.0, 4.0], [1, 1, 1])
    assert interval is not None
    assert (interval.scaled(2).low, interval.scaled(2).high) == (
        2 * interval.low,
        2 * interval.high,
    )


def test_pairing_sees_a_small_difference_that_two_intervals_do_not() -> None:
    generator = np.random.default_rng(7)
    weights_N = np.full(400, 64.0)
    hard_N = generator.normal(200.0, 40.0, 400)
    better_N = hard_N - 2.0 + generator.normal(0, 2.0, 400)
    first, second = mean_interval(better_N, weights_N), mean_interval(hard_N, weights_N)
    assert first is not None
    assert second is not None
    assert first.high > second.low
    paired = paired_difference(better_N, hard_N, weights_N)
    assert paired.difference == pytest.approx(-2.0 / 64, abs=0.005)
    assert paired.interval is not None
    assert paired.interval.high < 0
    assert paired.p_value is not None
    assert paired.p_value < 0.01


def test_equal_runs_are_not_told_apart() -> None:
    generator = np.random.default_rng(8)
    noise_N = generator.normal(0, 1, 300)
    paired = paired_difference(200 + noise_N - noise_N.mean(), np.full(300, 200.0), np.ones(300))
    assert paired.interval is not None
    assert paired.interval.low < 0 < paired.interval.high
    assert paired.p_value is not None
    assert paired.p_value > 0.5


def test_the_difference_of_a_run_with_itself_is_0_with_p_1() -> None:
    paired = paired_difference([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1, 1, 1])
    assert (paired.difference, paired.p_value) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("won", "lost", "exact"), [(4, 0, 0.125), (6, 0, 0.03125), (9, 1, 0.021484), (5, 5, 1.0)]
)
def test_of_passes_and_failures_the_p_value_is_that_of_mcnemars_exact_test(
    won: int, lost: int, exact: float
) -> None:
    """Twice the binomial tail; a bootstrap calls four of 164 problems a real difference."""
    first_N = [1.0] * (won + 50) + [0.0] * (lost + 104)
    second_N = [0.0] * won + [1.0] * 50 + [1.0] * lost + [0.0] * 104
    paired = paired_difference(first_N, second_N, np.ones(len(first_N)), resamples=20_000)
    assert paired.p_value == pytest.approx(exact, abs=0.008)


def test_chance_alone_gets_below_5_percent_about_5_times_in_100() -> None:
    generator = np.random.default_rng(11)
    p_values = [
        sign_flip_p_value(generator.choice([-1.0, 0.0, 1.0], 40, p=[0.1, 0.8, 0.1]), 400)
        for _ in range(400)
    ]
    assert np.mean([p_value < 0.05 for p_value in p_values]) < 0.07


def test_one_window_has_a_difference_but_no_interval() -> None:
    paired = paired_difference([3.0], [2.0], [2.0])
    assert (paired.difference, paired.interval, paired.p_value) == (0.5, None, None)


def test_different_windows_cannot_be_compared(refuses: Refuses) -> None:
    with refuses(ValueError):
        paired_difference([1.0, 2.0], [1.0], [1.0, 1.0])


def test_a_loss_beyond_floating_point_has_infinite_perplexity() -> None:
    assert perplexity_of(0.0) == 1.0
    assert perplexity_of(1000.0) == float("inf")


def test_a_share_with_few_of_a_kind_gets_wilsons_interval_and_any_other_mean_a_bootstrap() -> None:
    many, few = [1.0] * 40 + [0.0] * 20, [1.0] * 55 + [0.0] * 5
    assert example_interval(many, is_share=True) == (mean_interval(many, np.ones(60)), "bootstrap")
    assert example_interval(few, is_share=True) == (wilson_interval(55, 60), "Wilson")
    assert example_interval(few, is_share=False)[1] == "bootstrap"
    assert example_interval([1.0], is_share=True)[0] is None
    assert example_interval([], is_share=True)[0] is None


def test_the_bootstrap_of_a_statistic_agrees_with_that_of_the_mean() -> None:
    values_N = np.random.default_rng(9).normal(3, 1, 80)
    assert bootstrap_interval(
        lambda numbers_N: float(values_N[numbers_N].mean()), 80
    ) == mean_interval(values_N, np.ones(80))
    assert bootstrap_interval(lambda _: 1.0, 1) is None
