"""Labelled texts from files: honest splits, stated labels, every repeated text found, and clear
errors for bad input.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from json_lines import write_rows
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.labelled import LabelledTexts, read_labelled
from brimful.recipe import Recipe

Read = Callable[..., LabelledTexts]
WORDS = [
    "red",
    "green",
    "blue",
    "cat",
    "dog",
    "sees",
    "likes",
    "the",
    "a",
    "tree",
    "house",
    "runs",
    "far",
    "away",
    "today",
]


def recipe_for(path: Path | str | list[str], labels: JsonDict | None = None, **data: Any) -> Recipe:
    """Method classify on the data at a path."""
    values = {
        "name": "classified",
        "method": "classify",
        "sequence_length": 64,
        "batch": {"sequences": 2},
        "training": {"steps": 1},
        "model": "owner/name",
        "data": {"path": path if isinstance(path, list) else str(path), "validation": 0.2, **data},
        "optimizer": {"learning_rate": 1e-3},
        "labels": labels or {},
    }
    return Recipe.model_validate(values)


def read(
    path: Path | str | list[str], labels: JsonDict | None = None, **data: Any
) -> LabelledTexts:
    return read_labelled(recipe_for(path, labels, **data))


def jsonl(path: Path, *rows: JsonDict) -> Path:
    return write_rows(path, rows)


def some(count: int, start: int = 0) -> list[JsonDict]:
    """Rows that are nothing alike, of two labels."""
    drawn = random.Random(start)
    return [
        {"text": f"{' '.join(drawn.choices(WORDS, k=6))} {start + number}", "label": number % 2}
        for number in range(count)
    ]


def refused(
    pattern: str, path: Path | str | list[str], labels: JsonDict | None = None, **data: Any
) -> None:
    with pytest.raises(DataError, match=pattern):
        read(path, labels, **data)


CSV = 'text,label\n"one, two",1\n"say ""no""",0\nthree,1\nfour,0\nfive,1\nsix,0\n'


@pytest.mark.parametrize(
    ("name", "content", "data"),
    [
        ("a.csv", CSV, {}),
        ("a.csv", CSV.replace("\n", "\r\n"), {}),
        ("a.csv", CSV.removeprefix("text,label\n"), {"text_column": 0, "label_column": 1}),
        ("a.csv", CSV, {"text_column": 0, "label_column": 1, "header": True}),
        ("a.csv", "\ufeff" + CSV, {"text_column": "text"}),
        ("a.data", CSV, {"file_type": "csv"}),
        (
            "a.tsv",
            'label\ttext\n1\tone, two\n0\tsay "no"\n1\tthree\n0\tfour\n1\tfive\n0\tsix\n',
            {},
        ),
        (
            "a.json",
            (
                '[["one, two", 1], ["say \\"no\\"", 0], ["three", 1], ["four", 0], ["five", 1],'
                ' ["six", 0]]'
            ),
            {"text_column": 0, "label_column": 1},
        ),
    ],
)
def test_tables_of_every_kind_give_the_same_texts_and_targets(
    tmp_path: Path, name: str, content: str, data: JsonDict
) -> None:
    """With a header or without, by name or by number, CRLF, a byte order mark, another suffix."""
    (tmp_path / name).write_bytes(content.encode())
    found = read(tmp_path / name, validation=0.34, **data)
    pairs = [
        (text, target)
        for split in found.splits.values()
        for text, target in zip(split.texts, split.targets.tolist(), strict=True)
    ]
    assert sorted(pairs) == sorted(
        [("one, two", 1), ('say "no"', 0), ("three", 1), ("four", 0), ("five", 1), ("six", 0)]
    )
    assert (found.labels.names, found.labels.multiple, found.labels.positive) == (
        ("0", "1"),
        False,
        1,
    )
    assert {name: len(split.texts) for name, split in found.splits.items()} == {
        "train": 4,
        "validation": 2,
    }


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
def test_encodings_are_found_and_said(tmp_path: Path, encoding: str) -> None:
    """The same texts from each; the fingerprint follows the bytes."""
    texts = ["größer", "naïve", "été", "rosé"]
    (tmp_path / "a.csv").write_bytes(
        (
            "text,label\n" + "".join(f"{text},{number % 2}\n" for number, text in enumerate(texts))
        ).encode(encoding)
    )
    found = read(tmp_path / "a.csv", validation=0.5, encoding="auto")
    assert sorted(text for split in found.splits.values() for text in split.texts) == sorted(texts)
    assert any(f"is read as {encoding}" in note for note in found.report["notes"]) == (
        encoding != "utf-8"
    )


