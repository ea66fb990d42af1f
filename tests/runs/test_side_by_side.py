"""Answers of a tuned model beside those of its base are read leniently."""

from pathlib import Path

from json_lines import write_rows

from brimful.runs.files import SIDE_BY_SIDE_FILE
from brimful.runs.side_by_side import AnswerPair, read_side_by_side


def test_pairs_come_back_and_what_is_missing_is_empty(tmp_path: Path) -> None:
    rows = [{"prompt": "Say red.", "base": "no", "tuned": "red", "seconds": 0.5}, {"tuned": None}]
    write_rows(tmp_path / SIDE_BY_SIDE_FILE, rows)

    assert read_side_by_side(tmp_path) == (
        AnswerPair(prompt="Say red.", base="no", tuned="red", seconds=0.5),
        AnswerPair(),
    )


def test_a_run_without_pairs_or_with_a_damaged_file_has_none(tmp_path: Path) -> None:
    assert read_side_by_side(tmp_path) == ()
    (tmp_path / SIDE_BY_SIDE_FILE).write_bytes(b"\xff\xfe no json\n{}\n")
    assert read_side_by_side(tmp_path) == ()
