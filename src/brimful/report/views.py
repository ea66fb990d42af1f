"""What is told of something, as typed values: a headline and sections of blocks. How they look is
for what shows them: the page of `page/html.py`, a terminal, or a program that reads `as_json`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from brimful.report.bars import Bars
from brimful.report.chart import Chart, Matrix
from brimful.report.table import Cell, Table
from brimful.runs.folder import RunFolder

Tone = Literal["", "verdict", "note", "missing", "advice"]
"""What kind of sentence a paragraph is: plain text, the result of a comparison, a remark, a file
that is not there, or what to do next.
"""


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `code` is what to type or to set, after it."""

    text: str
    tone: Tone = ""
    code: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading over the blocks that follow it."""

    text: str


@dataclass(frozen=True)
class Code:
    """A file or several lines to type, as they are."""

    text: str


@dataclass(frozen=True)
class Card:
    """One number of the headline."""

    name: str
    value: str
    detail: str


@dataclass(frozen=True)
class Command:
    """Something to run next."""

    purpose: str
    text: str


@dataclass(frozen=True)
class AuthoredAnswer:
    """A text by one of several authors, and what it was judged to be."""

    author: str
    text: str
    verdict: str = ""
    is_good: bool = False


@dataclass(frozen=True)
class Prompted:
    """A prompt with what follows it, and answers beside one another.

    Attributes:
        about: Its settings, or its name and scores.
        verdict: What it was judged to be.
    """

    prompt: str
    text: str = ""
    about: str = ""
    answers: tuple[AuthoredAnswer, ...] = ()
    verdict: str = ""
    is_good: bool = False


class SeenToken(NamedTuple):
    """One token; its text is empty where a character goes on in the next one. A special one spells
    what a text may spell, too.
    """

    id: int
    text: str
    is_learned: bool
    is_special: bool = False


@dataclass(frozen=True)
class Tokens:
    """A text as a tokenizer cuts it."""

    tokens: tuple[SeenToken, ...]


@dataclass(frozen=True)
class Fold:
    """Blocks behind a line that says what it opens."""

    summary: str
    blocks: "tuple[Block, ...]"


Block = (
    Paragraph | Heading | Code | Table | Chart | Matrix | Bars | Command | Prompted | Tokens | Fold
)


@dataclass(frozen=True)
class Chapter:
    """Blocks below a heading; `title` is its name in the contents, "" leaves it out there."""

    key: str
    heading: str
    blocks: tuple[Block, ...]
    title: str = ""


@dataclass(frozen=True)
class View:
    """All that is told of a run, of several, of a plan or of data.

    Attributes:
        kind: What it is: "run report".
        status: How far it is, in a few words; "" where it cannot go on.
        is_open: Whether it is not finished.
        lead: One sentence on it.
    """

    title: str
    kind: str
    lead: str
    headline: tuple[Paragraph, ...]
    sections: tuple[Chapter, ...]
    cards: tuple[Card, ...] = ()
    status: str = ""
    is_open: bool = False
    footer: str = ""


def section(key: str, heading: str, *blocks: Block | None, title: str = "") -> Chapter:
    """A section of the blocks that are there."""
    return Chapter(key, heading, _there(blocks), title)


def fold(summary: str, *blocks: Block | None, is_folded: bool = True) -> tuple[Block, ...]:
    """The blocks that are there behind a line, or as they are; nothing without any."""
    there = _there(blocks)
    return (Fold(summary, there),) if there and is_folded else there


def text(words: str, tone: Tone = "") -> tuple[Paragraph, ...]:
    """A paragraph; nothing without words."""
    return (Paragraph(words, tone),) if words else ()


def lacking(run: RunFolder, *names: str) -> tuple[Paragraph, ...]:
    """What is said of files of a run that are missing or damaged."""
    return tuple(Paragraph(run.problems[name], "missing") for name in names if name in run.problems)


def _there(blocks: tuple[Block | None, ...]) -> tuple[Block, ...]:
    return tuple(block for block in blocks if block is not None)


def as_json(value: object) -> Any:
    """A view, or a part of one, as values of JSON; each part names its class as `block`, and a cell
    has its text beside its value.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        if isinstance(value, Cell):
            fields["form"] = value.text
        return {"block": type(value).__name__} | {
            key: as_json(each) for key, each in fields.items()
        }
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    return [as_json(each) for each in value] if isinstance(value, list | tuple) else value
