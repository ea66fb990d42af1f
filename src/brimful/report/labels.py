"""What the scores of a classifier tell, as text: metrics beside the floor's, the threshold, labels
one by one and the most confident mistakes.

Read leniently from scores.json: a value that is not known, such as the F1 of a label that no text
has, is "-".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.report.table import Table
from brimful.report.tables import ordered_splits
from brimful.runs.runfiles import Json, items, number, pair, section

KIND = "labels"
NOT_KNOWN = "-"
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
"""Metrics by key in the order they are told; others that a run has follow under their keys."""
WATCHED = {"f1": "F1", "macro_f1": "macro-F1", "pr_auc": "PR-AUC", "accuracy": "accuracy"}
"""Of evaluations while training, and in comparisons of runs."""
SHARES = ("f1", "macro_f1", "precision", "recall", "accuracy", "base_rate")
"""Told in percent."""
OF_POSITIVE = ("f1", "precision", "recall", "base_rate")
"""Metrics of the positive label alone."""
LOWER_IS_BETTER = ("ece", "brier", "loss")
MOST_NAMED = 6
"""Labels named in a sentence; of more only the number."""
MOST_LABELS = 20
"""Labels that a confusion matrix or a whole table shows; of more the pairs most often confused, and
the labels that do worst.
"""
MOST_PAIRS = 15
FLATTERED = (
    "What is chosen on validation, the temperature and thresholds where there are some, flatters"
    " the scores there."
)


@dataclass(frozen=True)
class MetricRow:
    """One metric as text, "" for what there is none of.

    Attributes:
        key: Of scores.json.
        value, interval: This model's, 95 %.
        floor, floor_interval: Those of the simple model beside it.
        difference, difference_interval: This model's minus the floor's on the same texts.
        verdict: Whether that difference is more than luck with the texts: "better", "worse" or
            "within chance".
        repeated: The value where texts that repeat training texts count, too.
    """

    key: str
    name: str
    value: str
    interval: str
    floor: str = ""
    floor_interval: str = ""
    difference: str = ""
    difference_interval: str = ""
    verdict: str = ""
    repeated: str = ""


@dataclass(frozen=True)
class Mistake:
    """A text whose label the model got wrong."""

    text: str
    label: str
    predicted: str
    probability: str
    where: str


def label_scores(scores: Mapping[str, Any]) -> dict[str, Json]:
    """The splits that a classifier was scored on, validation before test."""
    found = {
        name: value
        for name, value in scores.items()
        if isinstance(value, dict) and value.get("kind") == KIND
    }
    return {name: found[name] for name in ordered_splits(found)}


def main_split(scores: Mapping[str, Any]) -> str | None:
    """The split that a classifier is judged by: test, which nothing was chosen on, where there is
    one.
    """
    splits = list(label_scores(scores))
    return splits[-1] if splits else None


def names_of(score: Json) -> list[str]:
    """The labels in their order."""
    return [str(name) for name in items(score.get("labels"))]


def listed(names: Sequence[str]) -> str:
    """`ham and spam`, `a, b and c`, `150 labels`."""
    if len(names) > MOST_NAMED:
        return f"{len(names)} labels"
    return (
        names[0]
        if len(names) == 1
        else f"{', '.join(names[:-1])} and {names[-1]}"
        if names
        else "labels"
    )


def main_metric(score: Json) -> str:
    """F1 of the positive of two labels, else the mean of all labels' F1."""
    return (
        "f1"
        if score.get("positive") is not None and quantity(score, "f1")[0] is not None
        else "macro_f1"
    )


def quantity(score: Json, key: str) -> tuple[float | None, tuple[float, float] | None]:
    """A metric's value and its interval, each None where it is not known; `loss` is in nats per
    text.
    """
    if key == "loss":
        return number(score.get("loss")), pair(score.get("loss_interval"))
    record = section(score, "metrics").get(key)
    return (
        (number(record.get("value")), pair(record))
        if isinstance(record, dict)
        else (number(record), None)
    )


