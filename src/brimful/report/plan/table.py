"""Several devices, a row each: whether the recipe fits, how fast it trains, how long that takes and
what it costs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from brimful.base.units import format_between, format_bytes, format_named
from brimful.planning.budget import BudgetCheck, Sessions
from brimful.planning.plan import Plan, Prediction, Verdict
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.report.table import Cell, Gauge, Row, Table, terminal_lines

Sort = Literal["time", "cost", "name"]
Entry = Surveyed | Unplanned
Entries = Sequence[Entry]

SHORT: Mapping[Verdict, str] = {"fits": "yes", "uncertain": "maybe", "does not fit": "no"}
VERDICTS: Mapping[Verdict, str] = {
    "fits": "fits",
    "uncertain": "may not fit",
    "does not fit": "does not fit",
}
RATES = {"step_time_s": "Step", "tokens_per_s": "Tokens/s", "mfu": "MFU"}
TIMES = {"total_time_s": "In all", "cost_usd": "Cost", "energy_wh": "Energy"}
TIMES_OF_A_BILLION = {"billion_tokens_s": "1B tokens", "billion_tokens_usd": "Cost of 1B"}
"""What is told in place of TIMES where the length of training is not known."""
SHORTENED = (
    "Tokens/s",
    "MFU",
    "Micro-batch",
    "Peak memory",
    "Step",
    "Energy",
    "Cost",
    "Cost of 1B",
)
NARROWED = (
    *((name, False) for name in SHORTENED),
    ("Energy", True),
    ("In all", False),
    ("1B tokens", False),
    *((name, True) for name in ("MFU", "Room", "Tokens/s", "Step", "Micro-batch", "Peak memory")),
)
"""Columns that lose their intervals and remarks where a terminal is too narrow, or (True) are left
out, in this order.
"""
NOT_KNOWN = Cell("-")
INTERVAL = "9 of 10 runs"
AMOUNTS = {"time": ("total_time_s", "billion_tokens_s"), "cost": ("cost_usd", "billion_tokens_usd")}
"""What devices are compared by: the whole run, or a billion tokens where its length is not known.
"""


def ordered(surveyed: Entries, sort: Sort | None) -> list[Surveyed | Unplanned]:
    """Return devices by time, cost or name; None leaves the order as it is. By time or cost those
    that fit come first and unknown values last.
    """
    if sort is None:
        return list(surveyed)
    if sort == "name":
        return sorted(surveyed, key=lambda entry: entry.device.name.casefold())
    return sorted(
        surveyed, key=lambda entry: (_rank(entry), amount_of(entry, sort), amount_of(entry, "time"))
    )


def device_table(
    surveyed: Entries,
    budget: Mapping[str, BudgetCheck] | None = None,
    sessions: Mapping[str, Sessions] | None = None,
) -> Table:
    """Return one row for each device, with answers to a budget and numbers of sessions if given."""
    columns, budget, sessions = TIMES, budget or {}, sessions or {}
    if not any("total_time_s" in times_of(entry) for entry in surveyed):
        columns = TIMES_OF_A_BILLION
    kept = next((check.budget.phrase for check in budget.values()), "Budget")
    first = ("Device", "Fits?", "Peak memory", "Room", "Micro-batch", *RATES.values())
    rows = []
    for entry in surveyed:
        check, cut = budget.get(entry.device.name), sessions.get(entry.device.name)
        asked = (check and SHORT[check.verdict], cut and cut.count[0])
        rows.append((*_row(entry), *_amounts(entry, (*RATES, *columns)), *asked))
    table = Table((*first, *columns.values(), kept, "Sessions"), tuple(rows))
    return table.without_empty_columns()


def narrowed(table: Table, width: int) -> Table:
    """Return what of the table matters most and fits into lines of `width` characters."""
    for name, is_dropped in NARROWED:
        if max(map(len, terminal_lines(table))) <= width:
            break
        if name in table.columns:
            table = table.without_column(name) if is_dropped else table.without_remarks(name)
    return table


def times_of(entry: Entry) -> Mapping[str, Prediction]:
    """Return predictions of time and what follows from it; none where nothing is known, or where
    the recipe does not fit.
    """
    if not isinstance(entry, Surveyed) or entry.verdict == "does not fit":
        return {}
    return entry.predicted


def _row(entry: Entry) -> Row:
    """Return the device, whether it fits, memory and micro-batch."""
    if not isinstance(entry, Surveyed):
        return entry.device.name, Cell("unknown"), NOT_KNOWN, "", NOT_KNOWN
    footprint, peak = entry.derived.footprint, _peak(entry)
    verdict = VERDICTS[entry.verdict]
    capacity = format_bytes(footprint.usable_bytes)
    terms = ", ".join(f"{name} {format_bytes(size)}" for name, size in footprint.terms.items())
    about = f"{entry.device.name} {verdict}: {format_bytes(peak.value)} of {capacity}. {terms}"
    ends = (0, footprint.usable_bytes)
    return (
        entry.device.name,
        Cell(verdict),
        replace(_cell("peak_bytes", peak), note=_beyond(peak, footprint.usable_bytes)),
        Gauge(ends, peak.value, (peak.low, peak.high), about, f"of {capacity}"),
        Cell(batch_cell(entry.derived.plan), note=_largest(entry)),
    )


def _amounts(entry: Entry, names: Sequence[str]) -> Row:
    times = times_of(entry)
    return tuple(_cell(name, times[name]) if name in times else NOT_KNOWN for name in names)


def _peak(entry: Surveyed) -> Prediction:
    """Return what the driver shows at the peak. Where a step fits, the allocator reserves no more
    than the device has, because it releases unused blocks.
    """
    footprint, peak = entry.derived.footprint, entry.derived.footprint.driver
    high = peak.high
    if entry.verdict == "fits":
        high = min(high, max(footprint.usable_bytes, peak.value))
    return replace(peak, low=max(0, peak.low), high=high)


def _cell(name: str, prediction: Prediction) -> Cell:
    form, ends = partial(format_named, name), (prediction.low, prediction.high)
    # Both ends may be below a cent, say.
    return Cell(prediction.value, form, ends if form(ends[0]) != form(ends[1]) else None)


def _beyond(peak: Prediction, capacity: int) -> str:
    """`needs 2.5 x what it has`; empty where even the upper end of the peak fits."""
    needed, most = peak.value / capacity, peak.high / capacity
    if needed > 1:
        return f"needs {needed:.1f} x what it has" if needed >= 1.05 else "needs more than it has"
    return "may need more than it has" if most > 1 else ""


def _largest(entry: Surveyed) -> str:
    """Return how many sequences at a time fit; `largest` counts those that surely do."""
    is_uncertain = entry.verdict == "uncertain"
    if entry.derived.largest:
        return f"up to {entry.derived.largest} {'surely fit' if is_uncertain else 'fit'}"
    if entry.derived.footprint.micro_batch > 1:
        return "not even 1 surely fits"
    return "1 may fit" if is_uncertain else "not even 1 fits"


def table_notes(surveyed: Entries) -> list[str]:
    """Return what the columns mean, what would help, and why some devices could not be
    estimated.
    """
    planned = [entry for entry in surveyed if isinstance(entry, Surveyed)]
    unplanned = [entry for entry in surveyed if isinstance(entry, Unplanned)]
    notes = [column_note(surveyed)] if planned else []
    notes += _remedy_notes(planned) + _worst_notes(planned)
    return notes + [
        f"{entry.device.name} cannot be estimated: {entry.reason}" for entry in unplanned
    ]


def _remedy_notes(planned: Sequence[Surveyed]) -> list[str]:
    """Return `quantize=nf4 makes it fit Tesla T4, NVIDIA L4`: one note for each change."""
    helped: dict[str, list[str]] = {}
    for entry in planned:
        for remedy in (each for each in entry.remedies if each.largest):
            helped.setdefault(remedy.set or remedy.name, []).append(entry.device.name)
    return [f"{change} makes it fit {', '.join(names)}" for change, names in helped.items()]


def _worst_notes(planned: Sequence[Surveyed]) -> list[str]:
    """Return `sampling does not fit Tesla T4, NVIDIA L4`: one note for each phase that decides a
    verdict, with the devices.
    """
    worst: dict[str, list[str]] = {}
    for entry in planned:
        if entry.chain is not None and entry.verdict != "fits":
            phase = f"{entry.chain.worst.title} {VERDICTS[entry.verdict]}"
            worst.setdefault(phase, []).append(entry.device.name)
    return [f"{phase} {', '.join(names)}" for phase, names in worst.items()]


def column_note(surveyed: Entries) -> str:
    """Return what the columns mean."""
    planned = [entry for entry in surveyed if isinstance(entry, Surveyed)]
    times = {name for entry in surveyed for name in times_of(entry)}
    note = "Micro-batch: sequences at once x passes of a step, and how many at once surely fit"
    if any(entry.derived.plan.recompute for entry in planned):
        note += "; r: activations are recomputed"
    if "total_time_s" in times:
        with_phases = ", and all phases of the job" * any(entry.chain for entry in planned)
        note += f"; in all: with evaluation, checkpoints and start{with_phases}"
    elif times:
        note += "; 1B tokens: training alone, as the length of the run is not known yet"
    note += (
        ". Intervals of times and costs hold 9 of 10 runs; of memory they say what the driver may"
        " show"
    )
    priced = set(AMOUNTS["cost"]) & times
    return f"{note}.{' Cost by the dated prices of the catalog.' * bool(priced)}"


def batch_cell(plan: Plan) -> str:
    """`4 x 16 + 2 r`: micro-batch, number of micro-batches, the remainder, and r if activations are
    recomputed.
    """
    first, last = plan.micro_batches[0], plan.micro_batches[-1]
    full = plan.micro_batches.count(first)
    rest = f" + {last}" if last != first else ""
    return f"{first} x {full}{rest}{' r' * bool(plan.recompute)}"


def _rank(entry: Surveyed | Unplanned) -> int:
    return 3 if isinstance(entry, Unplanned) else list(SHORT).index(entry.verdict)


def amount_of(entry: Surveyed | Unplanned, by: str) -> float:
    """Return seconds or US dollars as in AMOUNTS; infinite where nothing is known."""
    times = times_of(entry)
    return next((times[name].value for name in AMOUNTS[by] if name in times), math.inf)


def between(name: str, prediction: Prediction | None) -> str:
    """`1.2 to 2.0 s`: the interval of a prediction in the unit that ends its name; "" for None."""
    if prediction is None:
        return ""
    return format_between(partial(format_named, name), prediction.low, prediction.high)
