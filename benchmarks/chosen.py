"""What brimful's predictions took from measurements: every number that was fitted or chosen on
published or own runs, counted, and how predictions do on runs that the numbers were not chosen on.

    python benchmarks/chosen.py .../memory.csv [--no-record]

Rules: `chosen.toml` has every number that moves a predicted peak or step time, with what it was chosen
on. Percentiles are chosen again without each source, and without each model, as 5th and 95th
percentile of measured over predicted (with fewer than FEW_ROWS rows of the same kind, of all kinds), and judged on what was left out. They
are widened for the few sources or models they are of, as `time_truth` does, and each of these counts the
same: with rows counting the same, 89 of one program that empties its cache decided how much a driver
shows of programs that do not (22 % inside with the source left out). Fitted ones are fitted again by `time_truth.py`. Chosen ones that one
source gave cannot be chosen without it: they are free parameters of this judgement, counted as such.
Tracing all rows takes minutes; traces are kept.
"""

import argparse
import csv
import json
import statistics
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import memory_rows
import time_truth
from brimful.base.errors import BrimfulError
from brimful.base.units import GIB
from brimful.hardware import catalog as devices
from brimful.hardware.fitted import efficiencies
from brimful.planning import memory as planned
from brimful.planning.memory import Footprint
from brimful.planning.target import target_of
from left_out import LeftOut
from memory_stack import Stack
from memory_truth import cannot, predict
from record import write_record

FEW_ROWS = 20
NORMS = (1.0, 1.25, 1.5)
Array = NDArray[np.float64]


def inventory() -> list[dict[str, Any]]:
    """Return every number that moves a prediction, with how many numbers it has."""
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["number"]
    return [
        {
            "name": row["name"],
            "numbers": count(constant(row["name"])),
            "decides": row["decides"],
            "how": row["how"],
            "data": row.get("data", ""),
            "again": row.get("again", ""),
        }
        for row in rows
    ]


def constant(name: str) -> Any:
    """Return the value of a constant, named with its module."""
    module, _, name = name.rpartition(".")
    return getattr(import_module(module), name)


def count(value: Any) -> int:
    """How many numbers a value has; a prior counts once."""
    if isinstance(value, Mapping):
        return sum(count(each) for each in value.values())
    if isinstance(value, tuple | list):
        return sum(count(each) for each in value)
    return 1


