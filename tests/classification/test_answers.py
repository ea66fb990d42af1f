"""Labels and probabilities beside the columns that their texts came with."""

import gzip
import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError, RequestError, RunFolderError
from brimful.classification.answers import (
    AnswerColumns,
    JsonLines,
    PredictedLabels,
    TableRows,
    output_format,
    partial_of,
    writing,
)
from brimful.data.labels import Labels
from brimful.data.readers import rows_of_lines

TWO, MANY = Labels(("ham", "spam"), False, 1), Labels(("a", "b", "c"), True, None)
SPAM = PredictedLabels(("spam",), 0.75, (0.25, 0.75))
NOTHING = PredictedLabels(None, None, None)


def _table(
    columns: list[str], separator: str = ",", labels: Labels = TWO, *, has_header: bool = True
) -> TableRows:
    return TableRows(
        columns, AnswerColumns.beside(columns, labels), separator, ";", has_header=has_header
    )


def _read_back(
    kind: str, form: TableRows | JsonLines, rows: list[Mapping[str, object]]
) -> list[dict[str, object]]:
    text = form.head() + "".join(form.line(row, SPAM, "here") for row in rows)
    return [row.columns for row in rows_of_lines(io.StringIO(text, newline="\n"), "there", kind)]


NASTY = [
    'a "quoted", text',
    '"wholly quoted"',
    '"',
    '""',
    '"a"b"',
    " blanks ",
    "Việt 😂",
    "",
    "semi;colon",
    "it's",
]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_columns_come_back_as_they_were_through_the_reader_of_the_same_kind(kind: str) -> None:
    texts = [*NASTY, *([] if kind == "tsv" else ["line\nbreak", "carriage\rreturn", "tab\there"])]
    rows = [{"id": str(number), 'a "name", with': text} for number, text in enumerate(texts)]
    added = AnswerColumns.beside(rows[0], TWO)
    form = (
        JsonLines(added)
        if kind == "jsonl"
        else _table(list(rows[0]), {"csv": ",", "tsv": "\t"}[kind])
    )

    found = _read_back(f".{kind}", form, rows)

    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    assert [str(row["label"]) for row in found] == ["spam"] * len(rows)
    assert [float(str(row["p_ham"])) for row in found] == [0.25] * len(rows)


def test_two_labels_add_the_given_one_its_probability_and_that_of_each() -> None:
    added = AnswerColumns.beside(["text"], TWO)

    assert added.names == ("label", "probability", "p_ham", "p_spam")
    assert added.values(SPAM) == {
        "label": "spam",
        "probability": 0.75,
        "p_ham": 0.25,
        "p_spam": 0.75,
    }
    assert added.notes == ()


def test_several_labels_add_a_list_and_the_probability_of_each() -> None:
    added = AnswerColumns.beside(["text"], MANY)

    assert added.values(PredictedLabels(("a", "c"), None, (0.9, 0.1, 0.8))) == {
        "labels": ["a", "c"],
        "p_a": 0.9,
        "p_b": 0.1,
        "p_c": 0.8,
    }
    assert added.values(PredictedLabels((), None, (0.1, 0.1, 0.1)))["labels"] == []
    assert (
        _table(["text"], labels=MANY).line(
            {"text": "x"}, PredictedLabels(("a", "c"), None, (0.9, 0.1, 0.8)), "here"
        )
        == "x,a;c,0.9,0.1,0.8\n"
    )


def test_a_text_that_was_not_judged_has_null_everywhere() -> None:
    assert set(AnswerColumns.beside([], TWO).values(NOTHING).values()) == {None}
    assert _table(["text"]).line({"text": " "}, NOTHING, "here") == " ,,,,\n"
    assert (
        json.loads(
            JsonLines(AnswerColumns.beside(["text"], MANY)).line({"text": ""}, NOTHING, "here")
        )["labels"]
        is None
    )


def test_a_column_of_the_same_name_is_kept_and_the_predictions_is_named_otherwise_and_told(
    snapshot: SnapshotAssertion,
) -> None:
    added = AnswerColumns.beside(["text", "label", "p_ham", "p_ham_predicted"], TWO)

    assert added.names == ("label_predicted", "probability", "p_ham_predicted_predicted", "p_spam")
    assert added.notes[0] == snapshot


