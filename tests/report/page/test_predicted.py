"""Predictions stand beside measurements on one scale that all of them fit."""

from pathlib import Path

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.predicted import prediction_tables
from brimful.report.page.run_page import run_view
from brimful.report.predictions import comparisons
from brimful.report.table import Gauge, Table
from brimful.report.terminal import told_of
from brimful.runs.folder import read_run


def tables(folder: Path) -> list[Table]:
    """Predictions, then rough guesses."""
    found = prediction_tables(comparisons(read_run(folder)))
    return [block for block in found if isinstance(block, Table)]


def gauge_of(row: tuple[object, ...]) -> Gauge:
    assert isinstance(row[-1], Gauge)
    return row[-1]


def test_a_gauge_has_the_prediction_in_the_middle_and_the_measurement_beside(
    new_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    plan = {
        "predicted": {"step_time_s": 0.17},
        "predicted_interval": {"step_time_s": [0.085, 0.34]},
    }
    (guesses,) = tables(new_run(plan=plan))
    gauge = gauge_of(guesses.rows[0])
    assert guesses.columns[-1] == "Interval, from 1/2 to 2x"
    assert [gauge.place(end) for end in (*(gauge.interval or ()), 1.0)] == [0.0, 100.0, 50.0]
    assert gauge.place(gauge.at or 0.0) == pytest.approx(100, abs=1.5)
    assert gauge.about == snapshot


def test_a_large_error_inside_a_wide_interval_is_a_guess_that_is_far_off(new_run: MakeRun) -> None:
    plan = {
        "predicted": {"step_time_s": 0.785, "peak_memory_bytes": 1.31e9},
        "predicted_interval": {
            "step_time_s": [0.32, 1.92],
            "peak_memory_bytes": [1.2e9, 1.45e9],
        },
    }
    counted, guesses = tables(new_run(plan=plan))
    assert [row[0] for row in counted.rows] == ["Peak memory"]
    step_time = gauge_of(guesses.rows[0])
    assert (step_time.text, step_time.word) == ("inside", "far off")


def test_a_run_with_nothing_but_guesses_has_a_page(new_run: MakeRun) -> None:
    plan = {
        "predicted": {"step_time_s": 0.785},
        "predicted_interval": {"step_time_s": [0.32, 1.92]},
    }
    assert told_of(run_view(read_run(new_run(plan=plan)))).plain.count("Rough guesses, not") == 1


def test_odd_intervals_and_zeros_do_not_stop_the_table(new_run: MakeRun) -> None:
    plan = {
        "predicted": {"step_time_s": 0.0, "tokens_per_s": 1e-9},
        "predicted_interval": {"tokens_per_s": [0, 1]},
    }
    counted, guesses = tables(new_run(plan=plan))
    assert counted.rows[0][-1] is None
    gauge = gauge_of(guesses.rows[0])
    assert gauge.place(gauge.at or 0.0) == 100
