"""The curves of a report: by optimizer step, and what the monitor sampled over the time of the
run.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from brimful.report.drawing import (
    AXIS,
    BASELINE,
    BEST,
    PAGE,
    TRAIN,
    VALIDATION,
    Drawing,
    style,
    tick,
)
from brimful.report.kinds import report_kind
from brimful.report.labels import WATCHED, watched
from brimful.report.scores import SplitScore, baselines, best_evaluation
from brimful.report.tuned import score_before
from brimful.runs import RunFolder
from brimful.runs.records import EvaluationRecord, Record, StepRecord, series

FloatArray = NDArray[np.float64]

LARGE, LARGE_ON_PHONES, SMALL = (820, 330), (350, 300), (310, 215)
"""Points: a page's width, a phone's, and a third of a page's."""
STEP_CURVES = {
    "learning_rate": "Learning rate",
    "grad_norm": "Gradient norm before clipping",
    "tokens_per_second": "Tokens per second",
}
SAMPLED: dict[str, tuple[str, float, float | None]] = {
    "device_utilization": ("Device busy, %", 100.0, 105.0),
    "power_w": ("Power, W", 1.0, None),
    "temperature_c": ("Temperature, \N{DEGREE SIGN}C", 1.0, None),
    "process_cpu_cores": ("CPU cores in use", 1.0, None),
}
"""Readings of the monitor: title, the factor that makes the value drawn, and the end of the axis
where that is known.
"""
LONGEST_WAIT_S = 60.0
"""Between two samples of one session: the monitor takes one every 30 s at least."""
MAX_POINTS = 600
"""Points drawn of a longer series; extremes are kept."""
LABEL_PLACES = (0.2, 0.35, 0.5, 0.65)
"""Where along the curve a baseline's label may stand: not at the end, where the best value is."""
RING: dict[str, Any] = {
    "markersize": 10,
    "markerfacecolor": "none",
    "markeredgecolor": BEST,
    "markeredgewidth": 1.6,
}
"""Drawn around the best value."""
SMOOTH_SHARE = 0.03
"""Width of the running mean, as a share of the series."""


def curves(run: RunFolder) -> list[Drawing]:
    """Return the curves of loss, bits per byte, learning rate, gradient norm and speed, and of what
    was sampled beside them; those with fewer than two points are left out.
    """
    drawings = [_loss(run), _label_metrics(run), _bits_per_byte(run)]
    drawings += [_named(run, name) for name in dict.fromkeys(_names(run.steps))]
    drawings += [_small(run.steps, key, title) for key, title in STEP_CURVES.items()]
    drawings += [_sampled(run, name) for name in SAMPLED]
    return [each for each in drawings if each is not None]


def _label_metrics(run: RunFolder) -> Drawing | None:
    """What a classifier reached at each evaluation; None for other models and with fewer than two
    evaluations.
    """
    names = dict.fromkeys(name for each in run.evaluations for name in watched(each.values))
    points = {name: _arrays(run.evaluations, name) for name in names}
    points = {name: arrays for name, arrays in points.items() if len(arrays[0]) > 1}
    if not points:
        return None
    best, first = best_evaluation(run), next(iter(points))

    def draw(axes: Axes) -> None:
        styles = ((TRAIN, "solid"), (VALIDATION, (0, (5, 2))), (BASELINE, (0, (1, 1.5))))
        for (name, arrays), (colour, line) in zip(points.items(), styles, strict=False):
            axes.plot(
                *arrays,
                color=colour,
                linestyle=line,
                linewidth=1.6,
                marker="o",
                markersize=3.5,
                label=WATCHED[name],
            )
        value = best.number(first) if best else None
        if best is not None and value is not None:
            axes.plot([best.step], [value], "o", **RING)
        axes.legend(loc="best", frameon=False, fontsize=11, labelcolor=AXIS)

    description = ", ".join(WATCHED[name] for name in points)
    return _drawing(
        "label-metrics",
        "Scores on validation; circle: kept",
        f"{description} on validation by optimizer step",
        SMALL,
        draw,
    )


def _names(steps: Sequence[StepRecord]) -> Iterator[str]:
    for record in steps:
        yield from record.named


