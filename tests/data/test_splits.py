"""Documents are held out deterministically, by hash or by position."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.data.sources import open_source
from brimful.data.splits import (
    LabelledDocuments,
    check_not_empty,
    far_from_shares,
    split_of,
)
from brimful.recipe import DataRecipe

Make = Callable[..., DataRecipe]


def rows(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def labelled(data: DataRecipe) -> list[tuple[str, str]]:
    return list(LabelledDocuments(open_source(data), data))


def test_the_shares_are_met_on_many_documents() -> None:
    """Within the spread of a fair draw (10,000 documents, 4 standard deviations)."""
    found = [split_of(f"document {number}", 0.1, 0.05) for number in range(10_000)]
    assert abs(found.count("validation") - 1000) < 120
    assert abs(found.count("test") - 500) < 90


def test_a_documents_split_depends_on_its_text_only(tmp_path: Path, data_recipe: Make) -> None:
    """Equal texts land together, and adding documents moves none."""
    few = labelled(
        data_recipe(rows(tmp_path / "few.jsonl", [f"text {n}" for n in range(50)]), validation=0.3)
    )
    many = labelled(
        data_recipe(
            rows(tmp_path / "many.jsonl", [f"text {n}" for n in range(200)] + ["text 3"] * 5),
            validation=0.3,
        )
    )
    splits = {text: split for split, text in many}
    assert all(splits[text] == split for split, text in few)
    assert {split for split, text in many if text == "text 3"} == {splits["text 3"]}


def test_raising_the_validation_share_only_adds_to_it() -> None:
    """What was validation stays validation."""
    texts = [str(number) for number in range(500)]
    small, large = (
        {text for text in texts if split_of(text, share, 0.1) == "validation"}
        for share in (0.05, 0.2)
    )
    assert small < large


def test_by_position_the_end_of_the_text_is_held_out(tmp_path: Path, data_recipe: Make) -> None:
    """Cut by characters, also across documents; joined, nothing is lost."""
    (tmp_path / "a.txt").write_text("".join(f"{number:03d} é\n" for number in range(100)))
    pieces = labelled(
        data_recipe(
            tmp_path / "a.txt",
            split_by="position",
            validation=0.1,
            test=0.05,
            document_start="^0[0-9]5",
        )
    )
    joined = {
        split: "".join(text for name, text in pieces if name == split)
        for split in ("train", "validation", "test")
    }
    assert {split: len(text) for split, text in joined.items()} == {
        "train": 510,
        "validation": 60,
        "test": 30,
    }
    assert "".join(joined.values()) == (tmp_path / "a.txt").read_text()


def test_tinyshakespeare_is_cut_where_everybody_cuts_it(
    shared_data: Path, data_recipe: Make
) -> None:
    """The first 90 % train: 1,003,854 characters, as in char-rnn's and nanoGPT's preparation."""
    pieces = labelled(
        data_recipe(
            shared_data / "tinyshakespeare" / "input.txt", split_by="position", validation=0.1
        )
    )
    assert [(split, len(text)) for split, text in pieces] == [
        ("train", 1_003_854),
        ("validation", 111_540),
    ]


def test_a_single_document_is_cut_between_paragraphs_and_nothing_is_lost(
    tmp_path: Path, data_recipe: Make, snapshot: SnapshotAssertion
) -> None:
    """Training comes first, then validation, then test; no line is in two of them."""
    paragraphs = [f"Line {n} of the play.\nIts second line {n}.\n\n" for n in range(200)]
    (tmp_path / "play.txt").write_text("".join(paragraphs))
    documents = LabelledDocuments(
        open_source(data := data_recipe(tmp_path / "play.txt", test=0.1)), data
    )
    (train, validation, test) = [text for _, text in documents]
    assert [split for split, _ in documents] == ["train", "validation", "test"]
    assert train + validation + test == "".join(paragraphs)
    for piece in (train, validation):
        assert piece.endswith("\n\n")
    whole = len("".join(paragraphs))
    assert abs(len(validation) - 0.05 * whole) < 0.02 * whole
    assert abs(len(test) - 0.1 * whole) < 0.02 * whole
    assert documents.notes == snapshot


def test_text_without_paragraphs_is_cut_at_a_line_a_word_or_anywhere(
    tmp_path: Path, data_recipe: Make
) -> None:
    """Whatever there is nearby."""
    for number, (text, end) in enumerate(
        [("a line of text\n" * 100, "\n"), ("word " * 300, " "), ("x" * 1000, "x")]
    ):
        path = tmp_path / f"{number}.txt"
        path.write_text(text)
        (train, validation) = [piece for _, piece in labelled(data_recipe(path))]
        assert train + validation == text
        assert train.endswith(end)
        assert 0.03 < len(validation) / len(text) < 0.07


def test_few_documents_are_cut_by_position_and_many_are_not(
    tmp_path: Path, data_recipe: Make, snapshot: SnapshotAssertion
) -> None:
    """Few: the hash would leave a split empty. A document at the border stays whole if it ends
    nearby.
    """
    texts = [f"document {number} says this.\n" * 5 for number in range(6)]
    data = data_recipe(rows(tmp_path / "few.jsonl", texts))
    documents = LabelledDocuments(open_source(data), data)
    assert documents.num_few == 6
    few = data_recipe(data.path, validation=0.01)
    assert LabelledDocuments(open_source(few), few).num_few == 0, "too little text to cut"
    assert "".join(text for _, text in documents) == "".join(texts)
    assert [split for split, _ in documents][-1] == "validation"
    assert documents.notes == snapshot
    joined = data_recipe(data.path, document_start="^#")
    documents = LabelledDocuments(open_source(joined), joined)
    assert documents.num_few == 1
    assert documents.notes == snapshot
    many = data_recipe(rows(tmp_path / "many.jsonl", [f"text {n}" for n in range(200)]))
    documents = LabelledDocuments(open_source(many), many)
    assert (documents.num_few, documents.notes) == (0, [])
    assert all(split == split_of(text, 0.05, 0) for split, text in documents)


def test_few_documents_with_a_validation_split_of_their_own_all_train(
    tmp_path: Path, data_recipe: Make
) -> None:
    """Nothing more is held out."""
    (tmp_path / "train.txt").write_text("one")
    (tmp_path / "valid.txt").write_text("two")
    assert labelled(data_recipe(tmp_path)) == [("train", "one"), ("validation", "two")]


def test_a_split_far_from_its_share_is_told(data_recipe: Make, snapshot: SnapshotAssertion) -> None:
    """Where one of few documents is much longer than the others."""
    data = data_recipe("x")
    assert far_from_shares({"train": 400, "validation": 600}, data) == snapshot
    assert far_from_shares({"train": 900, "validation": 100}, data) == []


def test_splits_of_the_source_are_kept(tmp_path: Path, data_recipe: Make) -> None:
    """A missing test split is carved only when asked for, from training documents only."""
    texts = [str(number) for number in range(60)]
    rows(tmp_path / "train.jsonl", texts)
    rows(tmp_path / "valid.jsonl", ["held", "out"])
    assert [split for split, _ in labelled(data_recipe(tmp_path))] == ["train"] * 60 + [
        "validation"
    ] * 2
    carved = labelled(data_recipe(tmp_path, test=0.2))
    assert [text for split, text in carved if split == "validation"] == ["held", "out"]
    assert {split for split, text in carved if text in texts} == {"train", "test"}


def test_reading_twice_gives_the_same_pairs(tmp_path: Path, data_recipe: Make) -> None:
    """The object is no one-way iterator."""
    data = data_recipe(
        rows(tmp_path / "a.jsonl", ["a", "b", "c"]), split_by="position", validation=0.5
    )
    documents = LabelledDocuments(open_source(data), data)
    assert list(documents) == list(documents) != []


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (
            {"train": 1},
            [
                "validation split would be empty",
                "of 1 document its share of 0.05 holds none",
                "data.validation=larger",
                "data.split_by=position",
            ],
        ),
        ({"validation": 3}, ["train split would be empty", "data.validation=smaller"]),
        ({"train": 3, "validation": 1}, ["test split would be empty", "data.test=larger"]),
    ],
)
def test_an_empty_split_says_the_numbers_and_the_remedy(
    data_recipe: Make, counts: dict[str, int], said: list[str]
) -> None:
    """Before anything is tokenised."""
    with pytest.raises(DataError) as caught:
        check_not_empty(counts, data_recipe("x", test=0.01), 0)
    assert [part for part in said if part not in str(caught.value)] == []
