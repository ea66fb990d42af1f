"""What the scores of a classifier say, as tables and sentences: metrics beside the floor's, the
threshold, labels one by one and the most confident mistakes.

A value that is not known, such as the F1 of a label that no text has, is "-".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brimful.base.arrays import Ints
from brimful.base.types import Bounds
from brimful.report.quantities import format_number, listed
from brimful.report.table import Cell, Table, table_of
from brimful.runs.scores import LabelMetrics, LabelScore, MetricValue, RunScores

NOT_KNOWN, NOTHING = "-", Cell(None)
MOST_TEXTS = 1e12
"""A count beyond it, as one below 0, is of a damaged record."""
NAMES = {
    "f1": "F1",
    "macro_f1": "Macro-F1",
    "precision": "Precision",
    "recall": "Recall",
    "pr_auc": "PR-AUC",
    "roc_auc": "ROC-AUC",
    "accuracy": "Accuracy",
    "ece": "Calibration error (ECE)",
    "brier": "Brier score",
}
"""Metrics by key in the order of the tables; others that a run has follow under their keys."""
SHARES = ("f1", "best_f1", "macro_f1", "precision", "recall", "accuracy", "base_rate")
"""Metrics that print in percent."""
OF_POSITIVE = ("f1", "precision", "recall", "base_rate")
"""Metrics of the positive label alone."""
AT_HALF = {
    "f1": "F1",
    "macro_f1": "macro-F1",
    "precision": "precision",
    "recall": "recall",
    "accuracy": "accuracy",
}
LOWER_IS_BETTER = ("ece", "brier", "loss")
MOST_NAMED = 6
"""Labels named in a sentence; of more only the number."""
MOST_LABELS = 20
"""Labels that a confusion matrix or a whole table shows. With more, the pairs most often confused
and the labels with the lowest F1 are shown.
"""
MOST_PAIRS = 15
CHOSEN_ON_VALIDATION = (
    "The temperature and the thresholds were chosen on validation, so the scores there are a little"
    " too good."
)


@dataclass(frozen=True)
class LabelMetric:
    """One metric of a classifier.

    Attributes:
        key: Key in scores.json.
        floor: The metric of the simple model beside it.
        difference: The classifier's minus the floor's on the same texts. Its note is "better" or
            "worse" where the difference is more than luck with the texts, else "within chance".
        repeated: The metric where texts that repeat training texts count, too.
    """

    key: str
    name: str
    value: Cell
    floor: Cell
    difference: Cell
    repeated: Cell


def main_split(scores: RunScores) -> str | None:
    """Return the split that a classifier is judged by: test, which nothing was chosen on, where
    there is one; None where no split was scored.
    """
    return list(scores.labels)[-1] if scores.labels else None


def names_in_words(names: Sequence[str]) -> str:
    """`ham and spam`, `a, b and c`, `150 labels`."""
    if len(names) > MOST_NAMED:
        return f"{len(names)} labels"
    return listed(names) or "labels"


def main_metric(score: LabelScore) -> str:
    """Return the key of the metric that counts: F1 of the positive of two labels, else the mean of
    all labels' F1.
    """
    has_f1 = score.positive is not None and metric_of(score, "f1").value is not None
    return "f1" if has_f1 else "macro_f1"


def metric_of(score: LabelScore, key: str) -> MetricValue:
    """Return a metric with its interval; `loss` is in nats per text."""
    if key == "loss":
        return MetricValue(value=score.loss, interval=score.loss_interval)
    return score.metrics.get(key, MetricValue())


def format_of(key: str, sign: str = "") -> Callable[[float], str]:
    """Return how a metric prints: shares in percent, areas and errors with three decimals.

    Args:
        key: Key of the metric.
        sign: "+" for differences, which print without "%".
    """
    if key not in SHARES:
        return f"{{:{sign}.3f}}".format
    unit = "" if sign else "%"
    return lambda share: f"{share * 100:{sign}.1f}{unit}"


def known_cell(
    value: float | None, form: Callable[[float], str], interval: Bounds | None = None
) -> Cell:
    """A cell with the value, "-" for None."""
    return Cell(NOT_KNOWN) if value is None else Cell(value, form, interval)


def cut(text: str, most: int) -> str:
    """Return the first characters of a text, at most so many."""
    return text if len(text) <= most else f"{text[:most]}..."


def metrics_of(score: LabelScore) -> list[LabelMetric]:
    """Return every metric that a split has a value for, the loss last."""
    others = [key for key in score.metrics if key not in (*NAMES, "base_rate")]
    keys = [key for key in (*NAMES, *others, "loss") if metric_of(score, key).value is not None]
    return [_label_metric(score, key) for key in keys]


def _label_metric(score: LabelScore, key: str) -> LabelMetric:
    own = metric_of(score, key)
    floor = score.floor.metrics.get(key, MetricValue())
    repeated = score.metrics_with_repeated.get(key, MetricValue())
    form = format_of(key)
    return LabelMetric(
        key,
        _metric_name(score, key),
        Cell(own.value, form, own.interval),
        Cell(floor.value, form, floor.interval),
        _difference(score.floor.difference.get(key, MetricValue()), key),
        Cell(repeated.value, form),
    )


def _metric_name(score: LabelScore, key: str) -> str:
    """`F1 of spam`, `PR-AUC (base rate 0.134)`."""
    if key == "loss":
        return "Loss, nats per text"
    name = NAMES.get(key, key.replace("_", " "))
    base_rate = metric_of(score, "base_rate").value
    if key == "pr_auc" and base_rate is not None:
        return f"{name} (base rate {base_rate:.3f})"
    if key == "accuracy" and score.multiple:
        return f"{name} (all labels of a text)"
    if key in OF_POSITIVE and score.positive is not None:
        return f"{name} of {score.positive}"
    return name


def _difference(difference: MetricValue, key: str) -> Cell:
    verdict = ""
    if difference.interval is not None:
        low, high = difference.interval
        is_better = (low > 0) != (key in LOWER_IS_BETTER)
        verdict = "better" if is_better else "worse"
        if low <= 0 <= high:
            verdict = "within chance"
    unit = "points" if key in SHARES else ""
    return Cell(difference.value, format_of(key, "+"), difference.interval, verdict, unit)


def metric_table(score: LabelScore, *, with_floor: bool = True) -> Table | None:
    """Every metric beside the floor's; columns in which nothing is known are left out."""
    rows = [
        (each.name, each.value, each.floor, each.difference, each.repeated.text)
        for each in metrics_of(score)
    ]
    columns = ("Metric", "This model", "Floor", "Difference", "With repeated texts")
    if not with_floor:
        rows = [(name, value, NOTHING, NOTHING, rest) for name, value, *_, rest in rows]
    table = table_of(columns, rows)
    return table.without_empty_columns() if table else None


