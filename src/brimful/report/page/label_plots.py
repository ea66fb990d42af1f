"""The charts of a classifier: its confusion matrix, how it ranks texts, what each threshold gives,
calibration, and probabilities by label.

C labels. Every chart follows from scores.json alone; one whose numbers are missing is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from brimful.base.arrays import Floats
from brimful.base.intervals import wilson_interval
from brimful.report.chart import Chart, Mark, Matrix, Rule, Series, series_of
from brimful.report.labels import (
    MOST_LABELS,
    MOST_TEXTS,
    confusion,
    cut,
    format_of,
    main_split,
    metric_of,
)
from brimful.runs.scores import LabelScore, RankingCurves, Row, RunScores

PREFIX = "labels-"
"""How the keys of a classifier's charts begin."""
NAME_CHARACTERS = 16
MOST_CURVES = 12
"""The most labels whose curves stand in one chart."""
MOST_HISTOGRAMS = 3
"""More would hide one another; they are added up and drawn as one."""
UNIT = (0.0, 1.0)
CHANCE = Series("", UNIT, UNIT, role="chance")
_square = partial(Chart, x_range=UNIT, y_range=(0.0, 1.03))
"""A chart of shares or probabilities on both axes."""


def label_pictures(scores: Mapping[str, LabelScore]) -> list[Chart | Matrix]:
    """Return the charts of the split that a classifier is judged by; none where none was scored.

    The threshold's chart also shows validation, on which it was chosen.
    """
    split = main_split(RunScores(labels=scores))
    if split is None:
        return []
    score = scores[split]
    validation = scores.get("validation") if split != "validation" else None
    pictures = (
        _confusion(score, split),
        _roc(score),
        _precision_recall(score),
        _threshold_sweep(score, split, validation),
        _reliability(score, split),
        _histogram(score),
    )
    return [picture for picture in pictures if picture is not None]


def points_of(rows: Sequence[Row], columns: int) -> Floats | None:
    """Return at least two rows of numbers, NaN where one is not known; None for anything else."""
    if len(rows) < 2 or {len(row) for row in rows} != {columns}:
        return None
    return np.array(rows, dtype=np.float64)


def _confusion(score: LabelScore, split: str) -> Matrix | None:
    counts_CC, names = confusion(score), score.labels
    if counts_CC is None or len(names) > MOST_LABELS:
        return None
    right = "; ".join(
        f"{name}: {count:,} of {total:,} right"
        for name, count, total in zip(names, np.diag(counts_CC), counts_CC.sum(1), strict=True)
    )
    return Matrix(
        f"{PREFIX}confusion",
        "Confusion matrix",
        f"Confusion matrix. {right}.",
        "true label",
        "label given",
        tuple(cut(name, NAME_CHARACTERS) for name in names),
        tuple(map(tuple, counts_CC.tolist())),
        f"Texts of {split}, rows by true label; shades are shares of a row.",
    )


def _roc(score: LabelScore) -> Chart | None:
    """The ROC curve beside the floor's."""
    drawn, marks, key = _ranking(score, "roc", (0, 2))
    if not drawn:
        return None
    area = _area_sentence(score, "roc_auc")
    about = f"ROC curve: recall by false positive rate. {area}"
    series, note = (CHANCE, *drawn), f"{area} Dotted: chance.{key}"
    x, y = "false positive rate", "recall"
    return _square(f"{PREFIX}roc", "ROC curve", about, x, series, y, marks=marks, note=note)


def _precision_recall(score: LabelScore) -> Chart | None:
    """Precision by recall beside the floor's."""
    drawn, marks, key = _ranking(score, "pr", (2, 1))
    if not drawn:
        return None
    base_rate, area = metric_of(score, "base_rate").value, _area_sentence(score, "pr_auc")
    levels: tuple[Rule, ...] = ()
    if base_rate is not None:
        levels = (Rule(base_rate, f"base rate {base_rate:.3f}", "chance"),)
        area += f" Base rate {base_rate:.3f}: the precision of guessing."
    title, about, note = "Precision and recall", f"Precision by recall. {area}", f"{area}{key}"
    axes, name = ("recall", drawn, "precision", levels), f"{PREFIX}pr"
    return _square(name, title, about, *axes, marks=marks, note=note)


def _ranking(
    score: LabelScore, key: str, rates: tuple[int, int]
) -> tuple[tuple[Series, ...], tuple[Mark, ...], str]:
    """Return curves of the model and the floor, the threshold's point, and what they are in words;
    `rates` says which two of `_operating_point` are x and y.
    """
    drawn = [
        series_of(cut(name, NAME_CHARACTERS), *points_N2.T, place=place)
        for place, (name, points_N2) in enumerate(curves_of(score, key))
    ]
    point, floor_N2 = _operating_point(score), points_of(getattr(score.floor.curves, key), 2)
    words, marks = "", ()  # type: str, tuple[Mark, ...]
    if point is not None:
        words, marks = " Circle: the threshold.", (Mark(point[rates[0]], point[rates[1]]),)
    if drawn and floor_N2 is not None:
        drawn.append(series_of("", *floor_N2.T, role="baseline"))
        words += " Dashed: the floor."
    return tuple(drawn), marks, words


def curves_of(score: LabelScore, key: str) -> list[tuple[str, Floats]]:
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


def _area_sentence(score: LabelScore, key: str) -> str:
    area, form = metric_of(score, key), format_of(key)
    if area.value is None:
        return ""
    ends = "" if area.interval is None else f" (95 % {' to '.join(map(form, area.interval))})"
    return f"Area {form(area.value)}{ends}."


