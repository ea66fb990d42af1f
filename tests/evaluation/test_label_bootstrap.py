"""Intervals of metrics hold what they promise, at the edges too, and differences are taken pair by
pair.
"""

import numpy as np
import pytest

from brimful.base.arrays import Bools
from brimful.base.intervals import wilson_interval
from brimful.evaluation import label_bootstrap
from brimful.evaluation.label_bootstrap import (
    BootstrapResult,
    f1_interval,
    interval_of_draws,
    measure,
    num_resamples,
    share_interval,
)
from brimful.evaluation.label_metrics import area_statistic, decision_statistic

ACCURACY, POSITIVES = 0.8, 0.3


def _true_and_given(
    num: int, accuracy: float, generator: np.random.Generator
) -> tuple[Bools, Bools]:
    true_E = generator.random(num) < POSITIVES
    given_E = true_E ^ (generator.random(num) > accuracy)
    return np.column_stack([~true_E, true_E]), np.column_stack([~given_E, given_E])


def _measured(num: int, accuracy: float = ACCURACY, seed: int = 0) -> BootstrapResult:
    true_EC, given_EC = _true_and_given(num, accuracy, np.random.default_rng(seed))
    return measure(num, [decision_statistic(true_EC, given_EC)], [], num_rankings=0)


def test_intervals_hold_the_true_value_about_95_times_in_100() -> None:
    """True F1: 2 x share of hits / (share given + share with the label)."""
    true_f1 = (
        2
        * POSITIVES
        * ACCURACY
        / (POSITIVES + POSITIVES * ACCURACY + (1 - POSITIVES) * (1 - ACCURACY))
    )
    held = {"accuracy": 0, "f1": 0}
    for seed in range(150):
        measured = _measured(150, seed=seed)
        for name, value in (("accuracy", ACCURACY), ("f1", true_f1)):
            interval = measured.score(name, label=1).interval
            assert interval is not None
            held[name] += interval.low <= value <= interval.high

    assert all(0.89 <= count / 150 <= 0.99 for count in held.values()), held


def test_with_few_mistakes_the_interval_of_f1_still_holds_the_true_value() -> None:
    """Of 100 positives 1.5 are missed on average and 1.5 others are given the label; a bootstrap
    would say [1, 1] where it meets no mistake.
    """
    generator = np.random.default_rng(2)
    held = 0
    for _ in range(2000):
        missed, extra = generator.binomial(100, 0.015), generator.poisson(1.5)
        hits, misses = 100 - missed, missed + extra
        drawn_R = generator.binomial(hits + misses, hits / (hits + misses), 200)
        interval = f1_interval(hits, misses, 2 * drawn_R / (hits + misses + drawn_R))
        assert interval is not None
        held += interval.low <= 2 * 98.5 / (2 * 98.5 + 3.0) <= interval.high

    assert 0.93 <= held / 2000 <= 1.0


def test_shares_with_few_hits_or_misses_take_wilsons_interval() -> None:
    measured = _measured(60, accuracy=0.97, seed=4)
    score = measured.score("accuracy")

    assert score.value == pytest.approx(measured.values["right"] / 60)
    assert measured.values["right"] > 50
    assert score.interval == wilson_interval(float(measured.values["right"]), 60)


def test_the_bootstrap_error_of_a_share_is_the_binomial_one() -> None:
    interval = _measured(2000).score("accuracy").interval

    assert interval is not None
    assert interval.high - interval.low == pytest.approx(
        2 * 1.96 * np.sqrt(ACCURACY * (1 - ACCURACY) / 2000), rel=0.1
    )


def test_every_metric_of_a_resample_comes_from_the_same_examples_however_many_are_drawn_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = _measured(50)
    monkeypatch.setattr(label_bootstrap, "DRAWS_AT_ONCE", 50 * 7)
    parts = _measured(50)

    assert whole.draws["accuracy"].shape == (1000,)
    assert (whole.draws["examples"] == 50).all()
    assert (whole.draws["accuracy"] == whole.draws["right"] / 50).all()
    assert all(
        np.array_equal(draws, parts.draws[name], equal_nan=True)
        for name, draws in whole.draws.items()
    )


