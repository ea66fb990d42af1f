"""Memory in a report: what the plan said that the peak is made of, and what was measured over time,
on one scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from brimful.base.units import GIB, MIB, format_bytes
from brimful.report.bars import Part, parts
from brimful.report.drawing import AXIS, BEST, INK, TRAIN, VALIDATION, Drawing, style, tick
from brimful.report.page.plots import running_minutes, thin
from brimful.report.tables import memory_terms
from brimful.runs.runfiles import RunFiles, measured, number, pair, section

FloatArray = NDArray[np.float64]

SAMPLED = {
    "torch_reserved_bytes": "measured: held by torch",
    "device_memory_bytes": "measured: device, all programs",
    "rss_bytes": "measured: memory of the process",
}
"""Readings of the monitor that are drawn on a GPU (the first two) and on a CPU (the last)."""
SIZE, SIZE_ON_PHONES = (820, 320), (350, 290)
NEAR = 1.7
"""Capacity at most so many times what was used is drawn as a line; else it is only told."""


@dataclass(frozen=True)
class MemoryView:
    """What the section on memory shows.

    Attributes:
        sentence: Peak, prediction and capacity.
        terms: Of the predicted peak, the largest first.
        drawing: None where nothing was measured and nothing predicted.
        note: Where the measured line comes from.
    """

    sentence: str
    terms: tuple[Part, ...]
    drawing: Drawing | None
    note: str


@dataclass(frozen=True)
class _Line:
    """One measured series: minutes of the run, bytes."""

    name: str
    minutes_N: FloatArray
    bytes_N: FloatArray


def memory_view(run: RunFiles) -> MemoryView | None:
    """None where a run has neither terms of its plan nor a measurement."""
    terms = tuple(parts(memory_terms(run), "bytes"))
    lines, note = _lines(run)
    if not terms and not lines:
        return None
    drawing = _drawing(run, terms, lines) if lines else None
    return MemoryView(_sentence(run), terms, drawing, note)


def capacity_bytes(run: RunFiles) -> float | None:
    """Memory of the device: as the monitor found it, else as planned with."""
    limits = run.monitored.limits
    seen = limits.get("memory_bytes") if _is_on_host(run) else limits.get("device_memory_bytes")
    return number(seen) or number(section(run.plan, "device").get("memory_bytes"))


def _is_on_host(run: RunFiles) -> bool:
    return str(section(run.plan, "device").get("kind", "cpu")) == "cpu"


def measured_memory(run: RunFiles) -> tuple[FloatArray, FloatArray] | None:
    """Minutes of the run and bytes used at them, as its timeline shows them first; None where
    nothing was measured.
    """
    lines, _ = _lines(run)
    return (lines[0].minutes_N, lines[0].bytes_N) if lines else None


def _lines(run: RunFiles) -> tuple[list[_Line], str]:
    """Samples of the monitor; without them the highest of every step so far."""
    names = ["rss_bytes"] if _is_on_host(run) else ["torch_reserved_bytes", "device_memory_bytes"]
    found = []
    for name in names:
        times, values = run.monitored.series(name)
        if len(times) > 1:
            found.append(
                _Line(SAMPLED[name], running_minutes(times), np.asarray(values, dtype=np.float64))
            )
    if found:
        return found, "Measured: sampled beside the run."
    steps = [
        record
        for record in run.of_kind("step")
        if number(record.get("time")) is not None and number(record.get("memory_bytes")) is not None
    ]
    if len(steps) < 2:
        return [], ""
    times, values = ([float(record[name]) for record in steps] for name in ("time", "memory_bytes"))
    return [
        _Line("measured, highest so far", running_minutes(times), np.asarray(values))
    ], "Measured: the peak so far, at every recorded step."


def _sentence(run: RunFiles) -> str:
    """`Peak 1.18 GiB; predicted 1.22 GiB (1.12 to 1.35 GiB); capacity 7.5 GiB, of which 16 % were
    used.`
    """
    peak, predicted = (
        measured(run).get("peak_memory_bytes"),
        number(section(run.plan, "predicted").get("peak_memory_bytes")),
    )
    interval, capacity = (
        pair(section(run.plan, "predicted_interval").get("peak_memory_bytes")),
        capacity_bytes(run),
    )
    told = [f"peak {format_bytes(peak)}"] if peak else []
    if predicted:
        told.append(
            f"predicted {format_bytes(predicted)}"
            + (f" ({format_bytes(interval[0])} to {format_bytes(interval[1])})" if interval else "")
        )
    if capacity:
        told.append(
            f"capacity {format_bytes(capacity)}"
            + (f", of which {peak / capacity:.0%} were used" if peak else "")
        )
    text = "; ".join(told)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _drawing(run: RunFiles, terms: Sequence[Part], lines: Sequence[_Line]) -> Drawing:
    predicted, capacity = (
        number(section(run.plan, "predicted").get("peak_memory_bytes")),
        capacity_bytes(run),
    )
    interval = pair(section(run.plan, "predicted_interval").get("peak_memory_bytes"))
    highest = max(float(line.bytes_N.max()) for line in lines)
    used = max(highest, predicted or 0.0, interval[1] if interval else 0.0)
    unit, scale = ("GiB", GIB) if used >= GIB else ("MiB", MIB)
    is_near = capacity is not None and capacity <= NEAR * used
    top = max(used, capacity if is_near and capacity else 0.0) * 1.08 / scale

    def draw(figure: Figure) -> None:
        narrow, wide = (
            figure.subplots(1, 2, width_ratios=(1, 11), sharey=True)
            if terms
            else (None, figure.add_subplot())
        )
        wide.set_ylim(0, top)
        wide.yaxis.set_major_formatter(FuncFormatter(tick))
        if interval:
            wide.axhspan(
                interval[0] / scale, interval[1] / scale, color=AXIS, alpha=0.14, linewidth=0
            )
        _draw_lines(wide, lines, scale)
        if predicted:
            _draw_level(wide, predicted / scale, f"predicted peak {format_bytes(predicted)}", INK)
        if is_near and capacity:
            _draw_level(wide, capacity / scale, f"capacity {format_bytes(capacity)}", BEST)
        style(wide, "minutes", integer=False)
        (narrow or wide).set_ylabel(unit, color=AXIS, fontsize=11)
        if narrow is not None:
            _draw_stack(narrow, terms, scale)

    told = [f"{line.name}: highest {format_bytes(float(line.bytes_N.max()))}" for line in lines]
    told += [f"predicted peak {format_bytes(predicted)}"] if predicted else []
    legend = tuple((part.colour, f"{part.name} {part.text}") for part in terms)
    title = (
        "Memory: predicted at the peak, measured over time"
        if terms
        else "Memory measured over time"
    )
    return Drawing(
        "memory",
        title,
        f"Memory over the time of the run. {'; '.join(told)}.",
        SIZE,
        draw,
        SIZE_ON_PHONES,
        legend,
    )


def _draw_lines(axes: Axes, lines: Sequence[_Line], scale: float) -> None:
    for line, colour in zip(lines, (TRAIN, VALIDATION), strict=False):
        axes.plot(
            *thin(line.minutes_N, line.bytes_N / scale),
            color=colour,
            linewidth=1.8,
            label=line.name,
        )
    axes.legend(loc="lower right", frameon=False, fontsize=11, labelcolor=AXIS)


def _draw_level(axes: Axes, value: float, text: str, colour: str) -> None:
    axes.axhline(value, color=colour, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.annotate(
        text,
        (0.99, value),
        (0, 4),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        color=colour,
        fontsize=11,
    )


def _draw_stack(axes: Axes, terms: Sequence[Part], scale: float) -> None:
    """The parts of the predicted peak, the largest at the bottom."""
    below = 0.0
    for part in terms:
        axes.bar(0, part.size / scale, bottom=below, width=0.9, color=part.colour)
        below += part.size / scale
    axes.set(xlim=(-0.5, 0.5), xticks=[0])
    axes.set_xticklabels(["plan"], color=AXIS, fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(colors=AXIS, length=0, labelsize=11)
