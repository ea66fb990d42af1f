"""The figures of a classifier's report: confusion matrix, ROC, precision and recall, calibration,
threshold, probabilities by label.

C labels. Every figure is drawn from scores.json alone; one whose numbers are missing is left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from brimful.base.intervals import wilson_interval
from brimful.report.drawing import AXIS, BASELINE, BEST, GRID, INK, TRAIN, VALIDATION, Drawing
from brimful.report.labels import MOST_LABELS, MOST_TEXTS, confusion, form_of, names_of, quantity
from brimful.runs.runfiles import Json, items, number, section

FloatArray = NDArray[np.float64]

PREFIX = "labels-"
"""Of the keys of all figures here."""
SIZE = (390, 310)
"""Points; two stand side by side on a page, one fills a phone."""
FEW_LABELS = 6
"""Up to so many labels a confusion matrix is a small figure and tells row shares, too."""
CHARACTERS_BELOW = 46
"""Of all names together, under the columns of a small matrix."""
CELL = 36
"""Points of a cell of a larger matrix."""
MOST_OPAQUE = 0.42
"""Of a cell that holds its whole row: ink stays readable on it in light and in dark."""
MOST_CURVES = 12
MOST_HISTOGRAMS = 3
"""More lie over one another; they are drawn as one."""
NAME_CHARACTERS = 16
STYLES = tuple(
    (colour, line)
    for line in ("solid", (0, (5, 2)), (0, (1, 1.5)))
    for colour in (TRAIN, VALIDATION, BASELINE, AXIS)
)
"""Told apart by lightness and by line as well, not by hue alone."""


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

    @property
    def key(self) -> str:
        """Of the figure among those of labels."""
        return self.drawing.key.removeprefix(PREFIX)

    @property
    def title(self) -> str:
        """Above it."""
        return self.drawing.title

    @property
    def svg(self) -> str:
        """An `<svg>` element."""
        return self.drawing.wide


def label_pictures(score: Json, split: str, validation: Json | None = None) -> list[Picture]:
    """The figures of one split.

    Args:
        score: Of scores.json.
        split: Its name.
        validation: The score of the split that the threshold was chosen on, where that is another
            one.
    """
    drawn = (
        _confusion(score, split),
        _roc(score, split),
        _precision_recall(score, split),
        _sweep(score, split, validation),
        _reliability(score, split),
        _histogram(score, split),
    )
    return [picture for picture in drawn if picture is not None]


def short(name: str, most: int = NAME_CHARACTERS) -> str:
    """A label's name, cut where it is long."""
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def _confusion(score: Json, split: str) -> Picture | None:
    counts_CC, names = confusion(score), names_of(score)
    if counts_CC is None or len(names) > MOST_LABELS:
        return None
    shares_CC = counts_CC / np.maximum(counts_CC.sum(1, keepdims=True), 1)
    is_small = len(names) <= FEW_LABELS
    told = "; ".join(
        f"{name}: {count:,} of {total:,} right"
        for name, count, total in zip(names, np.diag(counts_CC), counts_CC.sum(1), strict=True)
    )

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for (true, given), share in np.ndenumerate(shares_CC):
            _draw_cell(
                axes, (true, given), int(counts_CC[true, given]), float(share), with_share=is_small
            )
        size, labels = len(names), [short(name) for name in names]
        axes.set(
            xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), xticks=range(size), yticks=range(size)
        )
        axes.set_xticklabels(
            [short(name, min(NAME_CHARACTERS, CHARACTERS_BELOW // size)) for name in names]
            if is_small
            else labels
        )
        if not is_small:
            axes.tick_params("x", rotation=45, rotation_mode="xtick")
        axes.set_yticklabels(labels)
        _finish(axes, "label given", "true label", grid=False)

    size = SIZE if is_small else (300 + CELL * len(names), 120 + CELL * len(names) * 3 // 4)
    drawing = Drawing(
        f"{PREFIX}confusion", "Confusion matrix", f"Confusion matrix. {told}.", size, draw
    )
    about = f"Texts of {split}, rows by true label; shades are shares of a row."
    return Picture(drawing, about, is_wide=not is_small)


def _draw_cell(
    axes: Axes, place: tuple[int, int], count: int, share: float, *, with_share: bool
) -> None:
    """Teal where right, orange where wrong."""
    true, given = place
    colour = TRAIN if true == given else VALIDATION
    alpha = MOST_OPAQUE * share if count else 0.0
    (
        axes.add_patch(
            Rectangle(
                (given - 0.5, true - 0.5), 1, 1, facecolor=colour, edgecolor="none", alpha=alpha
            )
        )
        if count
        else None
    )
    if with_share:
        axes.annotate(
            f"{count:,}",
            (given, true),
            (0, 3),
            textcoords="offset points",
            ha="center",
            color=INK,
            fontsize=14,
            weight="bold",
        )
        axes.annotate(
            f"{share:.1%}",
            (given, true),
            (0, -13),
            textcoords="offset points",
            ha="center",
            color=INK,
            fontsize=10.5,
        )
    elif count:
        axes.annotate(
            f"{count:,}", (given, true), ha="center", va="center", color=INK, fontsize=9.5
        )


def _roc(score: Json, split: str) -> Picture | None:
    if not curves_of(score, "roc"):
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=AXIS, linewidth=1, linestyle=(0, (2, 3)))
        _draw_beside_floor(axes, score, "roc", (0, 2))
        _finish(axes, "false positive rate", "recall")

    told = _area_told(score, "roc_auc")
    drawing = Drawing(
        f"{PREFIX}roc", "ROC curve", f"ROC curve: recall by false positive rate. {told}", SIZE, draw
    )
    return Picture(drawing, f"{told} Dotted: chance.{_mark_told(score)}{_floor_told(score, 'roc')}")


def _precision_recall(score: Json, split: str) -> Picture | None:
    base = quantity(score, "base_rate")[0]
    if not curves_of(score, "pr"):
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        if base is not None:
            axes.axhline(base, color=AXIS, linewidth=1, linestyle=(0, (2, 3)))
            axes.annotate(
                f"base rate {base:.3f}",
                (0.02, base),
                (0, 4 if base < 0.8 else -13),
                textcoords="offset points",
                color=AXIS,
                fontsize=11,
            )
        _draw_beside_floor(axes, score, "pr", (2, 1))
        _finish(axes, "recall", "precision")

    told = _area_told(score, "pr_auc") + (
        f" Base rate {base:.3f}: the precision of guessing." if base is not None else ""
    )
    drawing = Drawing(
        f"{PREFIX}pr", "Precision and recall", f"Precision by recall. {told}", SIZE, draw
    )
    return Picture(drawing, f"{told}{_mark_told(score)}{_floor_told(score, 'pr')}")


def _draw_beside_floor(axes: Axes, score: Json, name: str, mark: tuple[int, int]) -> None:
    """A curve of the model and the floor's, with the threshold's point: which two of its rates are
    x and y.
    """
    _draw_curves(axes, curves_of(score, name))
    _draw_curves(axes, _floor_curves(score, name), is_floor=True)
    if (point := _operating_point(score)) is not None:
        _mark(axes, point[mark[0]], point[mark[1]])
    _unit_square(axes)


def _sweep(score: Json, split: str, validation: Json | None) -> Picture | None:
    points_N4 = _points(section(score, "curves").get("sweep"), 4)
    if points_N4 is None:
        return None
    chosen, earlier_N4 = (
        number(section(score, "threshold").get("value")),
        _points(section(validation, "curves").get("sweep"), 4),
    )

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        thresholds_N = points_N4[:, 0]
        lines = (
            ("precision", 1, VALIDATION, "solid"),
            ("recall", 2, BASELINE, (0, (5, 2))),
            ("F1", 3, TRAIN, "solid"),
        )
        for name, column, colour, line in lines:
            axes.plot(
                thresholds_N,
                points_N4[:, column],
                color=colour,
                linestyle=line,
                linewidth=2.2 if name == "F1" else 1.4,
                label=name,
            )
        if earlier_N4 is not None:
            axes.plot(
                earlier_N4[:, 0],
                earlier_N4[:, 3],
                color=TRAIN,
                linewidth=1.2,
                linestyle=(0, (1, 2)),
                label="F1, validation",
            )
        if chosen is not None:
            axes.axvline(chosen, color=BEST, linewidth=1.4)
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

    threshold = section(score, "threshold")
    where = (
        f" Chosen on {threshold['chosen_on']} ({threshold.get('policy')}), drawn for {split}."
        if threshold.get("chosen_on")
        else ""
    )
    told = f"Threshold {chosen:.3f}." if chosen is not None else ""
    drawing = Drawing(
        f"{PREFIX}sweep", "Threshold", f"Precision, recall and F1 by threshold. {told}", SIZE, draw
    )
    return Picture(drawing, f"What each threshold gives.{where}")


def _reliability(score: Json, split: str) -> Picture | None:
    bins = [
        record
        for record in items(section(score, "curves").get("reliability"))
        if isinstance(record, dict)
    ]
    rows = [
        [number(record.get(key)) for key in ("low", "high", "probability", "share", "count")]
        for record in bins
    ]
    bins_N5 = np.array([row for row in rows if None not in row], dtype=np.float64).reshape(-1, 5)
    shares_N, counts_N = bins_N5[:, 3], bins_N5[:, 4]
    bins_N5 = bins_N5[(counts_N >= 1) & (counts_N < MOST_TEXTS) & (shares_N >= 0) & (shares_N <= 1)]
    if not len(bins_N5):
        return None
    ece = quantity(score, "ece")[0]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=AXIS, linewidth=1, linestyle=(0, (2, 3)))
        for low, high, probability, share, count in bins_N5:
            luck = wilson_interval(share * count, int(count))
            axes.plot([low, high], [share, share], color=TRAIN, linewidth=1.2, alpha=0.6)
            axes.plot(
                [probability, probability],
                [luck.low, luck.high],
                color=TRAIN,
                linewidth=1.2,
                alpha=0.6,
            )
        axes.plot(bins_N5[:, 2], bins_N5[:, 3], "o", color=TRAIN, markersize=5)
        _unit_square(axes)
        _finish(axes, "probability given", "share observed")

    least, most = int(bins_N5[:, 4].min()), int(bins_N5[:, 4].max())
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    what = (
        f"of {score['positive']}"
        if score.get("positive") is not None
        else "of every label"
        if score.get("multiple")
        else "of the likeliest label"
    )
    told = f"ECE {ece:.3f}. " if ece is not None else ""
    title = f"Calibration, ECE {ece:.3f}" if ece is not None else "Calibration"
    description = (
        f"Reliability of {split}: share observed by probability {what}, {len(bins_N5)} bins. {told}"
    )
    about = (
        f"Probability {what} in {len(bins_N5)} bins of {each}"
        f" {'labels of texts' if score.get('multiple') else 'texts'}; on the dotted line it is what"
        " happens. Upright lines: 95 % intervals."
    )
    return Picture(Drawing(f"{PREFIX}reliability", title, description, SIZE, draw), about)


def _histogram(score: Json, split: str) -> Picture | None:
    histogram = section(section(score, "curves"), "histogram")
    edges_N = np.array([number(edge) for edge in items(histogram.get("edges"))], dtype=np.float64)
    found = [
        (name, counts_N)
        for name in names_of(score)
        if (counts_N := _counts(section(histogram, "by_label").get(name), len(edges_N) - 1))
        is not None
    ]
    if not found or not np.isfinite(edges_N).all():
        return None
    if len(found) > MOST_HISTOGRAMS:
        found = [("", np.sum([counts_N for _, counts_N in found], axis=0))]
    chosen = number(section(score, "threshold").get("value"))

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for (name, counts_N), (colour, line) in zip(found, STYLES, strict=False):
            axes.stairs(
                counts_N,
                edges_N,
                color=colour,
                linestyle=line,
                linewidth=1.6,
                label=short(name) or None,
                baseline=0,
            )
            if len(found) <= 2:
                axes.stairs(counts_N, edges_N, color=colour, fill=True, alpha=0.22, baseline=0)
        if chosen is not None:
            axes.axvline(chosen, color=BEST, linewidth=1.4)
        axes.set_yscale("symlog", linthresh=1)
        most = max(float(counts_N.max()) for _, counts_N in found)
        ticks = [0, *(10**power for power in range(7) if 10**power <= most * 1.5)]
        axes.set(
            xlim=(float(edges_N[0]), float(edges_N[-1])),
            ylim=(0, max(most, 1) * 2),
            yticks=ticks,
            yticklabels=[f"{tick:,}" for tick in ticks],
        )
        axes.minorticks_off()
        if len(found) > 1:
            _legend(axes, above=True)
        _finish(axes, "probability", "texts, log scale")

    what = (
        f"of {score['positive']}" if score.get("positive") is not None else "of the label they have"
    )
    title, description = (
        f"Probabilities{' by true label' * (len(found) > 1)}",
        f"Texts by probability {what}, for each true label.",
    )
    about = f"Texts by probability {what}.{' Upright: the threshold.' * (chosen is not None)}"
    return Picture(Drawing(f"{PREFIX}histogram", title, description, SIZE, draw), about)


def _counts(value: object, size: int) -> FloatArray | None:
    counts = [number(count) for count in items(value)]
    return (
        np.array(counts, dtype=np.float64)
        if size > 0 and len(counts) == size and None not in counts
        else None
    )


def curves_of(score: Json, key: str) -> list[tuple[str, FloatArray]]:
    """Curves of (x, y) points: that of the positive label under the name "", else those of all
    labels; none where they are too many to tell apart.
    """
    curves = section(score, "curves")
    by_label = section(curves, "by_label")
    every = {"": curves.get(key)} | {name: section(by_label, name).get(key) for name in by_label}
    found = [
        (name, points) for name, each in every.items() if (points := _points(each, 2)) is not None
    ]
    return found if len(found) <= MOST_CURVES else []


def _floor_curves(score: Json, key: str) -> list[tuple[str, FloatArray]]:
    return curves_of(section(score, "floor"), key)[:1]


def _points(value: object, columns: int) -> FloatArray | None:
    """At least two rows of numbers, not a number where one is not known; None for anything else."""
    rows = [
        [np.nan if (found := number(cell)) is None else found for cell in items(row)]
        for row in items(value)
    ]
    return (
        np.array(rows, dtype=np.float64)
        if len(rows) > 1 and {len(row) for row in rows} == {columns}
        else None
    )


def _draw_curves(
    axes: Axes, found: Sequence[tuple[str, FloatArray]], *, is_floor: bool = False
) -> None:
    styles = ((BASELINE, (0, (5, 2))),) if is_floor else STYLES
    for (name, points_N2), (colour, line) in zip(found, styles, strict=False):
        width = 1.3 if is_floor else 2.0
        axes.plot(
            points_N2[:, 0],
            points_N2[:, 1],
            color=colour,
            linestyle=line,
            linewidth=width,
            label=short(name) if name else None,
        )
    if len(found) > 1:
        _legend(axes, above=False)


def _operating_point(score: Json) -> tuple[float, float, float] | None:
    """(false positive rate, precision, recall) at the threshold; None without one positive label,
    or where a share has nothing below it.
    """
    counts_CC, names = confusion(score), names_of(score)
    if counts_CC is None or score.get("positive") not in names or len(names) != 2:
        return None
    positive = names.index(str(score["positive"]))
    found, given, having = (
        int(each)
        for each in (
            counts_CC[positive, positive],
            counts_CC[:, positive].sum(),
            counts_CC[positive].sum(),
        )
    )
    others = int(counts_CC[1 - positive].sum())
    return (
        ((given - found) / others, found / given, found / having)
        if given and having and others
        else None
    )


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


def _mark_told(score: Json) -> str:
    return " Circle: the threshold." if _operating_point(score) is not None else ""


def _floor_told(score: Json, key: str) -> str:
    return " Dashed: the floor." if _floor_curves(score, key) else ""


def _area_told(score: Json, key: str) -> str:
    value, interval = quantity(score, key)
    form: Callable[[float], str] = form_of(key)
    if value is None:
        return ""
    return f"Area {form(value)}" + (
        f" (95 % {form(interval[0])} to {form(interval[1])})." if interval else "."
    )


def _unit_square(axes: Axes) -> None:
    ticks = (0, 0.25, 0.5, 0.75, 1)
    axes.set(
        xlim=(-0.01, 1.01),
        ylim=(-0.02, 1.03),
        xticks=ticks,
        yticks=ticks,
        xticklabels=[f"{tick:g}" for tick in ticks],
    )
    axes.set_yticklabels([f"{tick:g}" for tick in ticks])


def _legend(axes: Axes, *, above: bool) -> None:
    place: dict[str, Any] = (
        {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 4, "columnspacing": 1.2}
        if above
        else {"loc": "best"}
    )
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
