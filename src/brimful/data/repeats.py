"""Texts that repeat others, exactly, but for case and white space, or nearly, and equal texts with
different labels.

Rows stand in the order training, validation, test. A row repeats one before it: a training row an
earlier training row, a validation row a training row, a test row one of training or validation.
Suffixes: R rows, U texts that differ by more than case and white space.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.base.arrays import Bools, Ints
from brimful.base.types import JsonDict, Progress
from brimful.data.leakage import EXAMPLE_CHARACTERS, normalised
from brimful.data.near_duplicates import GRAM, near_duplicates, similarity
from brimful.data.splits import SPLITS

EXAMPLES, CONFLICT_EXAMPLES, ROWS_OF_EXAMPLE = 3, 5, 6
NONE, EXACT, NORMALISED, NEAR = range(4)
_KINDS = ("", "exact", "normalised", "near")


@dataclass(frozen=True)
class LabelledRow:
    """One row: its prepared text, its labels, its split (number in `splits.SPLITS`), its place, and
    how sure its label is (0 where nothing says so).
    """

    text: str
    labels: tuple[str, ...]
    split: int
    where: str
    confidence: float = 0.0

    @property
    def label(self) -> str:
        """As errors and reports show it."""
        return ", ".join(self.labels)


@dataclass(frozen=True)
class Repeats:
    """Rows that repeat others.

    Attributes:
        kind_R: uint8: NONE, EXACT, NORMALISED (equal but for case and white space) or NEAR.
        match_R: The row that is repeated; -1: none.
        is_conflict_R: The same text, but for case and white space, has another label: for a
            training row anywhere in training, for another row before it, in another split.
        normalised_R: Texts, normalised.
    """

    kind_R: NDArray[np.uint8]
    match_R: Ints
    is_conflict_R: Bools
    normalised_R: tuple[str, ...]


def find_repeats(
    rows: Sequence[LabelledRow], threshold: float | None, progress: Progress | None = None
) -> Repeats:
    """Compare all rows, which stand in the order of their splits.

    Args:
        rows: The rows of all splits.
        threshold: Jaccard similarity of character 5-grams, case and white space normalised, from
            which texts are near duplicates; None: not looked for.
        progress: Called now and then.
    """
    split_R = np.array([row.split for row in rows], dtype=np.int64)
    normalised_R = tuple(normalised(row.text) for row in rows)
    same_R, equal_R = _first([row.text for row in rows]), _first(normalised_R)
    kind_R, match_R = np.zeros(len(rows), dtype=np.uint8), np.full(len(rows), -1, dtype=np.int64)
    for kind, first_R in ((NORMALISED, equal_R), (EXACT, same_R)):
        is_one = _is_before(first_R, split_R)
        kind_R[is_one], match_R[is_one] = kind, first_R[is_one]
    if threshold is not None:
        near_R = _near(normalised_R, equal_R, split_R, threshold, progress)
        is_one = (kind_R == NONE) & (near_R >= 0)
        kind_R[is_one], match_R[is_one] = NEAR, near_R[is_one]
    return Repeats(kind_R, match_R, _conflicts(rows, equal_R), normalised_R)


def _first(texts: Sequence[str]) -> Ints:
    """The number of the first text that equals each."""
    seen: dict[str, int] = {}
    return np.fromiter(
        (seen.setdefault(text, number) for number, text in enumerate(texts)),
        dtype=np.int64,
        count=len(texts),
    )


def _is_before(first_R: Ints, split_R: Ints) -> Bools:
    """Whether the first of equal rows is another one, and one that counts: of a split before, or
    both of training.
    """
    is_before_R: Bools = (first_R < np.arange(len(first_R))) & (
        (split_R[first_R] < split_R) | (split_R == 0)
    )
    return is_before_R


def _near(
    normalised_R: Sequence[str],
    equal_R: Ints,
    split_R: Ints,
    threshold: float,
    progress: Progress | None,
) -> Ints:
    """A near duplicate of each row; -1 where there is none."""
    first_U = np.unique(equal_R)
    split_U = split_R[first_U]
    before_U = np.where(split_U == 0, np.arange(len(first_U)), np.searchsorted(split_U, split_U))
    match_U = near_duplicates([normalised_R[row] for row in first_U], before_U, threshold, progress)
    match_U = np.where(match_U < 0, -1, first_U[match_U])
    return match_U[np.searchsorted(first_U, equal_R)]


def _conflicts(rows: Sequence[LabelledRow], equal_R: Ints) -> Bools:
    labels: dict[tuple[int, int], set[frozenset[str]]] = {}
    for row, group in zip(rows, equal_R.tolist(), strict=True):
        labels.setdefault((group, row.split), set()).add(frozenset(row.labels))
    return np.array(
        [
            any(
                labels.get((group, split), set()) - {frozenset(row.labels)}
                for split in range(max(row.split, 1))
            )
            for row, group in zip(rows, equal_R.tolist(), strict=True)
        ],
        dtype=bool,
    )


def repeat_report(
    rows: Sequence[LabelledRow], repeats: Repeats, threshold: float | None
) -> JsonDict:
    """JSON value: for each split texts, `exact`, `normalised` (these included) and further `near`
    repeats, `repeated` in all with their share, and `conflicts`; how near duplicates were looked
    for; the first few examples, with both places.
    """
    split_R = np.array([row.split for row in rows])
    report: JsonDict = {}
    for number, name in enumerate(SPLITS):
        is_split_R = split_R == number
        if not (total := int(is_split_R.sum())):
            continue
        counts = np.bincount(repeats.kind_R[is_split_R], minlength=len(_KINDS))
        repeated = int(counts[1:].sum())
        report[name] = {
            "texts": total,
            "exact": int(counts[EXACT]),
            "normalised": int(counts[EXACT] + counts[NORMALISED]),
            "near": int(counts[NEAR]),
            "repeated": repeated,
            "repeated_share": repeated / total,
            "conflicts": int(repeats.is_conflict_R[is_split_R].sum()),
        }
    report["near_threshold"] = threshold
    report["examples"] = [_example(rows, repeats, row) for row in _example_rows(repeats, split_R)]
    report["conflict_examples"] = _conflict_examples(rows, repeats)
    return report


def _example_rows(repeats: Repeats, split_R: Ints) -> list[int]:
    """The first few of each split and kind, test and validation before training."""
    chosen = []
    for split in reversed(range(len(SPLITS))):
        for kind in (EXACT, NORMALISED, NEAR):
            chosen += np.flatnonzero((repeats.kind_R == kind) & (split_R == split))[
                :EXAMPLES
            ].tolist()
    return chosen


def _example(rows: Sequence[LabelledRow], repeats: Repeats, number: int) -> JsonDict:
    row, match = rows[number], rows[repeats.match_R[number]]
    of = {
        "split": SPLITS[match.split],
        "where": match.where,
        "label": match.label,
        "text": match.text[:EXAMPLE_CHARACTERS],
    }
    kind = _KINDS[repeats.kind_R[number]]
    alike = similarity(repeats.normalised_R[number], repeats.normalised_R[repeats.match_R[number]])
    text = row.text[:EXAMPLE_CHARACTERS]
    return {
        "split": SPLITS[row.split],
        "kind": kind,
        "where": row.where,
        "label": row.label,
        "text": text,
        "similarity": alike,
        "of": of,
    }


def _conflict_examples(rows: Sequence[LabelledRow], repeats: Repeats) -> list[JsonDict]:
    chosen = list(
        dict.fromkeys(
            repeats.normalised_R[number] for number in np.flatnonzero(repeats.is_conflict_R)
        )
    )[:CONFLICT_EXAMPLES]
    held: dict[str, list[int]] = {text: [] for text in chosen}
    for number, text in enumerate(repeats.normalised_R):
        if text in held:
            held[text].append(number)
    return [
        {
            "text": rows[numbers[0]].text[:EXAMPLE_CHARACTERS],
            "rows": [
                {
                    "split": SPLITS[rows[number].split],
                    "where": rows[number].where,
                    "label": rows[number].label,
                }
                for number in numbers[:ROWS_OF_EXAMPLE]
            ],
        }
        for numbers in held.values()
    ]


def repeat_notes(report: JsonDict, dropped: int) -> list[str]:
    """Return sentences about repeated texts and conflicting labels."""
    notes = []
    for split in (name for name in SPLITS if name in report):
        counts, words = report[split], _WORDS_OF_SPLIT[split]
        if counts["repeated"]:
            notes.append(_repeated_note(split, counts, report["near_threshold"], dropped))
        if counts["conflicts"]:
            example = _shown(report["conflict_examples"], split)
            notes.append(
                f"{split}: {counts['conflicts']:,} of {counts['texts']:,} texts stand"
                f" {words.conflict_place} with another label{example}{words.conflict_fate}"
            )
    return notes


def _repeated_note(split: str, counts: JsonDict, near: float | None, dropped: int) -> str:
    kinds = {
        "exactly": counts["exact"],
        "but for case and white space": counts["normalised"] - counts["exact"],
        f"nearly (similarity of character {GRAM}-grams {near or 0:g} or more)": counts["near"],
    }
    told = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
    fate = "; scored apart, and the best model is not chosen by them"
    if split == "train":
        fate = ""
    elif dropped:
        fate = "; dropped"
    return (
        f"{split}: {counts['repeated']:,} of {counts['texts']:,} texts"
        f" ({counts['repeated_share']:.1%}) repeat {_WORDS_OF_SPLIT[split].repeated_text}:"
        f" {told}{fate}"
    )


class _Words(NamedTuple):
    """The words of notes about one split."""

    repeated_text: str
    conflict_place: str
    conflict_fate: str = ""


_WORDS_OF_SPLIT = {
    "train": _Words("an earlier training text", "in training", "; they are kept"),
    "validation": _Words("a training text", "in training"),
    "test": _Words("a training or validation text", "in training or validation"),
}


def _shown(examples: list[JsonDict], split: str) -> str:
    """The first example that concerns a split."""
    for example in examples:
        own = next((row for row in example["rows"] if row["split"] == split), None)
        other = own and next((row for row in example["rows"] if row["label"] != own["label"]), None)
        if own and other:
            return (
                f", such as {own['where']} ({own['label']}) and {other['where']} ({other['label']})"
            )
    return ""
