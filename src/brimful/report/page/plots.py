"""The curves of a report: by optimizer step, and over the time of the run what the monitor
sampled.
"""

import itertools
from collections.abc import Callable, Sequence

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
from brimful.report.labels import WATCHED, watched
from brimful.report.tables import Score, baselines, best_evaluation
from brimful.report.tuned import score_before
from brimful.runs.runfiles import Json, RunFiles, is_tuned, kind_of, number, section, series

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
"""Readings of the monitor: title, times what they are drawn, and the end of the axis where that is
known.
"""
LONGEST_WAIT_S = 60.0
"""Between two samples of one session: the monitor takes one every 30 s at least."""
MAX_POINTS = 600
"""Points drawn of a longer series; extremes are kept."""
NAMED_AT = (0.2, 0.35, 0.5, 0.65)
"""Where on the way a baseline's name may stand: not at the end, where the best value is told."""
SMOOTH_SHARE = 0.03
"""Width of the running mean, as a share of the series."""


def curves(run: RunFiles) -> list[Drawing]:
    """Loss, bits per byte, learning rate, gradient norm, speed, and what was sampled beside them;
    those without at least two points are left out.
    """
    steps = run.of_kind("step")
    drawn = [_loss(run)] if len(series(steps, "loss")[0]) > 1 else []
    drawn += [each for each in (_label_metrics(run), _bits_per_byte(run)) if each is not None]
    for key, title in STEP_CURVES.items():
        if len(series(steps, key)[0]) > 1:
            drawn.append(_small(steps, key, title))
    return drawn + [each for name in SAMPLED if (each := _sampled(run, name)) is not None]


def _loss_title(run: RunFiles) -> str:
    kind = kind_of(run)
    if kind == "labels":
        is_weighted = section(run.recipe, "labels").get("class_weights") not in (None, "none")
        return f"Loss, nats per text{', weighted in training' if is_weighted else ''}"
    if kind == "masked":
        return "Loss, nats per masked token"
    learns_answers = is_tuned(run) and section(run.recipe, "data").get("loss_on") != "all"
    return "Loss over answers, nats per token" if learns_answers else "Loss, nats per target token"


def _label_metrics(run: RunFiles) -> Drawing | None:
    """What a classifier reached at each evaluation; None for other models and with fewer than two
    evaluations.
    """
    evaluations = run.of_kind("evaluation")
    known = dict.fromkeys(name for record in evaluations for name in watched(record))
    found = [name for name in known if len(series(evaluations, name)[0]) > 1]
    if not found:
        return None

    def draw(axes: Axes) -> None:
        for name, colour, line in zip(
            found,
            (TRAIN, VALIDATION, BASELINE),
            ("solid", (0, (5, 2)), (0, (1, 1.5))),
            strict=False,
        ):
            axes.plot(
                *_arrays(evaluations, name),
                color=colour,
                linestyle=line,
                linewidth=1.6,
                marker="o",
                markersize=3.5,
                label=WATCHED[name],
            )
        best = best_evaluation(run)
        if best is not None and (value := number(best.get(found[0]))) is not None:
            axes.plot(
                [best["step"]],
                [value],
                "o",
                markersize=10,
                markerfacecolor="none",
                markeredgecolor=BEST,
                markeredgewidth=1.6,
            )
        axes.legend(loc="best", frameon=False, fontsize=11, labelcolor=AXIS)

    title = "Scores on validation; circle: kept"
    description = f"{', '.join(WATCHED[name] for name in found)} on validation by optimizer step"
    return _drawing("label-metrics", title, description, SMALL, draw)


def _loss(run: RunFiles) -> Drawing:
    def draw(axes: Axes) -> None:
        steps, loss = _arrays(run.of_kind("step"), "loss")
        highest = float(np.max(loss))
        axes.plot(*thin(steps, loss), color=TRAIN, linewidth=0.8, alpha=0.35)
        axes.plot(
            *thin(steps, smooth(loss)), color=TRAIN, linewidth=1.8, label="training, smoothed"
        )
        at, held_out = _arrays(run.of_kind("evaluation"), "loss")
        if len(at):
            axes.plot(
                at,
                held_out,
                color=VALIDATION,
                linewidth=1.2,
                marker="o",
                markersize=4,
                label="validation",
            )
            kept = best_evaluation(run) or {}
            best = (
                int(np.argmin(np.abs(at - float(kept["step"]))))
                if "objective" in kept
                else int(np.argmin(held_out))
            )
            _mark_best(
                axes,
                at[best],
                held_out[best],
                f"{'kept' if 'objective' in kept else 'best'} {held_out[best]:.3f}",
            )
        before = score_before(run)
        for baseline in baselines(run) if before is None else [before]:
            _draw_baseline(axes, baseline, highest, (steps, smooth(loss)))
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=2,
            borderpad=0,
            frameon=False,
            fontsize=11,
            labelcolor=AXIS,
        )

    return _drawing(
        "loss", _loss_title(run), "Loss by optimizer step", LARGE, draw, LARGE_ON_PHONES
    )


def _mark_best(axes: Axes, at: float, value: float, text: str) -> None:
    axes.plot(
        at,
        value,
        "o",
        markersize=10,
        markerfacecolor="none",
        markeredgecolor=BEST,
        markeredgewidth=1.6,
        clip_on=False,
    )
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


def _bits_per_byte(run: RunFiles) -> Drawing | None:
    """Of every evaluation of a language model; None with fewer than two."""
    evaluations = run.of_kind("evaluation")
    if kind_of(run) != "text" or len(series(evaluations, "bits_per_byte")[0]) < 2:
        return None

    def draw(axes: Axes) -> None:
        at, bits = _arrays(evaluations, "bits_per_byte")
        axes.plot(at, bits, color=VALIDATION, linewidth=1.6, marker="o", markersize=3.5)
        best = int(np.argmin(bits))
        _mark_best(axes, at[best], bits[best], f"{bits[best]:.3f}")
        axes.margins(y=0.2)

    return _drawing(
        "bits-per-byte",
        "Bits per byte of held-out text",
        "Bits per byte of held-out text by optimizer step",
        SMALL,
        draw,
    )


def _draw_baseline(
    axes: Axes, baseline: Score, highest: float, curve: tuple[FloatArray, FloatArray]
) -> None:
    """A level line, named where the curve is furthest from it; one far above every loss would only
    squeeze the curves.
    """
    if baseline.loss is None or baseline.loss > highest * 1.15:
        return
    axes.axhline(baseline.loss, color=BASELINE, linewidth=1, linestyle=(0, (4, 3)))
    places = [round(share * (len(curve[0]) - 1)) for share in NAMED_AT]
    at = max(places, key=lambda place: abs(curve[1][place] - float(baseline.loss or 0.0)))
    text = f"{baseline.name.lower()} {baseline.loss:.2f}"
    axes.annotate(
        text,
        (curve[0][at], baseline.loss),
        (0, 3),
        textcoords="offset points",
        ha="center",
        color=BASELINE,
        fontsize=11,
    )


def _small(steps: list[Json], key: str, title: str) -> Drawing:
    def draw(axes: Axes) -> None:
        at, values = _arrays(steps, key)
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


def _sampled(run: RunFiles, name: str) -> Drawing | None:
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
    return Drawing(
        f"sampled-{name.replace('_', '-')}",
        title,
        f"{title} over the time of the run: {mean}",
        SMALL,
        draw,
    )


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


def _arrays(records: list[Json], name: str) -> tuple[FloatArray, FloatArray]:
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
