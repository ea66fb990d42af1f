"""Plans as tables for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from brimful.base.errors import RequestError
from brimful.base.rundir import write_json_atomically
from brimful.base.text import aligned_and_wrapped, setting_text, wrapped
from brimful.base.units import format_bytes, format_count, format_named
from brimful.planning.budget import BudgetCheck, Sessions
from brimful.planning.live_memory import MemoryTimeline
from brimful.planning.memory import Footprint
from brimful.planning.plan import Plan, Prediction
from brimful.planning.surveyed import Surveyed
from brimful.report.plan.answer import answer_lines, headroom_of
from brimful.report.plan.budgets import budget_lines, list_lines, session_lines
from brimful.report.plan.fit_view import PREDICTED, remedy_line
from brimful.report.plan.job import job_lines
from brimful.report.plan.table import (
    INTERVAL,
    Entries,
    Sort,
    between,
    device_table,
    ordered,
    table_notes,
)
from brimful.report.table import aligned

DeviceChecks = tuple[Mapping[str, BudgetCheck], Mapping[str, Sessions]]
"""Checks against a budget, and sessions, by device name."""
NO_CHECKS: DeviceChecks = ({}, {})

_STYLES = {"fits": "green", "uncertain": "yellow", "does not fit": "red"}


def render(
    surveyed: Entries, width: int = 120, checks: DeviceChecks = NO_CHECKS, sort: Sort | None = None
) -> RenderableType:
    """Return the answer, then one device in detail, or several with a line each, in at most `width`
    columns.
    """
    budget, sessions = checks
    answer = Text("\n".join(answer_lines(surveyed, width)), style="bold")
    if len(surveyed) == 1 and isinstance(surveyed[0], Surveyed):
        return Group(answer, _details(surveyed[0], width, checks))
    shown = ordered(surveyed, sort)
    return Group(
        answer,
        _wrapped(list_lines(budget), width),
        Text(""),
        device_table(shown, width, budget, sessions),
        Text(""),
        _wrapped(table_notes(shown), width),
    )


def _wrapped(lines: Sequence[str], width: int) -> RenderableType:
    """Return sentences in lines of at most `width` characters; nothing for none."""
    if not lines:
        return Group()
    return Text("\n".join(part for line in lines for part in wrapped(line, width, 2)))


def exit_code(surveyed: Entries, budget: Mapping[str, BudgetCheck] | None = None) -> int:
    """Return 0 if the recipe fits on at least one device, 1 if it does not or may not, and 2 if
    nothing could be estimated. With a budget, a device must also keep to that.
    """
    planned = [entry for entry in surveyed if isinstance(entry, Surveyed)]
    if not planned:
        return 2
    fitting = {entry.device.name for entry in planned if entry.verdict == "fits"}
    if budget is not None:
        fitting &= {name for name, check in budget.items() if check.verdict == "fits"}
    return 0 if fitting else 1


def tensor_lines(surveyed: Entries) -> list[str]:
    """Return the largest tensors at the peak, with the module that made them."""
    lines = []
    for entry in surveyed:
        if not isinstance(entry, Surveyed):
            continue
        footprint = entry.derived.footprint
        lines.append(
            f"largest at the peak on {entry.device.name} (in the {footprint.peak_phase} phase,"
            f" micro-batch {footprint.micro_batch}):"
        )
        width = max(len(tensor.kind) for tensor in footprint.largest)
        lines += [
            f"  {format_bytes(tensor.num_bytes):>9}  {tensor.kind:<{width}}  {tensor.place}"
            for tensor in footprint.largest
        ]
    return lines


def write_timeline(surveyed: Entries, path: Path) -> None:
    """Draw the memory over the step on the first device that could be planned for, and write its
    numbers as JSON beside the figure.

    Raises:
        RequestError: the suffix is neither .png nor .svg, or no device could be planned for.
    """
    if path.suffix not in {".png", ".svg"}:
        raise RequestError(f"--timeline {path}: the figure's name must end in .png or .svg.")
    entry = next((entry for entry in surveyed if isinstance(entry, Surveyed)), None)
    if entry is None:
        raise RequestError("there is no timeline to draw: nothing could be estimated.")
    # Brings matplotlib.
    from brimful.report.plan.timeline import draw_timeline  # noqa: PLC0415

    trace = entry.derived.memory.replayed(entry.derived.footprint.micro_batch).trace
    draw_timeline(
        trace,
        path,
        f"{entry.derived.plan.recipe} on {entry.device.name}, micro-batch"
        f" {entry.derived.footprint.micro_batch}",
    )
    write_json_atomically(path.with_suffix(".json"), MemoryTimeline(trace).to_json())


def _details(surveyed: Surveyed, width: int, checks: DeviceChecks) -> RenderableType:
    """Return everything about one device, its parts separated by empty lines: what the user asked
    beside the plan, what would help, then reasons and tables.
    """
    footprint, plan = surveyed.derived.footprint, surveyed.derived.plan
    parts: list[RenderableType] = []
    if lines := _check_lines(surveyed, checks, width):
        parts.append(Text("\n".join(lines)))
    if surveyed.remedies:
        helps = [f"  {remedy_line(each)}" for each in surveyed.remedies]
        parts.append(_wrapped(["What would take less, each by itself:", *helps], width))
    if plan.devices == 1:
        parts += [_wrapped([line], width) for line in _other_devices(surveyed)]
    if surveyed.chain is not None:
        planned = surveyed.chain.planned
        which = f"The training of {planned}, which needs most" if planned else "One training"
        parts.append(Text(f"{which}:"))
    parts += [Text(_head(plan, width)), _terms(footprint), _verdict(footprint, width)]
    if len(surveyed.table) > 1:
        parts.append(_micro_batches(surveyed.table, footprint.micro_batch))
    if footprint.verdict != "does not fit":
        parts.append(Text("\n".join(_times(plan, width))))
    if surveyed.chain is not None:
        parts.append(Text("\n".join(job_lines(surveyed.chain, width))))
    return Group(*(each for part in parts for each in (Text(""), part)))


def _other_devices(surveyed: Surveyed) -> Iterator[str]:
    """What else would hold a recipe that one device does not."""
    if surveyed.smallest_device:
        yield f"The smallest device of the catalog that holds it: {surveyed.smallest_device}."
    alone = surveyed.derived.footprint.verdict
    if alone == "does not fit" and surveyed.device.kind == "cuda":
        yield "Several of them: --up-to 8 says how many hold it together."


def _check_lines(surveyed: Surveyed, checks: DeviceChecks, width: int) -> list[str]:
    """Return whether a device keeps to the budget, and how many sessions it takes, if asked."""
    (budget, sessions), name = checks, surveyed.device.name
    plan = surveyed.derived.plan
    lines = []
    if name in budget:
        lines += budget_lines(budget[name], plan.tokens_per_step, width)
    if name in sessions:
        lines += [part for line in session_lines(sessions[name]) for part in wrapped(line, width)]
    return lines


def _head(plan: Plan, width: int) -> str:
    """Return how a step is divided, and every choice with its reason and the runner-up."""
    rows = []
    for choice in plan.choices:
        second = (
            "" if choice.alternative is None else f"; next best: {setting_text(choice.alternative)}"
        )
        rows.append((f"  {choice.name}", setting_text(choice.value), f"{choice.reason}{second}"))
    return "\n".join([*wrapped(plan.division(), width, 2), *aligned_and_wrapped(rows, width)])


def _times(plan: Plan, width: int) -> list[str]:
    """Return time, energy and cost with their intervals, and below what they are predicted from."""
    rows, sources = [("Time and cost", "", INTERVAL)], []
    for name, label in PREDICTED.items():
        if name in plan.predicted:
            entry = plan.predicted[name]
            rows.append((f"  {label}", format_named(name, entry.value), between(name, entry)))
            sources.append((f"  {label}", entry.basis))
        if name == "step_time_s" and name in plan.predicted:
            whole_s = sum(plan.time_terms.values())
            rows += [
                (f"    {term}", format_named("time_s", each), f"{each / whole_s:.1%}")
                for term, each in plan.time_terms.items()
            ]
    if len(rows) == 1:
        return wrapped(
            "Time and cost: not predicted, as no rate is known for this device and precision.",
            width,
            2,
        )
    if not {"cost_usd", "billion_tokens_usd"} & plan.predicted.keys():
        rows.append(("  cost", "no price known", ""))
        sources.append(("  cost", "say what an hour costs in US dollars: --price 2.5"))
    lines = [*aligned(rows), "", "Predicted from", *aligned_and_wrapped(sources, width)]
    if plan.total_steps is None:
        unknown = (
            "  The length of the run is known once the data are read; training.steps=N or"
            " training.tokens=N says it now."
        )
        lines += wrapped(unknown, width)
    return lines


def _terms(footprint: Footprint) -> Text:
    total = sum(footprint.terms.values())
    rows = [(f"Memory at the peak ({footprint.peak_phase} phase)", "", "")]
    rows += [
        (f"  {name}", format_bytes(num_bytes), f"{num_bytes / total:.1%}")
        for name, num_bytes in footprint.terms.items()
    ]
    rows += [
        (name, format_bytes(peak.value), between("peak_bytes", peak))
        for name, peak in zip(("allocated", "reserved", "in all"), _peaks(footprint), strict=True)
    ]
    return Text("\n".join(aligned(rows)))


def _verdict(footprint: Footprint, width: int) -> Text:
    line = f"{footprint.verdict}: {format_bytes(footprint.usable_bytes)} to use"
    if footprint.is_tight:
        line += (
            f", head-room {headroom_of(footprint)}, less than the"
            f" {format_bytes(footprint.room_bytes)} that a plan leaves where it can: the allocator"
            " will give back memory that it only caches"
        )
    else:
        line += f", head-room {headroom_of(footprint)}"
    if footprint.trainable != footprint.parameters:
        trainable, parameters = map(format_count, (footprint.trainable, footprint.parameters))
        line += f", {trainable} of {parameters} train"
    return Text("\n".join(wrapped(line, width, 2)), style=_STYLES[footprint.verdict])


def _micro_batches(table: Sequence[Footprint], chosen: int) -> Text:
    rows: list[tuple[str, ...]] = [
        ("micro-batch", "allocated", "reserved", "in all", "head-room", "")
    ]
    for footprint in table:
        mark = " tightly" * footprint.is_tight
        mark += " ← plan" * (footprint.micro_batch == chosen)
        sizes = (format_bytes(peak.value) for peak in _peaks(footprint))
        verdict = f"{footprint.verdict}{mark}"
        rows.append((str(footprint.micro_batch), *sizes, headroom_of(footprint), verdict))
    return Text("\n".join(aligned(rows)))


def _peaks(footprint: Footprint) -> tuple[Prediction, ...]:
    return footprint.allocated, footprint.reserved, footprint.driver
