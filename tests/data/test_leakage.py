"""Duplicates are counted within training and between training and the other splits."""

import random

from syrupy.assertion import SnapshotAssertion

from brimful.data.leakage import leakage_notes, normalised, scan, without

PAIRS = [
    ("train", "one text"),
    ("train", "another"),
    ("validation", "One  TEXT\n"),
    ("train", "one text"),
    ("train", "ANOTHER"),
    ("validation", "another"),
    ("validation", "new"),
    ("validation", "new"),
    ("test", "Straße"),
    ("train", "STRASSE"),
]


def test_exact_and_normalised_duplicates_are_told_apart() -> None:
    """Case and white space do not hide a copy; twins within validation are none of training's
    business.
    """
    report = scan(PAIRS).report
    assert report["train"] == {
        "documents": 5,
        "exact": 1,
        "exact_share": 0.2,
        "normalised": 2,
        "normalised_share": 0.4,
    }
    assert report["validation"] == {
        "documents": 4,
        "exact": 1,
        "exact_share": 0.25,
        "normalised": 2,
        "normalised_share": 0.5,
    }
    assert (report["test"]["exact"], report["test"]["normalised"]) == (0, 1)
    assert report["test"]["normalised_share"] == 1.0


def test_leaked_documents_can_be_dropped() -> None:
    """Training keeps everything, the others lose what stands in training."""
    found = scan(PAIRS)
    assert found.leaked == {2: "validation", 5: "validation", 8: "test"}
    assert list(without(PAIRS, found.leaked)) == [
        pair for number, pair in enumerate(PAIRS) if number not in (2, 5, 8)
    ]


def test_examples_show_the_first_leaks() -> None:
    """Short, with their split and kind."""
    pairs = [("train", "x" * 500), ("validation", "x" * 500), ("validation", "X" * 500)]
    assert scan(pairs).report["examples"] == [
        {"split": "validation", "kind": "exact", "text": "x" * 120},
        {"split": "validation", "kind": "normalised", "text": "X" * 120},
    ]


def test_counts_equal_those_of_a_plain_comparison() -> None:
    """On random documents from a small vocabulary, against sets of texts."""
    draw = random.Random(1)
    pairs = [
        (
            draw.choice(["train", "train", "validation", "test"]),
            draw.choice("abAB") + " " * draw.randint(0, 2),
        )
        for _ in range(300)
    ]
    for key, fold in (("exact", str), ("normalised", normalised)):
        texts = [fold(text) for split, text in pairs if split == "train"]
        expected = {"train": len(texts) - len(set(texts))}
        for split in ("validation", "test"):
            expected[split] = sum(fold(text) in texts for name, text in pairs if name == split)
        assert {split: scan(pairs).report[split][key] for split in expected} == expected


def test_long_texts_are_compared_as_a_whole_though_they_are_hashed_piece_by_piece() -> None:
    """Words and white space that run over the cuts; texts that differ in one space, or at the end."""
    words = "One two  three \n" * 20_000 + "four,Five" * 20_000 + " \n " * 40_000
    texts = [f" {words} six", f"{words} SIX\n", f"{words}six", f"{words} six "]
    found = scan([("train", text) for text in [*texts, texts[0]]]).report["train"]
    assert (found["exact"], found["normalised"]) == (1, 4)
    assert scan([("train", f"{words}{end}") for end in "xyz"]).report["train"]["normalised"] == 0
    parted = [f"{'a' * 70_000}{'b' * 70_000}", f"{'a' * 70_000} {'b' * 70_000}"]
    assert scan([("train", text) for text in parted]).report["train"]["normalised"] == 0


def test_progress_is_told() -> None:
    """At the end at least, with the number of documents."""
    seen: list[tuple[str, int, int | None]] = []
    scan(PAIRS, lambda what, done, total: seen.append((what, done, total)))
    assert seen[-1] == ("reading", 10, 10)


def test_what_was_found_is_said_in_sentences(snapshot: SnapshotAssertion) -> None:
    """Per split that has duplicates; what is compared may be prompts."""
    scanned = scan([("train", "a"), ("train", "A"), ("validation", "a"), ("test", "b")])
    assert leakage_notes(scanned, 1, "prompt") == snapshot
    assert leakage_notes(scan([("train", "a"), ("test", "b")]), 0) == []
