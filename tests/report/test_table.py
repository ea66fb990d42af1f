"""Cells keep their values; each medium prints them its own way."""

from brimful.report.table import (
    Cell,
    Table,
    aligned,
    block_lines,
    csv_text,
    markdown_lines,
    table_of,
    terminal_lines,
)

TABLE = Table(
    ("", "Loss", "Note"),
    (("own", Cell(1.5, "{:.2f}".format, (1.25, 1.75)), None), ("floor", Cell(2.0), True)),
)


def test_every_column_is_as_wide_as_its_widest_cell_and_lines_end_without_blanks() -> None:
    assert aligned([("", "value"), ("accuracy", "1"), ("f", "")]) == [
        "          value",
        "accuracy  1",
        "f",
    ]


def test_a_cell_prints_its_value_with_its_interval() -> None:
    cell = Cell(1.5, "{:.2f}".format, (1.25, 1.75), "better")
    assert (str(cell), cell.text, cell.interval_text) == (
        "1.50 [1.25, 1.75]",
        "1.50",
        "1.25 to 1.75",
    )
    assert str(Cell(None)) == Cell(None).interval_text == ""


def test_one_table_prints_in_a_terminal_and_as_csv() -> None:
    assert terminal_lines(TABLE) == [
        "       Loss               Note",
        "own    1.50 [1.25, 1.75]",
        "floor  2                  yes",
    ]
    assert csv_text(TABLE).splitlines() == [",Loss,Note", "own,1.5,", "floor,2.0,True"]
    assert terminal_lines(None) == []


def test_columns_without_any_value_are_left_out_and_tables_without_rows_are_none() -> None:
    table = table_of(("", "a", "b"), [("x", Cell(None), "1"), ("y", "", "2")])
    assert table is not None
    assert table.without_empty_columns().columns == ("", "b")
    assert table_of(("",), []) is None


def test_a_table_that_is_too_wide_stands_in_blocks_that_name_their_rows() -> None:
    assert block_lines(TABLE, 80) == terminal_lines(TABLE)
    assert block_lines(TABLE, 26) == [
        "       Loss",
        "own    1.50 [1.25, 1.75]",
        "floor  2",
        "",
        "       Note",
        "floor  yes",
    ]


def test_in_markdown_bars_are_escaped_and_all_columns_but_the_first_are_on_the_right() -> None:
    assert markdown_lines(Table(("", "n"), (("a|b", 1200),))) == [
        "|  | n |",
        "| --- | ---: |",
        "| a\\|b | 1,200 |",
    ]
