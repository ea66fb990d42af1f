"""The first line of a plan: whether it fits, memory, time and cost, or what would make it fit."""

import dataclasses
from collections.abc import Callable

import pytest
from rich.console import Console
from small_plans import HUGE, SMALL
from syrupy.assertion import SnapshotAssertion

from brimful.chains.plans import survey
from brimful.planning.plan import Prediction, Predictions
from brimful.planning.remedies import Remedy
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import Recipe
from brimful.report.plan.answer import answer_lines, headroom_of
from brimful.report.plan.plans import render
from brimful.report.quantities import memory_of


def _only(surveyed: list[Surveyed | Unplanned]) -> Surveyed:
    (entry,) = surveyed
    assert isinstance(entry, Surveyed)
    return entry


@pytest.fixture(scope="module")
def small(new_cache: Callable[[], str]) -> Surveyed:
    """A run of two hours that costs a dollar, in 8.39 of 14.6 GiB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIMFUL_CACHE", new_cache())
        entry = _only(survey(Recipe.model_validate(SMALL), "Tesla T4"))
    predicted = {
        "total_time_s": Prediction(7200.0, 3600.0, 10800.0, "by hand"),
        "cost_usd": Prediction(1.0, 0.5, 1.5, "by hand"),
    }
    return _changed(entry, predicted=predicted)


def _changed(entry: Surveyed, predicted: Predictions, used_gib: float = 8.39) -> Surveyed:
    derived, used = entry.derived, used_gib * 1024**3
    driver = Prediction(used, used, used, "by hand")
    footprint = dataclasses.replace(derived.footprint, driver=driver)
    plan = dataclasses.replace(derived.plan, predicted=predicted)
    return dataclasses.replace(
        entry, derived=dataclasses.replace(derived, plan=plan, footprint=footprint)
    )


def test_what_fits_is_answered_with_memory_time_and_cost_in_one_line(
    small: Surveyed, snapshot: SnapshotAssertion
) -> None:
    assert answer_lines([small], 120) == snapshot
    assert answer_lines([small], 80) == snapshot


def test_a_length_or_price_that_is_not_known_is_said(
    small: Surveyed, snapshot: SnapshotAssertion
) -> None:
    billion = {"billion_tokens_s": Prediction(60.0, 60.0, 60.0, "by hand")}

    assert answer_lines([_changed(small, billion)], 80) == snapshot
    assert answer_lines([_changed(small, {})], 80) == snapshot


def test_what_leaves_no_memory_is_said_to_fit_tightly_and_never_with_0_b(
    small: Surveyed, snapshot: SnapshotAssertion
) -> None:
    full = _changed(small, small.derived.plan.predicted, used_gib=14.5625)
    footprint = dataclasses.replace(full.derived.footprint, is_roomy=False)
    full = dataclasses.replace(full, derived=dataclasses.replace(full.derived, footprint=footprint))

    assert footprint.is_tight
    assert headroom_of(footprint) == "none"
    assert answer_lines([full], 80) == snapshot
    assert not small.derived.footprint.is_tight
    assert headroom_of(small.derived.footprint) == "6.17 GiB"


def test_what_nothing_makes_fit_is_answered_so(snapshot: SnapshotAssertion) -> None:
    entry = _only(survey(Recipe.model_validate(HUGE), "Tesla T4"))

    assert entry.verdict == "does not fit"
    assert answer_lines([entry], 100) == snapshot


def test_of_changes_that_fit_the_one_that_costs_least_is_named_not_the_most_helpful(
    small: Surveyed,
    snapshot: SnapshotAssertion,
) -> None:
    footprint = small.derived.footprint
    failing = dataclasses.replace(footprint, verdict="does not fit")
    remedies = (
        Remedy("half", "cut", "sequence_length=16", footprint, 9, price=3),
        Remedy("again", "twice", "plan.recompute=true", footprint, 2, price=1),
        Remedy("pieces", "smaller", "plan.loss_chunk=64", footprint, 0, price=0),
    )
    derived = dataclasses.replace(small.derived, footprint=failing)
    entry = dataclasses.replace(small, derived=derived, remedies=remedies)

    assert answer_lines([entry], 100) == snapshot
    less = dataclasses.replace(entry, remedies=remedies[2:], smallest_device="NVIDIA L4")
    assert answer_lines([less], 100) == snapshot


def test_units_are_written_once_where_they_are_the_same(snapshot: SnapshotAssertion) -> None:
    assert memory_of(8.39 * 1024**3, 14.6 * 1024**3) == "8.39 of 14.6 GiB"
    assert memory_of(648 * 1024**2, 21.1 * 1024**3) == snapshot


def test_the_answer_comes_first(small: Surveyed, snapshot: SnapshotAssertion) -> None:
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(render([small], 80), soft_wrap=True)

    assert capture.get().splitlines()[0] == snapshot
