"""Plans as tables for a terminal."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.text import Text

from brimful.base.errors import RequestError
from brimful.base.rundir import write_json_atomically
from brimful.base.units import format_bytes
from brimful.planning.budget import BudgetCheck, Sessions
from brimful.planning.live_memory import MemoryTimeline
from brimful.planning.surveyed import Surveyed
from brimful.report.plan.answer import answer_lines
from brimful.report.plan.budgets import budget_blocks, list_sentences, session_sentences
from brimful.report.plan.fit_view import device_blocks, help_blocks
from brimful.report.plan.table import (
    Entries,
    Sort,
    device_table,
    narrowed,
    ordered,
    table_notes,
)
from brimful.report.table import Table
from brimful.report.terminal import told
from brimful.report.views import Block, Heading, Paragraph

DeviceChecks = tuple[Mapping[str, BudgetCheck], Mapping[str, Sessions]]
"""Checks against a budget, and sessions, by device name."""
NO_CHECKS: DeviceChecks = ({}, {})


def render(
    surveyed: Entries, width: int = 120, checks: DeviceChecks = NO_CHECKS, sort: Sort | None = None
) -> Text:
    """Return the answer, then one device in detail, or several with a line each, in at most `width`
    columns.
    """
    answer = Text("\n".join(answer_lines(surveyed, width)), style="bold")
    blocks = _list_blocks(ordered(surveyed, sort), checks, width)
    if len(surveyed) == 1 and isinstance(surveyed[0], Surveyed):
        blocks = _details(surveyed[0], checks)
    return Text.assemble(answer, "\n", told(blocks, width))


def _list_blocks(surveyed: Entries, checks: DeviceChecks, width: int) -> Iterator[Block]:
    """Return a line for each of several devices."""
    yield from map(Paragraph, list_sentences(checks[0]))
    yield Heading("Devices")
    yield narrowed(device_table(surveyed, *checks), width)
    yield from map(Paragraph, table_notes(surveyed))


def _details(surveyed: Surveyed, checks: DeviceChecks) -> Iterator[Block]:
    """Return everything about one device: what the user asked beside the plan, what would help,
    then reasons and tables.
    """
    (budget, sessions), name = checks, surveyed.device.name
    if name in budget:
        yield from budget_blocks(budget[name], surveyed.derived.plan.tokens_per_step)
    if name in sessions:
        yield from map(Paragraph, session_sentences(sessions[name]))
    yield from help_blocks(surveyed)
    derived, is_cuda = surveyed.derived, surveyed.device.kind == "cuda"
    if derived.footprint.verdict == "does not fit" and is_cuda and derived.plan.devices == 1:
        several = "Several of them: --up-to 8 says how many hold it together."
        yield Paragraph(several, "advice")
    yield Heading("How it would run")
    yield from device_blocks(surveyed)


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


def tensor_blocks(surveyed: Entries) -> Iterator[Block]:
    """Return the largest tensors at the peak, with the module that made them."""
    for entry in surveyed:
        if isinstance(entry, Surveyed):
            footprint = entry.derived.footprint
            yield Heading(
                f"Largest at the peak on {entry.device.name} (in the {footprint.peak_phase} phase,"
                f" micro-batch {footprint.micro_batch})"
            )
            rows = [
                (format_bytes(each.num_bytes), each.kind, each.place) for each in footprint.largest
            ]
            yield Table(("Size", "Kind", "Where"), tuple(rows))


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
