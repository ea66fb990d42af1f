"""Columns by name and by number, and errors that stay short."""

import time

import pytest
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.data.rows import cell_of, column_name, missing_column, short, text_of

ROW = {"id": 7, "text": "a\r\nb"}


def test_a_column_is_found_by_name_and_by_number() -> None:
    """Numbers count from 0; lists have numbers only."""
    assert (cell_of(ROW, "id", "x"), cell_of(ROW, 0, "x"), cell_of(["p", "q"], 1, "x")) == (
        7,
        7,
        "q",
    )
    assert (text_of(ROW, "text", "x"), text_of(ROW, 1, "x")) == ("a\nb", "a\nb")
    assert (column_name(1, ROW, "x"), column_name("id", ROW, "x")) == ("text", "id")


@pytest.mark.parametrize(
    ("row", "column", "said"),
    [
        (
            ROW,
            "txt",
            (
                "here: no column 'txt' - did you mean 'text'? Columns: id, text. Choose one with"
                " data.text_column=NAME, or by number"
            ),
        ),
        (
            ROW,
            2,
            "here: no column number 2: there are 2, from 0 to 1. Choose one with data.text_column.",
        ),
        (ROW, -1, "here: no column number -1"),
        (["a"], "text", "here: expected an object with the field 'text', found list."),
        ("a", 0, "here: expected an object with the field 0, found str."),
    ],
)
def test_a_column_that_is_not_there_is_named_with_those_that_are(
    row: object, column: str | int, said: str
) -> None:
    """Whatever the row is."""
    with pytest.raises(DataError) as caught:
        cell_of(row, column, "here")
    assert str(caught.value).startswith(said)


def test_the_error_names_the_key_that_chooses_the_column(refuses: Refuses) -> None:
    """Labels have one of their own."""
    with refuses(DataError, names=["data.label_column=NAME"]):
        cell_of(ROW, "label", "here", "data.label_column")


def test_errors_about_huge_rows_are_short_and_quick() -> None:
    """Ten million characters where the header should be."""
    started = time.process_time()
    message = str(
        missing_column(
            "text",
            ["x" * 10_000_000, *(f"column {number}" for number in range(100_000))],
            "a.csv:1",
        )
    )
    assert len(message) < 600
    assert len(short("y" * 10_000_000)) == 40
    assert time.process_time() - started < 1
