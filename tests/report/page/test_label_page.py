"""A classifier's part of report.html: what was reached first, every text escaped, the page whole
for any labels.
"""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.page import headline
from brimful.report.page.html import write_report
from brimful.report.page.label_page import labels_section
from brimful.report.views import Fold
from brimful.runs.folder import read_run

LabelScore = Callable[..., JsonDict]
ATTACK = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """Tags and text of a page."""

    def __init__(self, folder: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.text, self.charts = "", 0
        self.feed(write_report(folder).read_text(encoding="utf-8"))
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        charts = [value for name, value in attrs if name == "data-chart"]
        self.charts += len(charts)
        self.text += " ".join(map(str, charts))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def two_splits(label_score: LabelScore) -> JsonDict:
    return {
        split: label_score("ham", "spam", positive="spam", seed=seed)
        for seed, split in enumerate(("validation", "test"))
    }


def test_the_report_of_a_classifier_says_what_it_labels_how_well_and_what_stands_twice(
    labelled_run: MakeRun,
) -> None:
    page = Page(labelled_run())
    for told in (
        (
            "tiny-encoder was tuned with all its 612 parameters to classify texts into ham and spam"
            " for 500 steps (2.05M tokens) on messages.tsv"
        ),
        "On the 220 test texts: F1 of spam",
        "PR-AUC",
        "Intervals are 95 % over texts",
        "above bag of words",
        "the labels (weights balanced, focal loss)",
        "Confusion matrix",
        "ROC curve",
        "Precision and recall",
        "Threshold",
        "Calibration, ECE",
        "Probabilities by true label",
        "Label by label",
        "The most confident mistakes",
        "message <",
        "Other splits",
        "Loss, nats per text, weighted in training",
        "kept 3.158",
        "Scores on validation; circle: kept",
        "Repeated and contradicting texts",
        "ham in train, messages.tsv:3; spam in test, messages.tsv:12",
        "800 (80.0%)",
        "brimful predict",
        "AutoModelForSequenceClassification",
    ):
        assert told in page.text, told
    for wrong in (
        "its per byte",
        "Perplexity",
        "What it writes",
        "learned tokens",
        "answers only",
        "brimful generate",
        "Before tuning",
    ):
        assert wrong not in page.text, wrong
    assert page.charts == 5 + 1 + 5


@pytest.mark.parametrize(
    "names", [("a", "b", "c", "d", "e"), tuple(f"intent {number}" for number in range(24))]
)
def test_a_page_for_more_labels_is_whole(
    labelled_run: MakeRun, label_score: LabelScore, names: tuple[str, ...]
) -> None:
    page = Page(
        labelled_run(scores={"test": label_score(*names, floor=False, sharpness=4.0)}, metrics=[])
    )
    assert (
        ("All 24 labels" in page.text) is ("Most often confused" in page.text) is (len(names) > 20)
    )
    assert "On the 220 test texts: Macro-F1" in page.text


def test_the_section_tells_what_there_is_of_it(
    labelled_run: MakeRun, label_score: LabelScore, two_splits: JsonDict
) -> None:
    whole = labels_section(read_run(labelled_run("whole", scores=two_splits)))
    score = label_score("a", "b", "c", multiple=True, floor=False, repeated=0)
    several = labels_section(read_run(labelled_run("several", scores={"validation": score})))
    assert whole is not None
    assert several is not None
    assert [each.summary for each in whole.blocks if isinstance(each, Fold)] == [
        "Threshold, calibration and floor",
        "More pictures: Threshold; Calibration, ECE 0.065; Probabilities by true label",
        "Label by label",
        "The most confident mistakes",
        "Other splits",
    ]
    assert "Given and missed" in [each.summary for each in several.blocks if isinstance(each, Fold)]
    assert several.blocks[1].columns == ("Metric", "This model")  # type: ignore[union-attr]
    assert labels_section(read_run(labelled_run("bare", scores={}))) is None


def test_a_long_text_is_cut(labelled_run: MakeRun, two_splits: JsonDict) -> None:
    mistake = {"text": "x" * 5000, "label": "ham", "predicted": "spam", "where": "f:1"}
    page = Page(labelled_run(scores={"test": two_splits["test"] | {"mistakes": [mistake]}}))
    assert "x" * 400 + "..." in page.text
    assert "x" * 401 not in page.text


def test_a_classifier_in_training_tells_its_best_evaluation_so_far(
    labelled_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    run = read_run(labelled_run(scores=None))
    assert headline.verdict(run) == snapshot
    assert headline.sentence(run) == snapshot
    assert headline.verdict(read_run(labelled_run("new", scores=None, metrics=[]))) == ""


def test_the_first_cards_are_the_metrics_that_count(
    labelled_run: MakeRun, two_splits: JsonDict
) -> None:
    cards = headline.cards(read_run(labelled_run(scores=two_splits)))
    f1 = two_splits["test"]["metrics"]["f1"]
    assert [card.name for card in cards[:3]] == ["F1 of spam", "PR-AUC", "Accuracy"]
    assert (cards[0].value, cards[0].detail) == (
        f"{f1['value']:.1%}",
        f"95 %: {f1['low'] * 100:.1f}\N{EN DASH}{f1['high'] * 100:.1f}%",
    )
