"""Where the time went stands below what the plan expected, in the same colours."""

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.time_page import time_view
from brimful.runs import read_run


def test_predicted_and_measured_parts_have_the_same_colours(new_run: MakeRun) -> None:
    view = time_view(read_run(new_run()))
    assert view is not None
    assert [row.name for row in view.rows] == ["predicted", "measured"]
    colours = [{part.name: part.place for part in row.parts} for row in view.rows]
    assert all(
        colours[1][name] == place for name, place in colours[0].items() if name in colours[1]
    )
    assert view.drawing is not None
    assert [part.name for part in view.step_terms] == [
        "Matrix",
        "Attention",
        "Element-wise",
        "Optimizer",
    ]


def test_a_run_of_which_nothing_is_known_has_no_section(new_run: MakeRun) -> None:
    assert time_view(read_run(new_run(plan=None, metrics=[]))) is None


def test_waiting_for_data_is_told_and_advice_stands_below_it(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    steps = [
        {
            "kind": "step",
            "step": step,
            "loss": 2.0,
            "step_time_s": 0.5 if step > 1 else 4.0,
            "loader_wait_s": 0.2,
        }
        for step in range(1, 41)
    ]
    told = {
        "kind": "loader",
        "seconds_per_batch": {"1": 0.2, "2": 0.05},
        "loader_workers": 1,
        "n": 20,
    }
    records = [
        {"kind": "start", "step": 0, "total_steps": 40},
        *steps,
        told,
        {"kind": "end", "step": 40, "seconds": 30.0, "reason": "finished"},
    ]
    view = time_view(read_run(new_run(metrics=records)))
    assert view is not None
    assert view.sentence == snapshot
    assert [each.change for each in view.advice if each.topic == "loader"] == [
        "plan.loader_workers=2"
    ]
    assert {"Compute", "Waiting for data", "Compiling and warming up"} <= {
        part.name for part in view.keys
    }


def test_both_bars_have_one_scale(new_run: MakeRun) -> None:
    plan = {"predicted": {"training_time_s": 340.0, "evaluation_time_s": 60.0}}
    view = time_view(read_run(new_run(plan=plan)))
    assert view is not None
    seconds = [sum(part.size for part in row.parts) for row in view.rows]
    widths = [float(row.width.rstrip("%")) for row in view.rows]
    assert max(widths) == 100
    assert widths[0] / widths[1] == pytest.approx(seconds[0] / seconds[1], abs=0.01)
    assert widths[0] != widths[1]


def test_the_predicted_bar_holds_all_of_the_time_in_all(new_run: MakeRun) -> None:
    """Of a tuning run with the losses of its base."""
    parts = {
        "training_time_s": 263.0,
        "evaluation_time_s": 24.0,
        "base_time_s": 24.0,
        "checkpoint_time_s": 1.5,
        "start_time_s": 1.5,
    }
    view = time_view(read_run(new_run(plan={"predicted": parts})))
    assert view is not None
    assert {part.name: part.size for part in view.rows[0].parts}["Scoring the base"] == 24.0
    assert sum(part.size for part in view.rows[0].parts) == pytest.approx(314.0)
