"""The base class and the field types of every section of a recipe."""

import re
from collections.abc import Collection
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from brimful.base.discover import did_you_mean

Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(gt=0, le=10**15)]
LONGEST = 1 << 24
"""Tokens of a sequence."""
LARGEST_BATCH = 1 << 20
"""Sequences of an optimizer step."""
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]


class Section(pydantic.BaseModel):
    """A part of the recipe: strict types, finite numbers, unknown keys refused, frozen.

    What validates it is made when it is first used: the recipe's own validates all of its parts.
    """

    model_config = pydantic.ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True
    )


def folder_name(value: str) -> str:
    """Return the value if it can name a folder.

    Raises:
        ValueError: it cannot.
    """
    if not re.fullmatch(r"\w[\w.\-]*", value):
        raise ValueError("use letters, digits, '.', '_' and '-', not starting with '.' or '-'")
    return value


def known_name(value: str, known: Collection[str], problem: str) -> str:
    """Return the value if it is one of the known names.

    Args:
        value: What the user wrote.
        known: The names there are.
        problem: Begins the error, such as "unknown verifier".

    Raises:
        ValueError: it is not; names the nearest and all known ones.
    """
    if value not in known:
        raise ValueError(f"{problem}{did_you_mean(value, known)} Known: {', '.join(known)}")
    return value
