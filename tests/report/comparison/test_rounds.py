"""Rounds on a page: what was drawn, what became of it over all seeds, samples to look at, and
scores from round to round.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.comparison.compare import RunComparison
from brimful.report.comparison.results import ComparedRun, Figure
from brimful.report.comparison.rounds import (
    charts,
    kind_tables,
    round_blocks,
    sample_examples,
)
from brimful.report.comparison.study_folder import read_study
from brimful.report.comparison.variants import Variant
from brimful.report.table import Link, Table
from brimful.report.terminal import told
from brimful.report.views import Block, Heading, Prompted
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
def drawn(samples: list[JudgedSample]) -> JsonDict:
    """A round of study.json."""
    statistics = statistics_of(QUESTIONS, samples, RULES).to_json()
    return {
        "round": 1,
        "seed": 7,
        "folder": "samples-1",
        "author": "small-base, tuned",
        "statistics": statistics,
    }


def _blocks(folder: Path, *rounds: object) -> list[Block]:
    (folder / "study.json").write_text(json.dumps({"rounds": rounds}))
    return [*round_blocks(read_study(folder))]


def _below(blocks: list[Block], heading: str) -> Any:
    """The block below a heading."""
    return blocks[blocks.index(Heading(heading)) + 1]


AUTHOR = "Round 1: samples by small-base, tuned"


def test_rounds_of_two_seeds_are_told_together(
    tmp_path: Path, drawn: JsonDict, snapshot: SnapshotAssertion
) -> None:
    drawn["statistics"]["kinds"]["feet"]["questions"] = 2
    more = {
        "notes": ["2 questions are not asked"],
        "trained_tokens": {"demonstrations": 1200, "samples": 3000},
    }
    blocks = _blocks(tmp_path, drawn | more, drawn | more | {"seed": 8})
    assert [line.rstrip() for line in told(blocks).plain.splitlines()] == snapshot


def test_rounds_come_in_order_and_link_only_to_files_that_are_there(
    tmp_path: Path, drawn: JsonDict
) -> None:
    folder = tmp_path / "samples 1"
    folder.mkdir()
    (folder / "samples.jsonl").touch()
    blocks = _blocks(tmp_path, drawn | {"round": 2}, drawn | {"folder": "samples 1"})
    headings = [each.text for each in blocks if isinstance(each, Heading) and "Round" in each.text]
    assert headings == [AUTHOR, AUTHOR.replace("1", "2")]
    first, second = (_below(blocks, heading).rows[0][-1] for heading in headings)
    assert first.links == (Link("samples.jsonl", "samples%201/samples.jsonl"),)
    assert second.links == ()


def test_what_is_missing_in_a_round_is_left_out(tmp_path: Path) -> None:
    _, heading, table = _blocks(tmp_path, {}, 5)
    assert heading == Heading("Round 0")
    assert isinstance(table, Table)
    assert _blocks(tmp_path) == []


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
    shown = [each for each in _blocks(tmp_path, {"examples": found}) if isinstance(each, Prompted)]
    assert [(each.prompt, each.verdict, each.is_good) for each in shown[1:]] == [
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
    [chart] = charts(chain(base=[0.22], sft=[0.5, 0.54], rft=[0.6, 0.64]))
    assert (chart.title, chart.x_names) == (
        "Units accuracy (%) round by round",
        ("base", "sft", "rft"),
    )
    *seeds, mean = chart.series
    assert mean.y == pytest.approx((22.0, 52.0, 62.0))
    assert mean.intervals[0] == pytest.approx((20.0, 24.0))
    assert [each.name for each in seeds] == ["seed 0", "seed 1"]
    assert {each.y[0] for each in seeds} == {22.0}, "where every seed begins"
    assert chart.about.endswith("base 22.0, sft 52.0, rft 62.0")


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_a_chart_of_one_value_has_no_lines_of_seeds(value: float) -> None:
    [chart] = charts(chain(sft=[value]))
    assert [each.y for each in chart.series] == [(100 * value,)]


def test_accuracy_by_type_of_question_is_a_table_of_its_own() -> None:
    [(title, table)] = kind_tables(chain(base=[0.22], sft=[0.5, 0.54]))
    assert title == "Units accuracy (%)"
    assert table.columns == ("", "new-pairs (n = 40)")
    assert [row[1].split(" ")[0] for row in table.text_rows] == ["11.0", "26.0"]
