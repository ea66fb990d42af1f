"""The inventory of numbers that predictions took from measurements is complete, and what is said of
intervals chosen without a source follows from the rows.
"""

import ast
import dataclasses
import itertools
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import chosen
from brimful.planning.plan import Prediction
from chosen import Row, count, coverage, inventory, share_of
from time_truth import WIDER

COMPLETE = ("memory", "target", "ragged", "host_heap")
"""Modules of brimful.planning of which every number that a docstring calls found or assumed is in
the inventory."""
FOUND = re.compile(r"assum|percentile|[Cc]hosen on|residual|[Mm]easured")
POLICY = {"ROOM_SHARE", "HOST_ROOM_SHARE"}
"""What a plan leaves free moves no prediction."""


@pytest.mark.parametrize("name", COMPLETE)
def test_every_number_that_was_found_is_in_the_inventory(name: str) -> None:
    module = import_module(f"brimful.planning.{name}")
    body = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body
    told = {row["name"].removeprefix(f"{module.__name__}.") for row in inventory()}

    found = {
        names[-1]
        for statement, after in itertools.pairwise(body)
        if (names := _constants(statement)) and FOUND.search(_docstring(after))
    }

    assert found - POLICY - {"MOST_ROOM_SHARE"} <= told


def _constants(statement: ast.stmt) -> list[str]:
    names: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        names = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        names = [statement.target]
    each = [name.elts[-1] if isinstance(name, ast.Tuple) else name for name in names]
    return [name.id for name in each if isinstance(name, ast.Name) and name.id.isupper()]


def _docstring(statement: ast.stmt) -> str:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return str(value.value) if isinstance(value, ast.Constant) else ""


def test_the_inventory_names_constants_that_there_are_and_counts_their_numbers() -> None:
    rows = inventory()
    assert len({row["name"] for row in rows}) == len(rows)
    assert all(row["numbers"] > 0 for row in rows)
    assert all(bool(row["data"]) == (row["how"] != "assumed") for row in rows)
    assert count({"a": (1.0, 2.0), "b": [3]}) == 3


@dataclasses.dataclass
class _Peak:
    """A footprint of 100 bytes on a device where nothing is clamped."""

    allocated: Prediction
    reserved: Prediction
    verdict: str = "uncertain"
    usable_bytes: int = 1000


def _source(row: Row) -> str:
    return row.source


def _share_of(rows: Sequence[Row], row: Row) -> tuple[float, float] | None:
    return share_of(rows, row, _source)


def _row(source: str, measured: float, **changes: Any) -> Row:
    said = Prediction(100.0, 90.0, 110.0, "")
    foot: Any = _Peak(said, said)
    made = Row(source, "a model", "reserved", False, True, measured, foot, 0.0, 0.0)
    return dataclasses.replace(made, **changes)


def test_an_interval_is_chosen_on_the_rows_of_other_sources_alone() -> None:
    rows = [_row("one", 100 + each) for each in range(21)] + [_row("other", 150.0)]

    found = coverage(rows, _source, _share_of)

    assert found["by_group"]["one"]["inside_percent"] == 100  # 1.5 and more is the upper end
    assert found["by_group"]["other"]["inside_percent"] == 0  # it ends at 1.44
    assert found["all"]["rows"] == 22


def test_a_row_without_any_other_source_is_counted_as_such() -> None:
    rows = [_row("one", 100.0), _row("one", 101.0)]

    found = coverage(rows, _source, _share_of)

    assert (found["no_other_rows"], found["all"]) == (2, {"rows": 0})


def test_few_rows_of_a_kind_take_the_shares_of_all_kinds() -> None:
    plain = [_row("one", 100.0)] * chosen.FEW_ROWS
    packed = [_row("one", 130.0, four_bits=True)]

    assert _share_of(plain, _row("two", 100.0)) == (1.0, 1.0)
    asked = _row("two", 100.0, four_bits=True)
    assert _share_of([*plain, *packed], asked) == (1.0, pytest.approx(1.0))
    found = _share_of([*plain, *packed * chosen.FEW_ROWS], asked)
    assert found == (1.0, pytest.approx(1.3 ** (1 + WIDER)))  # of one source


def test_the_more_sources_an_interval_is_of_the_less_it_is_widened() -> None:
    rows = [_row(source, 130.0) for source in "abc" for _ in range(chosen.FEW_ROWS)]

    assert _share_of(rows, _row("d", 100.0)) == (1.0, pytest.approx(1.3 ** (1 + WIDER / 2)))


def test_the_drivers_figure_is_judged_beside_the_context() -> None:
    row = _row("one", 160.0, kind="driver", context_bytes=50.0, context_uncertainty_bytes=5.0)

    assert row.share == pytest.approx(1.1)
    assert row.ends((0.95, 1.2)) == (pytest.approx(95 + 45), pytest.approx(120 + 55))
