"""Nested values under dotted keys: reading them from YAML, overriding one, flattening all."""

import copy
import functools
import re
from collections.abc import Mapping
from typing import Any

from brimful.base.errors import RecipeError
from brimful.base.text import shortened
from brimful.base.types import Json, JsonDict

MOST_CHARACTERS, DEEPEST = 1_000_000, 50
"""Most that a YAML text may have: characters, and levels of values within values."""


def parse_yaml(text: str) -> Any:
    """Parse YAML into plain values.

    Raises:
        ValueError: not YAML, a key given twice, a value that does not exist (such as the date
            2024-13-45), or larger than the limits of this module.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(
            f"it has {len(text):,} characters, and at most {MOST_CHARACTERS:,} are read: keep data"
            " in files of their own"
        )
    return copy.deepcopy(_parsed(text))


def parse_mapping(text: str, origin: str, *, hint: str = "") -> JsonDict:
    """Parse YAML that has keys at the top.

    Args:
        text: The YAML.
        origin: Named in errors.
        hint: Ends the error about text that is no YAML.

    Raises:
        RecipeError: not YAML, or something else at the top.
    """
    try:
        values = parse_yaml(text)
    except ValueError as error:
        raise RecipeError(f"{origin} is not valid YAML: {error}{hint}") from error
    if not isinstance(values, dict):
        raise RecipeError(
            f"{origin} must hold `key: value` lines at the top, found {type(values).__name__}."
        )
    return values


_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*", re.ASCII)
_CONSTANTS = {"null": None, "true": True, "false": False}
_NOT_TEXTS = frozenset({*_CONSTANTS, "yes", "no", "on", "off"})
"""What YAML means by these words written otherwise is for its reader to say."""


@functools.lru_cache(maxsize=32)
def _parsed(text: str) -> Any:
    """Return the values in a text; a list of runs and a page read the same recipe several times."""
    if _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _WORD.fullmatch(text) and text.lower() not in _NOT_TEXTS:
        return text
    from brimful.base.yaml_values import read  # noqa: PLC0415 - seldom needed for overrides

    return read(text)


def format_yaml(value: object) -> str:
    """A plain value as YAML that `parse_yaml` reads back to an equal one, keys in their order."""
    from brimful.base.yaml_values import written  # noqa: PLC0415 - as above

    return written(value)


def override(assignment: str, values: JsonDict, rivals: Mapping[str, tuple[str, ...]]) -> None:
    """Set one `dotted.key=value`, the value in YAML, in place; sections on the way are made when
    absent.

    Args:
        assignment: `key=value` as the user wrote it.
        values: Nested sections.
        rivals: Keys by section of which it has exactly one: setting one to a value removes the
            others.

    Raises:
        ValueError: says what is wrong with the assignment.
    """
    key, equals, text = assignment.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+)*", key):
        raise ValueError(
            f"{assignment!r}: write overrides as dotted.key=value, for example"
            " optimizer.learning_rate=1e-3"
        )
    try:
        value = text if text in {"|", ">"} else parse_yaml(text)  # a mark by itself opens no block
    except ValueError as error:
        raise ValueError(f"{key}: {text!r} is not a YAML value; quote it") from error
    *parents, last = key.split(".")
    if len(parents) >= DEEPEST:
        raise ValueError(f"{shortened(key, 60)}: nested more than {DEEPEST} levels deep")
    for parent in parents:
        section = values.get(parent)
        if section is None:
            section = values[parent] = {}
        if not isinstance(section, dict):
            # What the user wrote is wrong, not a type in the code.
            raise ValueError(f"{key}: {parent} is a value, not a section")  # noqa: TRY004
        values = section
    exclusive = rivals.get(".".join(parents), ())
    if last in exclusive and value is not None:
        for rival in exclusive:
            values.pop(rival, None)
    values[last] = value


def flatten(values: Json, prefix: str = "") -> dict[str, object]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
