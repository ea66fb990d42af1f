"""Documents are held out deterministically, by hash or by position."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from brimful.base.errors import DataError
from brimful.data.sources import open_source
from brimful.data.splits import LabelledDocuments, check_not_empty, split_of
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
