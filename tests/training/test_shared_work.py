"""Pieces of work on several ranks: each is done by one of them, and all get the results in order."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from brimful.training.shared_work import is_own, merged, merged_numbers
from brimful.training.world import ALONE, World

Ranks = Callable[..., list[Any]]


@pytest.mark.parametrize("pieces", [0, 2, 7])
def test_every_piece_is_done_once_and_its_result_is_in_its_place(ranks: Ranks, pieces: int) -> None:
    def act(world: World) -> Any:
        own = [number for number in range(pieces) if is_own(world, number)]
        made = merged(world, {number: f"piece {number}" for number in own})
        return [own, made]

    ends = ranks(3, act)

    assert sorted(number for own, _ in ends for number in own) == list(range(pieces))
    assert [made for _, made in ends] == [[f"piece {number}" for number in range(pieces)]] * 3


def test_numbers_come_back_as_they_were_bit_for_bit(ranks: Ranks) -> None:
    torch.manual_seed(0)
    pieces = [torch.randn(size).exp() for size in (3, 1, 4)]
    pieces[1][0] = torch.inf
    alone = merged_numbers(ALONE, dict(enumerate(pieces)))

    def act(world: World) -> Any:
        own = {number: each for number, each in enumerate(pieces) if is_own(world, number)}
        return merged_numbers(world, own).tobytes().hex()

    assert alone.tolist() == [number for each in pieces for number in each.double().tolist()]
    assert ranks(2, act) == [alone.tobytes().hex()] * 2
