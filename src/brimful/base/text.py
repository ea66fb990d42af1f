"""Texts made short enough for a message or a table."""

import re
import textwrap
from collections.abc import Sequence


def shortened(text: str, limit: int) -> str:
    """The text, or its beginning and "..." where it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    return f"{text[: limit - 3]}..."


def printable(text: str) -> str:
    """The text with control characters written out: `\\x1b` in the name of a folder must not reach
    a terminal, which obeys it.
    """
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All but tabs and line breaks, and those that turn the direction of text."""


def reason_of(error: BaseException) -> str:
    """What an error says, for a sentence of ours: the first line of its message without the full
    stop, or the name of its class where it says nothing.
    """
    said = str(error).strip()
    if not said:
        return type(error).__name__
    return said.splitlines()[0].rstrip(".")


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun: `1 step`, `2 steps`."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def listed(names: Sequence[str], most: int) -> str:
    """The first `most` names, separated by commas, and ", ..." where there are more."""
    shown = ", ".join(names[:most])
    if len(names) > most:
        return f"{shown}, ..."
    return shown


def clause(applies: object, text: str) -> str:
    """The text where something applies, or an empty one: for an optional part of a message."""
    if applies:
        return text
    return ""


def wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """One line of text as lines of at most `width` characters, broken between words only, further
    ones indented as the first and by `indent` more. A word that is longer stays whole.
    """
    start = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(
        text.strip(),
        width,
        initial_indent=start,
        subsequent_indent=start + " " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]


def shortened_at_a_word(text: str, width: int) -> str:
    """The text on one line, or as many of its words as fit and " ..."."""
    return textwrap.shorten(text, width, placeholder=" ...", break_on_hyphens=False)


def aligned_and_wrapped(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows in columns, of which the last wraps under itself where it is too long for `width`."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        start = "".join(f"{cell:<{size}}  " for cell, size in zip(row, widths, strict=False))
        first, *rest = wrapped(row[-1], max(24, width - len(start)))
        lines += [(start + first).rstrip(), *(" " * len(start) + each for each in rest)]
    return lines


def setting_text(value: object) -> str:
    """Return the value of a setting as people read it: `on`, `off`, or its own text."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
