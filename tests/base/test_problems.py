"""pydantic's findings become one line per key."""

from typing import Annotated, Literal

import pydantic
import pytest

from brimful.base.problems import problem_lines


class _Inner(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    layers: Annotated[int, pydantic.Field(gt=0)] | Literal["auto"] = "auto"
    names: str | list[str] = "x"


class _Outer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    needed: int
    inner: _Inner = _Inner()
    named: dict[str, _Inner] = {}

    @pydantic.model_validator(mode="after")
    def _even(self) -> "_Outer":
        if self.needed % 2:
            raise ValueError(f"needed {self.needed} must be even")
        return self


def _lines(value: object) -> list[str]:
    with pytest.raises(pydantic.ValidationError) as caught:
        _Outer.model_validate(value)
    return problem_lines(caught.value, _Outer)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({}, "needed: required, but missing"),
        ({"needed": "2"}, "needed: must be a valid integer, got '2'"),
        ({"needed": 2, "inner": {"layer": 1}}, "inner.layer: unknown key - did you mean 'layers'?"),
        (
            {"needed": 2, "named": {"a": {"layer": 1}}},
            "named.a.layer: unknown key - did you mean 'layers'?",
        ),
        ({"needed": 2, "iner": {}}, "iner: unknown key - did you mean 'inner'?"),
        ({"needed": 2, "qqq": 1}, "qqq: unknown key."),
        ({"needed": 2, "inner": 5}, "inner: must be a section of keys, got 5"),
        ({"needed": 3}, "as a whole: needed 3 must be even"),
        (
            {"needed": 2, "inner": {"layers": 0}},
            "inner.layers: must be greater than 0 or 'auto', got 0",
        ),
        (
            {"needed": 2, "inner": {"layers": "many"}},
            "inner.layers: must be a valid integer or 'auto', got 'many'",
        ),
        (
            {"needed": 2, "inner": {"names": 5}},
            "inner.names: must be a valid string or a valid list, got 5",
        ),
    ],
)
def test_each_problem_names_path_rule_and_value(value: object, line: str) -> None:
    assert _lines(value) == [line]


def test_all_problems_are_told_at_once_one_line_each() -> None:
    lines = _lines({"inner": {"layers": 1.5, "depth": 3}})

    assert [line.partition(":")[0] for line in lines] == ["needed", "inner.layers", "inner.depth"]


def _kind(value: object) -> str:
    return "by name" if isinstance(value, str) else "in full"


class _Kinds(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    either: Annotated[
        Annotated[str, pydantic.Tag("by name")] | Annotated[_Inner, pydantic.Tag("in full")],
        pydantic.Discriminator(_kind),
    ]
    perhaps: _Inner | None = None


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({}, "either: required, but missing"),
        ({"either": {"layers": 0}}, "either.layers: must be greater than 0 or 'auto', got 0"),
        ({"either": {"layer": 1}}, "either.layer: unknown key - did you mean 'layers'?"),
        ({"either": 3}, "either: must be a section of keys, got 3"),
        (
            {"either": "x", "perhaps": {"layer": 1}},
            "perhaps.layer: unknown key - did you mean 'layers'?",
        ),
        ({"either": "x", "perhaps": 3}, "perhaps: must be a section of keys, got 3"),
    ],
)
def test_kinds_of_a_field_are_no_part_of_its_path(value: object, line: str) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        _Kinds.model_validate(value)

    assert problem_lines(caught.value, _Kinds, ("by name", "in full")) == [line]


def test_a_key_that_is_named_like_a_kind_of_another_field_is_still_told() -> None:
    class Named(pydantic.BaseModel):
        published: int

    with pytest.raises(pydantic.ValidationError) as caught:
        Named.model_validate({"published": "x"})

    assert problem_lines(caught.value, Named)[0].startswith("published: ")