def other_splits_table(scores: Mapping[str, LabelScore]) -> Table | None:
    """Metrics in rows, a column for each of these splits."""
    metrics = {
        split: {each.name.partition(" (base rate")[0]: each.value for each in metrics_of(score)}
        for split, score in scores.items()
    }
    names = dict.fromkeys(name for by_name in metrics.values() for name in by_name)
    columns = [f"{split}: {count_sentence(score)}" for split, score in scores.items()]
    rows = [(name, *(by_name.get(name, NOTHING) for by_name in metrics.values())) for name in names]
    return table_of(("Metric", *columns), rows)


def floor_sentence(score: LabelScore) -> str:
    """Say what the floor is, and its settings; "" without one."""
    if not score.floor.name:
        return ""
    settings = [
        f"{key.replace('_', ' ')} {_setting(value)}" for key, value in score.floor.settings.items()
    ]
    in_brackets = f" ({', '.join(settings)})" if settings else ""
    return f"The floor is a {score.floor.name}{in_brackets}, trained on the same texts."


def _setting(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_setting, value))
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def count_sentence(score: LabelScore) -> str:
    """`220 texts; 20 more repeat training texts and do not count`."""
    texts = f"{format_number(score.examples)} texts".strip()
    if not score.repeated:
        return texts
    return f"{texts}; {score.repeated:,.0f} more repeat training texts and do not count"