def test_a_field_of_the_predictions_name_in_a_later_row_is_an_error_not_overwritten(
    refuses: Refuses,
) -> None:
    form = JsonLines(AnswerColumns.beside(["text"], TWO))

    with refuses(DataError, names=["t.jsonl:9"]):
        form.line({"text": "a", "label": "ham"}, SPAM, "t.jsonl:9")


def test_a_table_has_no_place_for_a_field_that_comes_late_and_leaves_a_missing_one_empty(
    refuses: Refuses,
) -> None:
    form = _table(["text", "id"])

    assert form.line({"text": "a"}, SPAM, "here") == "a,,spam,0.75,0.25,0.75\n"
    with refuses(DataError, names=["t.jsonl:9", "--as jsonl"]):
        form.line({"text": "a", "extra": 1}, SPAM, "t.jsonl:9")


def test_values_that_are_no_text_are_json_in_a_table() -> None:
    line = _table(["a", "b", "c"]).line({"a": 5, "b": {"x": [1]}, "c": None}, SPAM, "here")

    assert line.startswith('5,"{""x"": [1]}",,spam')


def test_a_table_without_a_header_stays_without() -> None:
    assert _table(["0", "1"], has_header=False).head() == ""


def test_a_tsv_refuses_what_it_cannot_hold(refuses: Refuses) -> None:
    with refuses(DataError, names=["--as csv"]):
        _table(["text"], "\t").line({"text": "a\tb"}, SPAM, "here")


def test_probabilities_have_six_digits() -> None:
    assert (
        AnswerColumns.beside([], TWO).values(
            PredictedLabels(("ham",), 1 / 3, (1 / 3, 1.23456789e-9))
        )["p_spam"]
        == 1.23457e-09
    )


@pytest.mark.parametrize(
    ("asked", "output", "source", "kind"),
    [
        (None, None, ".csv", "csv"),
        (None, None, ".tsv", "tsv"),
        (None, None, ".jsonl", "jsonl"),
        (None, None, ".json", "jsonl"),
        (None, None, ".parquet", "jsonl"),
        (None, None, ".txt", "jsonl"),
        (None, "out.csv", ".jsonl", "csv"),
        (None, "out.tsv.gz", ".txt", "tsv"),
        (None, "out.dat", ".csv", "csv"),
        ("jsonl", "out.csv", ".csv", "jsonl"),
    ],
)
def test_the_kind_is_what_is_asked_for_then_the_outputs_then_the_inputs(
    asked: str | None, output: str | None, source: str, kind: str
) -> None:
    assert output_format(asked, None if output is None else Path(output), source) == kind


def test_another_kind_is_refused(refuses: Refuses) -> None:
    with refuses(RequestError):
        output_format("xml", None, ".csv")


def test_a_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    output.write_text("old")
    with writing(output) as write:
        write("new ")
        assert output.read_text() == "old"
        assert partial_of(output).read_text() == "new "
        write("Việt \ud800")

    assert output.read_text() == "new Việt \\ud800"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_part_keeps_its_other_name_where_writing_ends_early(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"

    def write_half() -> None:
        with writing(output) as write:
            write("half")
            raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        write_half()

    assert not output.exists()
    assert partial_of(output).read_text() == "half"


def test_a_name_that_ends_in_gz_is_zipped(tmp_path: Path) -> None:
    with writing(tmp_path / "out.csv.gz") as write:
        write("a\n")

    assert gzip.decompress((tmp_path / "out.csv.gz").read_bytes()) == b"a\n"


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, refuses: Refuses) -> None:
    with (
        refuses(RunFolderError, names=["--output"]),
        writing(tmp_path / "nowhere" / "out.csv"),
    ):
        pass


def test_standard_output_has_what_was_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, written = os.pipe()
    with os.fdopen(written, "w") as stdout, os.fdopen(reading, "rb", buffering=0) as seen:
        monkeypatch.setattr(sys, "stdout", stdout)
        with writing(None) as write:
            write("một\n")
            assert seen.read(10) == "một\n".encode()
