"""Every file format gives its documents, and every fault is named with its place."""

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.data.readers import (
    Reading,
    Row,
    documents_of_rows,
    format_of,
    read_file,
    read_rows,
    rows_of_lines,
)
from brimful.recipe import DataRecipe

ROWS = ["first\nsecond line", 'with "quotes", commas\tand a tab', "ünïcode 日本 🙂"]


def written(path: Path, text: str | bytes) -> Path:
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def csv_text(separator: str) -> str:
    quoted = ['"' + row.replace('"', '""') + '"' for row in ROWS]
    return (
        "\n".join(
            [
                f"id{separator}text",
                *(f"{number}{separator}{row}" for number, row in enumerate(quoted)),
            ]
        )
        + "\n"
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".jsonl.gz"])
def test_json_lines_give_one_document_per_line(tmp_path: Path, suffix: str) -> None:
    """Blank lines are passed over, so the last may or may not end in a line break."""
    path = written(
        tmp_path / f"a{suffix}",
        "\n".join(json.dumps({"text": row, "n": 1}) for row in ROWS) + "\n\n",
    )
    assert list(read_file(path, Reading())) == ROWS


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_json_gives_the_rows_of_a_list_of_objects(tmp_path: Path, suffix: str) -> None:
    """The list may stand alone or be the only list in an object."""
    rows = [{"text": row} for row in ROWS]
    assert list(read_file(written(tmp_path / f"a{suffix}", json.dumps(rows)), Reading())) == ROWS
    assert (
        list(
            read_file(
                written(tmp_path / f"b{suffix}", json.dumps({"version": 1, "data": rows})),
                Reading(),
            )
        )
        == ROWS
    )


def test_json_lines_under_the_name_json_are_read(tmp_path: Path) -> None:
    """Many data sets name JSON lines so."""
    path = written(tmp_path / "a.json", "\n".join(json.dumps({"text": row}) for row in ROWS))
    assert list(read_file(path, Reading())) == ROWS


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_csv_keeps_quoted_line_breaks_commas_and_quotes(tmp_path: Path, suffix: str) -> None:
    """A quoted field may run over lines."""
    assert list(read_file(written(tmp_path / f"a{suffix}", csv_text(",")), Reading())) == ROWS


def test_csv_reads_fields_longer_than_the_library_default(tmp_path: Path) -> None:
    """Python's csv stops at 131072 characters unless told otherwise."""
    assert list(
        read_file(written(tmp_path / "a.csv", "text\n" + "x" * 200_000 + "\n"), Reading())
    ) == ["x" * 200_000]


def test_tsv_takes_lone_quotation_marks_as_text(tmp_path: Path) -> None:
    """Tab-separated files mostly have no quoting; a wholly quoted field is unquoted all the
    same.
    """
    path = written(
        tmp_path / "a.tsv",
        'text\tlabel\n"unclosed\t1\n"He said ""no"""\t0\nplain "inner" marks\t1\n',
    )
    assert list(read_file(path, Reading())) == ['"unclosed', 'He said "no"', 'plain "inner" marks']


def test_parquet_gives_one_document_per_row(tmp_path: Path) -> None:
    """The column is chosen by name."""
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2, 3], "body": ROWS}), path)
    assert list(read_file(path, Reading(text_column="body"))) == ROWS


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_plain_text_is_one_document(tmp_path: Path, suffix: str) -> None:
    """Byte order mark removed, CRLF made LF, NUL and lone CR kept."""
    path = written(tmp_path / f"a{suffix}", b"\xef\xbb\xbfone\r\ntwo\x00\rthree\r\n\r\n")
    assert list(read_file(path, Reading())) == ["one\ntwo\x00\rthree\n\n"]


def test_a_line_that_matches_document_start_opens_a_document(tmp_path: Path) -> None:
    """What stands before the first match is a document of its own, and nothing is lost."""
    text = "preface\n = A = \n\n = = part = = \nx\n = B = \ny"
    documents = list(
        read_file(written(tmp_path / "a.txt", text), Reading(document_start="^ = [^=]"))
    )
    assert documents == ["preface\n", " = A = \n\n = = part = = \nx\n", " = B = \ny"]


