"""Where the time went stands below what the plan expected, part beside part."""

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.time_page import time_bars, time_section
from brimful.report.terminal import told
from brimful.runs.folder import read_run


def test_predicted_and_measured_parts_have_the_same_places(new_run: MakeRun) -> None:
    run = read_run(new_run())
    bars = time_bars(run).bars
    assert [bar.name for bar in bars] == ["predicted", "measured"]
    predicted, measured = ({part.name: part.place for part in bar.parts} for bar in bars)
    assert all(measured[name] == place for name, place in predicted.items() if name in measured)
    section = time_section(run)
    assert section is not None
    step = section.blocks[-1]
    assert getattr(step, "about", "").startswith("predicted: Matrix 190 ms, Attention")


def test_a_run_of_which_nothing_is_known_has_no_section(new_run: MakeRun) -> None:
    assert time_section(read_run(new_run(plan=None, metrics=[]))) is None


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
    loader = {
        "kind": "loader",
        "seconds_per_batch": {"1": 0.2, "2": 0.05},
        "loader_workers": 1,
        "n": 20,
    }
    records = [
        {"kind": "start", "step": 0, "total_steps": 40},
        *steps,
        loader,
        {"kind": "end", "step": 40, "seconds": 30.0, "reason": "finished"},
    ]
    run = read_run(new_run(metrics=records))
    section = time_section(run)
    assert section is not None
    lines = told(section.blocks).plain.splitlines()
    assert lines[0] == snapshot
    assert any(line.endswith(": plan.loader_workers=2") for line in lines)
    assert {"Compute", "Waiting for data", "Compiling and warming up"} <= {
        part.name for part in time_bars(run).key_parts
    }


def test_both_bars_have_one_scale_and_the_predicted_one_holds_all_of_the_time(
    new_run: MakeRun,
) -> None:
    """Of a tuning run with the losses of its base."""
    seconds = {
        "training_time_s": 263.0,
        "evaluation_time_s": 24.0,
        "base_time_s": 24.0,
        "checkpoint_time_s": 1.5,
        "start_time_s": 1.5,
    }
    shown = time_bars(read_run(new_run(plan={"predicted": seconds})))
    predicted, measured = shown.bars
    assert {part.name: part.size for part in predicted.parts}["Scoring the base"] == 24.0
    assert predicted.size == pytest.approx(314.0)
    assert shown.longest == predicted.size > measured.size
