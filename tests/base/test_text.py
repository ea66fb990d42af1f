"""Texts made short enough for a message or a table."""

from brimful.base.text import clause, listed, shortened


def test_a_text_is_cut_to_the_limit_only_where_it_is_longer() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abc..."


def test_names_beyond_the_most_are_an_ellipsis() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b", "c"], 2) == "a, b, ..."
    assert listed([], 2) == ""


def test_an_optional_part_of_a_message_is_empty_where_it_does_not_apply() -> None:
    assert clause([1], ", twice") == ", twice"
    assert clause(0, ", twice") == ""