def free_parameters(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Numbers by what they decide and how they were found."""
    made: dict[str, Counter[str]] = {"memory": Counter(), "time": Counter()}
    for row in rows:
        made[row["decides"]][row["how"]] += row["numbers"]
    made["time"]["fitted, used by plans"] = len(efficiencies().values)
    return {name: dict(counts) for name, counts in made.items()}


@dataclass(frozen=True)
class Row:
    """A published peak beside its footprint.

    Attributes:
        kind: "allocated", "reserved" or "driver".
        alike: Passes are of one size, so that RESERVED_SHARE gives the ends.
        empties: The program empties the allocator's cache between steps, so that the longest pass
            does not find what loading left.
    """

    source: str
    model: str
    kind: str
    four_bits: bool
    alike: bool
    measured_bytes: float
    foot: Footprint
    context_bytes: float
    context_uncertainty_bytes: float
    empties: bool = False

    @property
    def share(self) -> float:
        """Measured over predicted: of allocated bytes, else of those that the allocator holds."""
        if self.kind == "allocated":
            return self.measured_bytes / self.foot.allocated.value
        context_bytes = self.context_bytes if self.kind == "driver" else 0
        return (self.measured_bytes - context_bytes) / self.foot.reserved.value

    def ends(self, share: tuple[float, float]) -> tuple[float, float]:
        """The interval with these shares, as `brimful.planning.memory` makes it."""
        foot = self.foot
        if self.kind == "allocated":
            return share[0] * foot.allocated.value, share[1] * foot.allocated.value
        reserved = foot.reserved.value
        low = min(reserved, max(share[0] * reserved, foot.allocated.low))
        high = share[1] * reserved
        if foot.verdict == "fits":
            high = min(high, max(reserved, foot.usable_bytes - self.context_bytes))
        if self.kind == "driver":
            low += max(0, self.context_bytes - self.context_uncertainty_bytes)
            high += self.context_bytes + self.context_uncertainty_bytes
            if foot.verdict == "fits":
                high = min(high, foot.usable_bytes)
        return low, high


def read_rows(path: str) -> list[Row]:
    """Trace every usable row of a table that ran; those of several kinds give several."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    made: list[Row] = []
    for row in rows:
        stack = memory_rows.stack_of(row)
        if isinstance(stack, LeftOut) or cannot(stack, compiled=True) or stack.status == "oom":
            continue
        try:
            foot = predict(stack)
        except BrimfulError as error:
            print(f"left out: {error}"[:120])
            continue
        made += _rows_of(row, stack, foot)
    return made


def _rows_of(row: Mapping[str, str], stack: Stack, foot: Footprint) -> Iterator[Row]:
    target = target_of(devices.get(stack.device))
    figures = {stack.kind: stack.measured_gib}
    if "driver" in stack.others_gib:
        figures["driver"] = stack.others_gib["driver"]
    for kind, measured_gib in figures.items():
        if measured_gib:
            yield Row(
                row["source_repo"],
                stack.model,
                kind,
                stack.quantize != "none",
                stack.lengths == "fixed" or stack.empties_cache_every > 0,
                measured_gib * GIB,
                foot,
                target.context_bytes,
                target.context_uncertainty_bytes,
                stack.empties_cache_every > 0,
            )


def share_of(
    rows: Sequence[Row], row: Row, group_of: Callable[[Row], str]
) -> tuple[float, float] | None:
    """5th and 95th percentile of measured over predicted, of rows of the row's kind if there are
    enough, each group counting the same, widened for the few groups that they are of; None without
    any.
    """
    is_allocated = row.kind == "allocated"
    same = [each for each in rows if each.alike and (each.kind == "allocated") == is_allocated]
    if not is_allocated:
        same = [each for each in same if each.empties == row.empties] or same
    kind = [each for each in same if is_allocated or each.four_bits == row.four_bits]
    used = kind if len(kind) >= FEW_ROWS else same
    if not used:
        return None
    groups = Counter(group_of(each) for each in used)
    weights_R = np.array([1 / groups[group_of(each)] for each in used])
    low, high = _quantiles(np.array([each.share for each in used]), weights_R, (0.05, 0.95))
    wider = 1 + time_truth.WIDER / max(1, len(groups) - 1)
    return float(min(1.0, low) ** wider), float(max(1.0, high) ** wider)


def _quantiles(values_R: Array, weights_R: Array, shares: tuple[float, float]) -> Array:
    """The values below which these shares of the weights are."""
    order_R = np.argsort(values_R)
    places_R = np.cumsum(weights_R[order_R]) - weights_R[order_R] / 2
    places_R -= places_R[0]
    found: Array = np.interp(np.array(shares) * places_R[-1], places_R, values_R[order_R])
    return found


def shipped_share(_: Sequence[Row], row: Row) -> tuple[float, float]:
    """What plans use."""
    if row.kind == "allocated":
        return planned.ALLOCATED_SHARE
    return planned.RESERVED_SHARE[row.four_bits]


def coverage(
    rows: Sequence[Row],
    group_of: Callable[[Row], str],
    chosen: Callable[[Sequence[Row], Row], tuple[float, float] | None],
) -> dict[str, Any]:
    """Share inside, and the width, with shares chosen on the rows of all other groups."""
    found: list[tuple[Row, bool, float]] = []
    nothing_else = 0
    for row in rows:
        if not row.alike:
            continue
        share = chosen([each for each in rows if group_of(each) != group_of(row)], row)
        if share is None:
            nothing_else += 1
            continue
        low, high = row.ends(share)
        found.append((row, low <= row.measured_bytes <= high, high / low))
    return {
        "all": _inside(found),
        "no_other_rows": nothing_else,
        "by_group": {
            name: _inside([each for each in found if group_of(each[0]) == name])
            for name in sorted({group_of(row) for row, _, _ in found})
        },
    }


def _inside(found: Sequence[tuple[Row, bool, float]]) -> dict[str, Any]:
    if not found:
        return {"rows": 0}
    return {
        "rows": len(found),
        "inside_percent": round(100 * statistics.mean(inside for _, inside, _ in found), 1),
        "high_over_low_median": round(statistics.median(width for _, _, width in found), 3),
    }


GROUPS: Mapping[str, Callable[[Row], str]] = {
    "source": lambda row: row.source,
    "model": lambda row: f"{row.source}, {row.model}",
}


def of_memory(path: str) -> dict[str, Any]:
    """Coverage of published peaks, with the shipped shares and with those chosen without a group."""
    rows = read_rows(path)
    made: dict[str, Any] = {"rows_of_many_lengths_not_judged": sum(not row.alike for row in rows)}
    for kind in ("allocated", "reserved", "driver"):
        some = [row for row in rows if (row.kind == "allocated") == (kind == "allocated")]
        made[kind] = {
            "shipped": coverage(_of_kind(some, kind), GROUPS["source"], shipped_share),
            **{
                f"{name} left out": _only(some, kind, group_of) for name, group_of in GROUPS.items()
            },
        }
    return made


def _of_kind(rows: Sequence[Row], kind: str) -> list[Row]:
    return [row for row in rows if row.kind == kind]


def _only(rows: Sequence[Row], kind: str, group_of: Callable[[Row], str]) -> dict[str, Any]:
    """Coverage of the rows of one kind; those of others help to choose."""

    def chosen(others: Sequence[Row], row: Row) -> tuple[float, float] | None:
        group = group_of(row)
        return share_of([each for each in rows if group_of(each) != group], row, group_of)

    return coverage(_of_kind(rows, kind), group_of, chosen)


def main() -> None:
    """Count, judge, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("memory", help="published peaks")
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    rows = inventory()
    values: dict[str, Any] = {
        "free_parameters": free_parameters(rows),
        "inventory": rows,
        "memory": of_memory(asked.memory),
    }
    print(json.dumps({name: value for name, value in values.items() if name != "inventory"}))
    if not asked.no_record:
        print(write_record("chosen", values))


if __name__ == "__main__":
    main()
