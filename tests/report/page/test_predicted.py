"""Predictions stand beside measurements on one scale that all of them fit."""

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.html import render_report
from brimful.report.page.predicted import origin_table, predictions
from brimful.runs import read_run


def test_measured_rows_come_first_and_say_whether_the_interval_held(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    rows, scale = predictions(read_run(new_run()))
    by_name = {row.name: row for row in rows}
    memory, energy = by_name["Peak memory"], by_name["Energy"]
    assert (memory.predicted, memory.measured, memory.error) == ("1.22 GiB", "1.18 GiB", "+3.0 %")
    assert memory.interval == snapshot
    assert (memory.inside, memory.word, memory.tone) == ("inside", "close", "error-close")
    training = by_name["Training time"]
    assert (training.inside, training.word) == ("outside", "close"), (
        "size and place are two answers"
    )
    assert (energy.measured, energy.error, energy.gauge) == ("-", "-", None)
    assert [row.gauge is None for row in rows] == sorted(row.gauge is None for row in rows)
    assert float(scale) > 1


def test_a_gauge_has_the_prediction_in_the_middle_and_the_measurement_beside(
    new_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    plan = {
        "predicted": {"step_time_s": 0.17},
        "predicted_interval": {"step_time_s": [0.085, 0.34]},
    }
    (row,), scale = predictions(read_run(new_run(plan=plan)))
    assert row.gauge is not None
    assert scale == "2"
    assert (row.gauge.low, row.gauge.width) == ("0.0%", "100.0%")
    assert float((row.gauge.at or "").rstrip("%")) == pytest.approx(100, abs=1.5)
    assert row.gauge.label == snapshot


def test_a_large_error_inside_a_wide_interval_is_a_guess_that_is_far_off(new_run: MakeRun) -> None:
    plan = {
        "predicted": {"step_time_s": 0.785, "peak_memory_bytes": 1.31e9},
        "predicted_interval": {
            "step_time_s": [0.32, 1.92],
            "peak_memory_bytes": [1.2e9, 1.45e9],
        },
    }
    memory, step_time = predictions(read_run(new_run(plan=plan)))[0]
    assert (step_time.inside, step_time.is_guess) == ("inside", True)
    assert (step_time.word, step_time.tone) == ("far off", "error-far")
    assert not memory.is_guess, "rough guesses stand behind predictions"


def test_a_run_with_nothing_but_guesses_has_a_page(new_run: MakeRun) -> None:
    plan = {
        "predicted": {"step_time_s": 0.785},
        "predicted_interval": {"step_time_s": [0.32, 1.92]},
    }
    assert render_report(read_run(new_run(plan=plan))).count("Rough guesses, not counted") == 1


def test_odd_intervals_and_zeros_do_not_stop_the_table(new_run: MakeRun) -> None:
    plan = {
        "predicted": {"step_time_s": 0.0, "tokens_per_s": 1e-9},
        "predicted_interval": {"tokens_per_s": [0, 1]},
    }
    rows, _ = predictions(read_run(new_run(plan=plan)))
    assert [row.gauge and row.gauge.at for row in rows] == [None, "100.0%"]


def test_where_each_number_is_from_is_a_table(new_run: MakeRun) -> None:
    table = origin_table(read_run(new_run()))
    assert table is not None
    assert any(
        row[0] == "Time per optimizer step" and "matrix rate" in row[1] and "median of" in row[2]
        for row in table.text_rows
    )
    assert origin_table(read_run(new_run("bare", plan=None))) is None