def test_parquet_with_lists_of_labels_has_several_per_text(tmp_path: Path) -> None:
    """Rows of ones; an empty list is none. Held out by the rarest label of each, of equally rare
    ones the first.
    """
    labels = [["a"], ["b", "a"], [], ["c"], ["b"]] * 20
    pyarrow.parquet.write_table(
        pyarrow.table(
            {"text": [f"text number {number}" for number in range(100)], "label": labels}
        ),
        tmp_path / "a.parquet",
    )
    found = read(tmp_path / "a.parquet", {"near_duplicates": None})
    assert (found.labels.names, found.labels.multiple, found.labels.positive) == (
        ("a", "b", "c"),
        True,
        None,
    )
    train = found.splits["train"]
    assert (train.targets.dtype, train.targets.shape) == (np.float32, (80, 3))
    for text, row in zip(train.texts, train.targets.tolist(), strict=True):
        assert row == [float(name in labels[int(text.split()[-1])]) for name in "abc"]
    counts = found.report["splits"]["validation"]["labels"]
    assert (
        counts["a"],
        counts["c"],
        sum(not row.any() for row in found.splits["validation"].targets),
    ) == (8, 4, 4)


def test_several_labels_in_a_cell_of_text_are_cut_where_the_recipe_asks(tmp_path: Path) -> None:
    """They are one label otherwise."""
    (tmp_path / "a.csv").write_text(
        "text;label\n".replace(";", ",")
        + "".join(f"words {number},x|y\nothers {number},x\n" for number in range(10))
    )
    several = read(
        tmp_path / "a.csv", {"kind": "multiple", "separator": "|", "near_duplicates": None}
    )
    assert (several.labels.names, several.labels.multiple) == (("x", "y"), True)
    assert read(tmp_path / "a.csv", {"near_duplicates": None}).labels.names == ("x", "x|y")


def test_splits_of_the_source_are_kept_and_the_rest_is_held_out_by_label(tmp_path: Path) -> None:
    """In the order of the files."""
    jsonl(tmp_path / "train.jsonl", *some(200))
    own = jsonl(tmp_path / "test.jsonl", *some(10, start=1000))
    found = read(tmp_path, {"near_duplicates": None}, test=0.3)
    assert found.splits["test"].texts == tuple(row["text"] for row in some(10, start=1000))
    assert found.splits["test"].wheres[3] == f"{own}:4"
    assert Counter(found.splits["validation"].targets.tolist()) == {0: 20, 1: 20}
    assert len(found.splits["train"].texts) == 160
    assert list(found.splits["train"].texts) == [
        row["text"] for row in some(200) if row["text"] not in found.splits["validation"].texts
    ]


def test_several_paths_are_held_out_together(tmp_path: Path) -> None:
    """So a text that stands in both files is on one side only."""
    for name in "ab":
        jsonl(tmp_path / f"{name}.jsonl", *some(100))
    found = read([str(tmp_path / f"{name}.jsonl") for name in "ab"], {"near_duplicates": None})
    assert {len(split.texts) for split in found.splits.values()} == {160, 40}
    assert set(found.splits["train"].texts).isdisjoint(found.splits["validation"].texts)
    assert found.report["duplicates"]["validation"]["repeated"] == 0
    assert found.report["duplicates"]["train"]["exact"] == 80