def test_areas_of_many_labels_are_drawn_fewer_times_from_the_same_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(label_bootstrap, "MAX_DRAWS", 50 * 1000)
    true_EC, given_EC = _true_and_given(50, ACCURACY, np.random.default_rng(0))
    scores_EC = given_EC + np.random.default_rng(1).random(given_EC.shape)
    statistics = [decision_statistic(true_EC, given_EC)]

    few = measure(50, statistics, [area_statistic(true_EC, scores_EC, 1)], num_rankings=4)
    all_ = measure(50, statistics, [area_statistic(true_EC, scores_EC, 1)], num_rankings=1)

    assert len(few.draws["accuracy"]) == len(all_.draws["roc_auc"]) == 1000
    assert len(few.draws["roc_auc"]) == 250
    assert (few.draws["roc_auc"] == all_.draws["roc_auc"][:250]).all()


def test_the_difference_of_paired_answers_is_narrower_than_of_unpaired_ones() -> None:
    """The second classifier repeats the first but for a few examples: what is hard for both
    cancels.
    """
    generator = np.random.default_rng(6)
    true_EC, given_EC = _true_and_given(400, ACCURACY, generator)
    changed_E = generator.random(400) < 0.03
    other_EC = np.where(changed_E[:, None], true_EC, given_EC)
    first = decision_statistic(true_EC, other_EC)
    measured = measure(
        400,
        [
            first,
            lambda w: {
                f"o.{name}": value
                for name, value in decision_statistic(true_EC, given_EC)(w).items()
            },
        ],
        [],
        num_rankings=0,
    )

    found = measured.differences(["accuracy", "f1"], positive=1, other="o.")

    for name in ("accuracy", "f1"):
        difference, own = found[name], measured.score(name, label=1)
        assert difference.interval is not None
        assert own.interval is not None
        assert difference.value == pytest.approx(
            (own.value or 0) - (measured.score(name, label=1, prefix="o.").value or 0)
        )
        assert (
            difference.interval.high - difference.interval.low
            < (own.interval.high - own.interval.low) / 2
        )


def test_classifiers_that_answer_alike_differ_by_nothing() -> None:
    true_EC, given_EC = _true_and_given(40, ACCURACY, np.random.default_rng(0))
    statistic = decision_statistic(true_EC, given_EC)
    measured = measure(
        40,
        [statistic, lambda w: {f"o.{name}": value for name, value in statistic(w).items()}],
        [],
        num_rankings=0,
    )

    assert measured.differences(["f1"], positive=1, other="o.")["f1"].to_json() == {
        "value": 0.0,
        "low": 0.0,
        "high": 0.0,
    }
    assert measured.differences(["f1", "accuracy"], positive=None, other="o.").keys() == {
        "accuracy"
    }


def test_a_perfect_ranking_has_no_bootstrap_interval() -> None:
    true_EC = np.repeat(np.eye(2, dtype=bool), 20, 0)
    measured = measure(40, [], [area_statistic(true_EC, true_EC.astype(float), 1)], num_rankings=1)

    assert measured.score("roc_auc").to_json() == {"value": 1.0, "low": None, "high": None}


def test_an_undefined_metric_has_neither_value_nor_interval() -> None:
    true_EC = np.tile([True, False], (30, 1))
    measured = measure(30, [decision_statistic(true_EC, true_EC)], [], num_rankings=0)

    assert measured.score("f1", label=1).to_json() == {"value": None, "low": None, "high": None}
    assert measured.score("recall", label=0).value == 1.0


def test_an_interval_needs_a_value_in_nearly_every_resample() -> None:
    draws_R = np.linspace(0, 1, 100)
    some_R, many_R = draws_R.copy(), draws_R.copy()
    some_R[::25] = np.nan
    many_R[::5] = np.nan

    assert interval_of_draws(some_R) is not None
    assert interval_of_draws(many_R) is None


@pytest.mark.parametrize("count", [0, 1])
def test_one_example_has_no_interval(count: int) -> None:
    true_EC = np.tile([True, False], (count, 1))
    measured = measure(count, [decision_statistic(true_EC, true_EC)], [], num_rankings=0)

    assert measured.score("accuracy").interval is None
    assert share_interval(count, count, np.ones(10)) is None


def test_large_sets_are_drawn_fewer_times() -> None:
    assert [num_resamples(count) for count in (10, 100_000, 200_000, 10_000_000)] == [
        1000,
        1000,
        500,
        200,
    ]


def test_the_same_seed_gives_the_same_draws() -> None:
    true_EC, given_EC = _true_and_given(50, ACCURACY, np.random.default_rng(0))
    first, same, other = (
        measure(50, [decision_statistic(true_EC, given_EC)], [], num_rankings=0, seed=seed).draws[
            "accuracy"
        ]
        for seed in (3, 3, 4)
    )

    assert (first == same).all()
    assert (first != other).any()
