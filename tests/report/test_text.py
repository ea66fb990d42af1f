"""Results as lines for a terminal."""

from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.evaluation.diagnose import Finding
from brimful.report.predictions import PREDICTED_NAMES, Comparison
from brimful.report.text import (
    comparison_lines,
    evaluation_lines,
    finding_lines,
)

SCORE: JsonDict = {
    "loss": 3.03125,
    "perplexity": 20.7231,
    "bits_per_byte": 1.41834,
    "bits_per_byte_interval": [1.39, 1.4457],
    "tokens": 118204,
    "seconds": 2.9,
    "tokens_per_second": 41200.4,
    "context": 256,
    "stride": 128,
    "windows": 923,
    "documents": 60,
}


def test_a_score_is_told_with_unit_interval_and_baselines(snapshot: SnapshotAssertion) -> None:
    score = SCORE | {
        "baselines": {"unigram": {"loss": 6.0127, "bits_per_byte": 2.8134}, "tokens": 118204}
    }

    lines = evaluation_lines({"test": score})

    assert lines == snapshot


def test_perplexity_per_word_stands_beside_that_per_token(snapshot: SnapshotAssertion) -> None:
    line = evaluation_lines({"test": SCORE | {"words": 60_000, "perplexity_per_word": 391.2}})

    assert line == snapshot


def test_layers_are_told_as_averages(snapshot: SnapshotAssertion) -> None:
    record = {
        "tokens": 4096,
        "alignment": {"mean_cosine": 0.3125},
        "attention": {"mean_cosine": None, "mean_violation": 0.01, "dead": ["block 2"]},
    }

    assert evaluation_lines({"layers": record}) == snapshot
    assert evaluation_lines({}) == []


def test_the_score_of_examples_says_of_how_many(snapshot: SnapshotAssertion) -> None:
    assert evaluation_lines({"validation": SCORE | {"windows": 60}}) == snapshot


def test_what_has_no_interval_or_is_not_finite_is_told_as_that(snapshot: SnapshotAssertion) -> None:
    score = SCORE | {"bits_per_byte_interval": None, "perplexity": None}

    assert evaluation_lines({"validation": score}) == snapshot


def test_types_of_question_stand_below_the_score_over_all_of_them(
    snapshot: SnapshotAssertion,
) -> None:
    told = {
        "accuracy": (0.5, 4, [0.3, 0.7]),
        "length": (9.5, 4, None),
        "accuracy[new-pairs]": (0.25, 2, [0.0, 0.5]),
        "accuracy[new-values]": (0.75, 2, None),
    }
    metrics = {
        name: {
            "value": value,
            "n": n,
            "interval": interval,
            "unit": "tokens" if name == "length" else "share",
        }
        for name, (value, n, interval) in told.items()
    }
    summary = {
        "version": 1,
        "n": 4,
        "prompt": "template",
        "metrics": metrics,
        "errors": {"unparsed: no final answer": 1, "wrong": 1},
    }
    assert evaluation_lines({"tasks": {"unit-conversion": summary}}) == snapshot


def test_splits_follow_one_another() -> None:
    assert [
        line.partition(" ")[0] for line in evaluation_lines({"validation": SCORE, "test": SCORE})
    ] == [
        "held-out",
        "Split",
        "validation",
        "test",
    ]


def test_predictions_stand_beside_measurements_in_columns_with_a_dash_for_what_is_missing(
    snapshot: SnapshotAssertion,
) -> None:
    step_time = Comparison(
        "step_time_s", "Time per optimizer step", 0.31, (0.26, 0.38), 0.34, "why"
    )
    energy = Comparison("energy_wh", "Energy", 2.0, None, None, "assumed")

    assert comparison_lines([step_time, energy]) == snapshot
    assert comparison_lines([]) == []


def test_rough_guesses_stand_apart_and_are_not_counted(snapshot: SnapshotAssertion) -> None:
    step_time = Comparison("step_time_s", "Time per optimizer step", 0.23, (0.09, 0.54), 0.0996, "")
    memory = Comparison("peak_memory_bytes", "Peak memory", 2.32e9, (2.1e9, 2.6e9), 2.82e9, "")

    assert comparison_lines([step_time, memory]) == snapshot


def test_every_quantity_fits_a_terminal_of_80_columns() -> None:
    compared = [
        Comparison(key, name, 1234.5, (1.0, 2e9), 123.4, "")
        for key, name in PREDICTED_NAMES.items()
    ]
    assert max(map(len, comparison_lines(compared))) <= 80


def test_findings_are_marked_and_advice_stands_below_where_there_is_something_to_do(
    snapshot: SnapshotAssertion,
) -> None:
    findings = [
        Finding("weights", "all finite", "ok", "nothing"),
        Finding("loss", "high", "warn", "look"),
        Finding("files", "torn", "bad", "stop"),
    ]

    assert finding_lines(findings) == snapshot


def test_layers_of_a_finding_stand_below_it_one_per_line(snapshot: SnapshotAssertion) -> None:
    rows = (
        {"layer": "block 1", "cosine": 0.3125, "norm_ratio": None},
        {"layer": "block 2", "temperatures": (1.0, 2.5)},
    )

    lines = finding_lines([Finding("feedback gradient", "0.3", "warn", "look", rows)])

    assert lines[1:] == snapshot
