"""The figures of a classifier's report: confusion matrix, calibration, probabilities by label, and
those of `ranking_plots`.

C labels. Every figure is drawn from scores.json alone; one whose numbers are missing is left out.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from brimful.base.intervals import wilson_interval
from brimful.report.drawing import AXIS, INK, TRAIN, VALIDATION
from brimful.report.labels import MOST_LABELS, MOST_TEXTS, confusion, main_split, metric_of
from brimful.report.page.label_axes import (
    FINE_DOTS,
    NAME_CHARACTERS,
    SIZE,
    STYLES,
    FloatArray,
    Picture,
    add_legend,
    draw_threshold,
    drawing_of,
    finish_axes,
    set_unit_square,
    short,
    single_threshold,
)
from brimful.report.page.ranking_plots import precision_recall, roc, threshold_sweep
from brimful.runs.scores import LabelScore, RunScores

FEW_LABELS = 6
"""Up to so many labels a confusion matrix is a small figure that also shows shares of rows."""
CHARACTERS_BELOW = 46
"""Of all names together, under the columns of a small matrix."""
CELL = 36
"""Points of a cell of a larger matrix."""
MOST_OPAQUE = 0.42
"""Of a cell that holds its whole row: ink stays readable on it in light and in dark."""
MOST_HISTOGRAMS = 3
"""More would hide one another; they are added up and drawn as one."""


def label_pictures(scores: Mapping[str, LabelScore]) -> list[Picture]:
    """Return the figures of the split that a classifier is judged by; none where none was scored.

    The threshold's figure also shows validation, on which it was chosen.
    """
    split = main_split(RunScores(labels=scores))
    if split is None:
        return []
    score = scores[split]
    validation = scores.get("validation") if split != "validation" else None
    pictures = (
        _confusion(score, split),
        roc(score),
        precision_recall(score),
        threshold_sweep(score, split, validation),
        _reliability(score, split),
        _histogram(score),
    )
    return [picture for picture in pictures if picture is not None]


def _confusion(score: LabelScore, split: str) -> Picture | None:
    counts_CC, names = confusion(score), score.labels
    if counts_CC is None or len(names) > MOST_LABELS:
        return None
    shares_CC = counts_CC / np.maximum(counts_CC.sum(1, keepdims=True), 1)
    size, is_small = len(names), len(names) <= FEW_LABELS
    right = "; ".join(
        f"{name}: {count:,} of {total:,} right"
        for name, count, total in zip(names, np.diag(counts_CC), counts_CC.sum(1), strict=True)
    )
    most = min(NAME_CHARACTERS, CHARACTERS_BELOW // size) if is_small else NAME_CHARACTERS

    def draw(axes: Axes) -> None:
        for (true, given), share in np.ndenumerate(shares_CC):
            count = int(counts_CC[true, given])
            _draw_cell(axes, (true, given), count, float(share), with_share=is_small)
        ends = (-0.5, size - 0.5)
        axes.set(xlim=ends, ylim=ends[::-1], xticks=range(size), yticks=range(size))
        axes.set_xticklabels([short(name, most) for name in names])
        if not is_small:
            axes.tick_params("x", rotation=45, rotation_mode="xtick")
        axes.set_yticklabels([short(name) for name in names])
        finish_axes(axes, "label given", "true label", grid=False)

    points = SIZE if is_small else (300 + CELL * size, 120 + CELL * size * 3 // 4)
    description = f"Confusion matrix. {right}."
    return Picture(
        drawing_of("confusion", "Confusion matrix", description, draw, points),
        f"Texts of {split}, rows by true label; shades are shares of a row.",
        is_wide=not is_small,
    )


def _draw_cell(
    axes: Axes, place: tuple[int, int], count: int, share: float, *, with_share: bool
) -> None:
    """Draw a cell: teal where right, orange where wrong."""
    true, given = place
    if count:
        colour = TRAIN if true == given else VALIDATION
        style: dict[str, Any] = {
            "facecolor": colour,
            "edgecolor": "none",
            "alpha": MOST_OPAQUE * share,
        }
        axes.add_patch(Rectangle((given - 0.5, true - 0.5), 1, 1, **style))
    text: dict[str, Any] = {"ha": "center", "color": INK}
    if with_share:
        text |= {"xy": (given, true), "textcoords": "offset points"}
        axes.annotate(f"{count:,}", xytext=(0, 3), fontsize=14, weight="bold", **text)
        axes.annotate(f"{share:.1%}", xytext=(0, -13), fontsize=10.5, **text)
    elif count:
        axes.annotate(f"{count:,}", (given, true), va="center", fontsize=9.5, **text)


def _reliability(score: LabelScore, split: str) -> Picture | None:
    bins = score.curves.reliability
    rows = [(each.low, each.high, each.probability, each.share, each.count) for each in bins]
    bins_N5 = np.array(rows, dtype=np.float64).reshape(-1, 5)
    bins_N5 = bins_N5[np.isfinite(bins_N5).all(1)]
    shares_N, counts_N = bins_N5[:, 3], bins_N5[:, 4]
    bins_N5 = bins_N5[(counts_N >= 1) & (counts_N < MOST_TEXTS) & (shares_N >= 0) & (shares_N <= 1)]
    if not len(bins_N5):
        return None

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=AXIS, linewidth=1, linestyle=FINE_DOTS)
        thin_line: dict[str, Any] = {"color": TRAIN, "linewidth": 1.2, "alpha": 0.6}
        for low, high, probability, share, count in bins_N5:
            interval = wilson_interval(share * count, int(count))
            axes.plot([low, high], [share, share], **thin_line)
            axes.plot([probability, probability], [interval.low, interval.high], **thin_line)
        axes.plot(bins_N5[:, 2], bins_N5[:, 3], "o", color=TRAIN, markersize=5)
        set_unit_square(axes)
        finish_axes(axes, "probability given", "share observed")

    whose = "of the likeliest label"
    if score.positive is not None:
        whose = f"of {score.positive}"
    elif score.multiple:
        whose = "of every label"
    ece = metric_of(score, "ece").value
    title = "Calibration" if ece is None else f"Calibration, ECE {ece:.3f}"
    description = (
        f"Reliability of {split}: share observed by probability {whose}, {len(bins_N5)} bins."
    )
    if ece is not None:
        description += f" ECE {ece:.3f}."
    least, most = int(bins_N5[:, 4].min()), int(bins_N5[:, 4].max())
    counts = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    texts = "labels of texts" if score.multiple else "texts"
    about = (
        f"Probability {whose} in {len(bins_N5)} bins of {counts} {texts}; a point on the dotted"
        " line came true as often as predicted. Upright lines: 95 % intervals."
    )
    return Picture(drawing_of("reliability", title, description, draw), about)


def _histogram(score: LabelScore) -> Picture | None:
    histogram = score.curves.histogram
    edges_N = np.array(histogram.edges, dtype=np.float64)
    counts = _counts_by_label(score, len(edges_N) - 1)
    if not counts or not np.isfinite(edges_N).all():
        return None
    if len(counts) > MOST_HISTOGRAMS:
        counts = {"": np.sum(list(counts.values()), axis=0)}
    chosen = single_threshold(score)

    def draw(axes: Axes) -> None:
        for (name, counts_N), (colour, line) in zip(counts.items(), STYLES, strict=False):
            style: dict[str, Any] = {"color": colour, "baseline": 0}
            axes.stairs(
                counts_N, edges_N, linestyle=line, linewidth=1.6, label=short(name) or None, **style
            )
            if len(counts) <= 2:
                axes.stairs(counts_N, edges_N, fill=True, alpha=0.22, **style)
        if chosen is not None:
            draw_threshold(axes, chosen)
        _count_axis(axes, max(float(counts_N.max()) for counts_N in counts.values()))
        axes.set_xlim(float(edges_N[0]), float(edges_N[-1]))
        if len(counts) > 1:
            add_legend(axes, above=True)
        finish_axes(axes, "probability", "texts, log scale")

    whose = "of the label they have" if score.positive is None else f"of {score.positive}"
    title = "Probabilities by true label" if len(counts) > 1 else "Probabilities"
    about = f"Texts by probability {whose}."
    if chosen is not None:
        about += " Upright: the threshold."
    description = f"Texts by probability {whose}, for each true label."
    return Picture(drawing_of("histogram", title, description, draw), about)


def _counts_by_label(score: LabelScore, size: int) -> dict[str, FloatArray]:
    """Return the histograms that have `size` numbers each."""
    by_label = score.curves.histogram.by_label
    known = {name: by_label.get(name, ()) for name in score.labels}
    return {
        name: np.array(counts, dtype=np.float64)
        for name, counts in known.items()
        if 0 < size == len(counts) and None not in counts
    }


def _count_axis(axes: Axes, most: float) -> None:
    """Put counts on a logarithmic axis that begins at zero."""
    ticks = [0, *(10**power for power in range(7) if 10**power <= most * 1.5)]
    axes.set_yscale("symlog", linthresh=1)
    axes.set(ylim=(0, max(most, 1) * 2), yticks=ticks, yticklabels=[f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
