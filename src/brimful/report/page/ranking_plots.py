"""How a classifier ranks texts, drawn: ROC, precision and recall, and what each threshold gives."""

from typing import Any

from matplotlib.axes import Axes

from brimful.report.drawing import AXIS, BASELINE, BEST, TRAIN, VALIDATION
from brimful.report.labels import confusion, format_of, metric_of
from brimful.report.page.label_axes import (
    DASHED,
    FINE_DOTS,
    STYLES,
    FloatArray,
    Picture,
    add_legend,
    draw_threshold,
    drawing_of,
    finish_axes,
    points_of,
    set_unit_square,
    short,
    single_threshold,
)
from brimful.runs.scores import LabelScore, RankingCurves

MOST_CURVES = 12


def roc(score: LabelScore) -> Picture | None:
    """Return the ROC curve beside the floor's; None without its points."""
    if not curves_of(score, "roc"):
        return None

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=AXIS, linewidth=1, linestyle=FINE_DOTS)
        _draw_beside_floor(axes, score, "roc", (0, 2))
        finish_axes(axes, "false positive rate", "recall")

    area = _area_sentence(score, "roc_auc")
    return Picture(
        drawing_of("roc", "ROC curve", f"ROC curve: recall by false positive rate. {area}", draw),
        f"{area} Dotted: chance.{_key_of_marks(score, 'roc')}",
    )


def precision_recall(score: LabelScore) -> Picture | None:
    """Return precision by recall beside the floor's; None without its points."""
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
        finish_axes(axes, "recall", "precision")

    text = _area_sentence(score, "pr_auc")
    if base_rate is not None:
        text += f" Base rate {base_rate:.3f}: the precision of guessing."
    return Picture(
        drawing_of("pr", "Precision and recall", f"Precision by recall. {text}", draw),
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
        add_legend(axes, above=False)
    floor_N2 = points_of(getattr(score.floor.curves, name), 2)
    if floor_N2 is not None:
        axes.plot(*floor_N2.T, color=BASELINE, linestyle=DASHED, linewidth=1.3)
    if (point := _operating_point(score)) is not None:
        _mark(axes, point[mark[0]], point[mark[1]])
    set_unit_square(axes)


def threshold_sweep(score: LabelScore, split: str, validation: LabelScore | None) -> Picture | None:
    """Return precision, recall and F1 by threshold, with the chosen one; None without them."""
    points_N4 = points_of(score.curves.sweep, 4)
    if points_N4 is None:
        return None
    chosen = single_threshold(score)
    earlier_N4 = points_of(validation.curves.sweep, 4) if validation else None

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
            draw_threshold(axes, chosen)
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
        set_unit_square(axes)
        add_legend(axes, above=True)
        finish_axes(axes, "threshold", "share")

    about = "What each threshold gives."
    if score.threshold.chosen_on:
        policy = f"{score.threshold.chosen_on} ({score.threshold.policy})"
        about += f" Chosen on {policy}, drawn for {split}."
    description = "Precision, recall and F1 by threshold."
    if chosen is not None:
        description += f" Threshold {chosen:.3f}."
    return Picture(drawing_of("sweep", "Threshold", description, draw), about)


def curves_of(score: LabelScore, key: str) -> list[tuple[str, FloatArray]]:
    """Return curves of (x, y) points: that of the positive label under the name "", else those of
    all labels; none where they are too many to tell apart.
    """
    by_name: dict[str, RankingCurves] = {"": score.curves, **score.curves.by_label}
    points = [(name, points_of(getattr(curves, key), 2)) for name, curves in by_name.items()]
    known = [(name, points_N2) for name, points_N2 in points if points_N2 is not None]
    return known if len(known) <= MOST_CURVES else []


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
    if points_of(getattr(score.floor.curves, key), 2) is not None:
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
