"""JSON read without surprises: what Python's reader would pass over in silence is an error."""

import json
from typing import Any

from brimful.base.types import JsonDict

DEEPEST = 100
"""How deep lists and objects may nest: what reads a value later may call itself for each level."""


def load_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: not JSON (a `json.JSONDecodeError`, with the place), a key twice in an object,
            nested too deeply, or a number of thousands of digits.
    """
    text = text.decode() if isinstance(text, bytes) else text
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if text.count("[") + text.count("{") > DEEPEST and _is_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"


def _object(pairs: list[tuple[str, Any]]) -> JsonDict:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        doubled = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {doubled!r} stands twice in one object")
    return values


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for each in level for inner in _inside(each)]
    return bool(level)


def _inside(value: Any) -> list[Any]:
    """Return the lists and objects directly in a value."""
    values = value.values() if isinstance(value, dict) else value
    return [each for each in values if isinstance(each, dict | list)] if values else []
