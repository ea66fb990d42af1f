"""Curves of several runs over one another: told apart by colour and by line, named once."""

from pathlib import Path
from xml.etree import ElementTree as Xml

import numpy as np
from fixture_types import MakeRun

from brimful.report.comparison.plots import MOST_RUNS, Curve, overlays
from brimful.runs import RunFolder, read_run


def named(*folders: Path) -> list[tuple[str, RunFolder]]:
    return [(folder.name, read_run(folder)) for folder in folders]


def texts(svg: str) -> list[str]:
    return [
        "".join(element.itertext()).strip()
        # Drawn here.
        for element in Xml.fromstring(svg).iter()  # noqa: S314
        if element.tag.endswith("}text")
    ]


def test_loss_time_speed_and_memory_lie_over_one_another(new_run: MakeRun) -> None:
    drawn = {
        drawing.key: drawing
        for drawing in overlays(named(new_run("a", last_step=100), new_run("b", last_step=60)))
    }
    assert list(drawn) == [
        "compare-loss",
        "compare-loss-by-time",
        "compare-speed",
        "compare-memory",
    ]
    assert {"a", "b", "optimizer step"} <= set(texts(drawn["compare-loss"].wide))
    assert "a, b" in drawn["compare-memory"].description
    assert "minutes of training" in texts(drawn["compare-loss-by-time"].wide)


def test_runs_without_points_draw_nothing_and_hold_up_no_other(new_run: MakeRun) -> None:
    empty = new_run("empty", metrics=[], plan=None)
    assert overlays(named(empty)) == []
    assert len(overlays(named(empty, new_run("b", last_step=60)))) == 3


def test_so_many_runs_as_there_are_colours_are_distinct_names() -> None:
    curves = [Curve(place, np.zeros(2), np.zeros(2)) for place in range(MOST_RUNS)]
    assert len({(curve.colour, str(curve.line)) for curve in curves}) == MOST_RUNS