def _chosen(score: LabelScore) -> tuple[Rule, ...]:
    """The threshold of the positive label; none where each label has its own."""
    value = score.threshold.value
    if value is None or isinstance(value, tuple):
        return ()
    return (Rule(value, f"chosen {value:.3f}", "kept"),)


def _threshold_sweep(score: LabelScore, split: str, validation: LabelScore | None) -> Chart | None:
    """Precision, recall and F1 by threshold, with the chosen one."""
    points_N4 = points_of(score.curves.sweep, 4)
    if points_N4 is None:
        return None
    thresholds_N, *shares = points_N4.T
    drawn = [
        series_of(name, thresholds_N, shares_N, place=place)
        for place, (name, shares_N) in enumerate(
            zip(("precision", "recall", "F1"), shares, strict=True)
        )
    ]
    earlier_N4 = points_of(validation.curves.sweep, 4) if validation else None
    if earlier_N4 is not None:
        drawn.append(series_of("F1, validation", earlier_N4[:, 0], earlier_N4[:, 3], place=3))
    note, about = "What each threshold gives.", "Precision, recall and F1 by threshold."
    if score.threshold.chosen_on:
        policy = f"{score.threshold.chosen_on} ({score.threshold.policy})"
        note += f" Chosen on {policy}, drawn for {split}."
    chosen = _chosen(score)
    about += f" Threshold {chosen[0].value:.3f}." if chosen else ""
    axes = ("threshold", tuple(drawn), "share")
    return _square(f"{PREFIX}sweep", "Threshold", about, *axes, uprights=chosen, note=note)


def _reliability(score: LabelScore, split: str) -> Chart | None:
    rows = [
        (each.low, each.high, each.probability, each.share, each.count)
        for each in score.curves.reliability
    ]
    bins_N5 = np.array(rows, dtype=np.float64).reshape(-1, 5)
    bins_N5 = bins_N5[np.isfinite(bins_N5).all(1)]
    shares_N, counts_N = bins_N5[:, 3], bins_N5[:, 4]
    bins_N5 = bins_N5[(counts_N >= 1) & (counts_N < MOST_TEXTS) & (shares_N >= 0) & (shares_N <= 1)]
    if not len(bins_N5):
        return None
    lows_N, highs_N, probabilities_N, shares_N, counts_N = bins_N5.T
    intervals = [
        wilson_interval(share * count, int(count))
        for share, count in zip(shares_N, counts_N, strict=True)
    ]
    whose = "of the likeliest label"
    if score.positive is not None:
        whose = f"of {score.positive}"
    elif score.multiple:
        whose = "of every label"
    title, num_bins = "Calibration", len(bins_N5)
    about = f"Reliability of {split}: share observed by probability {whose}, {num_bins} bins."
    if (ece := metric_of(score, "ece").value) is not None:
        title, about = f"Calibration, ECE {ece:.3f}", f"{about} ECE {ece:.3f}."
    ends = dict.fromkeys((f"{counts_N.min():,.0f}", f"{counts_N.max():,.0f}"))
    texts = "labels of texts" if score.multiple else "texts"
    note = (
        f"Probability {whose} in {num_bins} bins of {' to '.join(ends)} {texts}; a point on the"
        " dotted line came true as often as predicted. Upright lines: 95 % intervals."
    )
    gaps_N = np.full_like(shares_N, np.nan)
    edges_N, heights_N = (
        np.stack(each, 1).ravel()
        for each in ((lows_N, highs_N, highs_N), (shares_N, shares_N, gaps_N))
    )
    known = tuple((each.low, each.high) for each in intervals)
    drawn = (
        CHANCE,
        series_of("", edges_N, heights_N, look="faint", role="training"),
        series_of("", probabilities_N, shares_N, look="points", role="training", intervals=known),
    )
    axes = ("probability given", drawn, "share observed")
    return _square(f"{PREFIX}reliability", title, about, *axes, note=note)


def _histogram(score: LabelScore) -> Chart | None:
    edges = np.array(score.curves.histogram.edges, dtype=np.float64)
    counts = dict(_counts_by_label(score, len(edges) - 1))
    if not counts or not np.isfinite(edges).all():
        return None
    if len(counts) > MOST_HISTOGRAMS:
        counts = {"": np.sum(list(counts.values()), axis=0)}
    whose = "of the label they have" if score.positive is None else f"of {score.positive}"
    told, chosen = f"Texts by probability {whose}", _chosen(score)
    return Chart(
        f"{PREFIX}histogram",
        "Probabilities by true label" if len(counts) > 1 else "Probabilities",
        f"{told}, for each true label.",
        "probability",
        tuple(
            Series(cut(name, NAME_CHARACTERS), tuple(edges), tuple(each), "steps", place=place)
            for place, (name, each) in enumerate(counts.items())
        ),
        "texts, log scale",
        uprights=chosen,
        is_log=True,
        note=f"{told}.{' Upright: the threshold.' if chosen else ''}",
    )


def _counts_by_label(score: LabelScore, size: int) -> Iterator[tuple[str, Floats]]:
    """Return the histograms that have `size` numbers each."""
    for name in score.labels:
        counts = score.curves.histogram.by_label.get(name, ())
        if 0 < size == len(counts) and None not in counts:
            yield name, np.array(counts, dtype=np.float64)
