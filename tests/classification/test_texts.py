"""Texts out of files and standard input, a window at a time."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError, RecipeError, RequestError
from brimful.classification.texts import Source, TextRow, source_of, windows


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], str]:
    """Writes a file and gives its path."""

    def write(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def _texts(source: Source, standard_input: bytes = b"") -> list[str]:
    return [row.text for row in source.rows(io.BytesIO(standard_input))]


def test_every_kind_of_file_gives_the_same_texts(recipe, write, tmp_path: Path) -> None:
    texts = ['a "quoted", text', "Việt\u0323", "", "last"]
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    files = [
        write("t.csv", 'id,text\r\n0,"a ""quoted"", text"\r\n1,Việt\u0323\r\n2,\r\n3,last'),
        write("t.tsv", 'id\ttext\n0\ta "quoted", text\n1\tViệt\u0323\n2\t\n3\tlast\n'),
        write("t.txt", 'a "quoted", text\r\nViệt\u0323\n\nlast'),
        write("t.jsonl", lines),
        write("t.ndjson", lines),
        write("t.json", json.dumps(rows)),
        str(tmp_path / "t.parquet"),
        write("t.jsonl.gz", gzip.compress(lines.encode())),
    ]

    for name in files:
        assert _texts(source_of(name, recipe())) == texts, name


def test_a_row_keeps_its_columns_and_its_place(recipe, write) -> None:
    (row,) = source_of(write("t.csv", "id,text\n7,hello\n"), recipe()).rows()

    assert row == TextRow("hello", {"id": "7", "text": "hello"}, row.where)
    assert row.where.endswith("t.csv:2")


def test_null_is_an_empty_text_and_another_kind_of_value_an_error(
    recipe, write, refuses: Refuses
) -> None:
    assert _texts(source_of(write("t.jsonl", '{"text": null}\n'), recipe())) == [""]
    with refuses(DataError, names=["t.jsonl:1", "'text'"]):
        _texts(source_of(write("t.jsonl", '{"text": 5}\n'), recipe()))


def test_the_column_is_the_recipes_unless_it_is_changed(recipe, write) -> None:
    name = write("t.csv", "comment,text\nfirst,second\n")

    assert _texts(source_of(name, recipe())) == ["second"]
    assert _texts(source_of(name, recipe("data.text_column=comment"))) == ["first"]
    assert _texts(source_of(name, recipe(), ["data.text_column=comment"])) == ["first"]
    assert _texts(source_of(name, recipe(), ["data.text_column=0", "data.header=true"])) == [
        "first"
    ]


def test_a_missing_column_is_told_with_those_there_are(recipe, write, refuses: Refuses) -> None:
    with refuses(DataError, names=["'text'", "remark, other", "--text-column"]):
        source_of(write("t.csv", "id,remark,other\n1,a,b\n"), recipe())


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("t.csv", "id,Text\n1,ok\n", "Text"),
        ("t.csv", "remark\nok\n", "remark"),
        ("t.csv", "id,Message,other\n1,ok,x\n", "Message"),
        ("t.jsonl", '{"id": 1, "comment": "ok"}\n', "comment"),
    ],
)
def test_a_column_of_another_name_is_matched_where_only_one_can_be_meant(
    recipe, write, name: str, content: str, column: str
) -> None:
    """And that is told."""
    source = source_of(write(name, content), recipe())

    assert _texts(source) == ["ok"]
    assert f"'{column}'" in source.notes[0]


def test_of_two_columns_that_could_be_the_text_none_is_taken(
    recipe, write, refuses: Refuses
) -> None:
    with refuses(DataError):
        source_of(write("t.csv", "review,comment\na,b\n"), recipe())


def test_a_number_of_a_column_is_for_tables_without_a_header(recipe, write) -> None:
    by_number = recipe("data.text_column=1", "data.label_column=0")

    assert _texts(source_of(write("t.csv", "ham,ok\n"), by_number)) == ["ok"]
    assert _texts(
        source_of(write("t.jsonl", '{"id": "1", "label": "ham", "text": "ok"}\n'), by_number)
    ) == ["ok"]


@pytest.mark.parametrize("header", ["id,Text", "id,comment", "ref,remark,text", "a_number,text"])
def test_a_header_is_seen_where_the_runs_own_files_have_none(
    recipe, write, header: str, snapshot: SnapshotAssertion
) -> None:
    """A file with a header, after training by the numbers of columns."""
    by_number = recipe("data.text_column=1", "data.label_column=0")
    cells = ",".join(
        "ok" if name.lower() in {"text", "comment"} else "7" for name in header.split(",")
    )
    name = write("t.csv", f"{header}\n{cells}\n")
    source = source_of(name, by_number)

    assert _texts(source) == ["ok"]
    assert source.reading.has_header
    assert source.notes == snapshot
    assert len(_texts(source_of(name, by_number, ["data.header=false"]))) == 2


def test_a_header_of_unusual_names_is_asked_about_and_rows_are_no_header(
    recipe, write, refuses: Refuses
) -> None:
    """A header repeats in no column; a label does."""
    by_number = recipe("data.text_column=1", "data.label_column=0")
    with refuses(DataError):
        source_of(write("t.csv", "ref,remark,reason\nham,I am late,x\nham,well,y\n"), by_number)
    rows = "ham,ok\nham,I am late\nspam,win\n"
    source = source_of(write("u.csv", rows), by_number)
    assert _texts(source) == ["ok", "I am late", "win"]
    assert source.notes == ()


def test_of_standard_input_a_first_row_of_usual_names_is_asked_about(
    recipe, refuses: Refuses
) -> None:
    """It can be read only once."""
    by_number = recipe("data.text_column=1", "data.label_column=0")
    source = source_of("-", by_number, ["data.file_type=csv"])
    with refuses(DataError, names=["standard input:1"]):
        _texts(source, b"id,Text\n7,ok\n")


def test_a_name_of_a_column_makes_the_first_row_a_header_again(recipe, write) -> None:
    by_number = recipe("data.text_column=1", "data.label_column=0", "data.header=false")

    assert _texts(
        source_of(write("t.csv", "id,comment\n7,ok\n"), by_number, ["data.text_column=comment"])
    ) == ["ok"]


def test_the_end_of_a_name_says_more_than_the_recipes_format_and_a_change_more_than_both(
    recipe, write
) -> None:
    tabs = recipe("data.file_type=tsv")

    assert source_of(write("t.csv", "text\n"), tabs).kind == ".csv"
    assert source_of(write("t", "text\n"), tabs).kind == ".tsv"
    assert source_of(write("t.csv", "text\n"), tabs, ["data.file_type=jsonl"]).kind == ".jsonl"


def test_a_file_that_does_not_say_what_it_holds_is_an_error(
    recipe, write, refuses: Refuses
) -> None:
    with refuses(RequestError, names=["data.file_type=txt"]):
        source_of(write("texts", "a\n"), recipe())


def test_no_such_file_is_an_error_before_anything_is_read(recipe, refuses: Refuses) -> None:
    with refuses(DataError):
        source_of("nowhere.csv", recipe())


def test_only_how_the_file_is_read_can_be_changed(recipe, write, refuses: Refuses) -> None:
    name = write("t.txt", "a\n")

    with refuses(RequestError, names=["labels.threshold"]):
        source_of(name, recipe(), ["labels.threshold=0.3"])
    with refuses(RecipeError, names=["data.header"]):
        source_of(name, recipe(), ["data.header=perhaps"])


def test_standard_input_is_a_text_a_line_unless_its_format_is_said(recipe) -> None:
    plain = recipe("data.file_type=csv", "data.encoding=latin-1")

    assert _texts(source_of("-", plain), "một\r\nhai\n".encode()) == ["một", "hai"]
    assert _texts(
        source_of("-", plain, ["data.file_type=jsonl"]), b'{"text": "a"}\n\n{"text": "b"}\n'
    ) == ["a", "b"]
    assert _texts(source_of("-", plain, ["data.file_type=csv"]), b'text\n"a,\nb"\n') == ["a,\nb"]


def test_windows_end_at_so_many_texts_or_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.classification.texts.WINDOW_CHARACTERS", 10)
    rows = [TextRow("x" * length, {}, "") for length in (1, 2, 3, 20, 1, 1)]

    assert [[len(row.text) for row in window] for window in windows(iter(rows), 3)] == [
        [1, 2, 3],
        [20],
        [1, 1],
    ]
    assert list(windows(iter([]), 3)) == []


def test_rows_are_read_only_as_far_as_a_window_goes() -> None:
    taken = []

    def rows():
        for number in range(10):
            taken.append(number)
            yield TextRow("a", {}, "")

    next(windows(rows(), 2))

    assert taken == [0, 1]


def test_what_stands_before_a_broken_row_comes_before_its_error(
    recipe, write, refuses: Refuses
) -> None:
    found = windows(
        source_of(write("t.jsonl", '{"text": "a"}\n{"text": "b"}\n{"te'), recipe()).rows()
    )

    assert [row.text for row in next(found)] == ["a", "b"]
    with refuses(DataError, names=["t.jsonl:3"]):
        next(found)
