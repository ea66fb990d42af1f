"""Devices in a table: in the order asked for, as wide as the terminal, with what each takes."""

import dataclasses
from collections.abc import Callable

import pytest
from small_plans import SMALL
from syrupy.assertion import SnapshotAssertion

from brimful.chains.plans import survey
from brimful.hardware import catalog
from brimful.planning.budget import Budget, Sessions, answer
from brimful.planning.plan import Prediction
from brimful.planning.remedies import Remedy
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import Recipe
from brimful.report.plan.answer import answer_lines
from brimful.report.plan.table import (
    Entries,
    batch_cell,
    device_table,
    narrowed,
    ordered,
    table_notes,
)
from brimful.report.table import terminal_lines

RECIPE = SMALL | {"model": {"layers": 1, "heads": 2, "width": 32}}
Made = Callable[..., Surveyed]


@pytest.fixture(scope="module")
def made(new_cache: Callable[[], str]) -> Made:
    """`made("Tesla T4", hours=2, usd=1.2)` is that device with a run of two hours, give or take
    half; "uncertain" or "does not fit" is a verdict.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIMFUL_CACHE", new_cache())
        (base,) = survey(Recipe.model_validate(RECIPE), "Tesla T4")
    assert isinstance(base, Surveyed)

    def make(
        name: str, hours: float | None = None, usd: float | None = None, verdict: str = "fits"
    ) -> Surveyed:
        amounts = {
            "step_time_s": hours and hours / 5 * 3600,
            "total_time_s": hours and hours * 3600,
            "cost_usd": usd,
            "tokens_per_s": hours and 5e4,
            "mfu": hours and 0.234,
            "energy_wh": hours and 99.5,
        }
        predicted = {
            key: Prediction(value, value / 2, value * 1.5, "by hand")
            for key, value in amounts.items()
            if value is not None
        }
        derived = base.derived
        footprint = dataclasses.replace(derived.footprint, verdict=verdict)
        prepared = dataclasses.replace(derived.prepared, device=catalog.get(name))
        plan = dataclasses.replace(
            derived.plan, predicted=predicted, micro_batches=(4, 4, 2), recompute=False
        )
        return dataclasses.replace(
            base,
            derived=dataclasses.replace(derived, plan=plan, footprint=footprint, prepared=prepared),
        )

    return make


def _helped(entry: Surveyed, change: str) -> Surveyed:
    """Return the entry with a change that makes it fit."""
    remedy = Remedy(change, "", change, entry.derived.footprint, 1)
    return dataclasses.replace(entry, remedies=(remedy,))


def _names(surveyed: Entries) -> list[str]:
    return [entry.device.name for entry in surveyed]


def test_time_puts_the_quickest_first_and_what_does_not_fit_last(made: Made) -> None:
    nothing = Unplanned(catalog.get("Tesla P4"), "no kernel")
    entries = [
        nothing,
        made("Tesla T4", 9, 5),
        made("NVIDIA H200", verdict="does not fit"),
        made("NVIDIA L4", 8, 9),
        made("NVIDIA A10G", 1, 1, "uncertain"),
    ]

    assert _names(ordered(entries, "time")) == [
        "NVIDIA L4",
        "Tesla T4",
        "NVIDIA A10G",
        "NVIDIA H200",
        "Tesla P4",
    ]
    assert _names(ordered(entries, "cost")) == [
        "Tesla T4",
        "NVIDIA L4",
        "NVIDIA A10G",
        "NVIDIA H200",
        "Tesla P4",
    ]
    assert _names(ordered(entries, "name")) == [
        "NVIDIA A10G",
        "NVIDIA H200",
        "NVIDIA L4",
        "Tesla P4",
        "Tesla T4",
    ]
    assert ordered(entries, None) == entries


def test_an_unknown_price_comes_after_the_known_ones(made: Made) -> None:
    assert _names(ordered([made("Tesla T4", 1), made("NVIDIA L4", 8, 9)], "cost")) == [
        "NVIDIA L4",
        "Tesla T4",
    ]


@pytest.mark.parametrize("width", [80, 100, 120, 150, 250])
def test_the_table_is_never_wider_than_the_terminal_and_keeps_what_matters(
    made: Made, width: int, snapshot: SnapshotAssertion
) -> None:
    entries = [
        made("NVIDIA RTX PRO 6000 Blackwell Server Edition", 2, 1.2),
        made("Tesla T4", 20, 10),
        made("NVIDIA L4", 2),
        made("NVIDIA A10G", 2, 1, "does not fit"),
    ]
    lines = terminal_lines(narrowed(device_table(entries), width), width)

    assert max(map(len, lines)) <= width
    assert lines == snapshot


def test_budget_and_sessions_have_a_column(made: Made, snapshot: SnapshotAssertion) -> None:
    entries = [made("Tesla T4", 2, 1.2), made("NVIDIA L4", 1, 2)]
    answers = {
        entry.device.name: answer(
            Budget("time", 2 * 3600), lambda _, entry=entry: entry.derived.plan.predicted, 5
        )
        for entry in entries
    }
    cut = {"Tesla T4": Sessions(3600, (3, 2, 4), 10, 60, 1, 0.1)}

    table = device_table(entries, answers, cut)

    assert table.columns[-2:] == snapshot
    assert [row[-2:] for row in table.text_rows] == [("maybe", "3"), ("yes", "")]


def test_the_answer_for_several_devices_names_the_cheapest_and_the_fastest_that_fit(
    made: Made,
    snapshot: SnapshotAssertion,
) -> None:
    slow, quick = made("Tesla T4", 9, 5), made("NVIDIA L4", 8, 9)
    uncertain = made("NVIDIA H200", 1, 1, "uncertain")
    none = [made("Tesla T4", verdict="does not fit"), made("NVIDIA L4", verdict="does not fit")]

    (line,) = answer_lines([slow, quick, uncertain], 120)
    assert line == snapshot
    (line,) = answer_lines([slow, quick, uncertain], 79)
    assert line == snapshot
    (line,) = answer_lines([slow, made("NVIDIA L4", 8, 1)], 120)
    assert line == snapshot
    assert answer_lines([made("Tesla T4", 2), uncertain], 80) == snapshot
    assert answer_lines(none, 80) == snapshot


def test_recomputation_is_marked_and_explained(made: Made, snapshot: SnapshotAssertion) -> None:
    entry = made("Tesla T4", 1)
    plan = dataclasses.replace(entry.derived.plan, recompute=True)
    recomputing = dataclasses.replace(entry, derived=dataclasses.replace(entry.derived, plan=plan))

    assert batch_cell(plan) == "4 x 2 + 2 r"
    assert table_notes([recomputing])[0] == snapshot
    assert "recomputed" not in table_notes([entry])[0]


def test_the_cheapest_change_is_named_once_with_the_devices_that_it_helps(
    made: Made, snapshot: SnapshotAssertion
) -> None:
    helped = [
        _helped(made(name, 1, verdict="does not fit"), set_)
        for name, set_ in (
            ("Tesla T4", "quantize=nf4"),
            ("NVIDIA L4", "plan.recompute=true"),
            ("NVIDIA A10G", "quantize=nf4"),
        )
    ]

    notes = table_notes([*helped, made("NVIDIA H200", 1)])

    assert notes == snapshot