def planted(
    rows: list[tuple[str, str]], held_out: list[tuple[str, str]]
) -> tuple[list[tuple[str, str]], dict[int, str], set[int]]:
    """Twelve of each hundred held-out rows replaced by repetitions of rows: which, of what kind,
    and which with another label.
    """
    drawn = random.Random(7)
    changed, kinds, conflicts = list(held_out), {}, set()
    for number in drawn.sample(range(len(held_out)), round(0.12 * len(held_out))):
        kind = drawn.choice(["exact", "normalised", "near"])
        text, label = drawn.choice([row for row in rows if len(row[0]) > 120 or kind != "near"])
        words = text.split(" ")
        if kind == "normalised":
            text = text.upper() + " "
        elif kind == "near":
            words[len(words) // 2] = "wumpus"
            text = " ".join(words)
        elif drawn.random() < 0.5:
            label = "1" if label == "0" else "0"
            conflicts.add(number)
        changed[number], kinds[number] = (text, label), kind
    return changed, kinds, conflicts


@pytest.mark.parametrize("duplicates", ["report", "drop"])
def test_planted_repetitions_in_real_sentences_are_found_to_the_row(
    tmp_path: Path, shared_data: Path, duplicates: str
) -> None:
    """Exact, case and white space, one word of a long text changed; some with another label. What
    was there before is found as well.
    """
    files = {
        name: (shared_data / "sst2" / f"{name}.tsv").read_text().splitlines()
        for name in ("train", "dev")
    }
    rows = {
        name: [(line.split("\t")[0], line.split("\t")[1]) for line in lines]
        for name, lines in files.items()
    }
    before = {text for text, _ in rows["train"]}
    assert not before & {text for text, _ in rows["dev"]}
    changed, kinds, conflicts = planted(rows["train"], rows["dev"])
    for name, made in (("train", rows["train"]), ("dev", changed)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in made))
    found = read(tmp_path, text_column=0, label_column=1, duplicates=duplicates)
    split, report = found.splits["validation"], found.report["duplicates"]["validation"]
    planted_wheres = {f"{tmp_path / 'dev.tsv'}:{number + 1}" for number in kinds}
    counts = Counter(kinds.values())
    assert len(kinds) == 105
    assert (report["exact"], report["normalised"], report["near"]) == (
        counts["exact"],
        counts["exact"] + counts["normalised"],
        counts["near"],
    )
    assert (report["repeated"], report["conflicts"]) == (105, len(conflicts))
    assert conflicts
    if duplicates == "report":
        assert {
            where
            for where, repeated in zip(split.wheres, split.is_repeated_E, strict=True)
            if repeated
        } == planted_wheres
        assert len(split.texts) == 872
    else:
        assert planted_wheres.isdisjoint(split.wheres)
        assert (
            len(split.texts),
            split.is_repeated_E.any(),
            found.report["duplicates"]["dropped"],
        ) == (767, False, 105)
    assert len(found.splits["train"].texts) == 6920


def test_real_messages_are_read_whole(shared_data: Path) -> None:
    """No suffix, no header, CRLF, quotation marks as text: 5,574 rows, 747 spam, 415 that repeat
    another but for case and white space.
    """
    found = read(
        shared_data / "sms_spam",
        {"near_duplicates": None},
        file_type="tsv",
        text_column=1,
        label_column=0,
        validation=0.1,
        test=0.1,
    )
    texts = [text for split in found.splits.values() for text in split.texts]
    assert len(texts) == 5574
    assert not any(text.endswith("\r") for text in texts)
    assert found.labels == type(found.labels)(("ham", "spam"), False, 1)
    counts = {name: split["labels"] for name, split in found.report["splits"].items()}
    assert sum(count["spam"] for count in counts.values()) == 747
    for count in (counts["validation"], counts["test"]):
        assert abs(count["spam"] - 74.7) <= 1
        assert abs(count["ham"] - 482.7) <= 3
    assert [found.report["duplicates"][name]["repeated"] for name in ("validation", "test")] == [
        0,
        0,
    ]
    assert len(texts) - len({" ".join(text.casefold().split()) for text in texts}) == 415


