"""Tasks on the page: how they were asked, their metrics with intervals, and answers worth a
look.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.page.headline import task_verdict
from brimful.report.page.html import write_report
from brimful.report.tasks import MAX_LINES, TaskView, answer_sets, cut, task_views
from brimful.report.views import AuthoredAnswer, Fold, Prompted
from brimful.runs.tasks import read_evaluations

Record = Callable[..., JsonDict]
Answered = Callable[..., None]


def samples_of(fold: Fold) -> list[Prompted]:
    return [each for each in fold.blocks if isinstance(each, Prompted)]


def id_of(sample: Prompted) -> str:
    return sample.about.partition(":")[0]


def metrics_of(view: TaskView) -> tuple[tuple[str, ...], ...]:
    """Cells of its table of metrics, as text."""
    assert view.metrics is not None
    return view.metrics.text_rows


@pytest.fixture
def records(answer_of: Record) -> list[JsonDict]:
    """Three answers that parse and three that do not."""
    good = [answer_of(number, f"def f{number}():\n    return {number}") for number in range(3)]
    bad = [
        answer_of(3, "", "empty"),
        answer_of(4, "def (", "SyntaxError: invalid syntax"),
        answer_of(5, "", "empty"),
    ]
    return [*good, *bad]


@pytest.fixture
def run(tuned_run: MakeRun, answered: Answered, records: list[JsonDict]) -> Path:
    folder = tuned_run()
    answered(folder, "code-syntax", records)
    bleu = [
        record | {"scores": {"bleu": 40.0 - place}, "error": ""}
        for place, record in enumerate(records)
    ]
    answered(folder, "bleu", bleu)
    return folder


def test_a_run_that_was_asked_nothing_has_no_tasks(tuned_run: MakeRun) -> None:
    tasks = read_evaluations(tuned_run())
    assert (tasks.summaries, tasks.answers, tasks.problems) == ({}, {}, ())
    assert task_views(tasks, None) == answer_sets(tasks, None) == []
    assert task_verdict(tasks, None) == ""


def test_tasks_come_in_the_order_of_the_recipe(run: Path) -> None:
    assert list(read_evaluations(run).summaries) == ["bleu", "code-syntax"]
    assert list(read_evaluations(run, ["code-syntax", "bleu"]).summaries) == ["code-syntax", "bleu"]


def test_a_task_says_how_it_was_asked_and_every_metric_with_its_interval(
    run: Path, snapshot: SnapshotAssertion
) -> None:
    syntax, _ = task_views(read_evaluations(run, ["code-syntax"]), None)
    assert syntax.about == snapshot
    assert metrics_of(syntax) == (
        ("syntax", "50.0% [45.0%, 55.0%]"),
        ("length", "9 tokens [8.1, 9.9]"),
    )
    assert list(syntax.errors.items()) == [("empty", 2), ("SyntaxError: invalid syntax", 1)]


def test_judged_programs_name_what_isolated_them(
    tuned_run: MakeRun, answered: Answered, answer_of: Record, snapshot: SnapshotAssertion
) -> None:
    folder = tuned_run()
    record = answer_of(
        1,
        "x",
        "error: NameError",
        scores={"pass@1": 0.0},
        status="error",
        detail="NameError: name 'x' is not defined",
    )
    answered(
        folder,
        "humaneval",
        [record],
        isolation="landlock+seccomp",
        samples=5,
        temperature=0.8,
        skipped=2,
    )
    tasks = read_evaluations(folder)
    assert task_views(tasks, None)[0].about == snapshot
    (answer,) = samples_of(answer_sets(tasks, None)[0])
    assert (answer.verdict, answer.is_good) == ("error: NameError: name 'x' is not defined", False)


def test_the_untuned_model_stands_beside_with_the_way_it_was_asked(
    run: Path, answered: Answered, answer_of: Record, snapshot: SnapshotAssertion
) -> None:
    answered(
        run / "untuned",
        "code-syntax",
        [answer_of(1, "hello", "SyntaxError: x")],
        prompt="few-shot 2",
        notes=["10 of 100", "1 shot only"],
    )
    tasks, before = read_evaluations(run, ["code-syntax"]), read_evaluations(run / "untuned")
    syntax, bleu = task_views(tasks, before)
    assert syntax.notes == snapshot
    assert syntax.before_about == snapshot
    assert metrics_of(syntax)[0][2] == "0.0% [0.0%, 0.0%]"
    assert len(metrics_of(bleu)[0]) == 2
    assert task_verdict(tasks, before) == snapshot
    shown = {id_of(each): each.answers for each in samples_of(answer_sets(tasks, before)[0])}
    assert shown["ex/1"][2] == AuthoredAnswer(
        "Before tuning", "hello", "SyntaxError: x", is_good=False
    )
    assert len(shown["ex/0"]) == 2


def test_another_version_of_a_task_is_not_put_beside(
    run: Path, answered: Answered, records: list[JsonDict]
) -> None:
    answered(run / "untuned", "code-syntax", records, version=2)
    tasks, before = read_evaluations(run, ["code-syntax"]), read_evaluations(run / "untuned")
    assert len(metrics_of(task_views(tasks, before)[0])[0]) == 2
    assert "before tuning" not in task_verdict(tasks, before)


def test_tasks_that_share_their_answers_show_them_once_the_best_and_the_worst(
    run: Path, snapshot: SnapshotAssertion
) -> None:
    (view,) = answer_sets(read_evaluations(run, ["code-syntax", "bleu"]), None)
    assert view.summary == snapshot
    answers = samples_of(view)
    assert [id_of(each) for each in answers[:2]] == ["ex/0", "ex/1"]
    assert [each.verdict for each in answers] == snapshot
    assert answers[0].about == snapshot


def test_few_answers_are_all_shown_once(
    tuned_run: MakeRun, answered: Answered, records: list[JsonDict]
) -> None:
    folder = tuned_run()
    answered(folder, "code-syntax", records[2:5])
    (view,) = answer_sets(read_evaluations(folder), None)
    assert view.summary == "Answers to look at: code-syntax, all 3"
    assert sorted(map(id_of, samples_of(view))) == ["ex/2", "ex/3", "ex/4"]


@pytest.fixture
def questions_run(tuned_run: MakeRun, answered: Answered, answer_of: Record) -> Path:
    """Twelve answers: four right, two wrong, six that could not be read; of two types."""
    folder = tuned_run()
    statuses = ["correct"] * 4 + ["wrong"] * 2 + ["unparsed"] * 6
    errors = {"correct": "", "wrong": "wrong", "unparsed": "unparsed: no final answer"}
    records = [
        answer_of(
            number,
            f"said {number}",
            errors[status],
            scores={
                "accuracy": float(status == "correct"),
                "answer_rate": float(status != "unparsed"),
            },
            status=status,
            detail="no final answer" * (status == "unparsed"),
            kind=("new-pairs", "new-values")[number % 2],
        )
        for number, status in enumerate(statuses)
    ]
    told = {
        "accuracy": (0.333, 12),
        "answer_rate": (0.5, 12),
        "accuracy[new-pairs]": (0.25, 6),
        "accuracy[new-values]": (0.4, 6),
        "answer_rate[new-pairs]": (0.5, 6),
        "answer_rate[new-values]": (0.6, 6),
    }
    metrics = {
        name: {"value": value, "interval": [value - 0.1, value + 0.1], "n": n, "unit": "share"}
        for name, (value, n) in told.items()
    }
    answered(folder, "unit-conversion", records, metrics=metrics, verifier="number")
    return folder


def test_types_of_question_stand_beside_one_another(
    questions_run: Path, snapshot: SnapshotAssertion
) -> None:
    (view,) = task_views(read_evaluations(questions_run), None)
    assert [row[0] for row in metrics_of(view)] == ["accuracy", "answer_rate"]
    assert view.by_kind is not None
    assert view.by_kind.columns == ("", "new-pairs (n = 6)", "new-values (n = 6)")
    assert view.by_kind.text_rows == (
        ("accuracy", "25.0% [15.0%, 35.0%]", "40.0% [30.0%, 50.0%]"),
        ("answer_rate", "50.0% [40.0%, 60.0%]", "60.0% [50.0%, 70.0%]"),
    )
    assert view.before_by_kind is None
    assert view.about == snapshot


def test_answers_that_could_not_be_read_are_listed_with_the_reason(
    questions_run: Path, snapshot: SnapshotAssertion
) -> None:
    ends, unread = answer_sets(read_evaluations(questions_run), None)
    assert [each.verdict for each in samples_of(ends)] == snapshot
    assert unread.summary == snapshot
    assert [each.verdict for each in samples_of(unread)] == ["unparsed: no final answer"] * 3
    assert not {*map(id_of, samples_of(ends))} & {*map(id_of, samples_of(unread))}


def test_two_ways_of_counting_the_same_answers_show_the_first(
    questions_run: Path, answered: Answered, snapshot: SnapshotAssertion
) -> None:
    path = questions_run / "evaluations" / "unit-conversion.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    answered(
        questions_run,
        "loose",
        [
            record | {"scores": {"accuracy": 1.0}, "status": "correct", "error": ""}
            for record in records
        ],
    )
    view = answer_sets(read_evaluations(questions_run, ["unit-conversion"]), None)[0]
    assert view.summary == snapshot
    assert samples_of(view)[-1].about == snapshot


def test_the_page_shows_types_and_answers_that_could_not_be_read(questions_run: Path) -> None:
    page = write_report(questions_run).read_text(encoding="utf-8")
    assert "By type of question" in page
    assert "new-pairs (n = 6)" in page
    assert "3 more that could not be read" in page


@pytest.mark.parametrize("content", ["{", "[1]", '{"metrics": 3}', "null"])
def test_a_damaged_summary_is_named_and_costs_nothing_else(run: Path, content: str) -> None:
    (run / "evaluations" / "bleu.json").write_text(content)
    tasks = read_evaluations(run)
    assert list(tasks.summaries) == ["code-syntax"]
    assert len(tasks.problems) == 1
    assert "bleu.json" in tasks.problems[0]


def test_values_of_a_wrong_kind_are_passed_over(run: Path) -> None:
    (run / "evaluations" / "bleu.json").write_text(
        '{"metrics": {"bleu": 3, "other": {"value": "x", "interval": 1}}, "errors": [], "notes": 5,'
        ' "n": "many"}'
    )
    (run / "evaluations" / "bleu.jsonl").write_text(
        '{"scores": 1, "completion": null}\n\n{"id": [1]}\nnot json\n'
    )
    tasks = read_evaluations(run)
    bleu = next(view for view in task_views(tasks, None) if view.name == "bleu")
    assert [list(row) for row in metrics_of(bleu)] == [["bleu"], ["other"]]
    assert len(answer_sets(tasks, None)) == 2


def test_long_texts_are_cut_to_a_few_lines_and_long_lines_too() -> None:
    text = "\n".join(f"line {number}" for number in range(40))
    assert cut(text).splitlines()[-2:] == [
        f"line {MAX_LINES - 1}",
        f"... ({40 - MAX_LINES} more lines)",
    ]
    assert cut(text, from_end=True).splitlines()[-1] == "line 39"
    assert len(cut("x" * 5000)) < 300
    assert cut("a\nb\n") == "a\nb"