def _named(run: RunFolder, name: str) -> Drawing | None:
    """A value that the method names, in training and at evaluations."""
    at, values = _arrays_of_named(run.steps, name)
    if len(at) < 2:
        return None

    def draw(axes: Axes) -> None:
        axes.plot(*thin(at, values), color=TRAIN, linewidth=0.8, alpha=0.35)
        axes.plot(*thin(at, smooth(values)), color=TRAIN, linewidth=1.8)
        held_out = _arrays_of_named(run.evaluations, name)
        axes.plot(*held_out, color=VALIDATION, linewidth=1.2, marker="o", markersize=3.5)

    title = name.replace("_", " ").capitalize()
    description = f"{title} by optimizer step; with marks: validation"
    return _drawing(f"named-{name.replace('_', '-')}", title, description, SMALL, draw)


def _arrays_of_named(
    records: Sequence[StepRecord | EvaluationRecord], name: str
) -> tuple[FloatArray, FloatArray]:
    points = [(each.step, each.named[name]) for each in records if name in each.named]
    points_N2 = np.array(points, dtype=np.float64).reshape(-1, 2)
    return points_N2[:, 0], points_N2[:, 1]


def _loss(run: RunFolder) -> Drawing | None:
    steps, loss = _arrays(run.steps, "loss")
    if len(steps) < 2:
        return None

    def draw(axes: Axes) -> None:
        axes.plot(*thin(steps, loss), color=TRAIN, linewidth=0.8, alpha=0.35)
        smoothed = smooth(loss)
        axes.plot(*thin(steps, smoothed), color=TRAIN, linewidth=1.8, label="training, smoothed")
        _draw_evaluations(axes, run)
        before = score_before(run)
        for baseline in baselines(run) if before is None else [before]:
            _draw_baseline(axes, baseline, float(np.max(loss)), (steps, smoothed))
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=2,
            borderpad=0,
            frameon=False,
            fontsize=11,
            labelcolor=AXIS,
        )

    title = report_kind(run).loss_title(run)
    return _drawing("loss", title, "Loss by optimizer step", LARGE, draw, LARGE_ON_PHONES)


def _draw_evaluations(axes: Axes, run: RunFolder) -> None:
    """Draw the losses of evaluations; the model that is kept is marked, else the least loss."""
    steps, losses = _arrays(run.evaluations, "loss")
    if not len(steps):
        return
    line: dict[str, Any] = {"linewidth": 1.2, "marker": "o", "markersize": 4}
    axes.plot(steps, losses, color=VALIDATION, label="validation", **line)
    kept = best_evaluation(run)
    if kept is not None and kept.objective is not None and kept.loss is not None:
        _mark_best(axes, kept.step, kept.loss, f"kept {kept.loss:.3f}")
    else:
        best = int(np.argmin(losses))
        _mark_best(axes, steps[best], losses[best], f"best {losses[best]:.3f}")