def threshold_sentence(score: LabelScore) -> str:
    """Say from which probability on a label is given, by which policy, and where that was chosen;
    "" where the most probable label is given.
    """
    threshold = score.threshold
    chosen = f"policy {threshold.policy}"
    if threshold.chosen_on:
        chosen += f", chosen on {threshold.chosen_on}"
    if threshold.policy.replace(".", "", 1).isdecimal():
        chosen = "as asked for"
    if isinstance(threshold.value, tuple):
        numbers = [
            f"{name} {known_cell(value, '{:.3f}'.format)}"
            for name, value in zip(score.labels, threshold.value, strict=False)
        ]
        more = " ..." if len(numbers) > MOST_LABELS else ""
        return f"Thresholds ({chosen}): {', '.join(numbers[:MOST_LABELS])}{more}."
    if threshold.value is None:
        return ""
    given = "A label is given"
    if score.positive is not None:
        given = f"A text is given the label {score.positive}"
    return f"{given} from a probability of {threshold.value:.3f} on ({chosen}){_at_half(score)}."


def _at_half(score: LabelScore) -> str:
    """`; from 0.5 on: F1 93.9%, precision 97.1%`."""
    known = {key: score.metrics_at_half.get(key, MetricValue()).value for key in AT_HALF}
    if main_metric(score) == "f1":
        known.pop("macro_f1")
    parts = [
        f"{AT_HALF[key]} {format_of(key)(value)}"
        for key, value in known.items()
        if value is not None
    ]
    return f"; from 0.5 on: {', '.join(parts)}" if parts else ""


def calibration_sentence(score: LabelScore) -> str:
    """Say by which temperature logits are divided; "" where it is not known."""
    temperature = score.temperature
    if temperature is None:
        return ""
    before = "hardly needed"
    if temperature > 1.05:
        before = "too sure of itself before"
    elif temperature < 0.95:
        before = "too unsure before"
    return (
        f"Probabilities are calibrated with temperature {temperature:.2f}, fitted on validation"
        f" ({before})."
    )


def choice_sentences(score: LabelScore, split: str) -> list[str]:
    """Return sentences on the threshold, what it could not reach, and calibration; and, for the
    split on which they were chosen, that its scores are too good. None where there are none.
    """
    sentences = [threshold_sentence(score), *score.threshold.notes, calibration_sentence(score)]
    sentences = [each for each in sentences if each]
    if sentences and split == "validation":
        sentences.append(CHOSEN_ON_VALIDATION)
    return sentences


def label_table(score: LabelScore) -> Table | None:
    """Precision, recall and F1 of every label, and how many texts have it; those with the lowest F1
    first where there are many labels.
    """
    if not score.by_label:
        return None
    by_label = {name: score.by_label.get(name, LabelMetrics()) for name in score.labels}
    names = list(by_label)
    if len(names) > MOST_LABELS:
        names.sort(key=lambda name: _sortable(by_label[name].f1.value))
    rows = [(name, *_label_cells(by_label[name])) for name in names]
    return table_of(("Label", "Precision", "Recall", "F1", "Texts"), rows)


def _sortable(f1: float | None) -> float:
    return 2.0 if f1 is None else f1


def _label_cells(metrics: LabelMetrics) -> list[Cell]:
    metrics_of_label = (metrics.precision, metrics.recall, metrics.f1)
    cells = [known_cell(each.value, format_of("f1"), each.interval) for each in metrics_of_label]
    return [*cells, known_cell(metrics.support, "{:,.0f}".format)]


def confusion(score: LabelScore) -> Ints | None:
    """Return texts by true label (rows) and given label (columns), (C, C); None for texts with
    several labels, and where there is none.
    """
    rows, size = score.confusion, len(score.labels)
    if isinstance(rows, Mapping) or not size or [len(row) for row in rows] != [size] * size:
        return None
    counts_CC = np.array(rows, dtype=np.float64)
    is_count_CC = (counts_CC >= 0) & (counts_CC < MOST_TEXTS)
    return counts_CC.astype(np.int64) if is_count_CC.all() else None


