"""Texts that repeat themselves without end."""

import pytest

from brimful.generation.loops import ends_in_loop, text_ends_in_loop


@pytest.mark.parametrize(
    ("ids", "is_loop"),
    [
        ([1, 2, 3, 4, 5] * 10, True),
        ([9, 9, 7, *[1, 2, 3, 4, 5] * 10, 1, 2], True),
        ([1, 2, 3, 4, 5] * 5, False),
        ([7] * 47, False),
        ([7] * 48, True),
        ([*[1, 2, 3, 4, 5] * 10, 6], False),
        (list(range(500)), False),
        ([], False),
    ],
)
def test_a_part_that_comes_again_and_again_at_the_end_is_a_loop(
    ids: list[int], is_loop: bool
) -> None:
    assert ends_in_loop(ids) is is_loop


def test_numbers_that_count_up_are_a_loop_in_words() -> None:
    """`243 + 1 = 244.` and so on: no token stands there twice in the same place."""
    counting = " ".join(f"{number} + 1 = {number + 1}." for number in range(243, 255))
    assert text_ends_in_loop(f"1 hour = 60 minutes. {counting} 255 +")


def test_a_worked_answer_is_no_loop() -> None:
    spelled = (
        "1 mile = 5280 feet. 30 x 5280 = 158400. 7 x 5280 = 36960. 158400 + 36960 = 195360."
        " <answer>195360</answer>"
    )
    assert not text_ends_in_loop(spelled)
    assert not text_ends_in_loop("")
