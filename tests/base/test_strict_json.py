"""JSON without surprises."""

import pytest
from fixture_types import Refuses

from brimful.base.strict_json import DEEPEST, load_json


def test_values_are_those_of_the_standard_library() -> None:
    assert load_json('{"a": [1, 2.5, null, {"b": "é"}], "c": {}}') == {
        "a": [1, 2.5, None, {"b": "é"}],
        "c": {},
    }
    assert load_json(b"[true]") == [True]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "b": 2, "a": 3}',
        '[{"b": {"a": 1, "a": 1}}]',
        "[" * 50_000 + "]" * 50_000,
        '{"a":' * (DEEPEST + 1) + "1" + "}" * (DEEPEST + 1),
        "9" * 5000,
        "{",
    ],
    ids=["twice", "twice inside", "far too deep", "too deep", "long number", "torn"],
)
def test_what_would_be_passed_over_or_crash_is_a_value_error(text: str, refuses: Refuses) -> None:
    with refuses(ValueError):
        load_json(text)


def test_a_value_may_nest_as_deep_as_is_said() -> None:
    text = "[" * DEEPEST + "]" * DEEPEST

    assert load_json(text) == load_json(text.encode())
