"""Nested values under dotted keys: reading them from YAML, overriding one, flattening all."""

import copy
import functools
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import yaml

from brimful.base.errors import RecipeError
from brimful.base.text import shortened

MOST_CHARACTERS, MOST_VALUES, DEEPEST = 1_000_000, 100_000, 50
"""Of a YAML text: its length, its values with every alias written out, and how deep they nest."""
_NUMBERS = {
    "int": r"[-+]?(0|[1-9][\d_]*|0b[01_]+|0x[\da-fA-F_]+)$",
    "float": (
        r"[-+]?((\d[\d_]*)(\.\d*)?[eE][-+]?\d+|\d[\d_]*\.[\d_]*|\.\d[\d_]*([eE][-+]?\d+)?"
        r"|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"
    ),
}


class _Loader(yaml.SafeLoader):
    """Safe YAML in which `1e-3` is a number (YAML 1.1 reads it as text), `1:30` and `010` are texts
    (YAML 1.1 reads them as 90 and 8), a key given twice is an error, and size has limits.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._num_values = 0
        self._values_of: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        mark = None if parent is None else parent.start_mark
        before, self._depth = self._num_values, self._depth + 1
        if self._depth > DEEPEST:
            raise yaml.composer.ComposerError(
                None, None, f"nested more than {DEEPEST} levels deep", mark
            )
        node = super().compose_node(parent, index)
        if is_alias and id(node) not in self._values_of:
            raise yaml.composer.ComposerError(None, None, "a value that contains itself", mark)
        self._num_values += self._values_of[id(node)] if is_alias else 1
        if self._num_values > MOST_VALUES:
            raise yaml.composer.ComposerError(None, None, f"more than {MOST_VALUES:,} values", mark)
        self._values_of.setdefault(id(node), self._num_values - before)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        counts = Counter(map(repr, keys))
        doubled = sorted({str(key) for key in keys if counts[repr(key)] > 1})
        if doubled:
            raise yaml.constructor.ConstructorError(
                None, None, f"key given twice: {', '.join(doubled)}", node.start_mark
            )
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that `_Loader` would read as numbers."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern in _NUMBERS.items():
    for _side in (_Loader, _Dumper):
        _side.add_implicit_resolver(
            f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), list("-+.0123456789")
        )


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


def parse_mapping(text: str, origin: str, *, hint: str = "") -> dict[str, Any]:
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


@functools.lru_cache(maxsize=32)
def _parsed(text: str) -> Any:
    """Return the values in a text; a list of runs and a page read the same recipe several times."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    except (AttributeError, LookupError, OverflowError) as error:
        raise ValueError("a value does not fit its tag, such as !!int x") from error


def format_yaml(value: object) -> str:
    """A plain value as YAML that `parse_yaml` reads back to an equal one, keys in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def override(
    assignment: str, values: dict[str, Any], rivals: Mapping[str, tuple[str, ...]]
) -> None:
    """Set one `dotted.key=value`, the value in YAML, in place; sections on the way are made when
    absent.

    Args:
        assignment: As the user wrote it.
        values: Nested sections.
        rivals: By section, the keys of which it has exactly one: setting one to a value removes the
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


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
