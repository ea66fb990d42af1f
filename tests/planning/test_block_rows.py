"""Short rows of blocks in which every block has the neighbours that it has in long ones."""

import pytest
from fixture_types import Refuses

from brimful.planning.block_rows import BlockRows, Irregular, longer_rows, shortened

PERIODS = "aaab" * 6
"""Three blocks of a kind and one of another, again and again."""


@pytest.mark.parametrize(
    ("row", "neighbours", "few"),
    [
        ("a" * 32, 2, "aaaa"),
        ("a" * 32, 3, "aaaaa"),
        ("b" + "a" * 26, 2, "baaaa"),
        (PERIODS, 2, "aaababab"),
        ("ab" * 12, 2, "ababab"),
        ("abcd", 2, "abcd"),
    ],
    ids=["alike", "alike, both sides", "the first differs", "periods", "in turns", "all differ"],
)
def test_a_short_row_has_all_neighbours_of_the_long_one(
    row: str, neighbours: int, few: str
) -> None:
    assert shortened(row, neighbours) == few


@pytest.mark.parametrize("row", ["a" * 32, PERIODS, "aabaab" + "ab" * 6 + "a"])
@pytest.mark.parametrize("neighbours", [2, 3])
def test_each_block_equals_one_with_its_neighbours(row: str, neighbours: int) -> None:
    rows = BlockRows(shortened(row, neighbours), row)

    for sources, before in ((rows.rising, -1), (rows.falling, 1)):
        assert "".join(rows.few[source] for source in sources) == row
        for place, source in enumerate(sources):
            if 0 <= place + before < len(row):
                assert rows.few[source + before] == row[place + before]


def test_a_block_that_no_other_is_like_has_no_source(refuses: Refuses) -> None:
    with refuses(Irregular, names=["aaaa", "aabaa"]):
        _ = BlockRows("aaaa", "aabaa").rising


@pytest.mark.parametrize(
    ("row", "like", "times"),
    [
        ("a" * 32, {"a": "a"}, [28]),
        (PERIODS, {"a": "a", "b": "a"}, [16]),
        (PERIODS, {"a": "a", "b": "b"}, [10, 3]),
        ("ab" * 12, {"a": "a", "b": "b"}, [9]),
    ],
    ids=["alike", "the same weights", "other weights", "in turns"],
)
def test_longer_rows_add_up_to_the_long_one(
    row: str, like: dict[str, str], times: list[int]
) -> None:
    few = shortened(row, 2)

    found = longer_rows(BlockRows(few, row), 2, like)

    assert found is not None
    assert list(found.values()) == times
    for letter in set(like.values()):
        blocks = [sum(like[each] == letter for each in text) for text in (few, row, *found)]
        short, long, *longer = blocks
        assert long == short + sum(
            count * (more - short) for count, more in zip(times, longer, strict=True)
        )


def test_kinds_in_no_row_of_stretches_have_no_longer_rows() -> None:
    assert longer_rows(BlockRows("abcd", "abcdd"), 2, {letter: letter for letter in "abcd"}) is None


def test_blocks_in_the_middle_repeat_by_their_kind() -> None:
    rows = BlockRows("aaababab", PERIODS)

    assert rows.repeats("a") == 17 / 4
    assert rows.repeats("b") == 5 / 2
