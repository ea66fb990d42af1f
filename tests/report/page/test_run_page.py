"""All that is told of runs: made up ones with something for each section, and real ones of an earlier
version.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion
from told_views import told

from brimful.base.types import JsonDict
from brimful.report.page.run_page import run_view
from brimful.runs.folder import read_run

OLD_RUNS = Path(__file__).resolve().parents[2] / "fixtures" / "old_runs" / "runs"


def page(folder: Path) -> list[str]:
    """All that the page of a run says."""
    return told(run_view(read_run(folder)))


@pytest.mark.parametrize("name", sorted(path.name for path in OLD_RUNS.iterdir()))
def test_runs_of_an_earlier_version(name: str, snapshot: SnapshotAssertion) -> None:
    assert page(OLD_RUNS / name) == snapshot


def test_a_fresh_model(new_run: MakeRun, snapshot: SnapshotAssertion) -> None:
    data = {"fingerprints": {"data": "d1", "tokenizer": "t1"}}
    assert page(new_run()) == snapshot
    assert page(new_run("fingerprints", last_step=0, data=data)) == snapshot


def test_an_unfinished_run_with_recovery_points_events_and_too_little_memory(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = new_run(last_step=60, environment={"command": "brimful train quickstart --fresh"})
    records: list[JsonDict] = [
        {"kind": "event", "step": 3, "message": "the loss was not finite"},
        {
            "kind": "out_of_memory",
            "step": 7,
            "phase": "training",
            "from": [8, 8, 3],
            "to": [4] * 4,
            "where": "forward",
        },
    ]
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as journal:
        journal.writelines(json.dumps(record) + "\n" for record in records)
    mirror = {"path": "/drive/x", "state": "failing", "durable_step": 40, "error": "no space left"}
    (folder / "mirror.json").write_text(json.dumps(mirror), encoding="utf-8")
    assert page(folder) == snapshot


def test_a_run_of_which_nothing_is_known(new_run: MakeRun, snapshot: SnapshotAssertion) -> None:
    nothing = dict.fromkeys(("plan", "environment", "data", "recipe"))
    assert page(new_run(last_step=1, metrics=[], **nothing)) == snapshot


def test_a_tuned_model_with_tasks_beside_the_untuned_one(
    tuned_run: MakeRun,
    untuned: Callable[..., None],
    answered: Callable[..., None],
    answer_of: Callable[..., JsonDict],
    snapshot: SnapshotAssertion,
) -> None:
    folder = tuned_run()
    untuned(folder / "untuned")
    right, wrong = answer_of(1, "def f1():\n    return 1"), answer_of(2, "", "empty")
    before = answer_of(1, "I write prose", "SyntaxError: invalid syntax")
    answered(folder, "code-syntax", [right, wrong], isolation="landlock")
    answered(folder / "untuned", "code-syntax", [before], prompt="few-shot 2")
    pair = {"prompt": "Add.", "base": "No.", "tuned": "def add(a, b)", "reference": "a + b"}
    (folder / "side_by_side.jsonl").write_text(json.dumps(pair) + "\n", encoding="utf-8")
    assert page(folder) == snapshot


def test_a_classifier(labelled_run: MakeRun, snapshot: SnapshotAssertion) -> None:
    assert page(labelled_run()) == snapshot


def test_a_classifier_of_texts_with_several_labels(
    labelled_run: MakeRun, label_score: Callable[..., JsonDict], snapshot: SnapshotAssertion
) -> None:
    score = label_score("a", "b", "c", multiple=True, floor=False, repeated=0)
    assert page(labelled_run("several", scores={"validation": score})) == snapshot


def test_a_model_with_layers_of_its_own(
    fresh_text_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    assert page(fresh_text_run("layers")) == snapshot
