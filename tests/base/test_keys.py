"""Every key of a recipe, as a table for people."""

from typing import Annotated, Literal

import pydantic

from brimful.base.keys import describe_keys


class _Inner(pydantic.BaseModel):
    size: Annotated[int, pydantic.Field(gt=0)] | Literal["auto"] = pydantic.Field("auto", description="How large.")
    names: str | list[str] = pydantic.Field(description="Who.")


class _Outer(pydantic.BaseModel):
    on: bool = pydantic.Field(True, description="Whether.")
    inner: _Inner
    share: float | None = pydantic.Field(None, description="How much.")
    style: Literal["a", "b"] = pydantic.Field("a", description="Which.")


def test_every_key_is_told_with_type_default_and_meaning_in_order() -> None:
    assert list(describe_keys(_Outer)) == [
        ("on", "true or false", "true", "Whether."),
        ("inner.size", "int or auto", '"auto"', "How large."),
        ("inner.names", "text or list of text", "required", "Who."),
        ("share", "float or null", "null", "How much."),
        ("style", "a or b", '"a"', "Which."),
    ]
