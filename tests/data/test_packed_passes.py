"""Packed texts: each once, in order of length, within the budget but for texts longer than it."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful.data.packed_passes import ROW_MULTIPLE, PackedPasses

PASSES = PackedPasses(pad_id=9, limit=64)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=30), st.integers(64, 400))
def test_every_text_is_in_one_pass_and_no_pass_is_beyond_the_budget(
    lengths: list[int], budget: int
) -> None:
    laid_out = PASSES.laid_out(lengths, budget)

    assert sorted(number for numbers in laid_out for number in numbers) == list(range(len(lengths)))
    for numbers, positions in zip(laid_out, PASSES.positions(lengths, budget), strict=True):
        found = [lengths[number] for number in numbers]
        assert found == sorted(found, reverse=True)
        assert sum(found) <= positions <= budget
        assert positions - sum(found) < ROW_MULTIPLE


def test_rows_have_few_lengths_and_what_fills_them_is_no_text() -> None:
    ids = [np.arange(30, dtype=np.uint32), np.arange(4, dtype=np.uint32)]
    targets, weights = np.array([1, 0]), np.array([0.5, 2.0], np.float32)

    micro = PASSES.micro_batch(ids, targets, weights, budget=640)

    assert micro.inputs_BT.shape == (1, 3 * ROW_MULTIPLE)
    assert micro.lengths_E is not None
    assert micro.lengths_E.tolist() == [30, 4, 4, 4, 4, 2]
    assert micro.inputs_BT[0, 34:].tolist() == [9] * 14
    assert torch.equal(micro.targets_BT, torch.tensor([1, 0]))


def test_a_full_row_is_not_filled() -> None:
    ids = [np.arange(64, dtype=np.uint32)]

    micro = PASSES.micro_batch(ids, np.array([1]), np.ones(1, np.float32), budget=64)

    assert micro.lengths_E is not None
    assert micro.lengths_E.tolist() == [64]
