"""The one score by which a run is known: the main one of its kind, with its interval; before it is
scored, the best so far.
"""

import json
from collections.abc import Callable
from pathlib import Path

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.listing.score import main_score_text
from brimful.runs.folder import read_run


def told(folder: Path) -> str:
    return main_score_text(read_run(folder))


def test_a_language_model_is_known_by_its_bits_per_byte(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    assert told(new_run()) == snapshot
    assert told(new_run("half", last_step=120)) == snapshot
    assert told(new_run("unscored", scores=None)) == snapshot
    assert told(new_run("early", last_step=3)) == ""


def test_damaged_scores_are_told_and_no_earlier_ones_shown_for_them(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = new_run()
    scores = folder / "scores.json"
    scores.write_text(scores.read_text()[:-40])
    assert told(folder) == snapshot
    scores.unlink()
    assert told(folder) == snapshot


def test_a_tuned_model_is_known_by_its_first_task_and_without_one_by_its_loss(
    tuned_run: MakeRun, on_task: Callable[..., None], snapshot: SnapshotAssertion
) -> None:
    folder = tuned_run()
    assert told(folder) == snapshot
    on_task(folder, "code-syntax", {"syntax": {"a": 1.0, "b": 0.0}})
    on_task(folder, "bleu", {"bleu": {"a": 30.0, "b": 20.0}})
    order = "evaluation: {tasks: [code-syntax, bleu]}"
    assert told(folder) == snapshot
    recipe = (folder / "recipe.yaml").read_text()
    assert order in recipe
    (folder / "recipe.yaml").write_text(
        recipe.replace(order, "evaluation: {tasks: [bleu, code-syntax]}")
    )
    assert told(folder) == "bleu 25 BLEU (24.95 to 25.05)"
    for path in (folder / "evaluations").glob("*.json"):
        path.write_text("[]")
    assert told(folder).startswith("loss 1.500")


def test_a_classifier_is_known_by_its_main_metric(
    labelled_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    assert told(labelled_run()) == snapshot


def test_a_classifier_that_is_still_trained_is_known_by_its_best_evaluation(
    new_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    records: list[JsonDict] = [
        {
            "kind": "evaluation",
            "step": 10,
            "loss": 0.5,
            "objective": -0.8,
            "f1": 0.8,
            "accuracy": 0.9,
        },
        {
            "kind": "evaluation",
            "step": 20,
            "loss": 0.6,
            "objective": -0.9,
            "f1": 0.9,
            "accuracy": 0.91,
        },
    ]
    folder = new_run(last_step=30, recipe="name: sorted\nmethod: classify\n", metrics=records)
    assert told(folder) == snapshot


def test_a_model_of_masked_tokens_is_known_by_its_loss(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    scores = {"validation": {"kind": "masked", "loss": 2.5, "loss_interval": [2.4, 2.6]}}
    assert (
        told(new_run(scores=scores, recipe="name: m\nmethod: mlm\nmodel: {layers: 2}\n"))
        == snapshot
    )


def test_scores_of_odd_values_are_no_scores(new_run: MakeRun) -> None:
    folder = new_run(last_step=3)
    (folder / "scores.json").write_text(
        json.dumps({"validation": {"loss": "low", "bits_per_byte": []}})
    )
    assert told(folder) == ""
