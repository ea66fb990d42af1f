"""Every prediction stands beside what was measured."""

import json
from collections.abc import Callable

import pytest
from fixture_types import MakeRun
from run_records import measured_step as step
from run_records import start
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.predictions import (
    Comparison,
    comparisons,
    memory_terms,
    told_of_others,
)
from brimful.runs.folder import RunFolder, read_run


def by_key(run: RunFolder) -> dict[str, Comparison]:
    return {comparison.key: comparison for comparison in comparisons(run)}


def test_the_error_is_relative_to_what_was_measured_and_positive_when_the_plan_was_too_high(
    new_run: MakeRun,
) -> None:
    plan = {
        "predicted": {"step_time_s": 0.6, "peak_memory_bytes": 900},
        "predicted_interval": {"step_time_s": [0.55, 0.7], "peak_memory_bytes": [800, 1100]},
    }
    found = by_key(read_run(new_run(plan=plan, metrics=[start(0), step(1, 0)])))
    assert found["step_time_s"].error == pytest.approx(0.2)
    assert found["peak_memory_bytes"].error == pytest.approx(-0.1)
    assert found["step_time_s"].judgement.is_inside is False
    assert found["peak_memory_bytes"].judgement.is_inside is True


def test_a_prediction_without_measurement_has_no_error_and_no_verdict(new_run: MakeRun) -> None:
    found = by_key(
        read_run(new_run(plan={"predicted": {"energy_j": 5.0, "step_time_s": 1.0}}, metrics=[]))
    )
    assert found["energy_j"].error is None
    assert found["step_time_s"].judgement.is_inside is None


def test_what_other_programs_took_is_told_where_it_is_much(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    records = [
        start(0),
        *(step(number, number) | {"core_wait_s": 0.2} for number in range(1, 5)),
    ]
    busy = read_run(new_run("busy", metrics=records))

    assert [told_of_others(busy), by_key(busy)["step_time_s"].source] == snapshot
    assert told_of_others(read_run(new_run())) == ""


def test_memory_terms_come_largest_first_without_empty_ones(new_run: MakeRun) -> None:
    run = read_run(
        new_run(plan={"memory_terms": {"weights": 10, "kv_cache": 0, "saved_activations": 30}})
    )
    assert memory_terms(run) == [("Saved activations", 30.0), ("Weights", 10.0)]


def test_the_time_of_the_bases_answers_is_measured_once_all_of_them_are_there(
    tuned_run: MakeRun,
    untuned: Callable[..., None],
    answered: Callable[..., None],
    answer_of: Callable[..., JsonDict],
) -> None:
    plan = {
        "predicted": {"base_answers_time_s": 2.0},
        "base": {"loss_share": 1.0, "samples": True, "tasks": True},
    }
    folder = tuned_run(plan=plan)
    pair = {"prompt": "Say red.", "base": "no", "tuned": "red", "seconds": 3.0}
    (folder / "side_by_side.jsonl").write_text(json.dumps(pair) + "\n", encoding="utf-8")
    assert by_key(read_run(folder))["base_answers_time_s"].measured is None

    untuned(folder / "untuned")
    answered(folder / "untuned", "bleu", [answer_of(1, "x = 1")], seconds=4.0)
    assert by_key(read_run(folder))["base_answers_time_s"].measured == pytest.approx(7.0)
