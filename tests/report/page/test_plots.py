"""Curves hold the numbers that were recorded, and what stands beside them."""

import json
from typing import Any

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.page.plots import curves, running_minutes
from brimful.runs.folder import read_run


def steps(count: int, **changes: Any) -> list[JsonDict]:
    fields = {"loss": 3.0, "grad_norm": 1.0, "learning_rate": 1e-3, "tokens_per_second": 100.0}
    return [{"kind": "step", "step": number, **fields, **changes} for number in range(1, count + 1)]


def test_a_baseline_far_above_every_loss_is_left_out(new_run: MakeRun) -> None:
    scores = {
        "validation": {
            "loss": 2.0,
            "baselines": {"uniform": {"loss": 10.8}, "bigram": {"loss": 3.2}},
        }
    }
    (loss, *_) = curves(read_run(new_run(metrics=steps(9), scores=scores)))
    assert [level.name for level in loss.levels] == ["bigram 3.20"]


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_points_draw_nothing(new_run: MakeRun, count: int) -> None:
    assert curves(read_run(new_run(metrics=steps(count)))) == []


def test_constant_zero_and_missing_values_still_draw(new_run: MakeRun) -> None:
    records = [
        *steps(5, grad_norm=0.0, learning_rate=0.0, loss=0.0),
        *steps(3, loss=None, grad_norm=None),
    ]
    drawn = curves(read_run(new_run(metrics=records, scores=None)))
    assert [each.y_range for each in drawn] == [None, (0.0, 0.0012), (0.0, 1.0), (0.0, 120.0)]


def test_what_was_sampled_is_drawn_over_the_minutes_of_the_run(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = new_run()
    samples = [
        {
            "kind": "sample",
            "time": 1000.0 + number,
            "covers_s": 1.0,
            "power_w": 50.0 + number,
            "device_utilization": 0.9,
        }
        for number in range(90)
    ]
    (folder / "monitor.jsonl").write_text(
        "".join(
            json.dumps(record) + "\n" for record in [{"kind": "monitor", "time": 999.0}, *samples]
        )
    )
    drawn = {curve.key: curve for curve in curves(read_run(folder))}
    assert drawn["sampled-device-utilization"].y_range == (0.0, 105.0)
    assert drawn["sampled-power-w"].x == "minutes"
    assert drawn["sampled-power-w"].about == snapshot


def test_a_pause_between_sessions_is_not_time_of_the_run() -> None:
    assert running_minutes([100.0, 130.0, 100_000.0, 100_030.0]).tolist() == [0.0, 0.5, 1.5, 2.0]
