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