def watched(record: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of an evaluation while training, by key; without the mean of all labels' F1 where
    there is that of the positive label.
    """
    found = {key: value for key in WATCHED if (value := number(record.get(key))) is not None}
    return {key: value for key, value in found.items() if not (key == "macro_f1" and "f1" in found)}


def metric_name(score: Json, key: str) -> str:
    """`F1 of spam`."""
    name = NAMES.get(key, key.replace("_", " "))
    if key == "accuracy" and score.get("multiple") is True:
        return f"{name} (all labels of a text)"
    return (
        f"{name} of {score['positive']}"
        if key in OF_POSITIVE and score.get("positive") is not None
        else name
    )


def form_of(key: str, sign: str = "") -> Callable[[float], str]:
    """How a metric prints: shares in percent, areas and errors with three decimals."""
    return lambda value: (
        f"{value * 100:{sign}.1f}{'' if sign else '%'}" if key in SHARES else f"{value:{sign}.3f}"
    )


def shown(value: float | None, form: Callable[[float], str]) -> str:
    """The value as text, a dash for None."""
    return NOT_KNOWN if value is None else form(value)


def with_interval(value: str, interval: str) -> str:
    """`93.9% (91.8% to 96.4%)`."""
    return f"{value} ({interval})" if interval else value


def cut(text: str, most: int) -> str:
    """The first characters of a text, at most so many."""
    return text if len(text) <= most else f"{text[:most]}..."


def span(interval: tuple[float, float] | None, form: Callable[[float], str]) -> str:
    """`91.8% to 96.4%`; "" for None."""
    return f"{form(interval[0])} to {form(interval[1])}" if interval else ""


def metric_rows(score: Json) -> list[MetricRow]:
    """Every metric that a split has a value for, and the loss."""
    found = [
        *NAMES,
        *(key for key in section(score, "metrics") if key not in (*NAMES, "base_rate")),
        "loss",
    ]
    return [_row(score, key) for key in found if quantity(score, key)[0] is not None]


def _row(score: Json, key: str) -> MetricRow:
    form, floor = form_of(key), section(score, "floor")
    value, interval = quantity(score, key)
    floor_value, floor_interval = (None, None) if key == "loss" else quantity(floor, key)
    repeated = quantity({"metrics": section(score, "metrics_with_repeated")}, key)[0]
    name = "Loss, nats per text" if key == "loss" else metric_name(score, key)
    if key == "pr_auc" and (base := quantity(score, "base_rate")[0]) is not None:
        name += f" (base rate {base:.3f})"
    return MetricRow(
        key,
        name,
        shown(value, form),
        span(interval, form),
        "" if floor_value is None else form(floor_value),
        span(floor_interval, form),
        *_difference(floor, key),
        "" if repeated is None else form(repeated),
    )


def _difference(floor: Json, key: str) -> tuple[str, str, str]:
    """The paired difference, its interval and the verdict."""
    record, signed = section(section(floor, "difference"), key), form_of(key, "+")
    value, interval = number(record.get("value")), pair(record)
    if value is None:
        return "", "", ""
    unit = " points" if key in SHARES else ""
    if interval is None:
        return f"{signed(value)}{unit}", "", ""
    is_above = interval[0] > 0
    is_better = is_above != (key in LOWER_IS_BETTER)
    verdict = (
        "within chance" if interval[0] <= 0 <= interval[1] else "better" if is_better else "worse"
    )
    return f"{signed(value)}{unit}", span(interval, signed), verdict


def floor_name(score: Json) -> str:
    """Of the simple model beside; "" where there is none."""
    return str(section(score, "floor").get("name") or "")


def floor_sentence(score: Json) -> str:
    """What the floor is, and how it was set; "" without one."""
    settings = ", ".join(
        f"{str(key).replace('_', ' ')} {_plain(value)}"
        for key, value in section(section(score, "floor"), "settings").items()
    )
    return (
        f"The floor is a {floor_name(score)}{f' ({settings})' if settings else ''}, trained on the"
        " same texts."
        if floor_name(score)
        else ""
    )


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    found = number(value)
    return (
        f"{found:g}"
        if found is not None
        else ", ".join(map(_plain, value))
        if isinstance(value, list)
        else str(value)
    )


def count_sentence(score: Json) -> str:
    """Texts that count, and those left out because training holds them."""
    count, repeated = number(score.get("examples")), number(score.get("repeated")) or 0
    told = f"{count:,.0f} texts" if count is not None else "texts"
    return (
        f"{told}; {repeated:,.0f} more repeat training texts and do not count" if repeated else told
    )


def threshold_sentence(score: Json) -> str:
    """From which probability on a label is given, by which policy, and where that was chosen; ""
    where the most probable label is given.
    """
    threshold = section(score, "threshold")
    value, policy, chosen_on = (
        threshold.get("value"),
        str(threshold.get("policy") or ""),
        str(threshold.get("chosen_on") or ""),
    )
    chosen = (
        "as asked for"
        if _is_number(policy)
        else f"policy {policy}" + f", chosen on {chosen_on}" * bool(chosen_on)
    )
    if isinstance(value, list):
        numbers = [
            f"{name} {shown(number(each), '{:.3f}'.format)}"
            for name, each in zip(names_of(score), value, strict=False)
        ]
        return (
            f"Thresholds ({chosen}):"
            f" {', '.join(numbers[:MOST_LABELS])}{' ...' * (len(numbers) > MOST_LABELS)}."
        )
    found = number(value)
    if found is None:
        return ""
    positive = score.get("positive")
    told = f"A text is given the label {positive}" if positive is not None else "A label is given"
    return f"{told} from a probability of {found:.3f} on ({chosen}){_at_half(score)}."


def choice_sentences(score: Json, split: str) -> list[str]:
    """Threshold, what it could not reach, and calibration; then that they flatter the split they
    were chosen on. None where there are none.
    """
    told = [
        each
        for each in (
            threshold_sentence(score),
            *threshold_notes(score),
            calibration_sentence(score),
        )
        if each
    ]
    return [*told, FLATTERED] if told and split == "validation" else told


def threshold_notes(score: Json) -> list[str]:
    """What could not be reached."""
    return [str(note) for note in items(section(score, "threshold").get("notes"))]


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def _at_half(score: Json) -> str:
    """`; from 0.5 on: F1 93.9%, precision 97.1%`."""
    at_half = section(score, "metrics_at_half")
    parts = []
    for key in ("f1", "macro_f1", "precision", "recall", "accuracy"):
        value = quantity({"metrics": at_half}, key)[0]
        if value is not None and not (key == "macro_f1" and main_metric(score) == "f1"):
            parts.append(f"{key.replace('_', '-').replace('f1', 'F1')} {form_of(key)(value)}")
    return f"; from 0.5 on: {', '.join(parts)}" if parts else ""


def calibration_sentence(score: Json) -> str:
    """The temperature that the logits are divided by; "" where it is not known."""
    temperature = number(score.get("temperature"))
    if temperature is None:
        return ""
    meaning = (
        "too sure of itself before"
        if temperature > 1.05
        else "too unsure before"
        if temperature < 0.95
        else "hardly needed"
    )
    return (
        f"Probabilities are calibrated with temperature {temperature:.2f}, fitted on validation"
        f" ({meaning})."
    )


def label_table(score: Json) -> Table | None:
    """Precision, recall and F1 of every label with intervals, and how many texts have it; the worst
    first where there are many.
    """
    by_label = {name: section(section(score, "by_label"), name) for name in names_of(score)}
    if not any(by_label.values()):
        return None
    names = list(by_label)
    if len(names) > MOST_LABELS:
        names.sort(key=lambda name: _value(by_label[name], "f1", 2.0))
    return Table(
        ("Label", "Precision", "Recall", "F1", "Texts"),
        tuple(_label_row(name, by_label[name]) for name in names),
    )


def _value(record: Json, key: str, otherwise: float) -> float:
    found = quantity({"metrics": record}, key)[0]
    return otherwise if found is None else found


def _label_row(name: str, record: Json) -> tuple[str, ...]:
    cells = []
    for key in ("precision", "recall", "f1"):
        value, interval = quantity({"metrics": record}, key)
        cells.append(
            shown(value, form_of(key))
            + (f" [{interval[0] * 100:.1f}, {interval[1] * 100:.1f}]" if interval else "")
        )
    return (name, *cells, shown(number(record.get("support")), "{:,.0f}".format))


def confusion(score: Json) -> NDArray[np.int64] | None:
    """Texts by true label (rows) and given label (columns), (C, C); None for texts with several
    labels, and where there is none.
    """
    rows, size = items(score.get("confusion")), len(names_of(score))
    counts = [[number(cell) for cell in items(row)] for row in rows]
    if (
        not size
        or len(counts) != size
        or any(
            len(row) != size or any(cell is None or not 0 <= cell < MOST_TEXTS for cell in row)
            for row in counts
        )
    ):
        return None
    return np.array(counts, dtype=np.float64).astype(np.int64)


def confusion_table(score: Json) -> Table | None:
    """The matrix as cells, up to `MOST_LABELS` labels; of texts with several labels a row for each
    label.
    """
    names, counts_CC = names_of(score), confusion(score)
    if section(score, "confusion"):
        return _yes_no_table(score)
    if counts_CC is None or len(names) > MOST_LABELS:
        return None
    return Table(
        ("True label", *(f"given {name}" for name in names)),
        tuple(
            (name, *(f"{count:,}" for count in row))
            for name, row in zip(names, counts_CC, strict=True)
        ),
    )


def _yes_no_table(score: Json) -> Table | None:
    rows = []
    for name in names_of(score):
        cells = [
            number(cell)
            for row in items(section(score, "confusion").get(name))
            for cell in items(row)
        ]
        if len(cells) == 4 and None not in cells:
            without, wrong, missed, found = (f"{cell:,.0f}" for cell in cells)
            rows.append((name, found, missed, wrong, without))
    return (
        Table(
            ("Label", "Found", "Missed", "Given wrongly", "Rightly not given"),
            tuple(rows[:MOST_LABELS]),
        )
        if rows
        else None
    )


def confused_pairs(score: Json) -> Table | None:
    """Which labels are taken for which most often; None where a matrix is small enough to show, and
    where nothing is confused.
    """
    names, counts_CC = names_of(score), confusion(score)
    if counts_CC is None or len(names) <= MOST_LABELS:
        return None
    wrong_CC = counts_CC * (1 - np.eye(len(names), dtype=np.int64))
    places = [
        place
        for place in np.argsort(-wrong_CC, axis=None, kind="stable")[:MOST_PAIRS].tolist()
        if wrong_CC.flat[place]
    ]
    rows = []
    for place in places:
        true, given = divmod(place, len(names))
        count, of_all = int(counts_CC[true, given]), int(counts_CC[true].sum())
        rows.append(
            (names[true], names[given], f"{count:,}", f"{count / of_all:.1%} of {of_all:,}")
        )
    return (
        Table(("True label", "Given instead", "Texts", "Of the texts with the label"), tuple(rows))
        if rows
        else None
    )


def mistakes(score: Json) -> list[Mistake]:
    """The most confident ones first."""
    found = []
    for record in items(score.get("mistakes")):
        if isinstance(record, dict):
            probability = shown(number(record.get("probability")), "{:.3f}".format)
            label, predicted = (_names(record.get(key)) for key in ("label", "predicted"))
            found.append(
                Mistake(
                    str(record.get("text") or ""),
                    label,
                    predicted,
                    probability,
                    str(record.get("where") or ""),
                )
            )
    return found


def _names(value: object) -> str:
    """A label, or the labels of a text that may have several."""
    return (
        ", ".join(map(str, value)) or "none"
        if isinstance(value, list)
        else NOT_KNOWN
        if value is None
        else str(value)
    )


def verdict(scores: Mapping[str, Any]) -> str:
    """The result in one sentence: the main metric with its interval, what stands beside it, and the
    floor; "" where nothing was scored.
    """
    split = main_split(scores)
    if split is None:
        return ""
    score = label_scores(scores)[split]
    rows = {row.key: row for row in metric_rows(score)}
    main = rows.get(main_metric(score))
    if main is None:
        return ""
    told = [
        f"{main.name} {main.value}{f' (95 % interval {main.interval})' if main.interval else ''}"
    ]
    told += [_value_in_name(rows[key]) for key in ("pr_auc", "accuracy") if key in rows]
    examples = number(score.get("examples"))
    of = f"the {examples:,.0f} {split} texts" if examples is not None else f"the {split} texts"
    text = f"On {of}: {', '.join(told)}"
    if main.difference:
        side = "below" if main.difference.startswith("-") else "above"
        interval = (
            f" (95 % interval {main.difference_interval})" if main.difference_interval else ""
        )
        chance = ", within chance" if main.verdict == "within chance" else ""
        text += (
            f"; {NAMES[main.key]} is {main.difference.lstrip('+-')} {side}"
            f" {floor_name(score)}{interval}{chance}"
        )
    return f"{text}."


def _value_in_name(row: MetricRow) -> str:
    """`PR-AUC 0.957 (base rate 0.134)`."""
    name, opening, about = row.name.partition(" (")
    return f"{name} {row.value}{opening}{about}"
