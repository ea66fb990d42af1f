"""Repeated texts and conflicting labels are found row by row, by the order of the splits."""

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.data.repeats import (
    EXACT,
    NEAR,
    NONE,
    NORMALISED,
    LabelledRow,
    find_repeats,
    repeat_notes,
    repeat_report,
)

LONG = (
    "the quick brown fox jumps over the lazy dog and then goes home to sleep for a very long time"
)
CHANGED = LONG.replace("very", "quite")


def row(text: str, split: int, label: str = "a") -> LabelledRow:
    return LabelledRow(
        text, (label,), split, f"{('train', 'valid', 'test')[split]}: {text[:9]} {label}"
    )


def kinds(*rows: LabelledRow, threshold: float | None = 0.8) -> list[int]:
    return find_repeats(rows, threshold).kind_R.tolist()


def test_the_three_kinds_each_name_what_they_repeat() -> None:
    """Equal, equal but for case and white space, nearly equal."""
    rows = [
        row(LONG, 0),
        row("other", 0),
        row(LONG, 1),
        row(LONG.upper() + " ", 1),
        row(CHANGED, 1),
        row("something else", 1),
    ]
    found = find_repeats(rows, 0.8)
    assert found.kind_R.tolist() == [NONE, NONE, EXACT, NORMALISED, NEAR, NONE]
    assert found.match_R.tolist() == [-1, -1, 0, 0, 0, -1]


def test_what_counts_is_the_split_before() -> None:
    """Within training an earlier row; validation against training, test against both; not within
    validation or test.
    """
    assert kinds(row("x", 0), row("x", 0)) == [NONE, EXACT]
    assert kinds(row("t", 0), row("x", 1), row("x", 1), row("X", 1)) == [NONE] * 4
    assert kinds(row("t", 0), row("x", 1), row("x", 2), row("X", 2)) == [
        NONE,
        NONE,
        EXACT,
        NORMALISED,
    ]
    assert kinds(row("t", 0), row("x", 2), row("x", 2)) == [NONE] * 3
    assert kinds(row("t", 0), row(LONG, 1), row(CHANGED, 1), row(CHANGED.upper(), 2)) == [
        NONE,
        NONE,
        NONE,
        NORMALISED,
    ]
    assert kinds(row(LONG, 0), row(CHANGED, 1), row(CHANGED.upper(), 1), row(CHANGED, 2)) == [
        NONE,
        NEAR,
        NEAR,
        EXACT,
    ]


def test_an_exact_copy_elsewhere_does_not_hide_a_copy_in_training() -> None:
    """Equal to a validation text word for word, to a training text but for case."""
    rows = [row("Word", 0), row("word", 1), row("word", 1)]
    assert find_repeats(rows, None).kind_R.tolist() == [NONE, NORMALISED, NORMALISED]
    assert find_repeats(rows, None).match_R.tolist() == [-1, 0, 0]


def test_near_duplicates_are_not_looked_for_without_a_threshold() -> None:
    """The others are."""
    assert kinds(row(LONG, 0), row(CHANGED, 1), row(LONG, 1), threshold=None) == [NONE, NONE, EXACT]


def test_conflicts_are_equal_texts_with_other_labels() -> None:
    """In training all of them; elsewhere against the splits before."""
    rows = [
        row("x", 0, "a"),
        row("X ", 0, "b"),
        row("y", 0, "a"),
        row("y", 1, "b"),
        row("z", 1, "a"),
        row("y", 2, "b"),
        row("z", 2, "b"),
        row("z", 2, "b"),
    ]
    assert find_repeats(rows, None).is_conflict_R.tolist() == [
        True,
        True,
        False,
        True,
        False,
        True,
        True,
        True,
    ]


def test_the_order_of_several_labels_makes_no_conflict() -> None:
    """They are sets."""
    rows = [
        LabelledRow("x", ("a", "b"), 0, ""),
        LabelledRow("x", ("b", "a"), 1, ""),
        LabelledRow("x", ("a",), 1, ""),
    ]
    assert find_repeats(rows, None).is_conflict_R.tolist() == [False, False, True]


def test_the_report_counts_and_shows_both_places(snapshot: SnapshotAssertion) -> None:
    """The notes say it in sentences."""
    rows = [
        row(LONG, 0),
        row("x", 0),
        row("x", 0, "b"),
        row(CHANGED, 1),
        row("X", 1, "b"),
        row("new", 1),
    ]
    report = repeat_report(rows, find_repeats(rows, 0.8), 0.8)
    assert report["train"] == {
        "texts": 3,
        "exact": 1,
        "normalised": 1,
        "near": 0,
        "repeated": 1,
        "repeated_share": 1 / 3,
        "conflicts": 2,
    }
    assert report["validation"] == {
        "texts": 3,
        "exact": 0,
        "normalised": 1,
        "near": 1,
        "repeated": 2,
        "repeated_share": 2 / 3,
        "conflicts": 1,
    }
    assert [(one["split"], one["kind"], one["of"]["where"]) for one in report["examples"]] == [
        ("validation", "normalised", "train: x a"),
        ("validation", "near", "train: the quick a"),
        ("train", "exact", "train: x a"),
    ]
    assert 0.8 <= report["examples"][1]["similarity"] < 1
    assert [one["where"] for one in report["conflict_examples"][0]["rows"]] == [
        "train: x a",
        "train: x b",
        "valid: X b",
    ]
    assert repeat_notes(report, 0) == snapshot
    assert "; dropped" in repeat_notes(report, 2)[2]


def test_nothing_to_tell_gives_no_notes() -> None:
    """Zeros stay in the report."""
    rows = [row("x", 0), row("y", 1)]
    report = repeat_report(rows, find_repeats(rows, 0.8), 0.8)
    assert (report["validation"]["repeated"], report["examples"], repeat_notes(report, 0)) == (
        0,
        [],
        [],
    )


def test_progress_is_told() -> None:
    """Of what takes long: texts that could repeat another."""
    told: list[tuple[str, int, int | None]] = []
    find_repeats(
        [row("x", 0), row("y", 0), row("y", 0), row("z", 1)], 0.8, lambda *said: told.append(said)
    )
    assert told == [("looking for near duplicates", 3, 3)]


@pytest.mark.parametrize("threshold", [None, 0.8])
def test_one_row_is_no_repetition(threshold: float | None) -> None:
    """Nor is none."""
    assert kinds(row("x", 0), threshold=threshold) == [NONE]
