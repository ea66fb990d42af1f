"""Rounds on a page: what was drawn, what became of it over all seeds, samples to look at, and
scores from round to round.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.intervals import wilson_interval
from brimful.report.comparison.compare import RunComparison
from brimful.report.comparison.results import ComparedRun, Figure
from brimful.report.comparison.rounds import (
    HUES,
    RoundView,
    charts,
    kind_tables,
    round_views,
    sample_examples,
)
from brimful.report.comparison.sampling import FATES
from brimful.report.comparison.study_folder import read_study
from brimful.report.comparison.variants import Variant
from brimful.report.table import Cell
from brimful.selection.choose import SelectionRules, choose
from brimful.selection.sample import JudgedSample, SampledPrompt
from brimful.selection.statistics import statistics_of

RULES = SelectionRules(samples_per_prompt=4, keep_per_prompt=2)
QUESTIONS = [
    SampledPrompt("m", "How many minutes?", (1,), "minutes", reference="60"),
    SampledPrompt("f", "How many feet?", (1,), "feet", reference="3"),
    SampledPrompt("g", "How many grams?", (1,)),
]
VERDICTS = {
    "m": ["correct"] * 4,
    "f": ["wrong", "correct", "wrong", "unparsed"],
    "g": ["wrong"] * 4,
}
"""Of the samples of each question. Those of `m` have three paths."""


@pytest.fixture(scope="module")
def samples() -> list[JudgedSample]:
    return [
        sample
        for name, verdicts in VERDICTS.items()
        for sample in choose([_sample(name, *each) for each in enumerate(verdicts)], RULES)
    ]


def _sample(question: str, number: int, status: Any) -> JudgedSample:
    detail = {"correct": "", "wrong": "off-by-one", "unparsed": "no final answer"}[status]
    return JudgedSample(
        question,
        number,
        f"{question}{number}",
        "stop",
        10,
        number,
        None,
        "",
        status,
        detail,
        path="abbc"[number],
    )


@pytest.fixture
def drawn(samples: list[JudgedSample]) -> dict[str, Any]:
    """A round of study.json."""
    statistics = statistics_of(QUESTIONS, samples, RULES).to_json()
    return {
        "round": 1,
        "seed": 7,
        "folder": "samples-1",
        "author": "small-base, tuned",
        "statistics": statistics,
    }


def _views(folder: Path, *rounds: object) -> list[RoundView]:
    (folder / "study.json").write_text(json.dumps({"rounds": rounds}))
    return round_views(read_study(folder))


def test_a_round_tells_what_was_drawn_with_intervals(tmp_path: Path, drawn: dict[str, Any]) -> None:
    [view] = _views(tmp_path, drawn)
    right = wilson_interval(5, 12)
    assert (view.number, view.author) == (1, "small-base, tuned")
    assert view.samples.text_rows == (
        (
            "Seed 7",
            "12",
            "120",
            f"41.7% [{right.low:.1%}, {right.high:.1%}]",
            "91.7% [64.6%, 98.5%]",
            "66.7%",
            "3",
        ),
    )
    accepted = view.samples.rows[0][5]
    assert isinstance(accepted, Cell)
    assert accepted.note == "2 of 3 questions"


def test_the_bar_has_every_fate_of_all_seeds_and_its_parts_are_the_whole(
    tmp_path: Path, drawn: dict[str, Any]
) -> None:
    [view] = _views(tmp_path, drawn, drawn | {"seed": 8})
    assert {part.name: part.text for part in view.fates} == {
        "kept": "6",
        "repeated path": "2",
        "enough": "2",
        "wrong": "12",
        "unparsed": "2",
    }
    assert sum(float(part.percent.rstrip("%")) for part in view.fates) == pytest.approx(
        100, abs=0.1
    )
    assert len({part.style for part in view.fates}) == len(view.fates)
    assert {name.replace("-", " ") for name in FATES} == set(HUES)


def test_reasons_of_all_seeds_are_added_up_each_with_a_sample(
    tmp_path: Path, drawn: dict[str, Any]
) -> None:
    [view] = _views(tmp_path, drawn, drawn | {"seed": 8})
    assert [row[0] for row in view.samples.rows] == ["Seed 7", "Seed 8"]
    first = view.reasons[0]
    assert (first.count, first.what, first.question, first.answer) == (
        "12",
        "wrong: off-by-one",
        "How many feet?",
        "f0",
    )
    assert "repeated path" in [reason.what for reason in view.reasons]


def test_kinds_with_the_fewest_accepted_questions_come_first(
    tmp_path: Path, drawn: dict[str, Any]
) -> None:
    drawn["statistics"]["kinds"]["feet"]["questions"] = 2
    [view] = _views(tmp_path, drawn, drawn | {"seed": 8})
    assert view.kinds is not None
    assert [row[:3] for row in view.kinds.text_rows] == [
        ("feet", "50.0% (2 of 4)", "2"),
        ("minutes", "100.0% (2 of 2)", "4"),
    ]
    assert view.kinds.text_rows[1][3].startswith("100.0% [")


def test_rounds_come_in_order_and_link_only_to_files_that_are_there(
    tmp_path: Path, drawn: dict[str, Any]
) -> None:
    folder = tmp_path / "samples 1"
    folder.mkdir()
    (folder / "samples.jsonl").touch()
    views = _views(tmp_path, drawn | {"round": 2}, drawn | {"folder": "samples 1"})
    assert [view.number for view in views] == [1, 2]
    assert [(link.name, link.path) for link in views[0].links[0]] == [
        ("samples.jsonl", "samples%201/samples.jsonl")
    ]
    assert views[1].links[0] == ()


def test_notes_and_trained_tokens_that_seeds_share_are_told_once(
    tmp_path: Path, drawn: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    more = {
        "notes": ["2 questions are not asked"],
        "trained_tokens": {"demonstrations": 1200, "samples": 3000},
    }
    [view] = _views(tmp_path, drawn | more, drawn | more | {"seed": 8})
    assert view.notes == snapshot
    assert view.trained == ("demonstrations 1,200, samples 3,000",)


def test_what_is_missing_in_a_round_is_left_out(tmp_path: Path) -> None:
    [view] = _views(tmp_path, {}, 5)
    assert (view.fates, view.reasons, view.kinds, view.examples, view.author) == (
        (),
        (),
        None,
        (),
        "",
    )
    assert _views(tmp_path) == []


def test_samples_to_look_at_are_two_kept_and_two_that_are_not_right_of_different_questions(
    tmp_path: Path, samples: list[JudgedSample]
) -> None:
    found = sample_examples(samples, QUESTIONS)
    assert [
        (each["question"], each["answer"], each["reference"], each["fate"]) for each in found
    ] == [
        ("How many minutes?", "m0", "60", "kept"),
        ("How many feet?", "f1", "3", "kept"),
        ("How many grams?", "g0", "", "wrong"),
    ]
    [view] = _views(tmp_path, {"examples": found})
    assert [(each.prompt, each.verdict, each.is_good) for each in view.examples[1:]] == [
        ("How many feet?", "kept", True),
        ("How many grams?", "wrong: off-by-one", False),
    ]


def chain(**accuracies: list[float]) -> RunComparison:
    """Variants with an accuracy for each seed, over all questions and of one type."""

    def run(name: str, seed: int, value: float) -> ComparedRun:
        figures = {
            "units accuracy": Figure(value, "share", (value - 0.02, value + 0.02), 100),
            "units answer_rate": Figure(0.9, "share", None, 100),
        }
        figures |= {
            "units accuracy[new-pairs]": Figure(value / 2, "share", None, 40),
            "units answer_rate[new-pairs]": Figure(0.9, "share", None, 40),
        }
        is_untuned = name == "base"
        return ComparedRun(
            f"{name}-seed{seed}",
            name,
            None if is_untuned else seed,
            figures,
            {},
            {},
            "",
            (),
            is_untuned,
        )

    variants = tuple(
        Variant(name, tuple(run(name, *each) for each in enumerate(values)))
        for name, values in accuracies.items()
    )
    metrics = (
        "units accuracy",
        "units answer_rate",
        "units accuracy[new-pairs]",
        "units answer_rate[new-pairs]",
    )
    return RunComparison(variants, metrics, (), (), ())


def test_a_chart_shows_the_main_metric_from_round_to_round_with_each_seeds_own_line() -> None:
    [chart] = charts(chain(base=[0.22], sft=[0.5, 0.54], rft=[0.6, 0.64]), "base")
    assert (chart.title, chart.lowest) == ("Units accuracy (%)", "20.0")
    assert [(stage.name, stage.value, stage.is_base) for stage in chart.stages] == [
        ("base", "22.0", True),
        ("sft", "52.0", False),
        ("rft", "62.0", False),
    ]
    assert chart.stages[0].interval == "20.0 to 24.0"
    assert len(chart.seed_lines) == 2
    assert all(line.startswith(chart.line.split()[0]) for line in chart.seed_lines), (
        "the untuned model is where every seed begins"
    )
    for stage in chart.stages:
        assert 0 <= stage.high <= stage.top <= stage.high + stage.height <= 100


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_a_chart_of_one_value_has_a_scale(value: float) -> None:
    [chart] = charts(chain(sft=[value]), "base")
    assert chart.seed_lines == ()
    assert 0 <= chart.stages[0].top <= 100
    assert chart.highest != chart.lowest


def test_accuracy_by_type_of_question_is_a_table_of_its_own() -> None:
    [(title, table)] = kind_tables(chain(base=[0.22], sft=[0.5, 0.54]))
    assert title == "Units accuracy (%)"
    assert table.columns == ("", "new-pairs (n = 40)")
    assert [row[1].split(" ")[0] for row in table.text_rows] == ["11.0", "26.0"]
