"""Where the time went stands below what the plan expected, in the same colours."""

from collections.abc import Callable
from pathlib import Path

from brimful.report.runfiles import read_run
from brimful.report.time_page import time_view

MakeRun = Callable[..., Path]


def test_predicted_and_measured_parts_have_the_same_colours(new_run: MakeRun) -> None:
    view = time_view(read_run(new_run()))
    assert view is not None
    assert [row.name for row in view.rows] == ["predicted", "measured"]
    colours = [{part.name: part.place for part in row.parts} for row in view.rows]
    assert all(colours[1][name] == place for name, place in colours[0].items() if name in colours[1])
    assert view.drawing is not None
    assert [part.name for part in view.step_terms] == ["Matrix", "Attention", "Element-wise", "Optimizer"]


def test_a_run_of_which_nothing_is_known_has_no_section(new_run: MakeRun) -> None:
    assert time_view(read_run(new_run(plan=None, metrics=[]))) is None
