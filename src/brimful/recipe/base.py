"""What every section of a recipe is made of."""

import re
from typing import Annotated, Literal

import pydantic
from pydantic import Field

Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Section(pydantic.BaseModel):
    """A part of the recipe: strict types, finite numbers, unknown keys refused, frozen."""

    model_config = pydantic.ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False
    )


def folder_name(value: str) -> str:
    """The value where it can name a folder; raises ValueError where it cannot."""
    if not re.fullmatch(r"\w[\w.\-]*", value):
        raise ValueError("use letters, digits, '.', '_' and '-', not starting with '.' or '-'")
    return value
