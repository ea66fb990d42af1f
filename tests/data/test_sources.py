"""A path becomes a source: built-in, file, folder or hub, with a fingerprint of its content."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.data.sources import Source, open_rows, open_source
from brimful.recipe import DataRecipe

Make = Callable[..., DataRecipe]


def texts_of(source: Source) -> dict[str, list[str]]:
    return {
        name: [text for part in source.parts for text in part.splits.get(name, ())]
        for name in ("train", "validation", "test")
    }


def test_a_folder_with_files_named_after_splits_has_these_splits(
    tmp_path: Path, data_recipe: Make
) -> None:
    """Other files beside them are not used, and that is noted."""
    for name in ("train-0.txt", "train-1.txt", "valid.txt", "test.txt", "trainer.txt", "README"):
        (tmp_path / name).write_text(name)
    source = open_source(data_recipe(tmp_path))
    assert texts_of(source) == {
        "train": ["train-0.txt", "train-1.txt"],
        "validation": ["valid.txt"],
        "test": ["test.txt"],
    }
    assert "README" in source.notes[0]
    assert "trainer.txt" in source.notes[1]


@pytest.mark.parametrize(
    "name",
    [
        "validation.jsonl",
        "val_1.jsonl",
        "dev.jsonl",
        "devset.jsonl",
        "Valid.jsonl",
        "dev/part.jsonl",
    ],
)
def test_validation_goes_by_several_names(tmp_path: Path, data_recipe: Make, name: str) -> None:
    """As files or as folders."""
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"text": "b"}\n')
    assert texts_of(open_source(data_recipe(tmp_path)))["validation"] == ["b"]


def test_any_other_folder_is_one_text_in_the_order_of_names(
    tmp_path: Path, data_recipe: Make
) -> None:
    """Formats may be mixed, folders nested; hidden files are left alone."""
    (tmp_path / "b.txt").write_text("plain")
    (tmp_path / "a.jsonl").write_text('{"text": "row"}\n')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "test.csv").write_text("text\ncell\n")
    (tmp_path / ".hidden.txt").write_text("no")
    assert texts_of(open_source(data_recipe(tmp_path))) == {
        "train": ["row", "plain", "cell"],
        "validation": [],
        "test": [],
    }


def test_several_paths_are_read_one_after_the_other(tmp_path: Path, data_recipe: Make) -> None:
    """Each keeps its own splits."""
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "two").mkdir()
    for name in ("train", "valid"):
        (tmp_path / "two" / f"{name}.txt").write_text(name)
    source = open_source(data_recipe([str(tmp_path / "one.txt"), str(tmp_path / "two")]))
    assert texts_of(source) == {"train": ["one", "train"], "validation": ["valid"], "test": []}


def test_documents_can_be_read_again_and_stop_at_max_documents(
    tmp_path: Path, data_recipe: Make
) -> None:
    """Blank documents do not count."""
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in ("a", " \n", "", "b", "c"))
    )
    documents = (
        open_source(data_recipe(tmp_path / "a.jsonl", max_documents=2)).parts[0].splits["train"]
    )
    assert list(documents) == list(documents) == ["a", "b"]


def test_max_documents_stops_before_later_faults(tmp_path: Path, data_recipe: Make) -> None:
    """Reading is lazy: nothing behind the last wanted document is looked at."""
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\nnot json\n')
    assert texts_of(open_source(data_recipe(tmp_path / "a.jsonl", max_documents=1)))["train"] == [
        "a"
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", ""),
        ("a.txt", " \n\t\n"),
        ("a.jsonl", ""),
        ("a.jsonl", '{"text": " "}\n'),
        ("a.csv", "text\n"),
        ("a.json", "[]"),
    ],
)
def test_sources_without_text_are_an_error(
    tmp_path: Path, data_recipe: Make, name: str, content: str, refuses: Refuses
) -> None:
    """Empty files, empty tables and white space alike."""
    (tmp_path / name).write_text(content)
    with refuses(DataError):
        texts_of(open_source(data_recipe(tmp_path / name)))


def test_the_fingerprint_follows_content_and_options(tmp_path: Path, data_recipe: Make) -> None:
    """Any byte, any file name and any reading option changes it; reading again and other folders do
    not.
    """
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("text")
    base = open_source(data_recipe(tmp_path / "one")).fingerprint
    assert open_source(data_recipe(tmp_path / "one")).fingerprint == base
    assert open_source(data_recipe(tmp_path / "two")).fingerprint == base
    others = [
        open_source(data_recipe(tmp_path / "one", **{key: value})).fingerprint
        for key, value in [("document_start", "^x"), ("max_documents", 1)]
    ]
    (tmp_path / "two" / "a.txt").write_text("Text")
    others.append(open_source(data_recipe(tmp_path / "two")).fingerprint)
    (tmp_path / "one" / "a.txt").rename(tmp_path / "one" / "b.txt")
    others.append(open_source(data_recipe(tmp_path / "one")).fingerprint)
    assert len({base, *others}) == 5


def test_a_missing_file_names_the_nearest(
    tmp_path: Path, data_recipe: Make, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    """And what else is in the folder."""
    (tmp_path / "corpus.txt").write_text("x")
    with refuses(DataError, names=["corpsu.txt", "'corpus.txt'"]):
        open_source(data_recipe(tmp_path / "corpsu.txt"))
    monkeypatch.chdir(tmp_path)
    with refuses(DataError):
        open_source(data_recipe("./nowhere/at-all/file"))


def test_a_pipe_is_called_a_pipe(tmp_path: Path, data_recipe: Make, refuses: Refuses) -> None:
    """And not a missing file with the nearest name, which is its own."""
    os.mkfifo(tmp_path / "corpus.txt")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    for name in ("corpus.txt", "gone.txt"):
        with refuses(DataError, names=[name]):
            open_source(data_recipe(tmp_path / name))


def test_a_relative_name_with_a_known_suffix_is_never_sought_on_the_hub(
    data_recipe: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refuses: Refuses
) -> None:
    """`data/train.csv` looks like owner/name, but it is a file that is not there."""
    monkeypatch.chdir(tmp_path)
    with refuses(DataError):
        open_source(data_recipe("data/train.csv"))


def test_unreadable_kinds_are_refused_with_the_list(
    tmp_path: Path, data_recipe: Make, refuses: Refuses
) -> None:
    """A single file and a folder without any readable file."""
    (tmp_path / "a.docx").write_text("x")
    for path in (tmp_path / "a.docx", tmp_path):
        with refuses(DataError):
            open_source(data_recipe(path))


def test_an_unknown_built_in_corpus_names_the_nearest(data_recipe: Make, refuses: Refuses) -> None:
    """With all of them."""
    with refuses(DataError, names=["'python-docs'"]):
        open_source(data_recipe("builtin:python-doc"))


def test_wikitext_articles_are_documents(shared_data: Path, data_recipe: Make) -> None:
    """The validation file of WikiText-2 holds 60 articles; every byte but the blank first line is
    in one.
    """
    source = open_source(data_recipe(shared_data / "wikitext-2", document_start="^ = [^=]"))
    articles = list(source.parts[0].splits["validation"])
    assert len(articles) == 60
    assert all(article.startswith(" = ") for article in articles)
    assert sum(len(article.encode()) for article in articles) == 1_121_681 - 2


def test_the_same_places_can_be_read_as_rows(tmp_path: Path, data_recipe: Make) -> None:
    """With their splits, again and again, up to max_documents; the text column plays no part."""
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"q": f"{name} {number}"}) + "\n" for number in range(3))
        )
    (part,) = open_rows(data_recipe(tmp_path, max_documents=2)).parts
    found = {name: [row.columns["q"] for row in rows] for name, rows in part.splits.items()}
    assert found == {"train": ["train 0", "train 1"], "validation": ["valid 0", "valid 1"]}
    assert list(part.splits["train"]) == list(part.splits["train"])


def test_rows_and_texts_of_one_file_have_fingerprints_of_their_own(
    tmp_path: Path, data_recipe: Make
) -> None:
    """So do other limits, not other text columns."""
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    rows = {
        open_rows(data_recipe(tmp_path / "a.jsonl", **fields)).fingerprint
        for fields in ({}, {"text_column": "b"}, {"max_documents": 5})
    }
    assert len(rows) == 2
    assert open_source(data_recipe(tmp_path / "a.jsonl")).fingerprint not in rows


def test_a_source_without_rows_is_an_error(
    tmp_path: Path, data_recipe: Make, refuses: Refuses
) -> None:
    """When it is read."""
    (tmp_path / "a.csv").write_text("prompt,completion\n")
    with refuses(DataError, names=["a.csv"]):
        list(open_rows(data_recipe(tmp_path / "a.csv")).parts[0].splits["train"])


def test_with_a_file_type_every_file_of_a_folder_is_read(
    tmp_path: Path, data_recipe: Make, refuses: Refuses
) -> None:
    """Those without a known suffix, too; hidden ones are left alone."""
    for name in ("train.data", "dev.data", ".hidden"):
        (tmp_path / name).write_text(f"1\t{name}\n")
    with refuses(DataError):
        open_source(data_recipe(tmp_path))
    source = open_source(data_recipe(tmp_path, file_type="tsv", text_column=1))
    assert texts_of(source) == {"train": ["train.data"], "validation": ["dev.data"], "test": []}
    assert texts_of(
        open_source(data_recipe(tmp_path / "dev.data", file_type="tsv", text_column=1))
    )["train"] == ["dev.data"]


def test_encodings_are_found_file_by_file_and_said(
    tmp_path: Path, data_recipe: Make, snapshot: SnapshotAssertion
) -> None:
    """In the description and in a note."""
    (tmp_path / "a.txt").write_bytes("été".encode("cp1252"))
    (tmp_path / "b.txt").write_bytes("été".encode())
    source = open_source(data_recipe(tmp_path, encoding="auto"))
    assert texts_of(source)["train"] == ["été", "été"]
    assert source.description == snapshot
    assert [note.split(",")[0] for note in source.notes] == snapshot


def test_an_unknown_encoding_is_refused_before_anything_is_read(
    tmp_path: Path, data_recipe: Make, refuses: Refuses
) -> None:
    """With the nearest."""
    (tmp_path / "a.txt").write_text("x")
    with refuses(DataError, names=["data.encoding", "'latin1x'", "'latin-1'"]):
        open_source(data_recipe(tmp_path / "a.txt", encoding="latin1x"))


def test_header_encoding_and_file_type_are_part_of_both_fingerprints(
    tmp_path: Path, data_recipe: Make
) -> None:
    """Each of its own; what is as ever changes nothing."""
    (tmp_path / "a.csv").write_text("text\nx\n")
    changes: list[dict[str, object]] = [
        {},
        {"header": False},
        {"encoding": "cp1252"},
        {"file_type": "csv"},
    ]
    for opened in (open_source, open_rows):
        assert (
            len(
                {
                    opened(data_recipe(tmp_path / "a.csv", **fields)).fingerprint
                    for fields in changes
                }
            )
            == 4
        )
        assert (
            opened(data_recipe(tmp_path / "a.csv", header=True)).fingerprint
            == opened(data_recipe(tmp_path / "a.csv")).fingerprint
        )
