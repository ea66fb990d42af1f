"""Texts made short enough for a message or a table."""

from collections.abc import Sequence


def shortened(text: str, limit: int) -> str:
    """The text, or its beginning and "..." where it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    return f"{text[: limit - 3]}..."


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
