"""Curves of several runs over one another: told apart by their places, named once."""

from pathlib import Path

from fixture_types import MakeRun

from brimful.report.comparison.plots import MOST_RUNS, overlays
from brimful.runs.folder import RunFolder, read_run


def named(*folders: Path) -> list[tuple[str, RunFolder]]:
    return [(folder.name, read_run(folder)) for folder in folders]


def test_loss_time_speed_and_memory_lie_over_one_another(new_run: MakeRun) -> None:
    runs = named(new_run("a", last_step=100), new_run("b", last_step=60))
    drawn = {chart.key: chart for chart in overlays(runs)}
    assert list(drawn) == [
        "compare-loss",
        "compare-loss-by-time",
        "compare-speed",
        "compare-memory",
    ]
    loss = drawn["compare-loss"].series
    assert [(each.name, each.place, each.look) for each in loss] == [
        ("a", 0, "line"),
        ("b", 1, "line"),
        ("", 0, "points"),
    ]
    assert "a, b" in drawn["compare-memory"].about
    assert drawn["compare-loss-by-time"].x == "minutes of training"


def test_runs_without_points_draw_nothing_and_hold_up_no_other(new_run: MakeRun) -> None:
    empty = new_run("empty", metrics=[], plan=None)
    assert overlays(named(empty)) == []
    assert len(overlays(named(empty, new_run("b", last_step=60)))) == 3


def test_no_more_runs_are_drawn_than_can_be_told_apart(new_run: MakeRun) -> None:
    runs = named(new_run("a", last_step=60)) * (MOST_RUNS + 1)
    speed = overlays(runs)[2]
    assert [each.place for each in speed.series] == [*range(MOST_RUNS)]
