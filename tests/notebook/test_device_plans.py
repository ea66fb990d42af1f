"""Plans for several devices, from what `brimful plan --json` says, as tables and as a page."""

from collections.abc import Sequence
from typing import Any

from syrupy.assertion import SnapshotAssertion

from brimful.notebook.device_plans import (
    DevicePlan,
    device_table,
    plan_page,
    read_device_plan,
    recommendation,
)


def plans(entries: Sequence[dict[str, Any]]) -> list[DevicePlan]:
    return [read_device_plan(entry) for entry in entries]


def test_devices_stand_in_a_table_with_this_one_first(
    entries: list[dict[str, Any]], snapshot: SnapshotAssertion
) -> None:
    html, text = device_table(plans(entries))
    head, first, second, third = text.splitlines()

    assert head.split()[:2] == ["device", "fits"]
    assert first.startswith("Tesla T4")
    assert " yes " in first
    assert " of 14.6 GiB" in first
    assert second.split()[1] == "no"
    assert third == snapshot
    assert html.count("← this one") == 1
    assert "&lt;b&gt;Small&lt;/b&gt;" in html


def test_the_note_says_where_a_recipe_fits_that_does_not_fit_here(
    entries: list[dict[str, Any]],
    snapshot: SnapshotAssertion,
) -> None:
    fitting, small, unknown = entries

    assert recommendation(plans([small, fitting])) == snapshot
    assert recommendation(plans([fitting, small])) == snapshot
    assert recommendation(plans([unknown, fitting])) == snapshot


def test_a_plan_is_told_closely_with_its_memory_choices_and_times(
    entries: list[dict[str, Any]],
) -> None:
    html, text = plan_page(read_device_plan(entries[0]))

    assert text.startswith("tiny on Tesla T4: fits: yes; peak ")
    for said in ("weights", "optimizer states", "micro_batch", "precision"):
        assert said in html
        assert said in text
    assert 'aria-label="memory at the peak: ' in html
    assert "in all: " in text
    assert plan_page(read_device_plan(entries[2]))[1] == "no bandwidth is known"


def test_time_is_that_of_the_whole_job() -> None:
    """Where a recipe is more than the training of its plan."""
    totals = {"total_time_s": {"value": 90.0, "low": 60.0, "high": 180.0, "basis": "phases"}}
    job = read_device_plan({"device": "T4", "job": {"predicted": totals, "phases": []}})
    assert job.total_time_s == 90.0
    assert read_device_plan({"device": "T4"}).total_time_s is None
