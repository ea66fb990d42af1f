"""What a model learns of data, before it is trained: on the console, as a page and as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.text import Text as Line

from brimful.base.text import clause, plural
from brimful.base.types import Json, JsonDict, Numbers, Texts
from brimful.base.warning_codes import as_note
from brimful.report.bars import Bar, Bars, Part
from brimful.report.terminal import LEARNED, told
from brimful.report.views import (
    Block,
    Chapter,
    Code,
    Heading,
    Paragraph,
    SeenToken,
    Tokens,
    View,
    section,
)


@dataclass(frozen=True)
class SeenExample:
    """The beginning of what became of a row.

    Attributes:
        split: where it is.
        num_tokens: all of them; `tokens` may be fewer.
        tokens: those shown.
    """

    split: str
    num_tokens: int
    tokens: Sequence[SeenToken]

    @property
    def text(self) -> str:
        """The example's text with its special tokens."""
        return "".join(token.text for token in self.tokens)


@dataclass(frozen=True)
class SeenRow:
    """A row as it was read, and what became of it.

    Attributes:
        where: its place.
        columns: its values; None: text without columns.
        examples: none, if nothing of it is learned.
        reason: why it is left out, if it is.
    """

    where: str
    columns: Any
    examples: Sequence[SeenExample]
    reason: str = ""

    @property
    def text(self) -> str:
        """The values as JSON, halves of surrogate pairs written out."""
        text = json.dumps(self.columns, ensure_ascii=False, default=str)
        return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True)
class SeenSplit:
    """Counts of a split.

    Attributes:
        items: examples, texts or documents, as `unit` says.
        tokens, learned_tokens: in all of them.
        lengths: from so many tokens, to so many, and how many examples.
    """

    items: int
    tokens: int
    learned_tokens: int
    lengths: Sequence[tuple[int, int, int]]
    unit: str = "example"

    @property
    def share_learned(self) -> float:
        """Share of the tokens that are learned, from 0 to 1."""
        return self.learned_tokens / max(self.tokens, 1)

    @property
    def bars(self) -> Bars | None:
        """The lengths: tokens in words, and how many examples."""
        bars = []
        for start, end, count in self.lengths:
            tokens = f"{start:,}{clause(end > start, f' to {end:,}')} tokens"
            bars.append(Bar(tokens, (Part(tokens, count, 1.0, f"{count:,}", 0),), f"{count:,}"))
        return Bars("", "Lengths", tuple(bars)) if bars else None

    @property
    def line(self) -> str:
        """Counts of the split in one line."""
        return f"{plural(self.items, self.unit)}, {plural(self.tokens, 'token')}" + clause(
            self.learned_tokens,
            f", of which {self.learned_tokens:,} ({self.share_learned:.0%}) are learned",
        )


@dataclass(frozen=True)
class DataView:
    """What a model learns of the data of a recipe.

    Attributes:
        recipe: its name.
        method: how it learns.
        read: how much was read.
        rows: the first.
        splits: by name.
        weights: how much a text counts by its label; empty: all alike.
        notes: what is not learned, or otherwise than the rows say, and further remarks, coded.
        not_learned: the former as values, as in data.json.
        bad_rows: places and reasons of rows that are left out.
    """

    recipe: str
    method: str
    read: str
    rows: Sequence[SeenRow]
    splits: Mapping[str, SeenSplit]
    notes: Sequence[str]
    not_learned: Sequence[Json]
    bad_rows: Sequence[Texts]
    weights: Numbers

    @property
    def remarks(self) -> list[str]:
        """The notes as they are told before training."""
        return [*map(as_note, self.notes)]

    def to_json(self) -> JsonDict:
        """For `--json`; tokens are [id, text, whether it is learned, and special]."""
        values = asdict(self)
        for row, seen in zip(values["rows"], self.rows, strict=True):
            for example, each in zip(row["examples"], seen.examples, strict=True):
                example["text"] = each.text
            row["columns"] = json.loads(json.dumps(seen.columns, default=str))
        for name, split in self.splits.items():
            values["splits"][name]["share_learned"] = split.share_learned
        return values


def render(view: DataView) -> Line:
    """Return the view for a console, the rows last. What is learned is green and stands between
    brackets, tokens differ in shade, and special ones are reversed.
    """
    rows, *others = _sections(view)
    about = [Paragraph(f"{view.recipe}: {view.read}")]
    if any(split.learned_tokens for split in view.splits.values()):
        about.append(Paragraph(f"{'...'.join(LEARNED)} is learned, the rest is only read"))
    return told(
        [*about, *_remarks(view), *(block for each in (*others, rows) for block in each.blocks)]
    )


def write_page(view: DataView, path: Path) -> None:
    """Write the view as a page of its own, every text escaped.

    Raises:
        RunFolderError: it cannot be written.
    """
    from brimful.report.page.html import write_view  # noqa: PLC0415 - jinja2 takes its time

    write_view(page_view(view), path)


def page_view(view: DataView) -> View:
    """Return what a page shows."""
    lead = f"What {view.method} learns of the data: {view.read}."
    return View(view.recipe, "data before training", lead, _remarks(view), _sections(view))


def _remarks(view: DataView) -> tuple[Paragraph, ...]:
    return tuple(Paragraph(remark, "advice") for remark in view.remarks)


def _sections(view: DataView) -> tuple[Chapter, ...]:
    """The first rows, every split, and the weights of labels."""
    rows = [block for row in view.rows for block in _row_blocks(row)]
    weights = [
        Paragraph(f"weight of label {name}: {weight:.3g}") for name, weight in view.weights.items()
    ]
    splits = [
        section(f"split-{place}", name, Paragraph(f"{name}: {split.line}"), split.bars)
        for place, (name, split) in enumerate(view.splits.items())
    ]
    further = [section("weights", "Weights of labels", *weights)] if weights else []
    return section("rows", "The first rows", *rows), *splits, *further


def _row_blocks(row: SeenRow) -> Iterator[Block]:
    yield Heading(row.where)
    if row.columns is not None:
        yield Code(row.text)
    if not row.examples:
        yield Paragraph(f"left out: {row.reason}", "missing")
    for each in row.examples:
        shown = clause(len(each.tokens) < each.num_tokens, f", the first {len(each.tokens):,}")
        yield Paragraph(f"{each.split}, {plural(each.num_tokens, 'token')}{shown}:", "note")
        yield Tokens(tuple(each.tokens))
