"""Who is alive when: the memory of a traced step as numbers and as a figure.

Suffixes: E events, S storages, P points shown, K kinds.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from brimful.base.units import format_bytes
from brimful.planning.memory import Tensor, largest_at, phase_at
from brimful.planning.trace import KINDS, Int64Array, Trace
from brimful.planning.work import GLOBAL
from brimful.report.drawing import settings

MAX_POINTS = 2000
"""Points kept of a longer trace, phase marks not counted."""
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
)
"""Of KINDS, in their order: Okabe and Ito's palette, which the colour-blind can tell apart, a dark
blue and three greys.
"""
SIZE_IN = (12.0, 6.75)
DOTS_PER_INCH = 150
INK, FAINT = "#303030", "#808080"
_PLACE_LETTERS = 40
_SHORT = {"forward": "fwd.", "backward": "bwd.", "optimizer": "opt.", "evaluation": "eval."}
_STEP_PHASES = {"inputs", "forward", "backward", "optimizer"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_GROUPS = {
    "embedding": ("embed", "wte", "wpe"),
    "head": (
        "lm_head",
        "score",
        "classifier",
        "predictions",
        "cls.",
        "embed_out",
        "output_projection",
    ),
    "final norm": ("norm", "ln_f"),
}
"""Words in the names of modules outside the blocks, in the families of transformers."""


def timeline_json(trace: Trace) -> dict[str, Any]:
    """The timeline as plain values for JSON, in bytes before any rounding of an allocator.

    Returns:
        `events`: indices of the events shown, counted from the first batch on; all lists of bytes
            are parallel to it.
        `live_bytes`: bytes alive after each of them by kind, kinds without any left out;
            `total_bytes`: of all kinds.
        `phases`: name, optimizer step (null outside steps), and first event of each.
        `peak`: event, bytes, phase, bytes by kind and by group of modules, and the ten largest
            tensors.
    """
    start, live_E = first_batch(trace), trace.live_E()
    peak = start + int(live_E[start:].argmax())
    shown_P = points(trace, live_E, start, peak)
    by_kind_KP = alive_by_kind(trace, shown_P)
    return {
        "events": (shown_P - start).tolist(),
        "live_bytes": {
            kind: row_P.tolist()
            for kind, row_P in zip(KINDS, by_kind_KP, strict=True)
            if row_P.any()
        },
        "total_bytes": live_E[shown_P].tolist(),
        "phases": [
            {"name": name, "step": step, "first_event": event - start}
            for name, step, event in phases(trace)
        ],
        "peak": {
            "event": peak - start,
            "bytes": int(live_E[peak]),
            "phase": phase_at(trace, peak),
            "kinds_bytes": kinds_at(trace, peak),
            "groups_bytes": groups_at(trace, peak),
            "largest": [
                {"bytes": tensor.num_bytes, "kind": tensor.kind, "place": tensor.place}
                for tensor in largest_at(trace, peak)
            ],
        },
    }


def draw_timeline(trace: Trace, path: Path, title: str) -> None:
    """Draw what is alive over the step, kind on kind, with the peak taken apart beside it.

    Args:
        trace: Of the step.
        path: Where to; `.png` or `.svg` decides the format.
        title: Of the figure.

    Raises:
        OSError: the file cannot be written.
    """
    with settings(font_size=9, svg_fonttype="none", svg_hashsalt="timeline"):
        figure = Figure(figsize=SIZE_IN, dpi=DOTS_PER_INCH, facecolor="white")
        FigureCanvasAgg(figure)
        figure.text(0.06, 0.955, title, fontsize=13, weight="bold", color=INK)
        start, live_E = first_batch(trace), trace.live_E()
        peak = start + int(live_E[start:].argmax())
        _draw_areas(figure.add_axes((0.06, 0.08, 0.565, 0.78)), trace, live_E, start, peak)
        _draw_peak(figure.add_axes((0.645, 0.02, 0.345, 0.92)), trace, int(live_E[peak]), peak)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def first_batch(trace: Trace) -> int:
    """The event where the first batch arrives: all before it is the model coming to be."""
    return min((event for event in trace.marks.values() if event < len(trace.events_E)), default=0)


def points(trace: Trace, live_E: Int64Array, start: int, peak: int) -> Int64Array:
    """Events to show: of each of equal stretches the lowest and the highest, the ends, the peak,
    and the first of each phase.
    """
    count = len(live_E) - start
    if count <= MAX_POINTS:
        return np.arange(start, len(live_E), dtype=np.int64)
    width = -(-2 * count // MAX_POINTS)
    stretches = -(-count // width)
    padded = np.concatenate(
        [live_E[start:], np.full(stretches * width - count, live_E[-1])]
    ).reshape(stretches, width)
    first = start + np.arange(stretches) * width
    extremes = np.concatenate([first + padded.argmin(axis=1), first + padded.argmax(axis=1)])
    marks = [event for event in trace.marks.values() if event < len(live_E)]
    kept = np.unique(np.concatenate([extremes, marks, [start, peak, len(live_E) - 1]]))
    return kept[(kept >= start) & (kept < len(live_E))].astype(np.int64)


def alive_by_kind(trace: Trace, shown_P: Int64Array) -> Int64Array:
    """Bytes alive after each shown event, a row for each of KINDS."""
    storages_E = np.abs(trace.events_E) - 1
    change_E = np.sign(trace.events_E) * trace.sizes_S[storages_E]
    kinds_E = trace.kinds_S[storages_E]
    return np.stack(
        [
            np.cumsum(np.where(kinds_E == kind, change_E, 0), dtype=np.int64)[shown_P]
            for kind in range(len(KINDS))
        ]
    )


def phases(trace: Trace) -> list[tuple[str, int | None, int]]:
    """(name without its count, optimizer step from 1 or None outside steps, first event) of each
    phase.
    """
    step, updated = 1, False
    found: list[tuple[str, int | None, int]] = []
    for mark, event in trace.marks.items():
        name = mark.rstrip("0123456789 ")
        if updated and name in _STEP_PHASES:
            step, updated = step + 1, False
        found.append((name, step if name in _STEP_PHASES else None, event))
        updated |= name == "optimizer"
    return found


def kinds_at(trace: Trace, event: int) -> dict[str, int]:
    """Bytes alive after an event by kind, kinds without any left out."""
    alive_S = trace.alive_at(event)
    sums_K = np.bincount(
        trace.kinds_S[alive_S], weights=trace.sizes_S[alive_S], minlength=len(KINDS)
    )
    return {
        kind: int(num_bytes) for kind, num_bytes in zip(KINDS, sums_K, strict=True) if num_bytes
    }


def groups_at(trace: Trace, event: int) -> dict[str, int]:
    """Bytes alive after an event by group of modules: embedding, each block, final norm, head,
    loss, and what belongs to none.
    """
    alive_S = trace.alive_at(event)
    layers, sizes = trace.layers_S[alive_S], trace.sizes_S[alive_S]
    outside: Counter[str] = Counter()
    for number, num_bytes in zip(alive_S[layers == GLOBAL], sizes[layers == GLOBAL], strict=True):
        outside[_group(trace.places[trace.places_S[number]], KINDS[trace.kinds_S[number]])] += int(
            num_bytes
        )
    inside = {
        f"block {layer}": int(sizes[layers == layer].sum())
        for layer in np.unique(layers[layers != GLOBAL]).tolist()
    }
    order = (
        "embedding",
        *inside,
        "final norm",
        "head",
        "loss",
        "inputs",
        "library workspaces",
        "elsewhere",
    )
    found = {**outside, **inside}
    return {group: found[group] for group in order if found.get(group)}


def _group(place: str, kind: str) -> str:
    if kind in {"inputs", "library workspaces"}:
        return kind
    module, space, _ = place.partition(" ")
    if place.startswith("final norm"):
        module = "norm"
    elif not space and "." not in module:  # an operator outside all modules
        module = ""
    for group, words in _GROUPS.items():
        if any(word in module for word in words):
            return group
    return "loss" if kind == "loss and logits" else "elsewhere"


def short_place(tensor: Tensor, blocks: str) -> str:
    """A module path as one reads it: adapters' wrappers dropped, `model.layers.3.mlp` as `block 3
    mlp`, cut in the middle where it is long.
    """
    module, space, operator = tensor.place.partition(" ")
    if tensor.kind == "loss and logits" and "." not in tensor.place:
        return f"loss {tensor.place}"
    if blocks and module.startswith(f"{blocks}."):
        number, _, rest = module[len(blocks) + 1 :].partition(".")
        module = f"block {number} {rest}".rstrip()
    module = module.removeprefix("base_model.model.").removesuffix(".default")
    text = f"{module}{space}{operator}"
    if len(text) <= _PLACE_LETTERS:
        return text
    half = (_PLACE_LETTERS - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def _draw_areas(axes: Axes, trace: Trace, live_E: Int64Array, start: int, peak: int) -> None:
    shown_P = points(trace, live_E, start, peak)
    by_kind_KP = alive_by_kind(trace, shown_P)
    kinds = [kind for kind in range(len(KINDS)) if by_kind_KP[kind].any()]
    highest = int(live_E[peak])
    unit = min(len(_UNITS) - 1, max(0, highest.bit_length() - 1) // 10)
    scale = 1024**unit
    axes.stackplot(
        shown_P - start,
        by_kind_KP[kinds] / scale,
        colors=[COLOURS[kind] for kind in kinds],
        step="post",
        linewidth=0,
    )
    axes.set_xlim(0, max(1, len(live_E) - 1 - start))
    axes.set_ylim(0, highest / scale * 1.12 or 1.0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, length=3)
    axes.set_ylabel(f"live tensors, {_UNITS[unit]}", color=INK)
    axes.set_xlabel("births and deaths of tensors, in order", color=INK)
    axes.xaxis.set_major_formatter(lambda event, _: f"{event:,.0f}")
    late = peak > (start + len(live_E)) / 2
    at, top = peak - start, highest / scale
    axes.plot(at, top, "v", markersize=8, color=INK, clip_on=False, zorder=5)
    axes.annotate(
        f"peak {format_bytes(highest)}",
        (at, top),
        (-9 if late else 9, 3),
        textcoords="offset points",
        ha="right" if late else "left",
        color=INK,
        weight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )
    _draw_phases(
        axes,
        [(name, step, event - start) for name, step, event in phases(trace)],
        len(live_E) - start,
    )


def _draw_phases(axes: Axes, found: list[tuple[str, int | None, int]], end: int) -> None:
    """Lines where phases begin; names, or their beginnings, above those wide enough to carry them;
    steps above.
    """
    across = axes.get_xaxis_transform()
    width = max(1.0, float(np.ptp(axes.get_xlim())))
    for (name, _, first), last in zip(
        found, [*(event for _, _, event in found[1:]), end], strict=True
    ):
        if (last - first) / width < 0.01:
            continue
        axes.axvline(first, color=INK, linewidth=0.6, alpha=0.5)
        label = next(
            (
                label
                for label in (name, _SHORT.get(name, name))
                if (last - first) / width > 0.0135 * len(label)
            ),
            None,
        )
        if label is not None:
            axes.text(
                (first + last) / 2,
                1.012,
                label,
                transform=across,
                ha="center",
                va="bottom",
                color=INK,
                fontsize=8.5,
            )
    for step in sorted({step for _, step, _ in found if step}):
        first = next(event for _, other, event in found if other == step)
        last = next((event for _, other, event in found if other != step and event > first), end)
        axes.plot(
            [first, last],
            [1.055, 1.055],
            transform=across,
            color=FAINT,
            linewidth=0.8,
            clip_on=False,
        )
        if (last - first) / width > 0.1:
            axes.text(
                (first + last) / 2,
                1.063,
                f"step {step}",
                transform=across,
                ha="center",
                va="bottom",
                color=INK,
                fontsize=8.5,
            )


def _draw_peak(axes: Axes, trace: Trace, highest: int, peak: int) -> None:
    """What is alive at the peak: kinds, which also explain the colours, and the largest tensors."""
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.axis("off")
    lines = iter(np.arange(0.975, 0.0, -0.0365).tolist())
    axes.text(
        0,
        next(lines),
        f"At the peak, in the {phase_at(trace, peak)} phase",
        weight="bold",
        color=INK,
        va="center",
    )
    at_peak = kinds_at(trace, peak)
    shown = [kind for index, kind in enumerate(KINDS) if (trace.kinds_S == index).any()]
    for kind in shown:
        num_bytes = at_peak.get(kind, 0)
        _draw_row(
            axes,
            next(lines),
            kind,
            format_bytes(num_bytes),
            f"{num_bytes / max(1, highest):.1%}",
            kind,
        )
    next(lines)
    axes.text(0, next(lines), "The largest tensors then", weight="bold", color=INK, va="center")
    for tensor in largest_at(trace, peak):
        _draw_row(
            axes,
            next(lines),
            tensor.kind,
            format_bytes(tensor.num_bytes),
            "",
            short_place(tensor, trace.blocks),
        )


def _draw_row(axes: Axes, y: float, kind: str, size: str, share: str, text: str) -> None:
    axes.add_patch(
        Rectangle(
            (0.005, y - 0.010), 0.022, 0.020, facecolor=COLOURS[KINDS.index(kind)], edgecolor="none"
        )
    )
    axes.text(0.212, y, size, ha="right", va="center", color=INK)
    axes.text(0.327 if share else 0.0, y, share, ha="right", va="center", color=FAINT)
    axes.text(0.347 if share else 0.232, y, text, ha="left", va="center", color=INK)