def test_texts_are_prepared_before_they_are_compared(tmp_path: Path) -> None:
    """Composed and decomposed letters are one text."""
    jsonl(tmp_path / "train.jsonl", {"text": "caf\u00e9", "label": 0}, *some(10))
    jsonl(tmp_path / "valid.jsonl", {"text": "cafe\u0301", "label": 0}, *some(10, start=50))
    prepared = read(tmp_path)
    assert prepared.splits["validation"].texts[0] == "caf\u00e9"
    assert prepared.splits["validation"].is_repeated_E.tolist() == [True] + [False] * 10
    assert not read(tmp_path, {"preprocess": []}).splits["validation"].is_repeated_E.any()


def test_labels_are_mapped_and_that_is_said(tmp_path: Path) -> None:
    """Three classes become two."""
    jsonl(
        tmp_path / "a.jsonl", *({**row, "label": number % 3} for number, row in enumerate(some(60)))
    )
    found = read(
        tmp_path / "a.jsonl", {"mapping": {"2": "1"}, "names": ["0", "1"], "positive": "1"}
    )
    assert found.report["notes"][0] == "B207: labels: 0 = 0, 1 = 1; 2 -> 1"
    assert found.report["labels"] == {
        "names": ["0", "1"],
        "multiple": False,
        "positive": "1",
        "mapping": {"2": "1"},
    }
    assert (
        sum(found.report["splits"][name]["labels"]["1"] for name in ("train", "validation")) == 40
    )


