"""Every key of a recipe, as a table for people."""

from typing import Annotated, Literal

import pydantic
from syrupy.assertion import SnapshotAssertion

from brimful.base.keys import describe_keys, section_in


class _Inner(pydantic.BaseModel):
    """A part."""

    size: Annotated[int, pydantic.Field(gt=0)] | Literal["auto"] = pydantic.Field(
        "auto", description="How large."
    )
    names: str | list[str] = pydantic.Field(description="Who.")


class _Outer(pydantic.BaseModel):
    on: bool = pydantic.Field(True, description="Whether.")
    inner: _Inner
    share: float | None = pydantic.Field(None, description="How much.")
    style: Literal["a", "b"] = pydantic.Field("a", description="Which.")


def test_every_key_is_told_with_type_default_and_meaning_in_order(
    snapshot: SnapshotAssertion,
) -> None:
    assert list(describe_keys(_Outer)) == snapshot


class _Kinds(pydantic.BaseModel):
    """A section that other sections may have."""

    one: _Inner | None = None
    either: Annotated[str, pydantic.Tag("a")] | Annotated[_Inner, pydantic.Tag("b")] = (
        pydantic.Field(description="Either way.")
    )


def test_an_optional_section_is_told_itself_and_then_its_keys(snapshot: SnapshotAssertion) -> None:
    assert list(describe_keys(_Kinds))[:3] == snapshot


def test_a_field_that_is_a_value_or_a_section_is_told_as_both() -> None:
    told = list(describe_keys(_Kinds))[3:]

    assert told[0] == ("either", "text or section", "required", "Either way.")
    assert [key for key, *_ in told[1:]] == ["either.size", "either.names"]


class _Named(pydantic.BaseModel):
    parts: dict[str, _Inner] = pydantic.Field({}, description="By name.")


def test_sections_by_name_are_told_themselves_and_then_the_keys_of_one() -> None:
    assert [key for key, *_ in describe_keys(_Named)] == [
        "parts",
        "parts.NAME.size",
        "parts.NAME.names",
    ]


class _Documented(pydantic.BaseModel):
    part: _Kinds | None = None


def test_an_optional_section_without_a_description_is_told_by_its_docstring() -> None:
    assert next(describe_keys(_Documented)) == (
        "part",
        "section or null",
        "null",
        "A section that other sections may have.",
    )


def test_the_section_of_a_field_is_found_inside_unions_and_annotations() -> None:
    fields = _Kinds.model_fields

    assert [section_in(fields[name].annotation) for name in ("one", "either")] == [_Inner, _Inner]
    assert section_in(_Outer.model_fields["inner"].annotation) is _Inner
    assert [
        section_in(annotation) for annotation in (str, int | None, list[str], Literal["a"])
    ] == [None] * 4
