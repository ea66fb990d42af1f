"""Shares of a pass by a clock that is moved by hand."""

from collections.abc import Iterator

import pytest
import torch

from brimful.rehearsal.element_wise import ElementWiseWatch, Part


def _watch(parts: list[Part], clock: Iterator[float]) -> ElementWiseWatch:
    """One operator in each of these parts: a product, then a sum, then a product and so on."""
    remaining = iter(parts)
    left, right = torch.ones(2, 2), torch.ones(2, 2)
    with ElementWiseWatch(lambda: next(remaining), lambda: next(clock)) as watch:
        for number in range(len(parts)):
            _ = left @ right if number % 2 == 0 else left + right
    return watch


def _ticks(*seconds: float) -> Iterator[float]:
    """The clock before and after operators that take so many seconds."""
    now = 0.0
    for each in seconds:
        yield now
        now += each
        yield now


def test_element_wise_operators_of_blocks_are_a_share_of_the_pass() -> None:
    """Of 3 blocks the first counts as outside; 9 blocks have 8 times what was seen of 2."""
    watch = _watch(
        ["outside", "outside", "blocks", "blocks", "", ""], _ticks(2.0, 1.0, 3.0, 1.0, 7.0, 7.0)
    )

    assert watch.share(run=3, whole=3) == pytest.approx(1.0 * 3 / 2 / 7.0)
    assert watch.share(run=3, whole=9) == pytest.approx(1.0 * 9 / 2 / (7.0 + 4.0 * 6 / 2))


def test_without_blocks_there_is_no_share() -> None:
    assert _watch(["outside", ""], _ticks(1.0, 1.0)).share(run=1, whole=1) is None
