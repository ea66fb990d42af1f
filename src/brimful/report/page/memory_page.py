"""Memory in a report: the parts of the predicted peak and what was measured over time, on one
scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from brimful.base.arrays import Floats
from brimful.base.types import Bounds
from brimful.base.units import GIB, MIB, format_bytes
from brimful.report.bars import Bar, Bars, Part, parts
from brimful.report.chart import Chart, Role, Rule, series_of
from brimful.report.page.plots import MINUTES, running_minutes
from brimful.report.predictions import memory_terms
from brimful.report.quantities import capitalised
from brimful.report.views import Chapter, section, text
from brimful.runs.folder import RunFolder
from brimful.runs.measurements import measured

SAMPLED = {
    "torch_reserved_bytes": "measured: held by torch",
    "device_memory_bytes": "measured: device, all programs",
    "unmapped_bytes": "measured: memory of the process",
    "rss_bytes": "measured: memory of the process, mapped files included",
}
"""Readings of the monitor that are drawn: on a GPU the first two, on a CPU the third, in runs from
before it was read the last.
"""
NEAR = 1.7
"""Capacity at most so many times what was used is drawn as a line; else only the sentence has
it.
"""


Lines = Mapping[str, tuple[Floats, Floats]]
"""Measured series by name: times, bytes."""


def memory_section(run: RunFolder) -> Chapter | None:
    """None where a run has neither terms of its plan nor a measurement."""
    terms = tuple(parts(memory_terms(run), "bytes"))
    lines, note = _lines(run)
    if not terms and not lines:
        return None
    told = text("The plan's parts of the peak:" if terms and not lines else "", "note")
    alone = Bars("", "Predicted peak", (Bar("predicted", terms),)) if told else None
    return section(
        "memory",
        "Memory",
        *text(_sentence(run)),
        _chart(run, terms, lines) if lines else None,
        *told,
        alone,
        *text(note, "note"),
        title="Memory",
    )


def memory_chart_of(run: RunFolder) -> Chart | None:
    """Memory over the time of a run; None where nothing was measured."""
    lines, _ = _lines(run)
    return _chart(run, parts(memory_terms(run), "bytes"), lines) if lines else None


def capacity_bytes(run: RunFolder) -> float | None:
    """Return the memory of the device: as the monitor measured it, else as planned with."""
    name = "memory_bytes" if _is_on_host(run) else "device_memory_bytes"
    return run.monitored.limits.get(name) or run.planned_device.memory_bytes


def _is_on_host(run: RunFolder) -> bool:
    return run.device_kind in ("", "cpu")


def measured_memory(run: RunFolder) -> tuple[Floats, Floats] | None:
    """Return minutes of the run and bytes used at them, as its timeline shows them first; None
    where nothing was measured.
    """
    return next(iter(_lines(run)[0].values()), None)


def _lines(run: RunFolder) -> tuple[Lines, str]:
    """Return samples of the monitor, without them the peak so far at every step; and a note on
    which of the two.
    """
    names = ["torch_reserved_bytes", "device_memory_bytes"]
    if _is_on_host(run):
        is_read = bool(run.monitored.series("unmapped_bytes")[1])
        names = ["unmapped_bytes" if is_read else "rss_bytes"]
    series = {SAMPLED[name]: run.monitored.series(name) for name in names}
    lines = {name: _line(*each) for name, each in series.items() if len(each[0]) > 1}
    if lines:
        return lines, "Measured: sampled beside the run."
    steps = [
        (each.time, each.memory_bytes)
        for each in run.steps
        if each.time is not None and each.memory_bytes is not None
    ]
    if len(steps) < 2:
        return {}, ""
    line = _line(*zip(*steps, strict=True))
    return {"measured, highest so far": line}, "Measured: the peak so far, at every recorded step."


def _line(times: Sequence[float], values: Sequence[float]) -> tuple[Floats, Floats]:
    return running_minutes(times), np.asarray(values, dtype=np.float64)


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


def _chart(run: RunFolder, terms: Sequence[Part], lines: Lines) -> Chart:
    predicted, capacity = run.predicted("peak_memory_bytes"), capacity_bytes(run)
    levels = {"predicted peak": predicted, "capacity": capacity}
    interval = run.predicted_interval("peak_memory_bytes")
    title = "Memory measured over time"
    if terms:
        title = "Memory: predicted at the peak, measured over time"
    return memory_chart(title, MINUTES, lines, levels, interval, terms)


def memory_chart(
    title: str,
    x: str,
    lines: Lines,
    levels: Mapping[str, float | None],
    interval: Bounds | None,
    terms: Sequence[Part],
) -> Chart:
    """Return bytes over time beside the plan's.

    Args:
        title: Title of the chart.
        x: Name of the axis of time.
        lines: Measured times and bytes, by name.
        levels: The predicted peak, then the capacity, by name; the capacity is drawn where it is
            near.
        interval: Interval of the predicted peak, bytes.
        terms: Parts of the predicted peak.
    """
    highest = {name: float(bytes_N.max()) for name, (_, bytes_N) in lines.items()}
    (peak, predicted), (limit, capacity) = levels.items()
    used = max([*highest.values(), predicted or 0.0, *(interval or ())])
    known: list[tuple[str, float, Role]] = [(peak, predicted, "plain")] if predicted else []
    if (near := _near(capacity, used)) is not None:
        known.append((limit, near, "kept"))
    top = 1.08 * max([used, *(value for _, value, _ in known)])
    unit, scale = ("GiB", GIB) if top >= 1.08 * GIB else ("MiB", MIB)
    texts = [f"{name}: highest {format_bytes(value)}" for name, value in highest.items()]
    if predicted:
        texts.append(f"{peak} {format_bytes(predicted)}")
    roles: tuple[Role, ...] = ("training", "validation")
    return Chart(
        "memory",
        title,
        f"Memory over the time of the run. {'; '.join(texts)}.",
        x,
        tuple(
            series_of(name, times_N, bytes_N / scale, role=role)
            for (name, (times_N, bytes_N)), role in zip(lines.items(), roles, strict=False)
        ),
        y=unit,
        levels=tuple(
            Rule(value / scale, f"{name} {format_bytes(value)}", role)
            for name, value, role in known
        ),
        band=(interval[0] / scale, interval[1] / scale) if interval else None,
        y_range=(0.0, top / scale),
        is_main=True,
        stack=tuple(replace(part, size=part.size / scale) for part in terms),
    )


def _near(capacity: float | None, used: float) -> float | None:
    """A capacity that is near what was used; None for another."""
    return capacity if capacity and capacity <= NEAR * used else None
