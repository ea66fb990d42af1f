"""What a model learns of data, before it is trained: on the console, as a page and as JSON."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from brimful.base.rundir import write_text_atomically
from brimful.base.text import clause, plural, printable, shortened
from brimful.base.warning_codes import as_note

_WHOLE_STRETCH, _ROW_CHARACTERS, _BAR = 120, 2000, 40
"""Tokens of a stretch and characters of a row that the console shows, and the longest bar."""
LEARNED = (
    "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}",
    "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}",
)
"""Stand around what is learned, for consoles without colour."""


class SeenToken(NamedTuple):
    """One token; its text is empty where a character goes on in the next one. A special one spells
    what a text may spell, too.
    """

    id: int
    text: str
    is_learned: bool
    is_special: bool = False


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

    @property
    def stretches(self) -> Iterator[tuple[bool, list[SeenToken]]]:
        """Consecutive tokens that are all learned or all only read: which of the two, and they."""
        for is_learned, tokens in groupby(self.tokens, lambda token: token.is_learned):
            yield is_learned, [*tokens]


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
    def bins(self) -> list[tuple[str, int, float]]:
        """The lengths: tokens in words, how many examples, and the share of the fullest bin."""
        most = max((count for *_, count in self.lengths), default=0)
        return [
            (f"{start:,}{clause(end > start, f' to {end:,}')}", count, count / most)
            for start, end, count in self.lengths
        ]

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
    not_learned: Sequence[Mapping[str, Any]]
    bad_rows: Sequence[Mapping[str, str]]
    weights: Mapping[str, float]

    @property
    def remarks(self) -> list[str]:
        """The notes as they are told before training."""
        return [*map(as_note, self.notes)]

    def to_json(self) -> dict[str, Any]:
        """For `--json`; tokens are [id, text, whether it is learned, and special]."""
        values = asdict(self)
        for row, seen in zip(values["rows"], self.rows, strict=True):
            for example, each in zip(row["examples"], seen.examples, strict=True):
                example["text"] = each.text
            row["columns"] = json.loads(json.dumps(seen.columns, default=str))
        for name, split in self.splits.items():
            values["splits"][name]["share_learned"] = split.share_learned
        return values


def render(view: DataView) -> Text:
    """Return the view for a console, control characters written out. What is learned is green and
    stands between brackets, tokens differ in shade, and special ones are reversed.
    """
    text = Text(f"{view.recipe}: {view.read}\n", style="")
    if any(split.learned_tokens for split in view.splits.values()):
        text.append(f"{'...'.join(LEARNED)} is learned, the rest is only read\n")
    for remark in view.remarks:
        text.append(f"{printable(remark)}\n", "yellow")
    for name, split in view.splits.items():
        text.append(f"\n{name}: ", "bold").append(f"{split.line}\n")
        for tokens, count, share in split.bins:
            bar = "#" * math.ceil(_BAR * share)
            text.append(f"  {tokens:>16} tokens {count:>8,} {bar}".rstrip() + "\n")
    for name, weight in view.weights.items():
        text.append(printable(f"weight of label {name}: {weight:.3g}\n"))
    for row in view.rows:
        text.append(f"\n{printable(row.where)}\n", "bold")
        if row.columns is not None:
            text.append(f"{printable(shortened(row.text, _ROW_CHARACTERS))}\n")
        if not row.examples:
            text.append(f"left out: {printable(row.reason)}\n", "red")
        for example in row.examples:
            _append_example(text, example)
    return text


def _append_example(text: Text, example: SeenExample) -> None:
    shown = clause(len(example.tokens) < example.num_tokens, f", the first {len(example.tokens):,}")
    text.append(f"-> {example.split}, {plural(example.num_tokens, 'token')}{shown}:\n", "bold")
    for is_learned, tokens in example.stretches:
        colour = "green" if is_learned else "bright_black"
        text.append(LEARNED[0] * is_learned, colour)
        half = _WHOLE_STRETCH // 2
        left_out = len(tokens) - 2 * half
        for number, token in enumerate(tokens):
            if left_out > 0 and half <= number < half + left_out:
                if number == half:
                    text.append(f" ... {plural(left_out, 'token')} ... ", "italic")
                continue
            style = f"{colour}{' underline' * (number % 2)}{' reverse' * token.is_special}"
            text.append(printable(token.text), style)
        text.append(LEARNED[1] * is_learned, colour)
    text.append("\n")


def write_page(view: DataView, path: Path) -> None:
    """Write the view as a page of its own, every text escaped.

    Raises:
        RunFolderError: it cannot be written.
    """
    from brimful.report.page.html import render_page  # noqa: PLC0415 - half a second, for figures

    write_text_atomically(path, render_page("data.html.j2", {"view": view}))
