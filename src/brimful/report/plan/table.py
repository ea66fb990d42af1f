"""Several devices, a line each, as wide as the terminal: which hold the recipe, how fast, how long,
for how much. "T4 or A100?" in one look.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from rich.table import Table
from rich.text import Text

from brimful.base.units import (
    GIB,
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_money,
)
from brimful.planning.budget import BudgetCheck, Sessions
from brimful.planning.memory import Verdict
from brimful.planning.plan import Plan, Prediction
from brimful.planning.surveyed import Surveyed, Unplanned

Sort = Literal["time", "cost", "name"]
Entries = Sequence[Surveyed | Unplanned]

SHORT: Mapping[Verdict, str] = {"fits": "yes", "uncertain": "maybe", "does not fit": "no"}
STYLES: Mapping[str, str] = {"yes": "green", "maybe": "yellow", "no": "red", "?": "red"}
NEEDED = {
    "device": 0,
    "fits": 0,
    "memory": 4,
    "batch": 1,
    "step": 1,
    "tokens/s": 2,
    "MFU": 2,
    "in all": 0,
    "between": 3,
    "energy": 3,
    "cost": 0,
    "between ": 5,
    "budget": 0,
    "sessions": 0,
}
"""Columns in their order; where the terminal is too narrow, those with the highest number go first,
0 never.
"""
INTERVAL = "9 of 10 runs"
AMOUNTS = {"time": ("total_time_s", "billion_tokens_s"), "cost": ("cost_usd", "billion_tokens_usd")}
"""What devices are compared by: the whole run, or a billion tokens where its length is not known.
"""


def ordered(surveyed: Entries, sort: Sort | None) -> list[Surveyed | Unplanned]:
    """By time or cost those that fit come first, and unknown values last; None leaves the order as
    it is.
    """
    if sort is None:
        return list(surveyed)
    if sort == "name":
        return sorted(surveyed, key=lambda entry: entry.device.name.casefold())
    return sorted(
        surveyed, key=lambda entry: (_rank(entry), _amount(entry, sort), _amount(entry, "time"))
    )


def device_table(
    surveyed: Entries,
    width: int,
    answers: Mapping[str, BudgetCheck] | None = None,
    sessions: Mapping[str, Sessions] | None = None,
) -> Table:
    """One row for each device, with as many columns as fit into `width`."""
    rows = [_row(entry, answers or {}, sessions or {}) for entry in surveyed]
    titles = {
        "between": INTERVAL,
        "between ": INTERVAL,
        "budget": next((answer.budget.phrase for answer in (answers or {}).values()), ""),
    }
    if not any("total_time_s" in _predicted(entry) for entry in surveyed):
        titles |= {"in all": "1B tokens", "cost": "cost of 1B"}
    kept = [name for name in NEEDED if any(row.get(name) for row in rows)]
    widths = {
        name: max(len(titles.get(name, name)), *(len(row.get(name, "")) for row in rows))
        for name in kept
    }
    while sum(widths[name] + 2 for name in kept) - 2 > width and any(NEEDED[name] for name in kept):
        kept.remove(max(reversed(kept), key=lambda name: NEEDED[name]))
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for name in kept:
        table.add_column(
            _padded(name, titles.get(name, name), widths[name]), no_wrap=True, overflow="ignore"
        )
    for row in rows:
        cells = [(name, row.get(name, "")) for name in kept]
        table.add_row(
            *(
                Text(_padded(name, cell, widths[name]), style=STYLES.get(cell, ""))
                for name, cell in cells
            )
        )
    return table


def _padded(column: str, cell: str, width: int) -> str:
    return cell.ljust(width) if column in {"device", "fits", "budget"} else cell.rjust(width)


def table_notes(surveyed: Entries) -> list[str]:
    """What the columns mean, which device is quickest and cheapest, and why some could not be
    estimated.
    """
    planned = [entry for entry in surveyed if isinstance(entry, Surveyed)]
    notes = []
    if any(_predicted(entry) for entry in planned):
        recomputing = "; r: activations are recomputed" * any(
            entry.derived.plan.recompute for entry in planned
        )
        known = any("total_time_s" in _predicted(entry) for entry in planned)
        length = (
            "in all: with evaluation, checkpoints and start"
            if known
            else "1B tokens: training alone, as the length of the run is not known yet"
        )
        notes.append(f"batch: sequences per micro-batch x micro-batches{recomputing}; {length}")
    fitting = [entry for entry in planned if entry.verdict == "fits"]
    best = []
    for word, by, form in (
        ("quickest", "time", format_duration),
        ("cheapest", "cost", format_money),
    ):
        winner = min(fitting, key=lambda entry: _amount(entry, by), default=None)
        if winner is not None and math.isfinite(_amount(winner, by)) and len(fitting) > 1:
            best.append(f"{word}: {winner.device.name} ({form(_amount(winner, by))})")
    if best:
        notes.append(", ".join(best))
    return notes + [
        f"{entry.device.name} cannot be estimated: {entry.reason}"
        for entry in surveyed
        if isinstance(entry, Unplanned)
    ]


def batch_cell(plan: Plan) -> str:
    """`4 x 16 + 2 r`: micro-batch, how many, the remainder, and whether activations are
    recomputed.
    """
    first, last = plan.micro_batches[0], plan.micro_batches[-1]
    full = plan.micro_batches.count(first)
    return f"{first} x {full}" + (f" + {last}" if last != first else "") + " r" * plan.recompute


def _row(
    entry: Surveyed | Unplanned,
    answers: Mapping[str, BudgetCheck],
    sessions: Mapping[str, Sessions],
) -> dict[str, str]:
    name = entry.device.name
    if isinstance(entry, Unplanned):
        return {"device": name, "fits": "?"}
    plan, footprint = entry.derived.plan, entry.derived.footprint
    memory = f"{footprint.driver.value / GIB:.1f} of {format_bytes(entry.device.memory_bytes)}"
    row = {
        "device": name,
        "fits": SHORT[entry.verdict],
        "memory": memory,
        "batch": batch_cell(plan),
    }
    if entry.verdict == "does not fit":
        return row
    predicted = _predicted(entry)
    row |= {
        "step": _told(predicted.get("step_time_s"), format_duration),
        "tokens/s": _told(predicted.get("tokens_per_s"), format_count),
        "MFU": _told(predicted.get("mfu"), lambda share: f"{share:.0%}"),
        "energy": _told(predicted.get("energy_wh"), format_energy),
        "between": _between(predicted.get("total_time_s"), format_duration),
        "between ": _between(predicted.get("cost_usd"), format_money),
    }
    for column, by, form, unknown in (
        ("in all", "time", format_duration, ""),
        ("cost", "cost", format_money, "no price"),
    ):
        row[column] = (
            form(amount)
            if math.isfinite(amount := _amount(entry, by))
            else unknown * ("step_time_s" in predicted)
        )
    if name in answers:
        row["budget"] = SHORT[answers[name].verdict]
    if name in sessions:
        row["sessions"] = str(sessions[name].count[0])
    return row


def _rank(entry: Surveyed | Unplanned) -> int:
    return 3 if isinstance(entry, Unplanned) else list(SHORT).index(entry.verdict)


def _predicted(entry: Surveyed | Unplanned) -> Mapping[str, Prediction]:
    return {} if isinstance(entry, Unplanned) else entry.derived.plan.predicted


def _amount(entry: Surveyed | Unplanned, by: str) -> float:
    """Seconds or US dollars as in AMOUNTS; infinite where nothing is known."""
    predicted = _predicted(entry)
    if not isinstance(entry, Surveyed) or entry.verdict == "does not fit":
        return math.inf
    found = next((predicted[name].value for name in AMOUNTS[by] if name in predicted), None)
    return math.inf if found is None else found


def _told(prediction: Prediction | None, form: Callable[[float], str]) -> str:
    return "" if prediction is None else form(prediction.value)


def _between(prediction: Prediction | None, form: Callable[[float], str]) -> str:
    return "" if prediction is None else f"{form(prediction.low)} to {form(prediction.high)}"
