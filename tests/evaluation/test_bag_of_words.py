"""The floor learns words from training texts, chooses on validation alone, and never on what
repeats training texts.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.data.labelled import LabelledSplit
from brimful.data.labels import Labels
from brimful.evaluation import bag_of_words as module
from brimful.evaluation.bag_of_words import ABSENT, INVERSE_PENALTIES, bag_of_words
from brimful.evaluation.label_scores import score_labels

BINARY = Labels(("ham", "spam"), False, 1)
THREE = Labels(("ham", "spam", "news"), False, None)
SEVERAL = Labels(("cash", "visit"), True, None)
WORDS = {
    "cash": ["win", "£", "prize", "free"],
    "visit": ["dinner", "home", "soon", "tonight"],
    "any": ["the", "you", "a", "now", "see", "to"],
}


def _split(rows: Sequence[tuple[str, Any]], kind: type = np.int64) -> LabelledSplit:
    texts, targets = zip(*rows, strict=True)
    return LabelledSplit(
        texts,
        np.array(targets, kind),
        tuple(f"t:{number}" for number in range(len(rows))),
        np.zeros(len(rows), bool),
    )


def _text(drawn: random.Random, *topics: str) -> str:
    words = drawn.choices(WORDS["any"], k=5) + [drawn.choice(WORDS[topic]) for topic in topics]
    drawn.shuffle(words)
    return " ".join(words)


def _binary(num: int, seed: int = 0) -> LabelledSplit:
    drawn = random.Random(seed)
    return _split(
        [
            (_text(drawn, "cash" if number % 4 == 0 else "visit"), int(number % 4 == 0))
            for number in range(num)
        ]
    )


def _several(num: int, seed: int = 0) -> LabelledSplit:
    drawn = random.Random(seed)
    chosen = [[int(number % 2 == 0), int(number % 3 == 0)] for number in range(num)]
    rows = [
        (_text(drawn, *(name for name, has in zip(SEVERAL.names, each, strict=True) if has)), each)
        for each in chosen
    ]
    return _split(rows, np.float32)


def test_words_that_tell_the_labels_apart_are_learned() -> None:
    floor = bag_of_words(_binary(200), _binary(60, 1), BINARY, "best_f1")
    logits_EC = floor.logits(["win £ now", "see you at home"])

    assert logits_EC.shape == (2, 2)
    assert (logits_EC.argmax(1) == [1, 0]).all()
    assert floor.settings["class_weight"] in ("equal", "balanced")
    assert floor.settings["converged"]
    scores, _ = score_labels(
        floor.on(_binary(80, 2)).logits_EC,
        _binary(80, 2),
        labels=BINARY,
        calibration=floor.calibration,
        seconds=0,
    )
    assert scores["metrics"]["f1"]["value"] == 1.0


def test_every_penalty_and_weighting_is_tried_and_the_best_on_validation_is_taken() -> None:
    floor = bag_of_words(_binary(60), _binary(40, 1), BINARY, "best_f1")
    tried = [(each.inverse_penalty, each.is_balanced) for each in floor.candidates]

    assert tried == [
        (penalty, is_balanced) for penalty in INVERSE_PENALTIES for is_balanced in (False, True)
    ]
    first_best = max(floor.candidates, key=lambda each: each.score)
    assert floor.settings["inverse_penalty"] == first_best.inverse_penalty
    assert floor.settings["class_weight"] == ("balanced" if first_best.is_balanced else "equal")
    assert floor.settings["chosen_by"] == "pr_auc on validation, of 10 candidates"


def test_marks_and_words_of_one_letter_count() -> None:
    rows = [("£ a", 1), ("$ b", 0)] * 20
    floor = bag_of_words(_split(rows), _split(rows), BINARY, "best_f1")

    assert {"£", "a", "£ a"} <= set(floor.vectorizer.vocabulary_)
    assert (floor.logits(["£", "$"]).argmax(1) == [1, 0]).all()


def test_validation_texts_that_repeat_training_texts_choose_nothing() -> None:
    train, validation = _binary(60), _binary(40, 1)
    texts, targets = (
        train.texts + validation.texts,
        np.concatenate([1 - train.targets, validation.targets]),
    )
    both = LabelledSplit(texts, targets, train.wheres + validation.wheres, np.arange(100) < 60)

    chosen, expected = (bag_of_words(train, each, BINARY, "best_f1") for each in (both, validation))

    assert chosen.calibration == expected.calibration
    assert chosen.candidates == expected.candidates


def test_balanced_weights_are_taken_off_where_a_threshold_decides() -> None:
    """A word that says nothing: probabilities are the base rate, whatever the weights."""
    rows = [("word", int(number % 10 == 0)) for number in range(200)]
    floor = bag_of_words(_split(rows), _split(rows), BINARY, "0.5")
    known = module._ClassifierFit(
        floor.vectorizer.transform(["word"] * 200),
        np.eye(2, dtype=bool)[[row[1] for row in rows]],
        None,
        np.zeros(0),
        BINARY,
    )

    fit = known.fitted(100.0, True)

    assert fit.log_weights_C is not None
    logit = (fit.weights_FC[0] + fit.bias_C - fit.log_weights_C) @ [-1, 1]
    assert 1 / (1 + np.exp(-logit)) == pytest.approx(0.1, abs=0.005)


def test_more_labels_are_one_regression_and_a_label_without_training_texts_is_never_given() -> None:
    drawn = random.Random(0)
    rows = [(_text(drawn, "cash" if number % 2 else "visit"), number % 2) for number in range(80)]
    floor = bag_of_words(_split(rows), _split(rows[:40]), THREE, "best_f1")

    logits_EC = floor.logits(["win £ prize", "dinner tonight"])

    assert logits_EC.argmax(1).tolist() == [1, 0]
    assert (logits_EC[:, 2] == ABSENT).all()
    assert floor.calibration.thresholds == ()
    assert floor.settings["chosen_by"] == "macro_f1 on validation, of 10 candidates"


def test_several_labels_per_text_are_a_regression_each_with_its_own_threshold() -> None:
    floor = bag_of_words(_several(120), _several(60, 1), SEVERAL, "best_f1")
    given = floor.calibration.probabilities(
        floor.logits(["win £ home soon", "free prize", "to see you"]), multiple=True
    )

    assert floor.calibration.decide(given, SEVERAL).tolist() == [[1, 1], [1, 0], [0, 0]]


def test_a_label_that_every_or_no_training_text_has_is_always_or_never_given() -> None:
    rows = [("win", [1, 0]), ("home", [1, 0])] * 5
    floor = bag_of_words(_split(rows, np.float32), _split(rows, np.float32), SEVERAL, "0.5")

    assert floor.logits(["win"]).tolist() == [[-ABSENT, ABSENT]]


def test_a_large_set_is_not_tuned_and_says_so(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(module, "LARGE", 100)
    monkeypatch.setattr(module, "MAX_TEXTS", 150)
    floor = bag_of_words(_binary(200), _binary(60, 1), BINARY, "best_f1")

    assert (floor.candidates, floor.settings["chosen_by"], floor.settings["training_texts"]) == (
        (),
        "nothing",
        150,
    )
    assert floor.settings["note"] == snapshot
    assert (floor.logits(["win £ now", "see you at home"]).argmax(1) == [1, 0]).all()


def test_without_validation_texts_nothing_is_tuned_and_it_says_so(
    snapshot: SnapshotAssertion,
) -> None:
    empty = LabelledSplit((), np.zeros(0, np.int64), (), np.zeros(0, bool))
    floor = bag_of_words(_split([("win", 1), ("home", 0)]), empty, BINARY, "best_f1")

    assert floor.settings["note"] == snapshot
    assert floor.calibration.temperature == 1.0
    assert (floor.logits(["win", "home"]).argmax(1) == [1, 0]).all()


def test_texts_without_a_word_are_an_error_that_says_where_to_look(refuses: Refuses) -> None:
    with refuses(DataError, names=["data.text_column"]):
        bag_of_words(_split([(" ", 1), ("", 0)]), _split([("a", 1)]), BINARY, "best_f1")


def test_on_real_messages_the_floor_is_high_and_calibrated(shared_data: Path) -> None:
    """Spam among SMS: three fifths train, a fifth chooses, a fifth is scored."""
    lines = (
        (shared_data / "sms_spam" / "SMSSpamCollection").read_text(encoding="utf-8").splitlines()
    )
    rows = [
        (text, int(label == "spam")) for label, _, text in (line.partition("\t") for line in lines)
    ]
    train, validation, test = (
        _split([row for number, row in enumerate(rows) if number % 5 in kept])
        for kept in ({0, 1, 2}, {3}, {4})
    )
    floor = bag_of_words(train, validation, BINARY, "best_f1")

    scores, _ = score_labels(
        floor.logits(test.texts), test, labels=BINARY, calibration=floor.calibration, seconds=0
    )

    found = {name: score["value"] for name, score in scores["metrics"].items()}
    assert 0.91 < found["f1"] < 0.98
    assert 0.96 < found["pr_auc"] < 1
    assert found["ece"] < 0.04