def test_empty_texts_are_left_out_and_counted(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Blank or null, whatever their label; most of them empty is an error."""
    blanks = [{"text": " \n", "label": 1}, {"text": None, "label": None}, {"text": "", "label": 7}]
    path = jsonl(tmp_path / "a.jsonl", *some(20), *blanks)
    found = read(path)
    assert found.report["notes"] == snapshot
    assert sum(len(split.texts) for split in found.splits.values()) == 20
    refused(
        r"6 of 10 rows have no text in column 'text'",
        jsonl(tmp_path / "b.jsonl", *some(4), *blanks, *blanks),
    )


def test_labels_that_a_benchmark_does_not_publish_leave_their_split_out(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """Minus one throughout; one among others is a label."""
    jsonl(tmp_path / "train.jsonl", *some(20))
    jsonl(tmp_path / "test.jsonl", {"text": "x", "label": -1}, {"text": "y", "label": -1})
    found = read(tmp_path)
    assert list(found.splits) == ["train", "validation"]
    assert found.report["notes"] == snapshot
    jsonl(tmp_path / "test.jsonl", {"text": "x", "label": -1}, {"text": "y", "label": 1})
    refused(r"test\.jsonl:1: unknown label '-1' in test", tmp_path)


def test_a_text_column_and_a_label_column_that_are_one_are_an_error(tmp_path: Path) -> None:
    """As they are when they are the wrong way round."""
    path = jsonl(tmp_path / "a.jsonl", *some(300))
    refused("are the same column, 'text'", path, text_column="text", label_column="text")
    (tmp_path / "a.csv").write_text(
        "text,label\n" + "".join(f"{row['label']},{row['text']}\n" for row in some(300))
    )
    refused("wrong way round", tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"text,label\nx,1\ny\n", r"a\.csv:3: 1 fields, but the header names 2"),
        (
            "a.csv",
            b'text,label\nx,1\n"open,0\n' + b"y,1\n" * 99,
            r"a\.csv:3: not valid CSV.*opens in line 3",
        ),
        (
            "a.csv",
            b"text,label\nx,1\n\xe9,0\n",
            r"a\.csv:3: byte 1 of the line is 0xe9.*data\.encoding=auto",
        ),
        ("a.csv", b"text,label\nx,1\ny\0,0\n", r"a\.csv:3: character 2 of the line is NUL"),
        ("a.csv", b"text,label\nx,1\ny,\n", r"a\.csv:3: the label is missing"),
        ("a.csv", b"text,label\nx,1\ny,1\nz,1\n", r"all 2 training texts have the label '1'"),
        (
            "a.csv",
            b"text,class\nx,1\n",
            (
                r"a\.csv:2: no column 'label'. Columns: text, class\. Choose one with"
                r" data\.label_column=NAME"
            ),
        ),
        ("a.csv", b"text,label\n", r"a\.csv holds no rows"),
        ("a.csv", b"", r"a\.csv holds no rows"),
        (
            "a.jsonl",
            b'{"text": "x", "label": 1}\n{"text": 5, "label": 0}\n',
            r"a\.jsonl:2: field 'text' holds 5 \(int\)",
        ),
        (
            "a.jsonl",
            b'{"text": "x", "label": 0.5}\n',
            r"a\.jsonl:1: the label 0\.5 lies between classes",
        ),
        (
            "a.jsonl",
            b'{"text": "x", "label": ["a"]}\n{"text": "y", "label": null}\n',
            r"a\.jsonl:2: the label is missing",
        ),
        ("a.txt", b"some text\n", r"plain text without columns.*no labels.*data\.file_type=tsv"),
        ("data", b"ham\tx\n", r"not of a readable kind.*data\.file_type=tsv"),
    ],
)
def test_bad_input_is_named_with_its_place(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    """And with what to do."""
    (tmp_path / name).write_bytes(content)
    refused(said, tmp_path / name)


def test_an_unknown_label_in_test_names_row_label_and_remedy(tmp_path: Path) -> None:
    """Before training."""
    jsonl(tmp_path / "train.jsonl", *some(20))
    path = jsonl(tmp_path / "test.jsonl", *some(3, start=100), {"text": "x", "label": 2})
    refused(
        rf"{path}:4: unknown label '2' in test.*training has: 0, 1\. 1 of 4 rows.*labels\.mapping",
        tmp_path,
    )
    assert read(tmp_path, {"mapping": {"2": "1"}}).labels.names == ("0", "1")


def test_a_label_that_validation_would_lack_is_an_error_with_numbers(tmp_path: Path) -> None:
    """Too few texts with it, or only repeated ones."""
    path = jsonl(
        tmp_path / "a.jsonl",
        *({"text": f"{row['text']}", "label": "common"} for row in some(40)),
        {"text": "only one", "label": "rare"},
    )
    refused(
        r"validation split would hold no text with the label 'rare': train 33 texts \(common 32,"
        r" rare 1\); validation 8",
        path,
    )
    jsonl(tmp_path / "train.jsonl", *some(40))
    jsonl(
        tmp_path / "valid.jsonl",
        some(40)[1],
        *(row for row in some(20, start=100) if row["label"] == 0),
    )
    (tmp_path / "a.jsonl").unlink()
    refused(
        r"no text with the label '1' when texts that repeat others are left out.*of which 1 repeat"
        r" texts before them.*near_duplicates, now 0\.8",
        tmp_path,
    )
    refused(r"no text with the label '1'", tmp_path, duplicates="drop")


def test_a_test_split_that_only_repeats_training_is_an_error(tmp_path: Path) -> None:
    """Nothing would be left to score; one that lacks a label is told of."""
    jsonl(tmp_path / "train.jsonl", *some(40))
    jsonl(tmp_path / "test.jsonl", *some(4))
    refused(
        r"the test split would hold no text when texts that repeat others are left out", tmp_path
    )
    jsonl(tmp_path / "test.jsonl", *(row for row in some(9, start=70) if row["label"] == 1))
    assert any(
        note.startswith("B209: test: no text has the label 0")
        for note in read(tmp_path).report["notes"]
    )


def test_many_labels_may_be_missing_where_few_are_held_out(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """Training has them first; the note says which."""
    path = jsonl(tmp_path / "a.jsonl", *some(40), {"text": "only one", "label": 2})
    found = read(path)
    assert found.labels.names == ("0", "1", "2")
    assert found.report["notes"] == snapshot


def test_a_first_row_that_may_be_a_header_or_may_not_is_asked_about(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """Where the recipe leaves it open."""
    body = "".join(f"{row['text']},{row['label']}\n" for row in some(30))
    (tmp_path / "a.csv").write_text(f"sentence,class\n{body}")
    refused(
        r"a\.csv:1: the first row reads like names of columns.*data\.header=true",
        tmp_path / "a.csv",
        text_column=0,
        label_column=1,
    )
    assert read(tmp_path / "a.csv", text_column=0, label_column=1, header=True).labels.names == (
        "0",
        "1",
    )
    assert read(tmp_path / "a.csv", text_column=0, label_column=1, header=False).labels.names == (
        "0",
        "1",
        "class",
    )
    (tmp_path / "b.csv").write_text(f"something,1\n{body}")
    assert (
        " ".join(
            read(tmp_path / "b.csv", text_column="something", label_column="1").report["notes"]
        )
        == snapshot
    )


def test_one_line_of_ten_megabytes_is_no_trouble(tmp_path: Path) -> None:
    """As a text among others; as what stands where the header should be."""
    huge = " ".join(f"word{number % 9973}" for number in range(1_000_000))
    body = "".join(f"{row['text']},{row['label']}\n" for row in some(30))
    (tmp_path / "a.csv").write_text(f"text,label\n{huge},1\n{body}")
    started = time.process_time()
    found = read(tmp_path / "a.csv", {"near_duplicates": None})
    assert max(
        len(text) for text in found.splits["train"].texts + found.splits["validation"].texts
    ) == len(huge)
    assert time.process_time() - started < 4
    (tmp_path / "b.csv").write_text(f"{huge},1\n{body}")
    refused("no column 'text'", tmp_path / "b.csv")


def test_position_cannot_hold_labelled_texts_out(tmp_path: Path) -> None:
    """They are whole."""
    refused(r"data\.split_by=document", jsonl(tmp_path / "a.jsonl", *some(9)), split_by="position")


@pytest.mark.parametrize(
    ("labels", "data"),
    [
        ({"near_duplicates": 0.9}, {}),
        ({"mapping": {"1": "one"}}, {}),
        ({"preprocess": []}, {}),
        ({"positive": "0"}, {}),
        ({}, {"duplicates": "drop"}),
        ({}, {"validation": 0.3}),
        ({}, {"max_documents": 39}),
        ({}, {"encoding": "latin-1"}),
        ({}, {"header": False}),
        ({}, {"file_type": "jsonl"}),
    ],
)
def test_the_fingerprint_follows_what_is_read_and_how(
    tmp_path: Path, labels: JsonDict, data: JsonDict
) -> None:
    """And stays the same when nothing changes, or only what training does with the texts."""
    path = jsonl(tmp_path / "a.jsonl", *some(40))
    first, again, other = (
        read(path),
        read(path, {"loss": "focal", "threshold": "0.5"}),
        read(path, labels, **data),
    )
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_the_report_is_json_and_progress_is_told(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """With counts, lengths, labels, duplicates and notes."""
    told: list[tuple[str, int, int | None]] = []
    path = jsonl(tmp_path / "a.jsonl", *some(1000))
    found = read_labelled(
        recipe_for(path, {"near_duplicates": None}), lambda *said: told.append(said)
    )
    report = json.loads(json.dumps(found.report))
    assert report["splits"]["train"]["labels"] == {"0": 400, "1": 400}
    assert report["splits"]["validation"]["words"] == {"median": 7.0, "p99": 7.0, "most": 7}
    assert report["sources"] == snapshot
    assert list(found.report["notes"]) == report["notes"]
    assert told == [("reading", 1000, None)]