def test_rows_that_are_lines_are_joined_before_they_are_cut() -> None:
    """WikiText rows on the hub are lines; blank ones are empty rows; only \\n ends a line."""
    rows = ["", " = A = \n", "text\u2028 = not a title", "", " = B = \n", "more"]
    assert list(documents_of_rows(rows, "^ = [^=]")) == [
        "\n",
        " = A = \ntext\u2028 = not a title\n\n",
        " = B = \nmore\n",
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"fine\nbad \xff byte\n", ["a.txt:2", "byte 5", "0xff", "iconv"]),
        ("a.csv", b"text\nok\n\xe9t\xe9\n", ["a.csv:3", "byte 1", "0xe9"]),
        ("a.jsonl", b'{"text": "ok"}\n{"text": "cut o', ["a.jsonl:2", "not valid JSON", "cut off"]),
        (
            "a.jsonl",
            b'{"text": "ok"}\n{"text": null}\n',
            ["a.jsonl:2", "'text'", "None", "NoneType"],
        ),
        ("a.jsonl", b'{"text": 17}\n', ["a.jsonl:1", "'text'", "17", "int"]),
        ("a.jsonl", b'["text"]\n', ["a.jsonl:1", "object", "list"]),
        (
            "a.jsonl",
            b'{"txt": "x", "label": 1}\n',
            ["a.jsonl:1", "'text'", "did you mean 'txt'", "txt, label", "data.text_column"],
        ),
        ("a.jsonl", rb'{"text": "ab\ud83d"}', ["a.jsonl:1", "surrogate", "character 3"]),
        ("a.json", b'[{"text": "a"},\n {"text": 1.5}]', ["a.json, row 2", "1.5", "float"]),
        ("a.json", b'[{"text": "a"},\n {"te', ["a.json:2", "not valid JSON"]),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": "b", "text": "c"}\n',
            ["a.jsonl:2", "'text'", "twice"],
        ),
        ("a.json", b'[{"text": "b", "text": "c"}]', ["a.json", "'text'", "twice"]),
        ("a.jsonl", b"[" * 9999 + b"]" * 9999, ["a.jsonl:1", "deep"]),
        ("a.json", b"[" * 9999 + b"]" * 9999, ["a.json", "deep"]),
        ("a.json", b'{"a": [], "b": []}', ["exactly one such list"]),
        ("a.csv", b"content,label\nx,1\n", ["a.csv:1", "no column 'text'", "content, label"]),
        ("a.csv", b"text,label\nx,1\ny\n", ["a.csv:3", "1 fields", "text, label"]),
        ("a.csv", b'text,label\n"open,1\n', ["a.csv", "not valid CSV", "quotation mark"]),
        ("a.parquet", b"PAR1 not really", ["a.parquet", "not a readable parquet"]),
    ],
)
def test_faults_name_file_place_and_field(
    tmp_path: Path, name: str, content: bytes, said: list[str]
) -> None:
    """One clear error instead of a decoder's."""
    with pytest.raises(DataError) as caught:
        list(read_file(written(tmp_path / name, content), Reading()))
    assert [part for part in said if part not in str(caught.value)] == []


def test_a_bad_byte_behind_a_byte_order_mark_is_counted_in_the_file(
    tmp_path: Path, refuses: Refuses
) -> None:
    """Positions are those an editor or xxd shows."""
    with refuses(DataError, names=["a.txt:1", "byte 5"]):
        list(read_file(written(tmp_path / "a.txt", b"\xef\xbb\xbfx\xff"), Reading()))


def test_a_parquet_value_that_is_not_text_is_named_by_row(tmp_path: Path, refuses: Refuses) -> None:
    """Nulls are found where they stand."""
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None]}), path)
    with refuses(DataError, names=["row 2", "'text'"]):
        list(read_file(path, Reading()))


def test_a_truncated_gzip_is_an_error(tmp_path: Path, refuses: Refuses) -> None:
    """Half a download is not silently half a data set."""
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(bytes(range(32, 127)) * 100)[:60])
    with refuses(DataError, names=["a.txt.gz"]):
        list(read_file(path, Reading()))


def test_formats_are_known_by_suffix() -> None:
    """Also behind .gz, but a zipped parquet is not one."""
    names = ["a.TXT", "a.csv.gz", "a.parquet", "a.parquet.gz", "README", "a.md"]
    assert [format_of(Path(name)) for name in names] == [
        ".txt",
        ".csv",
        ".parquet",
        None,
        None,
        None,
    ]


