"""The page that compares runs: what is real of their differences, curves over one another, plans
beside what came true.
"""

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

from fixture_types import MakeRun, Refuses
from syrupy.assertion import SnapshotAssertion
from told_views import told

from brimful.base.errors import RunFolderError
from brimful.report.comparison.compare import compare
from brimful.report.comparison.page import _times, comparison_view, named_runs, write_comparison
from brimful.report.page.html import write_report

ATTACK = "<script>alert('x')</script>"


class Text(HTMLParser):
    """The words of a page, its paragraphs, its tags and where it leads."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.words, self.tags, self.links = "", [], []  # type: str, list[str], list[str]
        source = path.read_text(encoding="utf-8")
        self.feed(source)
        self.words = " ".join(self.words.split())
        found = re.findall(r"<p[ >].*?</p>", source, re.DOTALL)
        self.paragraphs = [" ".join(re.sub(r"<[^>]*>", "", text).split()) for text in found]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or ""
            for name, value in attrs
            if name in {"href", "src"} and not (value or "").startswith("#")
        ]

    def handle_data(self, data: str) -> None:
        self.words += f" {data}"


def page_of(runs: Sequence[Path], folder: Path) -> Text:
    return Text(write_comparison(compare(runs), runs, folder / "page.html"))


def test_two_variants_are_set_side_by_side_with_what_is_real(
    scored_run: MakeRun, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    runs = [
        scored_run("lora-8", rank=8, share=0.4, loss=2.5),
        scored_run("lora-16", rank=16, seed=2),
    ]
    write_report(runs[0])
    view = comparison_view(compare(runs), named_runs(runs), tmp_path / "page.html")
    assert told(view) == snapshot
    assert page_of(runs, tmp_path).links == ["runs/lora-8/report.html"]


def test_the_page_stands_alone_and_every_text_is_escaped(
    scored_run: MakeRun, tmp_path: Path
) -> None:
    recipe = f"seed: 1\nrun: {{name: {ATTACK!r}}}\nmodel: org/model\ndata: {{path: {ATTACK!r}}}\n"
    runs = [
        scored_run("a", recipe=recipe),
        scored_run("b", environment={"device": {"name": ATTACK}}),
    ]
    page, source = page_of(runs, tmp_path), (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.tags.count("script") == 1
    assert not {"img", "link", "iframe"} & set(page.tags)
    assert ATTACK in page.words
    assert set(re.findall(r"https?://[^\"' <]*", source)) == {"http://www.w3.org/2000/svg"}


def test_one_difference_that_luck_explains_is_said_not_to_be_real(
    scored_run: MakeRun, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    runs = [scored_run("a", rank=8, loss=2.0), scored_run("b", rank=16, seed=2, loss=2.0)]
    for run in runs:
        for path in (run / "evaluations").glob("code-syntax*"):
            path.unlink()
    page = page_of(runs, tmp_path)
    assert page.paragraphs == snapshot
    assert "Over seeds" not in page.words


def test_unfinished_and_half_written_runs_are_compared_as_far_as_they_go(
    new_run: MakeRun, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    runs = [
        new_run("a", last_step=60),
        new_run("b", plan=None, environment=None, data=None, metrics=[]),
    ]
    assert page_of(runs, tmp_path).paragraphs == snapshot


def test_a_page_that_cannot_be_written_is_refused(
    new_run: MakeRun, tmp_path: Path, refuses: Refuses
) -> None:
    with refuses(RunFolderError):
        page_of([new_run(last_step=1)], tmp_path / "nowhere")


def test_two_runs_of_the_same_name_keep_their_own_names_and_times(
    new_run: MakeRun, tmp_path: Path
) -> None:
    runs = [new_run("laptop/quickstart"), new_run("server/quickstart", last_step=60)]
    page = page_of(runs, tmp_path)
    assert page.words.startswith("quickstart (laptop) and quickstart (server)")
    names = ["quickstart (laptop)", "quickstart (server)"]
    assert [name for name, _ in named_runs(runs)] == names
    times = _times(named_runs(runs))
    first, second = times.bars
    assert [first.name, second.name] == names
    assert first.text != second.text
    assert first.size == times.longest > second.size
