"""What tuning changed: scores and answers of the base beside those of the tuned model."""

import json
from collections.abc import Callable
from pathlib import Path

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.base_to_tuned import base_lines, base_to_tuned
from brimful.report.page.html import write_report
from brimful.runs.files import JOURNAL_FILE, SIDE_BY_SIDE_FILE
from brimful.runs.folder import read_run

BASE = {"kind": "base", "step": 0, "model": "base", "share": 1.0, "loss": 3.25, "seconds": 0.5}
PAIR = {
    "prompt": "Write a function that adds two numbers, and say what it does in one line. " * 2,
    "base": "I am a helpful\nassistant.",
    "tuned": "def add(a, b):\n    return a + b",
}


def add_records(run: Path, *records: JsonDict) -> None:
    path = run / JOURNAL_FILE
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[1:1] = [json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_run_of_a_fresh_model_and_one_from_before_it_was_asked_have_none(
    new_run: MakeRun, tuned_run: MakeRun
) -> None:
    assert base_to_tuned(read_run(new_run())) is None
    assert base_to_tuned(read_run(tuned_run())) is None
    assert base_lines(read_run(new_run("other"))) == []


def test_the_loss_before_the_first_step_stands_beside_the_best_models(
    tuned_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = tuned_run()
    add_records(folder, BASE)
    (folder / SIDE_BY_SIDE_FILE).write_text(json.dumps(PAIR) + "\n", encoding="utf-8")
    run = read_run(folder)
    found = base_to_tuned(run)

    assert found is not None
    (loss,) = found.scores
    assert (loss.before.value, loss.after.value) == (
        3.25,
        min(each.loss for each in run.evaluations if each.loss is not None),
    )
    assert found.samples[0].tuned == PAIR["tuned"]
    assert base_lines(run, 80) == snapshot
    assert max(map(len, base_lines(run, 80))) <= 80


def test_a_loss_on_few_sequences_stands_beside_the_tuned_models_on_the_same(
    tuned_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    folder = tuned_run()
    part = {**BASE, "share": 0.3}
    add_records(folder, part)
    assert base_to_tuned(read_run(folder)) is None, "the tuned model was not scored on them"

    add_records(folder, {**part, "step": 5, "model": "tuned", "loss": 2.0})
    found = base_to_tuned(read_run(folder))
    assert found is not None
    (loss,) = found.scores
    assert (loss.before.value, loss.after.value) == (3.25, 2.0)
    assert loss.about == snapshot


def test_scores_of_the_whole_split_go_before_those_while_training(
    tuned_run: MakeRun, untuned: Callable[..., None]
) -> None:
    folder = tuned_run()
    add_records(folder, BASE)
    untuned(folder / "untuned")
    found = base_to_tuned(read_run(folder))

    assert found is not None
    (loss,) = found.scores
    assert (loss.before.value, loss.after.value) == (2.5, 1.5)
    assert loss.before.interval
    assert loss.after.interval


def test_tasks_are_those_that_both_models_had(
    tuned_run: MakeRun,
    untuned: Callable[..., None],
    answered: Callable[..., None],
    answer_of: Callable[..., JsonDict],
    snapshot: SnapshotAssertion,
) -> None:
    folder = tuned_run()
    untuned(folder / "untuned")
    for place in (folder, folder / "untuned"):
        answered(place, "code-syntax", [answer_of(1, "x = 1"), answer_of(2, "x = 2")])
    answered(folder, "bleu", [answer_of(1, "x = 1")])
    found = base_to_tuned(read_run(folder))

    assert found is not None
    assert [each.name.partition(":")[0] for each in found.scores[1:]] == ["code-syntax"]
    assert base_lines(read_run(folder)) == snapshot


def test_a_classifier_stands_beside_simple_models(
    labelled_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    """Before tuning its head knew no labels, so nothing is said of that."""
    run = read_run(labelled_run())
    found = base_to_tuned(run)

    assert found is not None
    names = [each.before.note for each in found.scores]
    assert names[0] == run.scores.labels["test"].floor.name
    assert names[1:] == snapshot
    assert all(each.before.value is not None for each in found.scores)
    assert base_lines(run) == snapshot


def test_what_was_left_out_is_named(tuned_run: MakeRun) -> None:
    choice = {"name": "base", "value": "samples", "reason": "", "alternative": None}
    folder = tuned_run()
    path = folder / "plan.json"
    plan = json.loads(path.read_text(encoding="utf-8"))
    plan["choices"] = [*plan["choices"], choice]
    plan["base"] = {"loss_share": 0.0, "samples": True, "tasks": False}
    path.write_text(json.dumps(plan), encoding="utf-8")
    found = base_to_tuned(read_run(folder))

    assert found is not None
    assert "loss" in found.left_out
    assert "evaluation.base=always" in found.left_out


def test_the_page_begins_with_base_and_tuned(tuned_run: MakeRun) -> None:
    folder = tuned_run()
    add_records(folder, BASE)
    pairs = [{**PAIR, "prompt": f"question {number} <b>"} for number in range(3)]
    text = "".join(json.dumps(pair) + "\n" for pair in pairs)
    (folder / SIDE_BY_SIDE_FILE).write_text(text, encoding="utf-8")
    page = write_report(folder).read_text(encoding="utf-8")

    block = page[page.index('<section id="base">') : page.index('<section id="curves">')]
    assert "3.250 nats/token" in block
    assert "def add(a, b)" in block
    assert "question 2 &lt;b&gt;" in block
    assert block.index("question 0") < block.index("<details>") < block.index("question 1")


def test_a_page_of_a_run_without_comparison_has_no_such_part(tuned_run: MakeRun) -> None:
    assert 'id="base"' not in write_report(tuned_run()).read_text(encoding="utf-8")
