"""One space between words."""

from brimful.data.preprocessing.spaces import STEP


def test_runs_of_white_space_of_any_kind_become_one_space() -> None:
    assert STEP("  a\t b\r\n\u00a0\u3000c ") == "a b c"


def test_a_text_without_a_word_becomes_empty() -> None:
    assert STEP(" \n\t") == ""
