"""Cells in columns, for a terminal."""

from brimful.report.columns import aligned


def test_every_column_is_as_wide_as_its_widest_cell_and_lines_end_without_blanks() -> None:
    assert aligned([("", "value"), ("accuracy", "1"), ("f", "")]) == [
        "          value",
        "accuracy  1",
        "f",
    ]
