"""Plans as tables for a terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from brimful.base.errors import RequestError
from brimful.base.rundir import write_json_atomically
from brimful.base.units import format_bytes, format_count
from brimful.planning.memory import Footprint
from brimful.planning.plan import Prediction
from brimful.planning.survey import Remedy
from brimful.planning.surveyed import Surveyed, Unplanned

_STYLES = {"fits": "green", "uncertain": "yellow", "does not fit": "red"}


def render(surveyed: Sequence[Surveyed | Unplanned]) -> RenderableType:
    """One device closely, several a line each; `batch` is the micro-batch, `in all` what the driver shows."""
    if len(surveyed) == 1 and isinstance(surveyed[0], Surveyed):
        return _closely(surveyed[0])
    table = _table("device", "memory", "batch", "allocated", "reserved", "in all", "head-room", "")
    for entry in surveyed:
        memory = format_bytes(entry.device.memory_bytes)
        if isinstance(entry, Unplanned):
            table.add_row(entry.device.name, memory, "", "", "", "", "", Text(f"cannot be estimated: {entry.reason}", style="red"))
            continue
        footprint = entry.derived.footprint
        recomputes = ", recomputing" * entry.derived.plan.recompute
        verdict = Text(f"{entry.verdict}{recomputes}", style=_STYLES[entry.verdict])
        table.add_row(entry.device.name, memory, str(footprint.micro_batch), *_numbers(footprint), verdict)
    return table


def exit_code(surveyed: Sequence[Surveyed | Unplanned]) -> int:
    """0 where the recipe surely fits (of several devices: on one of them), 1 where it does not or may not, 2 where nothing could be estimated."""
    planned = [entry for entry in surveyed if isinstance(entry, Surveyed)]
    if not planned:
        return 2
    return 0 if any(entry.verdict == "fits" for entry in planned) else 1


def tensor_lines(surveyed: Sequence[Surveyed | Unplanned]) -> list[str]:
    """The largest tensors at the peak, with the module that made them."""
    lines = []
    for entry in surveyed:
        if isinstance(entry, Surveyed):
            footprint = entry.derived.footprint
            lines.append(f"largest at the peak on {entry.device.name} (in the {footprint.peak_phase} phase, micro-batch {footprint.micro_batch}):")
            width = max(len(tensor.kind) for tensor in footprint.largest)
            lines += [f"  {format_bytes(tensor.num_bytes):>9}  {tensor.kind:<{width}}  {tensor.place}" for tensor in footprint.largest]
    return lines


def write_timeline(surveyed: Sequence[Surveyed | Unplanned], path: Path) -> None:
    """Draw the step of the first device that could be planned for, and write its numbers as JSON beside the figure.

    Raises:
        RequestError: the suffix is neither .png nor .svg, or no device could be planned for.
    """
    if path.suffix not in {".png", ".svg"}:
        raise RequestError(f"--timeline {path}: the figure's name must end in .png or .svg.")
    entry = next((entry for entry in surveyed if isinstance(entry, Surveyed)), None)
    if entry is None:
        raise RequestError("there is no timeline to draw: nothing could be estimated.")
    from brimful.report.timeline import draw_timeline, timeline_json  # noqa: PLC0415 - brings matplotlib

    trace = entry.derived.memory.replayed(entry.derived.footprint.micro_batch).trace
    draw_timeline(trace, path, f"{entry.derived.plan.recipe} on {entry.device.name}, micro-batch {entry.derived.footprint.micro_batch}")
    write_json_atomically(path.with_suffix(".json"), timeline_json(trace))


def _closely(surveyed: Surveyed) -> RenderableType:
    footprint = surveyed.derived.footprint
    parts: list[RenderableType] = [Text(surveyed.derived.plan.explain()), Text(""), _terms(footprint), Text(""), _verdict(footprint)]
    if len(surveyed.table) > 1:
        parts += [Text(""), _micro_batches(surveyed.table, footprint.micro_batch)]
    if surveyed.remedies:
        parts += [Text(""), _remedies(surveyed.remedies)]
    if surveyed.smallest_device:
        parts += [Text(""), Text(f"The smallest device of the catalog that holds it as it is: {surveyed.smallest_device}.")]
    return Group(*parts)


def _terms(footprint: Footprint) -> Table:
    table = _table(f"Memory at the peak ({footprint.peak_phase} phase)", "", "")
    total = sum(footprint.terms.values())
    for name, num_bytes in footprint.terms.items():
        table.add_row(f"  {name}", format_bytes(num_bytes), f"{num_bytes / total:.1%}")
    for name, prediction in (("allocated", footprint.allocated), ("reserved", footprint.reserved), ("in all", footprint.driver)):
        table.add_row(name, format_bytes(prediction.value), _interval(prediction))
    return table


def _verdict(footprint: Footprint) -> Text:
    trains = (
        "" if footprint.trainable == footprint.parameters else f", {format_count(footprint.trainable)} of {format_count(footprint.parameters)} train"
    )
    told = f"{footprint.verdict}: {format_bytes(footprint.usable_bytes)} to use, head-room {format_bytes(footprint.headroom_bytes)}{trains}"
    return Text(told, style=_STYLES[footprint.verdict])


def _micro_batches(table: Sequence[Footprint], chosen: int) -> Table:
    shown = _table("micro-batch", "allocated", "reserved", "in all", "head-room", "")
    for footprint in table:
        mark = " ← plan" if footprint.micro_batch == chosen else ""
        shown.add_row(str(footprint.micro_batch), *_numbers(footprint), Text(f"{footprint.verdict}{mark}", style=_STYLES[footprint.verdict]))
    return shown


def _remedies(remedies: Sequence[Remedy]) -> Text:
    lines = ["What would take less, each by itself:"]
    width = max(len(remedy.name) for remedy in remedies)
    for remedy in remedies:
        fits = f"up to {remedy.largest} fit" if remedy.largest else "does not fit"
        how = f"  ({remedy.set})" if remedy.set else ""
        lines += [
            f"  {remedy.name:<{width}}  {format_bytes(remedy.footprint.driver.value)} for one sequence, {fits}{how}",
            f"  {'':<{width}}  {remedy.change}",
        ]
    return Text("\n".join(lines))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 or not column else "right", overflow="fold")
    return table


def _numbers(footprint: Footprint) -> list[str]:
    return [format_bytes(value) for value in (footprint.allocated.value, footprint.reserved.value, footprint.driver.value, footprint.headroom_bytes)]


def _interval(prediction: Prediction) -> str:
    return f"{format_bytes(prediction.low)} to {format_bytes(prediction.high)}"
