"""The figures of a classifier's report: confusion matrix, ROC, precision and recall, calibration,
threshold, probabilities by label.

C labels. Every figure is drawn from scores.json alone; one whose numbers are missing is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from brimful.base.intervals import wilson_interval
from brimful.report.drawing import AXIS, BASELINE, BEST, GRID, INK, TRAIN, VALIDATION, Drawing
from brimful.report.labels import (
    MOST_LABELS,
    MOST_TEXTS,
    confusion,
    format_of,
    main_split,
    metric_of,
)
from brimful.runs.scores import LabelScore, RankingCurves, Row, Scores

FloatArray = NDArray[np.float64]

PREFIX = "labels-"
"""Of the keys of all figures here."""
SIZE = (390, 310)
"""Points; two stand side by side on a page, one fills a phone."""
FEW_LABELS = 6
"""Up to so many labels a confusion matrix is a small figure that also shows shares of rows."""
CHARACTERS_BELOW = 46
"""Of all names together, under the columns of a small matrix."""
CELL = 36
"""Points of a cell of a larger matrix."""
MOST_OPAQUE = 0.42
"""Of a cell that holds its whole row: ink stays readable on it in light and in dark."""
MOST_CURVES = 12
MOST_HISTOGRAMS = 3
"""More would hide one another; they are added up and drawn as one."""
NAME_CHARACTERS = 16
DASHED, DOTTED, FINE_DOTS = (0, (5, 2)), (0, (1, 1.5)), (0, (2, 3))
STYLES = tuple(
    (colour, line)
    for line in ("solid", DASHED, DOTTED)
    for colour in (TRAIN, VALIDATION, BASELINE, AXIS)
)
"""Curves differ in lightness and in line as well, not in hue alone."""


@dataclass(frozen=True)
class Picture:
    """A figure of a page.

    Attributes:
        about: A sentence below it.
        is_wide: Too detailed for half a page.
    """

    drawing: Drawing
    about: str
    is_wide: bool = False


def label_pictures(scores: Mapping[str, LabelScore]) -> list[Picture]:
    """Return the figures of the split that a classifier is judged by; none where none was scored.

    The threshold's figure also shows validation, on which it was chosen.
    """
    split = main_split(Scores(labels=scores))
    if split is None:
        return []
    score = scores[split]
    validation = scores.get("validation") if split != "validation" else None
    pictures = (
        _confusion(score, split),
        _roc(score),
        _precision_recall(score),
        _sweep(score, split, validation),
        _reliability(score, split),
        _histogram(score),
    )
    return [picture for picture in pictures if picture is not None]


def short(name: str, most: int = NAME_CHARACTERS) -> str:
    """Return a label's name, cut where it is long."""
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def _drawing(
    key: str,
    title: str,
    description: str,
    draw: Callable[[Axes], None],
    size: tuple[int, int] = SIZE,
) -> Drawing:
    """A figure with one pair of axes."""
    return Drawing(
        f"{PREFIX}{key}", title, description, size, lambda figure: draw(figure.add_subplot())
    )


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
        _finish(axes, "label given", "true label", grid=False)

    points = SIZE if is_small else (300 + CELL * size, 120 + CELL * size * 3 // 4)
    description = f"Confusion matrix. {right}."
    return Picture(
        _drawing("confusion", "Confusion matrix", description, draw, points),
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


def _roc(score: LabelScore) -> Picture | None:
    if not curves_of(score, "roc"):
        return None

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=AXIS, linewidth=1, linestyle=FINE_DOTS)
        _draw_beside_floor(axes, score, "roc", (0, 2))
        _finish(axes, "false positive rate", "recall")

    area = _area_sentence(score, "roc_auc")
    return Picture(
        _drawing("roc", "ROC curve", f"ROC curve: recall by false positive rate. {area}", draw),
        f"{area} Dotted: chance.{_key_of_marks(score, 'roc')}",
    )


def _precision_recall(score: LabelScore) -> Picture | None:
    base_rate = metric_of(score, "base_rate").value
    if not curves_of(score, "pr"):
        return None

    def draw(axes: Axes) -> None:
        if base_rate is not None:
            axes.axhline(base_rate, color=AXIS, linewidth=1, linestyle=FINE_DOTS)
            axes.annotate(
                f"base rate {base_rate:.3f}",
                (0.02, base_rate),
                (0, 4 if base_rate < 0.8 else -13),
                textcoords="offset points",
                color=AXIS,
                fontsize=11,
            )
        _draw_beside_floor(axes, score, "pr", (2, 1))
        _finish(axes, "recall", "precision")

    text = _area_sentence(score, "pr_auc")
    if base_rate is not None:
        text += f" Base rate {base_rate:.3f}: the precision of guessing."
    return Picture(
        _drawing("pr", "Precision and recall", f"Precision by recall. {text}", draw),
        f"{text}{_key_of_marks(score, 'pr')}",
    )


def _draw_beside_floor(axes: Axes, score: LabelScore, name: str, mark: tuple[int, int]) -> None:
    """Draw a curve of the model, the floor's, and the threshold's point: `mark` says which two of
    its rates are x and y.
    """
    curves = curves_of(score, name)
    for (label, points_N2), (colour, line) in zip(curves, STYLES, strict=False):
        style: dict[str, Any] = {"color": colour, "linestyle": line, "linewidth": 2.0}
        axes.plot(*points_N2.T, label=short(label) or None, **style)
    if len(curves) > 1:
        _legend(axes, above=False)
    floor_N2 = _points(getattr(score.floor.curves, name), 2)
    if floor_N2 is not None:
        axes.plot(*floor_N2.T, color=BASELINE, linestyle=DASHED, linewidth=1.3)
    if (point := _operating_point(score)) is not None:
        _mark(axes, point[mark[0]], point[mark[1]])
    _unit_square(axes)


def _sweep(score: LabelScore, split: str, validation: LabelScore | None) -> Picture | None:
    points_N4 = _points(score.curves.sweep, 4)
    if points_N4 is None:
        return None
    chosen = _single_threshold(score)
    earlier_N4 = _points(validation.curves.sweep, 4) if validation else None

    def draw(axes: Axes) -> None:
        thresholds_N, precision_N, recall_N, f1_N = points_N4.T
        axes.plot(thresholds_N, precision_N, color=VALIDATION, linewidth=1.4, label="precision")
        axes.plot(
            thresholds_N, recall_N, color=BASELINE, linestyle=DASHED, linewidth=1.4, label="recall"
        )
        axes.plot(thresholds_N, f1_N, color=TRAIN, linewidth=2.2, label="F1")
        if earlier_N4 is not None:
            style: dict[str, Any] = {"linewidth": 1.2, "linestyle": (0, (1, 2))}
            axes.plot(
                earlier_N4[:, 0], earlier_N4[:, 3], color=TRAIN, label="F1, validation", **style
            )
        if chosen is not None:
            _draw_threshold(axes, chosen)
            side, shift = ("left", 5) if chosen < 0.6 else ("right", -5)
            axes.annotate(
                f"chosen {chosen:.3f}",
                (chosen, 0.03),
                (shift, 0),
                textcoords="offset points",
                ha=side,
                color=BEST,
                weight="bold",
            )
        _unit_square(axes)
        _legend(axes, above=True)
        _finish(axes, "threshold", "share")

    about = "What each threshold gives."
    if score.threshold.chosen_on:
        policy = f"{score.threshold.chosen_on} ({score.threshold.policy})"
        about += f" Chosen on {policy}, drawn for {split}."
    description = "Precision, recall and F1 by threshold."
    if chosen is not None:
        description += f" Threshold {chosen:.3f}."
    return Picture(_drawing("sweep", "Threshold", description, draw), about)


def _single_threshold(score: LabelScore) -> float | None:
    value = score.threshold.value
    return None if isinstance(value, tuple) else value


def _draw_threshold(axes: Axes, value: float) -> None:
    axes.axvline(value, color=BEST, linewidth=1.4)


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
        _unit_square(axes)
        _finish(axes, "probability given", "share observed")

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
    return Picture(_drawing("reliability", title, description, draw), about)


def _histogram(score: LabelScore) -> Picture | None:
    histogram = score.curves.histogram
    edges_N = np.array(histogram.edges, dtype=np.float64)
    counts = _counts_by_label(score, len(edges_N) - 1)
    if not counts or not np.isfinite(edges_N).all():
        return None
    if len(counts) > MOST_HISTOGRAMS:
        counts = {"": np.sum(list(counts.values()), axis=0)}
    chosen = _single_threshold(score)

    def draw(axes: Axes) -> None:
        for (name, counts_N), (colour, line) in zip(counts.items(), STYLES, strict=False):
            style: dict[str, Any] = {"color": colour, "baseline": 0}
            axes.stairs(
                counts_N, edges_N, linestyle=line, linewidth=1.6, label=short(name) or None, **style
            )
            if len(counts) <= 2:
                axes.stairs(counts_N, edges_N, fill=True, alpha=0.22, **style)
        if chosen is not None:
            _draw_threshold(axes, chosen)
        _count_axis(axes, max(float(counts_N.max()) for counts_N in counts.values()))
        axes.set_xlim(float(edges_N[0]), float(edges_N[-1]))
        if len(counts) > 1:
            _legend(axes, above=True)
        _finish(axes, "probability", "texts, log scale")

    whose = "of the label they have" if score.positive is None else f"of {score.positive}"
    title = "Probabilities by true label" if len(counts) > 1 else "Probabilities"
    about = f"Texts by probability {whose}."
    if chosen is not None:
        about += " Upright: the threshold."
    description = f"Texts by probability {whose}, for each true label."
    return Picture(_drawing("histogram", title, description, draw), about)


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


def curves_of(score: LabelScore, key: str) -> list[tuple[str, FloatArray]]:
    """Return curves of (x, y) points: that of the positive label under the name "", else those of
    all labels; none where they are too many to tell apart.
    """
    by_name: dict[str, RankingCurves] = {"": score.curves, **score.curves.by_label}
    points = [(name, _points(getattr(curves, key), 2)) for name, curves in by_name.items()]
    known = [(name, points_N2) for name, points_N2 in points if points_N2 is not None]
    return known if len(known) <= MOST_CURVES else []


def _points(rows: Sequence[Row], columns: int) -> FloatArray | None:
    """Return at least two rows of numbers, NaN where one is not known; None for anything else."""
    if len(rows) < 2 or {len(row) for row in rows} != {columns}:
        return None
    return np.array(rows, dtype=np.float64)


def _operating_point(score: LabelScore) -> tuple[float, float, float] | None:
    """Return (false positive rate, precision, recall) at the threshold; None without one positive
    label, or where a share has nothing below it.
    """
    counts_CC, names = confusion(score), score.labels
    if counts_CC is None or score.positive not in names or len(names) != 2:
        return None
    positive = names.index(score.positive)
    right = int(counts_CC[positive, positive])
    given, having = int(counts_CC[:, positive].sum()), int(counts_CC[positive].sum())
    others = int(counts_CC[1 - positive].sum())
    if not (given and having and others):
        return None
    return (given - right) / others, right / given, right / having


def _mark(axes: Axes, x: float, y: float) -> None:
    axes.plot(
        [x],
        [y],
        "o",
        markersize=9,
        markerfacecolor="none",
        markeredgecolor=BEST,
        markeredgewidth=1.8,
    )


def _key_of_marks(score: LabelScore, key: str) -> str:
    text = ""
    if _operating_point(score) is not None:
        text += " Circle: the threshold."
    if _points(getattr(score.floor.curves, key), 2) is not None:
        text += " Dashed: the floor."
    return text


def _area_sentence(score: LabelScore, key: str) -> str:
    area, form = metric_of(score, key), format_of(key)
    if area.value is None:
        return ""
    if area.interval is None:
        return f"Area {form(area.value)}."
    low, high = area.interval
    return f"Area {form(area.value)} (95 % {form(low)} to {form(high)})."


def _unit_square(axes: Axes) -> None:
    ticks = (0, 0.25, 0.5, 0.75, 1)
    names = [f"{tick:g}" for tick in ticks]
    axes.set(xlim=(-0.01, 1.01), xticks=ticks, xticklabels=names)
    axes.set(ylim=(-0.02, 1.03), yticks=ticks, yticklabels=names)


def _legend(axes: Axes, *, above: bool) -> None:
    place: dict[str, Any] = {"loc": "best"}
    if above:
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 4, "columnspacing": 1.2}
    axes.legend(
        **place,
        frameon=False,
        fontsize=11,
        labelcolor=AXIS,
        handlelength=1.6,
        borderaxespad=0.2,
        handletextpad=0.5,
    )


def _finish(axes: Axes, x_label: str, y_label: str, *, grid: bool = True) -> None:
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    if grid:
        axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=AXIS, length=0, labelsize=11)
    axes.set_xlabel(x_label, color=AXIS, fontsize=11)
    axes.set_ylabel(y_label, color=AXIS, fontsize=11)
