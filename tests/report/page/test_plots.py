"""Figures are small, valid, themable SVG that shows the data that were given."""

import json
import re
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.drawing import VARIABLES
from brimful.report.page.plots import MAX_POINTS, curves, running_minutes, smooth, thin
from brimful.runs import read_run


def steps(count: int, **changes: Any) -> list[dict[str, Any]]:
    fields = {"loss": 3.0, "grad_norm": 1.0, "learning_rate": 1e-3, "tokens_per_second": 100.0}
    return [{"kind": "step", "step": number, **fields, **changes} for number in range(1, count + 1)]


def texts(svg: str) -> list[str]:
    return [
        "".join(element.itertext()).strip()
        # Drawn here.
        for element in Xml.fromstring(svg).iter()  # noqa: S314
        if element.tag.endswith("}text")
    ]


def test_a_whole_run_has_five_figures_of_valid_svg_with_text_as_text(new_run: MakeRun) -> None:
    drawn = curves(read_run(new_run()))
    assert [curve.key for curve in drawn] == [
        "loss",
        "bits-per-byte",
        "learning-rate",
        "grad-norm",
        "tokens-per-second",
    ]
    for curve in drawn:
        for svg in (curve.wide, curve.narrow):
            assert "optimizer step" in texts(svg)
            assert "<script" not in svg


def test_the_loss_figure_marks_the_best_evaluation_and_names_the_baselines(
    new_run: MakeRun,
) -> None:
    found = texts(curves(read_run(new_run()))[0].wide)
    assert "best 3.050" in found
    assert {"bigram 4.40", "unigram 6.01", "uniform guess 7.62"} <= set(found)


def test_a_baseline_far_above_every_loss_is_left_out(new_run: MakeRun) -> None:
    scores = {
        "validation": {
            "loss": 2.0,
            "baselines": {"uniform": {"loss": 10.8}, "bigram": {"loss": 3.2}},
        }
    }
    found = texts(curves(read_run(new_run(metrics=steps(9), scores=scores)))[0].wide)
    assert "bigram 3.20" in found
    assert not any("uniform" in text for text in found)


def test_a_baseline_with_a_hostile_name_is_plain_text(new_run: MakeRun) -> None:
    scores = {"validation": {"loss": 2.0, "baselines": {"<script>$\\frac": {"loss": 3.2}}}}
    svg = curves(read_run(new_run(metrics=steps(9), scores=scores)))[0].wide
    assert "<script>$\\frac 3.20" in texts(svg)


def test_every_colour_is_a_css_variable_and_nothing_is_loaded(new_run: MakeRun) -> None:
    for curve in curves(read_run(new_run())):
        assert "var(--axis, #5d6670)" in curve.wide
        without_variables = re.sub(r"var\(--\w+, #\w{6}\)", "", curve.wide)
        assert not any(colour in without_variables for colour in VARIABLES)
        assert set(re.findall(r'href="([^"]{1})', curve.wide)) <= {"#"}
        assert "<style" not in curve.wide


def test_ids_differ_between_figures_and_references_follow_them(new_run: MakeRun) -> None:
    drawings = [svg for curve in curves(read_run(new_run())) for svg in {curve.wide, curve.narrow}]
    ids = [found for svg in drawings for found in re.findall(r'\bid="([^"]*)"', svg)]
    assert len(ids) == len(set(ids))
    references = [
        found for svg in drawings for found in re.findall(r'(?:url\(#|href="#)([^)"]*)', svg)
    ]
    assert references
    assert set(references) <= set(ids)


def test_the_same_run_draws_the_same_bytes(new_run: MakeRun) -> None:
    run = read_run(new_run())
    assert [curve.wide for curve in curves(run)] == [curve.wide for curve in curves(run)]


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_points_draw_nothing(new_run: MakeRun, count: int) -> None:
    assert curves(read_run(new_run(metrics=steps(count)))) == []


def test_constant_zero_and_missing_values_still_draw(new_run: MakeRun) -> None:
    records = [
        *steps(5, grad_norm=0.0, learning_rate=0.0, loss=0.0),
        *steps(3, loss=None, grad_norm=None),
    ]
    assert len(curves(read_run(new_run(metrics=records, scores=None)))) == 4


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
    assert {"sampled-power-w", "sampled-device-utilization"} <= drawn.keys()
    assert "minutes" in texts(drawn["sampled-power-w"].wide)
    assert drawn["sampled-power-w"].description == snapshot


def test_a_pause_between_sessions_is_not_time_of_the_run() -> None:
    assert running_minutes([100.0, 130.0, 100_000.0, 100_030.0]).tolist() == [0.0, 0.5, 1.5, 2.0]


def test_a_long_series_is_thinned_with_its_spikes_and_ends_kept() -> None:
    values = np.zeros(100_000)
    values[[12_345, 77_777]] = (50.0, -50.0)
    at, kept = thin(np.arange(100_000.0), values)
    assert len(kept) <= MAX_POINTS + 2
    assert (kept.max(), kept.min(), at[0], at[-1]) == (50.0, -50.0, 0, 99_999)
    assert set(at) >= {12_345, 77_777}


def test_smoothing_keeps_the_length_the_mean_of_a_line_and_lowers_noise() -> None:
    line = np.linspace(5, 3, 401)
    assert np.allclose(smooth(line)[20:-20], line[20:-20])
    noise = np.random.default_rng(0).normal(size=1000)
    assert smooth(noise).std() < 0.5 * noise.std()
    assert len(smooth(noise)) == 1000
    assert smooth(np.array([1.0, 3.0])).tolist() == [2.0, 2.0]
