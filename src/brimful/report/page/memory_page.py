"""Memory in a report: the parts of the predicted peak and what was measured over time, on one
scale.
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
from brimful.report.predictions import memory_terms
from brimful.report.quantities import capitalised
from brimful.runs import RunFolder
from brimful.runs.measurements import measured

FloatArray = NDArray[np.float64]

SAMPLED = {
    "torch_reserved_bytes": "measured: held by torch",
    "device_memory_bytes": "measured: device, all programs",
    "unmapped_bytes": "measured: memory of the process",
    "rss_bytes": "measured: memory of the process, mapped files included",
}
"""Readings of the monitor that are drawn: on a GPU the first two, on a CPU the third, in runs from
before it was read the last.
"""
SIZE, SIZE_ON_PHONES = (820, 260), (350, 290)
NEAR = 1.7
"""Capacity at most so many times what was used is drawn as a line; else only the sentence has
it.
"""


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


def memory_view(run: RunFolder) -> MemoryView | None:
    """None where a run has neither terms of its plan nor a measurement."""
    terms = tuple(parts(memory_terms(run), "bytes"))
    lines, note = _lines(run)
    if not terms and not lines:
        return None
    drawing = _drawing(run, terms, lines) if lines else None
    return MemoryView(_sentence(run), terms, drawing, note)


def capacity_bytes(run: RunFolder) -> float | None:
    """Return the memory of the device: as the monitor measured it, else as planned with."""
    name = "memory_bytes" if _is_on_host(run) else "device_memory_bytes"
    return run.monitored.limits.get(name) or run.planned_device.memory_bytes


def _is_on_host(run: RunFolder) -> bool:
    return run.device_kind in ("", "cpu")


def measured_memory(run: RunFolder) -> tuple[FloatArray, FloatArray] | None:
    """Return minutes of the run and bytes used at them, as its timeline shows them first; None
    where nothing was measured.
    """
    lines, _ = _lines(run)
    return (lines[0].minutes_N, lines[0].bytes_N) if lines else None


def _lines(run: RunFolder) -> tuple[list[_Line], str]:
    """Return samples of the monitor, without them the peak so far at every step; and a note on
    which of the two.
    """
    names = ["torch_reserved_bytes", "device_memory_bytes"]
    if _is_on_host(run):
        is_read = bool(run.monitored.series("unmapped_bytes")[1])
        names = ["unmapped_bytes" if is_read else "rss_bytes"]
    series = {name: run.monitored.series(name) for name in names}
    lines = [
        _line(SAMPLED[name], times, values)
        for name, (times, values) in series.items()
        if len(times) > 1
    ]
    if lines:
        return lines, "Measured: sampled beside the run."
    steps = [
        (each.time, each.memory_bytes)
        for each in run.steps
        if each.time is not None and each.memory_bytes is not None
    ]
    if len(steps) < 2:
        return [], ""
    times, values = zip(*steps, strict=True)
    line = _line("measured, highest so far", times, values)
    return [line], "Measured: the peak so far, at every recorded step."


def _line(name: str, times: Sequence[float], values: Sequence[float]) -> _Line:
    return _Line(name, running_minutes(times), np.asarray(values, dtype=np.float64))


def _sentence(run: RunFolder) -> str:
    """`Peak 1.18 GiB; predicted 1.22 GiB (1.12 to 1.35 GiB); capacity 7.5 GiB, of which 16 % were
    used.`
    """
    peak, capacity = measured(run).get("peak_memory_bytes"), capacity_bytes(run)
    predicted = run.predicted("peak_memory_bytes")
    parts = [f"peak {format_bytes(peak)}"] if peak else []
    if predicted:
        interval = run.predicted_interval("peak_memory_bytes")
        ends = f" ({' to '.join(map(format_bytes, interval))})" if interval else ""
        parts.append(f"predicted {format_bytes(predicted)}{ends}")
    if capacity:
        used = f", of which {peak / capacity:.0%} were used" if peak else ""
        parts.append(f"capacity {format_bytes(capacity)}{used}")
    return f"{capitalised('; '.join(parts))}." if parts else ""


@dataclass(frozen=True)
class _Levels:
    """What is drawn beside the measured lines, in bytes; the capacity only where it is near.

    Attributes:
        top: The end of the axis.
    """

    predicted: float | None
    interval: tuple[float, float] | None
    capacity: float | None
    top: float

    @property
    def unit(self) -> tuple[str, int]:
        """The unit of the axis and its bytes."""
        return ("GiB", GIB) if self.top >= 1.08 * GIB else ("MiB", MIB)


def _levels(run: RunFolder, lines: Sequence[_Line]) -> _Levels:
    predicted = run.predicted("peak_memory_bytes")
    interval, capacity = run.predicted_interval("peak_memory_bytes"), capacity_bytes(run)
    highest = [float(line.bytes_N.max()) for line in lines]
    used = max([*highest, predicted or 0.0, *(interval or ())])
    if capacity is not None and capacity > NEAR * used:
        capacity = None
    return _Levels(predicted, interval, capacity, max(used, capacity or 0.0) * 1.08)


def _drawing(run: RunFolder, terms: Sequence[Part], lines: Sequence[_Line]) -> Drawing:
    levels = _levels(run, lines)

    def draw(figure: Figure) -> None:
        unit, scale = levels.unit
        axes = figure.add_subplot() if not terms else None
        if axes is None:
            narrow, axes = figure.subplots(1, 2, width_ratios=(1, 11), sharey=True)
            draw_stack(narrow, terms, scale)
        axes.set_ylim(0, levels.top / scale)
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
        _draw_lines(axes, lines, scale)
        _draw_levels(axes, levels, scale)
        style(axes, "minutes", integer=False)
        figure.axes[0].set_ylabel(unit, color=AXIS, fontsize=11)

    texts = [f"{line.name}: highest {format_bytes(float(line.bytes_N.max()))}" for line in lines]
    if levels.predicted:
        texts.append(f"predicted peak {format_bytes(levels.predicted)}")
    return Drawing(
        "memory",
        "Memory: predicted at the peak, measured over time"
        if terms
        else "Memory measured over time",
        f"Memory over the time of the run. {'; '.join(texts)}.",
        SIZE,
        draw,
        SIZE_ON_PHONES,
        tuple((part.colour, f"{part.name} {part.text}") for part in terms),
    )


def _draw_levels(axes: Axes, levels: _Levels, scale: float) -> None:
    if levels.interval:
        low, high = levels.interval
        axes.axhspan(low / scale, high / scale, color=AXIS, alpha=0.14, linewidth=0)
    if levels.predicted:
        text = f"predicted peak {format_bytes(levels.predicted)}"
        draw_level(axes, levels.predicted / scale, text, INK)
    if levels.capacity:
        text = f"capacity {format_bytes(levels.capacity)}"
        draw_level(axes, levels.capacity / scale, text, BEST)


def _draw_lines(axes: Axes, lines: Sequence[_Line], scale: float) -> None:
    for line, colour in zip(lines, (TRAIN, VALIDATION), strict=False):
        axes.plot(
            *thin(line.minutes_N, line.bytes_N / scale),
            color=colour,
            linewidth=1.8,
            label=line.name,
        )
    axes.legend(loc="lower right", frameon=False, fontsize=11, labelcolor=AXIS)


def draw_level(axes: Axes, value: float, text: str, colour: str) -> None:
    """Draw a dashed line across the axes, named at its right end."""
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


def draw_stack(axes: Axes, terms: Sequence[Part], scale: float) -> None:
    """Draw the parts of the predicted peak, the largest at the bottom."""
    below = 0.0
    for part in terms:
        axes.bar(0, part.size / scale, bottom=below, width=0.9, color=part.colour)
        below += part.size / scale
    axes.set(xlim=(-0.5, 0.5), xticks=[0])
    axes.set_xticklabels(["plan"], color=AXIS, fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(colors=AXIS, length=0, labelsize=11)
