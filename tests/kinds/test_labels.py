"""A classifier from files of texts to labels with probabilities: trained, calibrated, scored,
killed and continued, predicted with.
"""

import json
import math
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finished_runs import newest_of, records_of
from fixture_types import MakeRecipe, Refuses
from rich.console import Console
from transformers import AutoTokenizer

from brimful.base.errors import BrimfulError, DataError, RequestError, RunFolderError
from brimful.base.rundir import read_json
from brimful.base.types import JsonDict
from brimful.chains import finished, pipeline, scoring
from brimful.chains.task_scores import EvaluationRequest
from brimful.classification.classifier import load_classifier
from brimful.classification.record import load_record
from brimful.generation.export import export
from brimful.generation.load import load_run
from brimful.kinds.labels import LabelledRunData
from brimful.recipe import Recipe, load
from brimful.training import session

Texts = Callable[..., list[tuple[str, str]]]
"""`texts(count, seed=0)`: pairs of a text and its label."""


@pytest.fixture
def classified(labels_recipe_file: Path) -> MakeRecipe:
    """`classified("key=value", ...)` gives the tiny classifier's recipe with overrides."""
    return lambda *overrides: load(str(labels_recipe_file), overrides)


def _console() -> Console:
    return Console(file=StringIO(), width=160)


def _scored(recipe: Recipe) -> JsonDict:
    """The test split's record, without a report."""
    folder = pipeline.train(recipe, _console()).folder
    scores: JsonDict = scoring.evaluate(folder, _console(), split="test")
    return scores["test"]


