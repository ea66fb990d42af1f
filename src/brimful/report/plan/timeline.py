"""The memory of a traced step as a figure: which kinds of tensors are alive when, and what makes up
the peak.
"""

from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from brimful.base.units import format_bytes
from brimful.planning.live_memory import MemoryTimeline, Phase, kinds_at
from brimful.planning.memory import Tensor, largest_at
from brimful.planning.trace import KINDS, Trace
from brimful.report.drawing import settings

COLOURS = (
    "#0072b2",
    "#56b4e9",
    "#d55e00",
    "#e69f00",
    "#00405f",
    "#009e73",
    "#cc79a7",
    "#f0e442",
    "#3c3c3c",
    "#9c9c9c",
    "#d0d0d0",
    "#882255",
    "#44aa99",
)
"""Of KINDS, in their order: Okabe and Ito's palette, which the colour-blind can tell apart, a dark
blue, three greys, and the wine red and the teal of Paul Tol's.
"""
SIZE_IN = (12.0, 6.75)
DOTS_PER_INCH = 150
INK, FAINT = "#303030", "#808080"
_MAX_PLACE_LETTERS = 40
_SHORT = {"forward": "fwd.", "backward": "bwd.", "optimizer": "opt.", "evaluation": "eval."}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_LEAST_PHASE, _LEAST_STEP, _LETTER = 0.01, 0.1, 0.0135
"""Shares of the width: of a phase that is marked, of a step that is named, and of a letter."""


