"""Views in a terminal: blocks as lines, control characters written out."""

import math
from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.text import Text as Line

from brimful.base.text import plural, printable, shortened, wrapped
from brimful.report.bars import Bars
from brimful.report.table import Table, terminal_lines
from brimful.report.views import (
    Block,
    Code,
    Command,
    Fold,
    Heading,
    Paragraph,
    Prompted,
    SeenToken,
    Tokens,
    Tone,
    View,
    text,
)

STYLES: dict[Tone, str] = {"advice": "yellow", "missing": "red"}
VERDICTS = {"fits": "green", "may not fit": "yellow", "does not fit": "red"}
"""Colours of cells that say it."""
LEARNED = (
    "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}",
    "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}",
)
"""Stand around tokens that are learned, for consoles without colour."""
WHOLE_STRETCH, CODE_CHARACTERS, BAR = 120, 2000, 40
"""Tokens of a stretch and characters of a code that are shown, and the longest bar."""


def told(blocks: Iterable[Block], width: float = math.inf) -> Line:
    """Blocks as lines of at most `width` characters, each with its line break. Pictures are left
    out.
    """
    return Line("").join(line.append("\n") for line in _lines_of(blocks, width))


def told_of(view: View) -> Line:
    """A whole view as lines."""
    opening = (Paragraph(view.title), *text(view.lead), *view.headline)
    sections = (block for each in view.sections for block in (Heading(each.heading), *each.blocks))
    return told([*opening, *sections])


def _lines_of(blocks: Iterable[Block], width: float) -> Iterator[Line]:
    """Lines of several blocks; an empty one stands between two tables."""
    before: Block | None = None
    for block in blocks:
        if isinstance(block, Table) and isinstance(before, Table):
            yield Line()
        yield from _lines(block, width)
        before = block


def _lines(block: Block, width: float) -> Iterator[Line]:
    match block:
        case Paragraph():
            told = f"{block.text}{': ' * bool(block.code)}{block.code}"
            yield from _paragraph(printable(told), width, STYLES.get(block.tone, ""))
        case Heading():
            yield Line(f"\n{printable(block.text)}", "bold")
        case Code():
            yield Line(printable(shortened(block.text, CODE_CHARACTERS)))
        case Command():
            yield Line(printable(f"{block.purpose}:"))
            yield Line(printable(block.text))
        case Fold():
            yield Line(f"{printable(block.summary)}:")
            yield from _lines_of(block.blocks, width)
        case Table():
            for row in terminal_lines(block, width):
                line = Line(_on_one_line(row))
                for verdict, style in VERDICTS.items():
                    line.highlight_regex(rf"(?<=  ){verdict}(?=  |$)", style)
                yield line
        case Prompted():
            answers = (
                f"  {each.author}{_judged(each.verdict)}: {each.text}" for each in block.answers
            )
            parts = (block.about + _judged(block.verdict), block.prompt + block.text, *answers)
            yield from map(Line, map(printable, filter(None, parts)))
        case Bars():
            yield from _bars(block)
        case Tokens():
            yield Line("").join(_stretches(block.tokens))


def _judged(verdict: str) -> str:
    return f" ({verdict})" if verdict else ""


def _paragraph(text: str, width: float, style: str) -> Iterator[Line]:
    for line in text.split("\n"):
        for part in [line] if len(line) <= width else wrapped(line, int(width), 2):
            yield Line(part, style)


def _bars(block: Bars) -> Iterator[Line]:
    for bar in block.bars:
        drawn = "#" * math.ceil(BAR * bar.size / block.longest)
        yield Line(f"  {bar.name:>23} {bar.text:>8} {drawn}".rstrip())
        if len(bar.parts) > 1:
            named = ", ".join(f"{part.name} {part.text}" for part in bar.parts)
            yield Line(f"  {'':>23} {named}")


def _on_one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _stretches(tokens: Iterable[SeenToken]) -> Iterator[Line]:
    """Tokens that differ in shade; the middle of a long stretch is counted."""
    half = WHOLE_STRETCH // 2
    for is_learned, group in groupby(tokens, lambda token: token.is_learned):
        stretch, colour = [*group], "green" if is_learned else "bright_black"
        shown = [
            Line(
                printable(token.text),
                f"{colour}{' underline' * (number % 2)}{' reverse' * token.is_special}",
            )
            for number, token in enumerate(stretch)
        ]
        if (left_out := len(stretch) - 2 * half) > 0:
            counted = f" ... {plural(left_out, 'token')} ... "
            shown[half : half + left_out] = [Line(counted, "italic")]
        if is_learned:
            shown = [Line(LEARNED[0], colour), *shown, Line(LEARNED[1], colour)]
        yield from shown