def _told(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("encoder", ["bert", "llama"], indirect=True)
def test_a_classifier_learns_is_calibrated_and_scored_beside_the_floor(
    classified: MakeRecipe, encoder: Path
) -> None:
    console = _console()

    report = pipeline.run(classified(), console)

    scores, record = (
        read_json(report.parent / "scores.json"),
        read_json(report.parent / "classifier.json"),
    )
    assert {split: value["kind"] for split, value in scores.items()} == {
        "validation": "labels",
        "test": "labels",
    }
    assert scores["test"]["metrics"]["f1"]["value"] > 0.8
    assert (
        scores["test"]["metrics"]["f1"]["low"]
        <= scores["test"]["metrics"]["f1"]["value"]
        <= scores["test"]["metrics"]["f1"]["high"]
    )
    assert scores["test"]["positive"] == "spam"
    assert set(scores["test"]["floor"]["difference"]) == {"f1", "macro_f1", "accuracy", "pr_auc"}
    assert scores["test"]["threshold"]["chosen_on"] == "validation"
    assert record["labels"] == ["ham", "spam"]
    assert record["temperature"] == scores["test"]["temperature"]
    assert "weights: ham 0.6" in _told(console)
    assert "calibrated on 4" in _told(console)
    evaluations = records_of(report.parent, "evaluation")
    assert all(each["objective"] == -each["best_f1"] <= -each["f1"] for each in evaluations)


@pytest.mark.parametrize("encoder", ["llama"], indirect=True)
def test_tokens_without_a_row_in_the_embedding_are_harmless_where_no_text_needs_them(
    classified: MakeRecipe, encoder: Path, texts: Texts, refuses: Refuses
) -> None:
    """As of Llama 2 with a padding token of somebody else: end-of-text fills the rows."""
    longer = AutoTokenizer.from_pretrained(encoder)
    rows = len(longer)
    longer.add_special_tokens({"pad_token": "<pad>", "eos_token": "[SEP]"})
    longer.add_tokens(["<extra>"])
    longer.save_pretrained(encoder)

    folder = pipeline.train(classified("training.epochs=1"), _console()).folder

    assert scoring.evaluate(folder, _console())["validation"]["examples"] > 0
    classifier = load_classifier(folder, torch.device("cpu"))
    unseen = [text for text, _ in texts(5, seed=5)]
    assert classifier.logits(unseen).shape == (5, 2)
    with refuses(DataError, names=["'<extra>'", f"id {rows + 1}"]):
        classifier.logits([*unseen, f"<extra> {unseen[0]}"])
    data = Path(classified().data.paths[0])
    data.write_text(data.read_text().replace("\n", "\n<extra> ", 1))
    with refuses(DataError, names=["'<extra>'", f"{rows} rows"]):
        pipeline.train(classified("run.name=other"), _console())


def test_the_exported_model_is_one_that_transformers_uses_as_it_is(
    classified: MakeRecipe, texts: Texts
) -> None:
    from transformers import pipeline as transformers_pipeline

    folder = pipeline.train(classified(), _console()).folder
    unseen = [text for text, _ in texts(12, seed=5)]
    theirs = transformers_pipeline("text-classification", model=str(folder / "model"), top_k=None)(
        unseen
    )
    ours = torch.from_numpy(load_classifier(folder, torch.device("cpu")).logits(unseen)).softmax(1)

    for answer, row in zip(theirs, ours, strict=True):
        found = {each["label"]: each["score"] for each in answer}
        assert [found["ham"], found["spam"]] == pytest.approx(row.tolist(), abs=1e-5)


def test_killed_in_the_middle_it_ends_bit_for_bit_where_it_would_have(
    classified: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = pipeline.train(classified("run.name=undisturbed"), _console()).folder
    real, saved = session.TrainingSession.save, []

    def save(self: Any, progress: Any) -> None:
        real(self, progress)
        saved.append(progress.step)
        if progress.step == 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(session.TrainingSession, "save", save)
    with pytest.raises(KeyboardInterrupt):
        pipeline.train(classified(), _console())
    monkeypatch.setattr(session.TrainingSession, "save", real)
    continued = pipeline.train(classified(), _console()).folder

    assert 20 in saved
    one, other = newest_of(undisturbed), newest_of(continued)
    assert all(
        torch.equal(tensor, other.tensors["model"][name])
        for name, tensor in one.tensors["model"].items()
    )
    assert read_json(undisturbed / "classifier.json") == read_json(continued / "classifier.json")


def test_texts_may_have_several_labels(
    classified: MakeRecipe, tmp_path: Path, texts: Texts
) -> None:
    path = tmp_path / "several.jsonl"
    rows = [
        {
            "text": text,
            "label": (
                ["ad", "urgent"]
                if label == "spam" and "now" in text
                else ["ad"]
                if label == "spam"
                else []
            ),
        }
        for text, label in texts(200)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    scores = _scored(classified(f"data.path={path}"))

    assert (scores["multiple"], scores["labels"], len(scores["threshold"]["value"])) == (
        True,
        ["ad", "urgent"],
        2,
    )
    assert scores["metrics"]["macro_f1"]["value"] > 0.5


def test_more_than_two_labels_need_no_threshold(
    classified: MakeRecipe, tmp_path: Path, texts: Texts
) -> None:
    path = tmp_path / "three.csv"
    path.write_text(
        "text,label\n"
        + "".join(
            f"{text},{label if label == 'spam' else ('cat' if 'cat' in text else 'other')}\n"
            for text, label in texts(200)
        )
    )

    scores = _scored(classified(f"data.path={path}"))

    assert scores["threshold"] is None
    assert np.shape(scores["confusion"]) == (3, 3)


def test_repeated_texts_are_scored_apart(
    classified: MakeRecipe, tmp_path: Path, texts: Texts
) -> None:
    folder = tmp_path / "split"
    folder.mkdir()
    rows = list(texts(150))
    for name, chosen in (
        ("train", rows[:100]),
        ("valid", rows[100:125]),
        ("test", [*rows[125:], *rows[:10]]),
    ):
        (folder / f"{name}.csv").write_text(
            "text,label\n" + "".join(f"{text},{label}\n" for text, label in chosen)
        )

    scores = _scored(classified(f"data.path={folder}"))

    assert (scores["examples"], scores["repeated"]) == (25, 10)
    assert scores["metrics_with_repeated"] is not None


def test_an_exported_classifier_brings_what_its_logits_become_labels_by(
    classified: MakeRecipe,
) -> None:
    folder = pipeline.train(classified("training.steps=2", "evaluation.every=2"), _console()).folder

    exported = export(folder)

    assert read_json(exported.folder / "classifier.json") == read_json(folder / "classifier.json")
    assert "not calibrated" in exported.lines()[0]


def test_an_encoder_is_pretrained_on_the_classifiers_own_training_texts(
    classified: MakeRecipe, tmp_path: Path, texts: Texts
) -> None:
    first = tmp_path / "first.yaml"
    first.write_text(
        "name: first\nmethod: mlm\nsequence_length: 24\nbatch: {sequences: 8}\ntraining: {steps:"
        " 4}\nmodel: {architecture: modernbert, layers: 1, heads: 2, width: 16}\ntokenizer: {kind:"
        " bpe, vocabulary: 2000, min_frequency: 1}\ndata: {path: 'builtin:python-docs', layout:"
        " document, long_documents: split, validation: 0.1}\noptimizer: {learning_rate:"
        " 1.0e-3}\nplan: {device: cpu, precision: fp32, threads: 1, compile: false}\n"
    )
    overrides = [
        "labels.pretrain=on_texts",
        "data.long_documents=truncate",
        "training.steps=2",
        "evaluation.every=2",
    ]
    recipe = classified(f"model=recipe:{first}", *overrides)

    folder = pipeline.train(recipe, _console()).folder

    pretrained = folder.parent / "first-for-sorted"
    assert read_json(folder / "data.json")["base"]["source"] == str(
        (pretrained / "model").resolve()
    )
    (path,) = load(str(pretrained / "recipe.yaml")).data.paths
    read = [json.loads(line)["text"] for line in Path(path).read_text().splitlines()]
    assert len(read) == read_json(folder / "data.json")["splits"]["train"]["texts"] < 200
    assert set(read) < {text for text, _ in texts(200)}


@pytest.mark.parametrize(
    "overrides",
    [
        [
            "labels.metric=f1",
            "labels.mapping={ham: a, spam: b, nothing: c}",
            "labels.names=[a, b, c]",
        ],
        ["labels.class_weights={spam: 3, hom: 1}"],
        ["sequence_length=64"],
        ["labels.threshold=precision>=2"],
    ],
)
def test_what_cannot_be_is_told_before_training(
    classified: MakeRecipe, overrides: list[str], refuses: Refuses
) -> None:
    with refuses(BrimfulError):
        pipeline.train(classified(*overrides), _console())


def test_a_classifier_writes_no_text_and_is_not_scored_like_one_that_does(
    classified: MakeRecipe,
    refuses: Refuses,
) -> None:
    folder = pipeline.train(classified("training.steps=2", "evaluation.every=2"), _console()).folder

    for asked in (EvaluationRequest(("humaneval",)), EvaluationRequest(samples=2)):
        with refuses(RequestError):
            scoring.evaluate(folder, _console(), request=asked)
    with refuses(RequestError):
        scoring.evaluate(folder, _console(), untuned=True)
    with refuses(RequestError):
        load_run(folder, torch.device("cpu"), torch.float32)
    with refuses(RequestError):
        finished.diagnose(folder, _console())


def test_what_rebalancing_did_is_taken_off_the_probabilities(
    classified: MakeRecipe,
) -> None:
    """Of the frequent label's training texts half are left out, so its odds are doubled again."""
    steps = ("training.steps=2", "evaluation.every=2", "labels.class_weights=none")
    whole = pipeline.train(classified(*steps, "run.name=whole"), _console()).folder
    counts = read_json(whole / "data.json")["splits"]["train"]["labels"]
    rare, frequent = sorted(counts, key=lambda name: int(counts[name]))
    share = counts[rare] / (counts[rare] + counts[frequent] // 2)
    rules = f"labels.rebalance={{share: {share}}}"
    folder = pipeline.train(classified(*steps, rules), _console()).folder

    kept = read_json(folder / "data.json")["splits"]["train"]["labels"]
    assert kept == {rare: counts[rare], frequent: counts[frequent] // 2}
    calibration = load_classifier(folder, torch.device("cpu")).record.calibration
    assert calibration.log_weights is not None
    found = dict(zip(kept, calibration.log_weights, strict=True))
    assert found == pytest.approx(
        {rare: 0.0, frequent: math.log(kept[frequent] / counts[frequent])}
    )


def test_only_encoders_read_texts_without_labels(classified: MakeRecipe, refuses: Refuses) -> None:
    recipe = classified(
        "model=recipe:shakespeare-char", "labels.pretrain=on_texts", "sequence_length=24"
    )

    with refuses(RequestError):
        LabelledRunData.base_recipe(load("shakespeare-char"), recipe)


@pytest.mark.parametrize("name", ["classifier.json", "classifier.safetensors"])
def test_a_damaged_record_of_a_classifier_is_written_again_by_the_same_command(
    classified: MakeRecipe, name: str
) -> None:
    recipe = classified("training.steps=2", "evaluation.every=2")
    folder = pipeline.train(recipe, _console()).folder
    before = (folder / name).read_bytes()
    (folder / name).write_bytes(before[:40] + b"\0" * 9 + before[49:])
    with pytest.raises(RunFolderError, match="Run the same"):
        load_record(folder)

    assert pipeline.train(recipe, _console()).trained_now
    assert (folder / name).read_bytes() == before
    assert not pipeline.train(recipe, _console()).trained_now
