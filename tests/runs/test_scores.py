"""The final scores are typed by what they are."""

from brimful.runs.scores import MetricValue, ordered_splits, read_scores

LABELS = {
    "kind": "labels",
    "labels": ["ham", "spam"],
    "positive": "spam",
    "multiple": False,
    "examples": 100,
    "repeated": 3,
    "loss": 0.2,
    "loss_interval": {"low": 0.1, "high": 0.3},
    "temperature": 1.2,
    "threshold": {"value": 0.4, "policy": "best_f1", "chosen_on": "validation"},
    "metrics": {"f1": {"value": 0.9, "low": 0.8, "high": 0.95}, "accuracy": 0.97},
    "metrics_with_repeated": None,
    "floor": {
        "name": "bag of words",
        "settings": {"words": 1000},
        "difference": {"f1": {"value": 0.1, "low": None, "high": None}},
    },
    "by_label": {"spam": {"f1": {"value": 0.9, "low": 0.8, "high": 0.95}, "support": 13}},
    "confusion": [[85, 2], [1, 12]],
    "curves": {
        "roc": [[0, 0], [0.1, 0.9], [1, 1]],
        "sweep": [[0, None, 1, None]],
        "histogram": {"edges": [0, 0.5, 1], "by_label": {"ham": [90, 2]}},
    },
    "mistakes": [{"text": "hello", "label": "ham", "predicted": ["spam"], "probability": 0.9}],
}


def test_a_classifier_has_label_scores() -> None:
    score = read_scores({"test": LABELS}).labels["test"]
    assert (score.labels, score.positive) == (("ham", "spam"), "spam")
    assert score.loss_interval == (0.1, 0.3)
    assert score.threshold.value == 0.4
    assert score.metrics["f1"] == MetricValue(value=0.9, interval=(0.8, 0.95))
    assert score.metrics["accuracy"] == MetricValue(value=0.97)
    assert score.metrics_with_repeated == {}
    assert (score.floor.name, score.floor.difference["f1"].interval) == ("bag of words", None)
    assert score.by_label["spam"].support == 13
    assert score.confusion == ((85, 2), (1, 12))
    assert score.curves.sweep == ((0.0, None, 1.0, None),)
    assert score.curves.histogram.by_label["ham"] == (90, 2)
    assert (score.mistakes[0].label, score.mistakes[0].predicted) == ("ham", ("spam",))


def test_the_confusion_of_texts_with_several_labels_is_by_label() -> None:
    score = read_scores({"test": LABELS | {"confusion": {"a": [[1, 2], [3, 4]]}}}).labels["test"]
    assert score.confusion == {"a": ((1, 2), (3, 4))}


def test_splits_of_text_stand_in_their_order_with_what_they_lack_empty() -> None:
    scores = read_scores(
        {
            "test": {"loss": 2.0, "loss_interval": [1.9, 2.1]},
            "baselines": {"unigram": {"loss": 6.0}, "tokens": 100},
            "validation": {"kind": "masked", "masked_share": 0.3, "loss": None},
            "layers": {"tokens": 9, "attention": {"dead": ["block 2"], "layers": [{"name": "a"}]}},
            "notes": {"a": 1},
        }
    )
    assert list(scores.likelihood) == ["validation", "test"]
    assert scores.likelihood["validation"].is_masked
    assert scores.likelihood["validation"].masked_share == 0.3
    assert scores.likelihood["test"].loss_interval == (1.9, 2.1)
    assert scores.likelihood["test"].perplexity is None
    assert {name: each.loss for name, each in scores.baselines.items()} == {"unigram": 6.0}
    assert (scores.layers.tokens, scores.layers.attention.dead) == (9, ("block 2",))
    assert scores.layers.attention.layers[0].name == "a"
    assert scores.layers.alignment.segments == ()


def test_known_splits_come_first() -> None:
    assert ordered_splits(["other", "test", "train"]) == ["train", "test", "other"]
