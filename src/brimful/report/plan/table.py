"""Several devices, a line each, as wide as the terminal: whether the recipe fits, how fast it
trains, how long that takes and what it costs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from rich.table import Table as RichTable
from rich.text import Text

from brimful.base.types import Counts, Texts
from brimful.base.units import (
    GIB,
    format_between,
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_money,
    format_named,
)
from brimful.planning.budget import BudgetCheck, Sessions
from brimful.planning.plan import Plan, Prediction, Predictions, Verdict
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.report.table import Table

Sort = Literal["time", "cost", "name"]
Entry = Surveyed | Unplanned
Entries = Sequence[Entry]

SHORT: Mapping[Verdict, str] = {"fits": "yes", "uncertain": "maybe", "does not fit": "no"}
STYLES: Texts = {"yes": "green", "maybe": "yellow", "no": "red", "?": "red"}
DROPPED_FIRST = (
    "cost interval",
    "memory",
    "energy",
    "time interval",
    "MFU",
    "tokens/s",
    "step",
    "batch",
)
"""Columns that are left out where the terminal is too narrow, in this order; others stay."""
GAP = 2
"""Spaces between two columns."""
ON_THE_LEFT = ("device", "fits", "budget")
"""Columns of words; numbers are aligned on the right."""
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
    width: int,
    answers: Mapping[str, BudgetCheck] | None = None,
    sessions: Mapping[str, Sessions] | None = None,
) -> RichTable:
    """Return one row for each device, with as many columns as fit into `width`."""
    titles = _titles(surveyed, answers or {})
    rows = [_row(entry, answers or {}, sessions or {}) for entry in surveyed]
    table = Table(
        tuple(titles), tuple(tuple(row.get(name, "") for name in titles) for row in rows)
    ).without_empty_columns()
    narrow = _narrowed(table, titles, width)
    shown = RichTable(box=None, pad_edge=False, show_edge=False, header_style="bold")
    widths = _widths(narrow, titles)
    for name, width_of_column in widths.items():
        title = _padded(name, titles[name], width_of_column)
        shown.add_column(title, no_wrap=True, overflow="ignore")
    for row in narrow.text_rows:
        cells = zip(row, widths.items(), strict=True)
        shown.add_row(
            *(
                Text(_padded(name, cell, width_of_column), style=STYLES.get(cell, ""))
                for cell, (name, width_of_column) in cells
            )
        )
    return shown


def _padded(column: str, cell: str, width: int) -> str:
    """Pad here, because rich does not align cells where it prints without wrapping."""
    return cell.ljust(width) if column in ON_THE_LEFT else cell.rjust(width)


def _widths(table: Table, titles: Texts) -> Counts:
    """Return the characters of the widest cell or heading by column."""
    lines = [[titles[column] for column in table.columns], *table.text_rows]
    columns = zip(table.columns, zip(*lines, strict=True), strict=True)
    return {name: max(map(len, cells)) for name, cells in columns}


def _titles(surveyed: Entries, answers: Mapping[str, BudgetCheck]) -> Texts:
    """Return the heading of each column, by its name, in order."""
    budget = next((answer.budget.phrase for answer in answers.values()), "")
    is_length_known = any("total_time_s" in _predicted(entry) for entry in surveyed)
    return {
        "device": "device",
        "fits": "fits",
        "memory": "memory",
        "batch": "batch",
        "step": "step",
        "tokens/s": "tokens/s",
        "MFU": "MFU",
        "time": "in all" if is_length_known else "1B tokens",
        "time interval": INTERVAL,
        "energy": "energy",
        "cost": "cost" if is_length_known else "cost of 1B",
        "cost interval": INTERVAL,
        "budget": budget,
        "sessions": "sessions",
    }


def _narrowed(table: Table, titles: Texts, width: int) -> Table:
    """Return the table with as many columns as fit into `width` characters."""
    for name in DROPPED_FIRST:
        widths = _widths(table, titles).values()
        if sum(widths) + GAP * (len(widths) - 1) <= width:
            break
        if name in table.columns:
            table = table.without_column(name)
    return table


def table_notes(surveyed: Entries) -> list[str]:
    """Return what the columns mean, and why some devices could not be estimated."""
    planned = [entry for entry in surveyed if isinstance(entry, Surveyed)]
    unplanned = [entry for entry in surveyed if isinstance(entry, Unplanned)]
    notes = []
    if any(_predicted(entry) for entry in planned):
        notes.append(_column_note(planned))
    notes += _remedy_notes(planned) + _worst_notes(planned)
    notes += [f"{entry.device.name} cannot be estimated: {entry.reason}" for entry in unplanned]
    return [note for note in notes if note]


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
            may = "may not fit" if entry.verdict == "uncertain" else "does not fit"
            worst.setdefault(f"{entry.chain.worst.title} {may}", []).append(entry.device.name)
    return [f"{phase} {', '.join(names)}" for phase, names in worst.items()]


def _column_note(planned: Sequence[Surveyed]) -> str:
    note = "batch: sequences per micro-batch x micro-batches"
    if any(entry.derived.plan.recompute for entry in planned):
        note += "; r: activations are recomputed"
    if any("total_time_s" in _predicted(entry) for entry in planned):
        with_phases = ", and all phases of the job" * any(entry.chain for entry in planned)
        return f"{note}; in all: with evaluation, checkpoints and start{with_phases}"
    return f"{note}; 1B tokens: training alone, as the length of the run is not known yet"


def batch_cell(plan: Plan) -> str:
    """`4 x 16 + 2 r`: micro-batch, number of micro-batches, the remainder, and r if activations are
    recomputed.
    """
    first, last = plan.micro_batches[0], plan.micro_batches[-1]
    full = plan.micro_batches.count(first)
    rest = f" + {last}" if last != first else ""
    return f"{first} x {full}{rest}{' r' * bool(plan.recompute)}"


def _row(
    entry: Surveyed | Unplanned,
    answers: Mapping[str, BudgetCheck],
    sessions: Mapping[str, Sessions],
) -> Texts:
    name = entry.device.name
    if isinstance(entry, Unplanned):
        return {"device": name, "fits": "?"}
    plan = entry.derived.plan
    memory = f"{entry.memory[0] / GIB:.1f} of {format_bytes(entry.device.memory_bytes)}"
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
        "step": _value(predicted.get("step_time_s"), format_duration),
        "tokens/s": _value(predicted.get("tokens_per_s"), format_count),
        "MFU": _value(predicted.get("mfu"), "{:.0%}".format),
        "energy": _value(predicted.get("energy_wh"), format_energy),
        "time interval": between("total_time_s", predicted.get("total_time_s")),
        "cost interval": between("cost_usd", predicted.get("cost_usd")),
    }
    time_s, cost_usd = amount_of(entry, "time"), amount_of(entry, "cost")
    if math.isfinite(time_s):
        row["time"] = format_duration(time_s)
    if math.isfinite(cost_usd):
        row["cost"] = format_money(cost_usd)
    elif "step_time_s" in predicted:
        row["cost"] = "no price"
    if name in answers:
        row["budget"] = SHORT[answers[name].verdict]
    if name in sessions:
        row["sessions"] = str(sessions[name].count[0])
    return row


def _rank(entry: Surveyed | Unplanned) -> int:
    return 3 if isinstance(entry, Unplanned) else list(SHORT).index(entry.verdict)


def _predicted(entry: Surveyed | Unplanned) -> Predictions:
    return {} if isinstance(entry, Unplanned) else entry.predicted


def amount_of(entry: Surveyed | Unplanned, by: str) -> float:
    """Return seconds or US dollars as in AMOUNTS; infinite where nothing is known."""
    predicted = _predicted(entry)
    if not isinstance(entry, Surveyed) or entry.verdict == "does not fit":
        return math.inf
    return next((predicted[name].value for name in AMOUNTS[by] if name in predicted), math.inf)


def _value(prediction: Prediction | None, form: Callable[[float], str]) -> str:
    return "" if prediction is None else form(prediction.value)


def between(name: str, prediction: Prediction | None) -> str:
    """`1.2 to 2.0 s`: the interval of a prediction in the unit that ends its name; "" for None."""
    if prediction is None:
        return ""
    return format_between(partial(format_named, name), prediction.low, prediction.high)
