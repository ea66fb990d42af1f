"""Scores and examples of runs of every kind, from what their folders hold."""

import json
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError, RunFolderError
from brimful.base.rundir import write_json_atomically
from brimful.base.types import JsonDict
from brimful.notebook.answers import scores_and_examples
from brimful.notebook.job import CommandFailed, run_command
from brimful.recipe import Recipe, load
from brimful.report.terminal import told_of
from brimful.report.views import AuthoredAnswer, Prompted


def _lines(path: Path, rows: list[JsonDict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_language_model_shows_the_samples_that_it_kept(tiny: Any, tmp_path: Path) -> None:
    recipe: Recipe = tiny()
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    _lines(
        tmp_path / "samples.jsonl",
        [{"prompt": "The ", "completion": f"cat {number}"} for number in range(5)],
    )

    (group,) = scores_and_examples(tmp_path, []).sections
    assert group.blocks[0] == Prompted("The ", answers=(AuthoredAnswer("goes on", "cat 0"),))
    assert len(group.blocks) == 3


@pytest.mark.parametrize("model", ["answerdotai/ModernBERT-base", None])
def test_an_encoder_shows_what_it_filled_in_and_answers_no_text(
    model: str | None, tmp_path: Path
) -> None:
    recipe = load("tiny-encoder", [f"model={model}", "tokenizer=null"] if model else [])
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    _lines(
        tmp_path / "samples.jsonl",
        [{"prompt": "The [MASK] sat", "completion": "'cat' stands there, guess number 1"}],
    )

    view = scores_and_examples(tmp_path, [])
    assert view.sections[0].heading == "What it fills in"
    assert "The [MASK] sat\n  there: 'cat' stands there, guess number 1\n" in told_of(view).plain
    with pytest.raises(RequestError, match="is an encoder: it fills in masked words"):
        scores_and_examples(tmp_path, ["The "])


def test_a_classifier_shows_its_most_confident_mistakes(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    folder = tmp_path / "sorted"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(load("moderation-offline").to_yaml())
    mistake = {
        "text": "call me",
        "label": "ham",
        "predicted": "spam",
        "probability": 0.98,
        "where": "texts.csv:3",
    }
    write_json_atomically(
        folder / "scores.json",
        {
            "validation": {
                "kind": "labels",
                "labels": ["ham", "spam"],
                "examples": 9,
                "mistakes": [mistake],
            }
        },
    )

    assert told_of(scores_and_examples(folder, [])).plain == snapshot


def test_a_study_shows_the_same_questions_answered_by_its_first_and_its_last_run(
    tmp_path: Path,
) -> None:
    variants = [{"name": name, "runs": [name]} for name in ("base", "sft", "rft-1")]
    write_json_atomically(
        tmp_path / "study.json", {"recipe": "rounds", "comparison": {"variants": variants}}
    )
    for name in ("base", "sft", "rft-1"):
        summary = {"task": "units", "metrics": {"accuracy": {"value": 0.5}}}
        (tmp_path / name / "evaluations").mkdir(parents=True)
        write_json_atomically(tmp_path / name / "evaluations" / "units.json", summary)
        records = [
            {"id": str(number), "prompt": f"question {number}", "completion": f"{name} {number}"}
            for number in range(5)
        ]
        _lines(tmp_path / name / "evaluations" / "units.jsonl", records)

    (group,) = scores_and_examples(tmp_path, []).sections
    assert group.heading == "Answers to units"
    answers = (AuthoredAnswer("base", "base 1"), AuthoredAnswer("rft-1", "rft-1 1"))
    assert group.blocks[1] == Prompted("question 1", answers=answers)
    (tmp_path / "study.json").write_text('{"recipe": "rounds"}')
    assert scores_and_examples(tmp_path, []).sections == ()


def test_a_folder_that_is_no_run_is_one_message(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RunFolderError, names=["recipe.yaml"]):
        scores_and_examples(tmp_path, [])
    with refuses(CommandFailed, names=["recipe.yaml"]):
        run_command([str(tmp_path)], module="brimful.notebook.answers")