def test_rows_have_all_their_columns_and_say_where_they_stand(tmp_path: Path) -> None:
    """Values keep their types where the format has types."""
    table = [{"q": "one", "n": 1}, {"q": "two", "n": 2}]
    pyarrow.parquet.write_table(
        pyarrow.table({"q": ["one", "two"], "n": [1, 2]}), tmp_path / "a.parquet"
    )
    lines, listed = (
        written(tmp_path / name, text)
        for name, text in [
            ("a.jsonl", "\n".join(map(json.dumps, table))),
            ("a.json", json.dumps(table)),
        ]
    )
    tabbed = written(tmp_path / "a.tsv", "q\tn\none\t1\n\ntwo\t2\n")
    assert list(read_rows(tmp_path / "a.parquet")) == [
        Row(row, f"{tmp_path / 'a.parquet'}, row {number}") for number, row in enumerate(table, 1)
    ]
    assert list(read_rows(lines)) == [
        Row(row, f"{lines}:{number}") for number, row in enumerate(table, 1)
    ]
    assert list(read_rows(listed)) == [
        Row(row, f"{listed}, row {number}") for number, row in enumerate(table, 1)
    ]
    assert list(read_rows(tabbed)) == [
        Row({"q": "one", "n": "1"}, f"{tabbed}:2"),
        Row({"q": "two", "n": "2"}, f"{tabbed}:4"),
    ]


def test_plain_text_has_no_rows(tmp_path: Path, refuses: Refuses) -> None:
    """With a line that would work."""
    with refuses(DataError, names=["a.txt"]):
        read_rows(written(tmp_path / "a.txt", "text"))


def test_of_columns_that_share_a_name_the_first_is_read(tmp_path: Path) -> None:
    """As texts and as rows; the other goes by its number."""
    path = written(tmp_path / "a.csv", "text,text\nfirst,second\n")
    assert list(read_file(path, Reading())) == ["first"]
    assert [row.columns for row in read_rows(path)] == [{"text": "first", "1": "second"}]


def test_a_column_by_number_is_read_from_every_format(tmp_path: Path, refuses: Refuses) -> None:
    """Of tables without a header, of rows that are lists, of parquet."""
    pyarrow.parquet.write_table(
        pyarrow.table({"id": [1, 2], "body": ["a", "b"]}), tmp_path / "a.parquet"
    )
    second = Reading(text_column=1, has_header=False)
    assert list(read_file(tmp_path / "a.parquet", second)) == ["a", "b"]
    assert list(read_file(written(tmp_path / "a.csv", "1,a\n2,b\n"), second)) == ["a", "b"]
    assert list(
        read_file(written(tmp_path / "a.tsv", "id\tbody\n1\ta\n2\tb\n"), Reading(text_column=1))
    ) == ["a", "b"]
    assert list(read_file(written(tmp_path / "a.jsonl", '[1, "a"]\n[2, "b"]\n'), second)) == [
        "a",
        "b",
    ]
    with refuses(DataError, names=["a.csv:1"]):
        list(read_file(tmp_path / "a.csv", Reading(text_column=2, has_header=False)))


def test_encoding_and_file_type_count_for_documents_and_for_rows(tmp_path: Path) -> None:
    """Whatever the file is called."""
    path = written(tmp_path / "data", "text\nété\n".encode("latin-1"))
    reading = Reading(encoding="latin-1", file_type="csv")
    assert list(read_file(path, reading)) == ["été"]
    assert list(read_rows(path, reading)) == [Row({"text": "été"}, f"{path}:2")]
    assert list(read_file(path, Reading(encoding="auto", file_type="txt"))) == ["text\nété\n"]


def test_a_recipe_says_how_files_are_read(tmp_path: Path) -> None:
    """A header is expected unless a column is given by number."""
    recipes = [
        {},
        {"text_column": 1},
        {"label_column": 0},
        {"label_column": 0, "header": True},
        {"header": False},
    ]
    found = [Reading.of(DataRecipe(path="x", **fields)).has_header for fields in recipes]
    assert found == [True, False, False, True, False]
    reading = Reading.of(
        DataRecipe(
            path="x", encoding="utf-16", file_type="tsv", document_start="^x", max_documents=3
        )
    )
    assert reading == Reading("text", "^x", 3, True, "utf-16", "tsv")


def test_a_reading_as_ever_is_told_as_ever() -> None:
    """So fingerprints of data from before header, encoding and file type could be chosen still
    hold; other choices show.
    """
    assert Reading().to_json() == {
        "text_column": "text",
        "document_start": None,
        "max_documents": None,
    }
    assert Reading(has_header=False, encoding="cp1252", file_type="csv").to_json() == {
        "text_column": "text",
        "document_start": None,
        "max_documents": None,
        "has_header": False,
        "encoding": "cp1252",
        "file_type": "csv",
    }


def test_lines_from_anywhere_become_rows() -> None:
    """As from standard input."""
    assert list(rows_of_lines(["a,b\n", "1,2\n"], "standard input", ".csv")) == [
        Row({"a": "1", "b": "2"}, "standard input:2")
    ]
    assert list(rows_of_lines(['{"a": 1}\n'], "standard input", ".jsonl")) == [
        Row({"a": 1}, "standard input:1")
    ]
