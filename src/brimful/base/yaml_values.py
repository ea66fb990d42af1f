"""The YAML that brimful reads and writes. `base.dotted` imports this where a text needs it: PyYAML
takes as long to import as a recipe to read.
"""

import re
from collections import Counter
from typing import Any

import yaml

from brimful.base.dotted import DEEPEST

MOST_VALUES = 100_000
"""Most values of a YAML text, with every alias written out."""
_NUMBERS = {
    "int": r"[-+]?(0|[1-9][\d_]*|0b[01_]+|0x[\da-fA-F_]+)$",
    "float": (
        r"[-+]?((\d[\d_]*)(\.\d*)?[eE][-+]?\d+|\d[\d_]*\.[\d_]*|\.\d[\d_]*([eE][-+]?\d+)?"
        r"|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"
    ),
}


class Loader(yaml.SafeLoader):
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


class Dumper(yaml.SafeDumper):
    """Quotes the texts that `Loader` would read as numbers."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern in _NUMBERS.items():
    for _side in (Loader, Dumper):
        _side.add_implicit_resolver(
            f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), list("-+.0123456789")
        )


def read(text: str) -> Any:
    """Return the values in a text.

    Raises:
        ValueError: not YAML, or beyond the limits.
    """
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    except (AttributeError, LookupError, OverflowError) as error:
        raise ValueError("a value does not fit its tag, such as !!int x") from error


def written(value: object) -> str:
    """Return a plain value as YAML that `read` reads back to an equal one, keys in their order."""
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