def draw_timeline(trace: Trace, path: Path, title: str) -> None:
    """Draw what is alive over the step, kind on kind, with the peak taken apart beside it.

    Args:
        trace: Of the step.
        path: Where to; `.png` or `.svg` decides the format.
        title: Of the figure.

    Raises:
        OSError: the file cannot be written.
    """
    timeline = MemoryTimeline(trace)
    with settings(font_size=9, svg_fonttype="none", svg_hashsalt="timeline"):
        figure = Figure(figsize=SIZE_IN, dpi=DOTS_PER_INCH, facecolor="white")
        FigureCanvasAgg(figure)
        figure.text(0.06, 0.955, title, fontsize=13, weight="bold", color=INK)
        _draw_areas(figure.add_axes((0.06, 0.08, 0.565, 0.78)), timeline)
        _draw_peak(figure.add_axes((0.645, 0.02, 0.345, 0.92)), timeline)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def short_place(tensor: Tensor, blocks: str) -> str:
    """Return a module path for reading: without the wrappers of adapters, `model.layers.3.mlp` as
    `block 3 mlp`, and long ones cut in the middle.
    """
    module, space, operator = tensor.place.partition(" ")
    if tensor.kind == "loss and logits" and "." not in tensor.place:
        return f"loss {tensor.place}"
    if blocks and module.startswith(f"{blocks}."):
        number, _, rest = module[len(blocks) + 1 :].partition(".")
        module = f"block {number} {rest}".rstrip()
    module = module.removeprefix("base_model.model.").removesuffix(".default")
    text = f"{module}{space}{operator}"
    if len(text) <= _MAX_PLACE_LETTERS:
        return text
    half = (_MAX_PLACE_LETTERS - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def _draw_areas(axes: Axes, timeline: MemoryTimeline) -> None:
    kinds = [kind for kind in range(len(KINDS)) if timeline.bytes_by_kind[kind].any()]
    highest = timeline.peak_bytes
    unit = min(len(_UNITS) - 1, max(0, highest.bit_length() - 1) // 10)
    scale = 1024**unit
    axes.stackplot(
        timeline.shown_events - timeline.start,
        timeline.bytes_by_kind[kinds] / scale,
        colors=[COLOURS[kind] for kind in kinds],
        step="post",
        linewidth=0,
    )
    axes.set_xlim(0, max(1, timeline.num_events - 1))
    axes.set_ylim(0, highest / scale * 1.12 or 1.0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, length=3)
    axes.set_ylabel(f"live tensors, {_UNITS[unit]}", color=INK)
    axes.set_xlabel("births and deaths of tensors, in order", color=INK)
    axes.xaxis.set_major_formatter(lambda event, _: f"{event:,.0f}")
    _mark_peak(axes, timeline.peak - timeline.start, highest / scale, format_bytes(highest))
    _draw_phases(axes, timeline.phases, timeline.num_events)


def _mark_peak(axes: Axes, event: int, height: float, size: str) -> None:
    """Mark the peak; the label stands on the side with more room."""
    is_late = event > sum(axes.get_xlim()) / 2
    axes.plot(event, height, "v", markersize=8, color=INK, clip_on=False, zorder=5)
    axes.annotate(
        f"peak {size}",
        (event, height),
        (-9 if is_late else 9, 3),
        textcoords="offset points",
        ha="right" if is_late else "left",
        color=INK,
        weight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )


def _draw_phases(axes: Axes, phases: list[Phase], end: int) -> None:
    """Draw lines where phases begin, their names above those wide enough, and steps above them."""
    width = max(1.0, float(np.ptp(axes.get_xlim())))
    ends = [*(phase.first_event for phase in phases), end]
    for phase, (first, last) in zip(phases, pairwise(ends), strict=True):
        share = (last - first) / width
        if share < _LEAST_PHASE:
            continue
        axes.axvline(first, color=INK, linewidth=0.6, alpha=0.5)
        for name in (phase.name, _SHORT.get(phase.name, phase.name)):
            if share > _LETTER * len(name):
                _write_above(axes, (first + last) / 2, 1.012, name)
                break
    spans = zip(phases, pairwise(ends), strict=True)
    for step, group in groupby(spans, key=lambda span: span[0].step):
        places = [each for _, each in group]
        first, last = places[0][0], places[-1][1]
        if step is None:
            continue
        axes.plot(
            [first, last],
            [1.055, 1.055],
            transform=axes.get_xaxis_transform(),
            color=FAINT,
            linewidth=0.8,
            clip_on=False,
        )
        if (last - first) / width > _LEAST_STEP:
            _write_above(axes, (first + last) / 2, 1.063, f"step {step}")


def _write_above(axes: Axes, event: float, height: float, text: str) -> None:
    axes.text(
        event,
        height,
        text,
        transform=axes.get_xaxis_transform(),
        ha="center",
        va="bottom",
        color=INK,
        fontsize=8.5,
    )


def _draw_peak(axes: Axes, timeline: MemoryTimeline) -> None:
    """Draw what is alive at the peak: kinds, which also explain the colours, and the largest
    tensors.
    """
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.axis("off")
    trace, peak = timeline.trace, timeline.peak
    heights = iter(np.arange(0.975, 0.0, -0.0365).tolist())
    _draw_heading(axes, next(heights), f"At the peak, in the {timeline.peak_phase} phase")
    at_peak = kinds_at(trace, peak)
    for index, kind in enumerate(KINDS):
        if (trace.kinds_S == index).any():
            size = at_peak.get(kind, 0)
            share = f"{size / max(1, timeline.peak_bytes):.1%}"
            _draw_row(axes, next(heights), kind, format_bytes(size), share, kind)
    next(heights)
    _draw_heading(axes, next(heights), "The largest tensors then")
    for tensor in largest_at(trace, peak):
        place = short_place(tensor, trace.blocks)
        _draw_row(axes, next(heights), tensor.kind, format_bytes(tensor.num_bytes), "", place)


def _draw_heading(axes: Axes, y: float, text: str) -> None:
    axes.text(0, y, text, weight="bold", color=INK, va="center")


def _draw_row(axes: Axes, y: float, kind: str, size: str, share: str, text: str) -> None:
    axes.add_patch(
        Rectangle(
            (0.005, y - 0.010), 0.022, 0.020, facecolor=COLOURS[KINDS.index(kind)], edgecolor="none"
        )
    )
    axes.text(0.212, y, size, ha="right", va="center", color=INK)
    axes.text(0.327 if share else 0.0, y, share, ha="right", va="center", color=FAINT)
    axes.text(0.347 if share else 0.232, y, text, ha="left", va="center", color=INK)
