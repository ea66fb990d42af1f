"""Nested values under dotted keys: reading them from YAML, overriding one, flattening all."""

import re
from collections.abc import Mapping
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Safe YAML in which `1e-3` is a number (YAML 1.1 reads it as text) and a key given twice is an
    error.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        doubled = sorted({str(key) for key in keys if keys.count(key) > 1})
        if doubled:
            raise yaml.constructor.ConstructorError(
                None, None, f"key given twice: {', '.join(doubled)}", node.start_mark
            )
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that `_Loader` would read as numbers."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"),
        list("-+0123456789"),
    )


def parse_yaml(text: str) -> Any:
    """Parse YAML into plain values.

    Raises:
        ValueError: not YAML, a key given twice, or a value that does not exist (such as the date
            2024-13-45).
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


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
