"""Texts made short enough for a message or a table."""

from brimful.base.text import (
    aligned_and_wrapped,
    clause,
    listed,
    plural,
    printable,
    reason_of,
    setting_text,
    shortened,
    shortened_at_a_word,
    wrapped,
)


def test_a_text_is_cut_to_the_limit_only_where_it_is_longer() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abc..."


def test_a_number_stands_with_its_noun() -> None:
    counted = [
        plural(1, "step"),
        plural(0, "step"),
        plural(1200, "text"),
        plural(2, "copy", "copies"),
    ]
    assert counted == ["1 step", "0 steps", "1,200 texts", "2 copies"]


def test_names_beyond_the_most_are_an_ellipsis() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b", "c"], 2) == "a, b, ..."
    assert listed([], 2) == ""


def test_the_reason_of_an_error_is_its_first_line_or_its_class() -> None:
    assert reason_of(ValueError("no such host.\nfurther lines")) == "no such host"
    assert reason_of(TimeoutError()) == "TimeoutError"
    assert reason_of(OSError(" \n")) == "OSError"


def test_an_optional_part_of_a_message_is_empty_where_it_does_not_apply() -> None:
    assert clause([1], ", twice") == ", twice"
    assert clause(0, ", twice") == ""


def test_a_line_is_broken_between_words_only_and_keeps_its_indent() -> None:
    assert wrapped("  one micro-batch of 12", 14, 2) == ["  one", "    micro-batch", "    of 12"]
    assert wrapped("a/path/that/is/longer than", 10) == ["a/path/that/is/longer", "than"]
    assert wrapped("", 10) == [""]


def test_a_text_is_shortened_after_a_word() -> None:
    assert shortened_at_a_word("one two three", 13) == "one two three"
    assert shortened_at_a_word("one two three", 12) == "one two ..."


def test_the_last_cell_of_a_row_wraps_under_itself() -> None:
    rows = [("a", "b", "one two three four five six seven"), ("longer", "", "")]

    assert aligned_and_wrapped(rows, 30) == [
        "a       b  one two three four five",
        "           six seven",
        "longer",
    ]


def test_control_characters_are_written_out() -> None:
    """A terminal would obey them; other letters, tabs and line breaks stay."""
    assert printable("a\x1b[31mb\x07\rc\u202ed\x85") == "a\\x1b[31mb\\x07\\rc\\u202ed\\x85"
    assert (
        printable("a\tb\nçé 東京 \U0001f469\u200d\U0001f52c")
        == "a\tb\nçé 東京 \U0001f469\u200d\U0001f52c"
    )


def test_a_switch_is_on_or_off_and_other_settings_are_their_own_text() -> None:
    assert [setting_text(value) for value in (True, False, 4, "bf16", None)] == [
        "on",
        "off",
        "4",
        "bf16",
        "None",
    ]
