"""Values of JSON files become typed fields; what does not fit is None or empty."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from brimful.base.types import Bounds, Json, JsonDict
from brimful.runs.parsing import WHOLE, parse, parse_value


@dataclass(frozen=True, kw_only=True)
class Inner:
    name: str


@dataclass(frozen=True, kw_only=True)
class Outer:
    rate: float | None
    count: int
    name: str
    is_on: bool
    names: tuple[str, ...]
    inner: Inner
    by_name: Mapping[str, Inner]
    larger: int = field(default=5, metadata={"key": "from"})
    values: Json = field(default_factory=dict, metadata=WHOLE)


def test_every_field_is_read_from_its_key() -> None:
    values: JsonDict = {
        "rate": 1,
        "count": 3.0,
        "name": 7,
        "is_on": True,
        "names": ["a", 1, None],
        "inner": {"name": "b", "more": 1},
        "by_name": {"c": {"name": "d"}, "e": 3},
        "from": 6,
        "more": 2,
    }
    assert parse(Outer, values) == Outer(
        rate=1.0,
        count=3,
        name="7",
        is_on=True,
        names=("a", "1"),
        inner=Inner(name="b"),
        by_name={"c": Inner(name="d")},
        larger=6,
        values=values,
    )


@pytest.mark.parametrize("wrong", [None, [], {}, float("nan"), 10**400])
def test_what_is_missing_or_of_another_type_is_empty(wrong: object) -> None:
    names = ("rate", "count", "is_on", "inner", "from")
    empty = Outer(
        rate=None, count=0, name="", is_on=False, names=(), inner=Inner(name=""), by_name={}
    )
    values = dict.fromkeys(names, wrong)
    assert parse(Outer, values, values={}) == parse(Outer, {}, values={}) == empty


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Bounds, [1, 2], (1.0, 2.0)),
        (Bounds, {"low": 1, "high": 2}, (1.0, 2.0)),
        (Bounds, [1, None], None),
        (Bounds, [1, 2, 3], None),
        (float | None, True, None),
        (float | tuple[float | None, ...] | None, [1, None], (1.0, None)),
        (str | int | bool, False, False),
        (str | int | bool, 3, 3),
        (Mapping[int, float], {"1": 2, "one": 3}, {1: 2.0}),
        (tuple[tuple[float | None, ...], ...], [[1, "a"], 3], ((1.0, None),)),
        (int, 2**60, None),
        (Literal["whole", "parts"], "parts", "parts"),
        (Literal["whole", "parts"], "half", None),
        (bool | Literal["parts"], "parts", "parts"),
        (bool | Literal["parts"], True, True),
    ],
)
def test_a_value_has_the_type_of_its_hint(hint: Any, value: object, expected: object) -> None:
    assert parse_value(hint, value) == expected