def _mark_best(axes: Axes, at: float, value: float, text: str) -> None:
    axes.plot(at, value, "o", clip_on=False, **RING)
    axes.annotate(
        text,
        (at, value),
        (0, 15),
        textcoords="offset points",
        ha="center",
        color=BEST,
        weight="bold",
        bbox={"facecolor": PAGE, "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
    )


def _bits_per_byte(run: RunFolder) -> Drawing | None:
    """Bits per byte of every evaluation; None where the loss makes none, and with fewer than
    two.
    """
    steps, bits = _arrays(run.evaluations, "bits_per_byte")
    if not report_kind(run).has_bits_per_byte or len(steps) < 2:
        return None

    def draw(axes: Axes) -> None:
        axes.plot(steps, bits, color=VALIDATION, linewidth=1.6, marker="o", markersize=3.5)
        best = int(np.argmin(bits))
        _mark_best(axes, steps[best], bits[best], f"{bits[best]:.3f}")
        axes.margins(y=0.2)

    title = "Bits per byte of held-out text"
    return _drawing("bits-per-byte", title, f"{title} by optimizer step", SMALL, draw)


def _draw_baseline(
    axes: Axes, baseline: SplitScore, highest: float, curve: tuple[FloatArray, FloatArray]
) -> None:
    """Draw a baseline's loss as a horizontal line, with its label where the curve is furthest away.
    A baseline far above every loss is left out, because it would squeeze the curves.
    """
    loss, (steps, values) = baseline.loss, curve
    if loss is None or loss > highest * 1.15:
        return
    axes.axhline(loss, color=BASELINE, linewidth=1, linestyle=(0, (4, 3)))
    places = [round(share * (len(steps) - 1)) for share in LABEL_PLACES]
    furthest = max(places, key=lambda place: abs(values[place] - loss))
    axes.annotate(
        f"{baseline.name.lower()} {loss:.2f}",
        (steps[furthest], loss),
        (0, 3),
        textcoords="offset points",
        ha="center",
        color=BASELINE,
        fontsize=11,
    )


def _small(steps: Sequence[StepRecord], key: str, title: str) -> Drawing | None:
    at, values = _arrays(steps, key)
    if len(at) < 2:
        return None

    def draw(axes: Axes) -> None:
        if key == "learning_rate":
            axes.plot(*thin(at, values), color=TRAIN, linewidth=1.8)
            axes.set_ylim(0, float(np.max(values)) * 1.08 or 1.0)
            axes.yaxis.set_major_formatter(FuncFormatter(_scientific))
        else:
            _draw_noisy(axes, at, values)

    return _drawing(key.replace("_", "-"), title, f"{title} by optimizer step", SMALL, draw)


def _draw_noisy(axes: Axes, at: FloatArray, values: FloatArray) -> None:
    """Every value faintly, their running mean on top, from zero to a little above what is usual."""
    axes.plot(*thin(at, values), color=TRAIN, linewidth=0.8, alpha=0.35)
    axes.plot(*thin(at, smooth(values)), color=TRAIN, linewidth=1.8)
    low, high = np.quantile(values, (0.005, 0.995))
    axes.set_ylim(0, float(max(high, low)) * 1.2 or 1.0)


def _sampled(run: RunFolder, name: str) -> Drawing | None:
    """A reading of the monitor over the time that the run ran; None with fewer than two samples."""
    title, factor, highest = SAMPLED[name]
    times, values = run.monitored.series(name)
    if len(times) < 2:
        return None
    minutes_N, values_N = running_minutes(times), np.asarray(values, dtype=np.float64) * factor

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
        _draw_noisy(axes, minutes_N, values_N)
        if highest is not None:
            axes.set_ylim(0, highest)
        style(axes, "minutes", integer=False)

    mean = f"mean {values_N.mean():.3g}, highest {values_N.max():.3g}"
    description = f"{title} over the time of the run: {mean}"
    return Drawing(f"sampled-{name.replace('_', '-')}", title, description, SMALL, draw)


def running_minutes(times: Sequence[float]) -> FloatArray:
    """Unix seconds as minutes that the run ran: a pause between sessions counts as the longest wait
    between two samples of one.
    """
    waits_N = np.minimum(
        np.diff(np.asarray(times, dtype=np.float64), prepend=times[0]), LONGEST_WAIT_S
    )
    return np.asarray(np.cumsum(np.maximum(waits_N, 0.0)) / 60, dtype=np.float64)


def smooth(values: FloatArray) -> FloatArray:
    """Centred running mean over `SMOOTH_SHARE` of the series; shorter at the ends, so the same
    length comes back.
    """
    half = max(1, round(len(values) * SMOOTH_SHARE / 2))
    sums = np.concatenate(([0.0], np.cumsum(values)))
    centre = np.arange(len(values))
    first, last = np.maximum(centre - half, 0), np.minimum(centre + half + 1, len(values))
    return np.asarray((sums[last] - sums[first]) / (last - first), dtype=np.float64)


def thin(steps: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """At most about `MAX_POINTS` points: the lowest and the highest of each stretch, and both
    ends.
    """
    if len(values) <= MAX_POINTS:
        return steps, values
    edges = np.linspace(0, len(values), MAX_POINTS // 2 + 1).astype(int).tolist()
    kept = {0, len(values) - 1}
    for start, stop in itertools.pairwise(edges):
        kept |= {
            start + int(np.argmin(values[start:stop])),
            start + int(np.argmax(values[start:stop])),
        }
    chosen = np.array(sorted(kept))
    return steps[chosen], values[chosen]


def _arrays(records: Sequence[Record], name: str) -> tuple[FloatArray, FloatArray]:
    steps, values = series(records, name)
    return np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)


def _drawing(
    key: str,
    title: str,
    description: str,
    size: tuple[int, int],
    draw: Callable[[Axes], None],
    phone_size: tuple[int, int] | None = None,
) -> Drawing:
    """On axes over optimizer steps."""

    def draw_steps(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
        draw(axes)
        style(axes)

    return Drawing(key, title, description, size, draw_steps, phone_size)


def _scientific(value: float, _: object) -> str:
    return f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e") if value else "0"