def confusion_table(score: LabelScore) -> Table | None:
    """The matrix, up to `MOST_LABELS` labels; with several labels per text a row for each label."""
    if isinstance(score.confusion, Mapping):
        return _yes_no_table(score.labels, score.confusion)
    counts_CC = confusion(score)
    if counts_CC is None or len(score.labels) > MOST_LABELS:
        return None
    rows = [(name, *row) for name, row in zip(score.labels, counts_CC.tolist(), strict=True)]
    return table_of(("True label", *(f"given {name}" for name in score.labels)), rows)


def _yes_no_table(
    labels: Sequence[str], counts: Mapping[str, tuple[tuple[float | None, ...], ...]]
) -> Table | None:
    rows = []
    for name in labels:
        cells = [cell for row in counts.get(name, ()) for cell in row]
        if len(cells) == 4 and None not in cells:
            neither, wrong, missed, right = (Cell(cell) for cell in cells)
            rows.append((name, right, missed, wrong, neither))
    columns = ("Label", "Found", "Missed", "Given wrongly", "Rightly not given")
    return table_of(columns, rows[:MOST_LABELS])


def confused_pairs(score: LabelScore) -> Table | None:
    """The labels that are taken for one another most often; None where a matrix is small enough to
    show, and where nothing is confused.
    """
    names, counts_CC = score.labels, confusion(score)
    if counts_CC is None or len(names) <= MOST_LABELS:
        return None
    wrong_CC = counts_CC * (1 - np.eye(len(names), dtype=np.int64))
    rows = []
    for place in np.argsort(-wrong_CC, axis=None, kind="stable")[:MOST_PAIRS].tolist():
        true, given = divmod(place, len(names))
        count, of_all = int(wrong_CC[true, given]), int(counts_CC[true].sum())
        if count:
            rows.append((names[true], names[given], count, f"{count / of_all:.1%} of {of_all:,}"))
    return table_of(("True label", "Given instead", "Texts", "Of the texts with the label"), rows)


def label_text(label: str | tuple[str, ...] | None) -> str:
    """A label, or the labels of a text that may have several."""
    if isinstance(label, tuple):
        return ", ".join(label) or "none"
    return NOT_KNOWN if label is None else label


def mistake_table(score: LabelScore, most_characters: int) -> Table | None:
    """The most confident mistakes first; the note of a text says where it stands."""
    rows = [
        (
            Cell(cut(each.text, most_characters) or "(empty)", note=each.where),
            label_text(each.label),
            label_text(each.predicted),
            str(known_cell(each.probability, "{:.3f}".format)),
        )
        for each in score.mistakes
    ]
    return table_of(("Text", "Label", "Given", "With"), rows)


def verdict(scores: RunScores) -> str:
    """Return the result in one sentence: the main metric with its interval, two others, and the
    floor; "" where nothing was scored.
    """
    split = main_split(scores)
    if split is None:
        return ""
    score = scores.labels[split]
    metrics = {each.key: each for each in metrics_of(score)}
    main = metrics.get(main_metric(score))
    if main is None:
        return ""
    parts = [f"{main.name} {main.value.text}{_in_brackets(main.value)}"]
    parts += [_value_in_name(metrics[key]) for key in ("pr_auc", "accuracy") if key in metrics]
    texts = " ".join(filter(None, (format_number(score.examples), split, "texts")))
    return f"On the {texts}: {', '.join(parts)}{_beside_floor(score, main)}."


def _beside_floor(score: LabelScore, main: LabelMetric) -> str:
    """`; F1 is 20.5 points above bag of words (95 % interval +11.5 to +30.6)`."""
    difference = main.difference
    if not difference.text:
        return ""
    side = "below" if difference.text.startswith("-") else "above"
    text = f"; {NAMES[main.key]} is {difference.text.lstrip('+-')} {side} {score.floor.name}"
    chance = ", within chance" if difference.note == "within chance" else ""
    return f"{text}{_in_brackets(difference)}{chance}"


def _in_brackets(cell: Cell) -> str:
    return f" (95 % interval {cell.interval_text})" if cell.interval else ""


def _value_in_name(row: LabelMetric) -> str:
    """`PR-AUC 0.957 (base rate 0.134)`."""
    name, opening, rest = row.name.partition(" (")
    return f"{name} {row.value.text}{opening}{rest}"
