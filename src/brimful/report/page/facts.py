"""Nested facts as a table of names and values: the environment, the tokenizer."""

from collections.abc import Iterable, Mapping

from brimful.report.quantities import UNITS, format_value, label, words_of
from brimful.report.table import Table, table_of
from brimful.runs.folder import RunFolder


def environment_table(run: RunFolder) -> Table | None:
    """The machine, the versions and the command."""
    return facts_table(run.environment.values)


def facts_table(values: Mapping[str, object]) -> Table | None:
    """A row for each fact; facts within others have both names. Those that say nothing are left
    out.
    """
    return table_of(("", ""), _rows(values))


def _rows(
    values: Mapping[str, object], prefix: str = "", unit_of: str = ""
) -> Iterable[tuple[str, str]]:
    """Numbers below a key with a unit, such as `dense_flop_per_s`, have that unit."""
    for key, value in values.items():
        if key == "packages" and isinstance(value, dict):
            yield "Packages", ", ".join(f"{name} {version}" for name, version in value.items())
        elif isinstance(value, dict):
            unit = key if key.endswith(UNITS) else ""
            yield from _rows(value, f"{prefix}{words_of(key)} ", unit)
        elif value not in (None, "", []):
            yield label(prefix + key), format_value(unit_of or key, value)
