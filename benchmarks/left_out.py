"""Rows of published tables that are not predicted, and why; shared by the tables of memory and of
time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Stack = TypeVar("Stack")


@dataclass(frozen=True)
class LeftOut:
    """A row that is not predicted.

    Attributes:
        reason: Why not, as it is printed.
    """

    reason: str


def declared(
    reader: Callable[[Mapping[str, str]], Stack | LeftOut], row: Mapping[str, str]
) -> Stack | LeftOut:
    """What a reader makes of a row; a value that it has not seen before leaves the row out."""
    try:
        return reader(row)
    except (LookupError, ValueError, ArithmeticError, TypeError, AttributeError) as problem:
        return LeftOut(f"a column is missing or malformed ({type(problem).__name__}: {problem})")
