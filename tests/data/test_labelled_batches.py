"""Labelled texts in passes: nothing lost, little padding, the same step however it is cut."""

from itertools import combinations
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brimful.data.labelled import LabelledSplit
from brimful.data.labelled_batches import LabelledSequences, Passes
from brimful.data.labelled_tokens import EncodedLabels
from brimful.data.labels import Labels
from brimful.data.sequences import padded_width

HAM_SPAM = Labels(names=("ham", "spam"), multiple=False, positive=1)
TOPICS = Labels(names=("a", "b", "c"), multiple=True, positive=None)


def _encoded(lengths: list[int], targets: np.ndarray[Any, Any] | None = None) -> EncodedLabels:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    targets = np.arange(len(lengths)) % 2 if targets is None else targets
    texts = tuple(str(number) for number in range(len(lengths)))
    split = LabelledSplit(texts, targets, texts, np.zeros(len(lengths), dtype=bool))
    return EncodedLabels(split, np.arange(1, offsets[-1] + 1, dtype=np.uint32), offsets)


def _padded(passes: Passes, lengths: list[int], numbers: list[int]) -> int:
    return len(numbers) * padded_width(max(lengths[number] for number in numbers), passes.limit)


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=30), st.integers(64, 300), st.integers(0, 200)
)
def test_every_text_is_in_one_pass_and_no_pass_is_beyond_the_budget(
    lengths: list[int], budget: int, overhead: int
) -> None:
    passes = Passes(pad_id=0, limit=64, overhead=overhead)

    laid_out = passes.laid_out(lengths, budget)

    assert sorted(number for numbers in laid_out for number in numbers) == list(range(len(lengths)))
    assert all(_padded(passes, lengths, numbers) <= budget for numbers in laid_out)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=7), st.integers(0, 100))
def test_no_other_cut_of_the_sorted_texts_costs_less(lengths: list[int], overhead: int) -> None:
    passes = Passes(pad_id=0, limit=64, overhead=overhead)
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])

    def cost(laid_out: list[list[int]]) -> int:
        return sum(_padded(passes, lengths, numbers) + overhead for numbers in laid_out)

    def cut(places: tuple[int, ...]) -> list[list[int]]:
        return [
            order[start:end] for start, end in zip((0, *places), (*places, len(order)), strict=True)
        ]

    cheapest = min(
        cost(cut(places))
        for count in range(len(order))
        for places in combinations(range(1, len(order)), count)
    )
    assert cost(passes.laid_out(lengths, 10_000)) == cheapest


def test_overhead_trades_padding_for_fewer_passes() -> None:
    lengths = [8] * 20 + [64] * 4

    assert len(Passes(0, 64, overhead=10).laid_out(lengths, 10_000)) == 2
    assert len(Passes(0, 64, overhead=10_000).laid_out(lengths, 10_000)) == 1


def test_rows_are_filled_on_the_right_and_the_mask_says_where_text_is() -> None:
    inputs_BT, mask_BT = Passes(pad_id=9, limit=64, overhead=0).filled(
        [np.array([5, 6], np.uint32), np.arange(8, dtype=np.uint32)]
    )

    assert inputs_BT.tolist() == [[5, 6, 9, 9, 9, 9, 9, 9], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert mask_BT is not None
    assert mask_BT.sum(1).tolist() == [2, 8]
    assert Passes(0, 64, 0).filled([np.arange(8, dtype=np.uint32)])[1] is None


def test_a_step_sees_each_text_of_an_epoch_once_and_the_same_again_with_the_same_seed() -> None:
    encoded = _encoded([3, 9, 4, 30, 12, 7])
    sequences = LabelledSequences(encoded, None, Passes(0, 32, 64), seed=7)

    seen = [ids.tolist() for start in (0, 2, 4) for ids in sequences.batch(start, 2).ids]

    assert sorted(seen) == sorted(encoded.ids(number).tolist() for number in range(6))
    assert [
        ids.tolist()
        for ids in LabelledSequences(encoded, None, Passes(0, 32, 0), seed=7).batch(0, 6).ids
    ] == seen


def _windowed(steps: int) -> LabelledSequences:
    random = np.random.default_rng(0)
    encoded = _encoded(random.integers(3, 32, 103).tolist())
    return LabelledSequences(encoded, None, Passes(0, 32, 64), 7, 8, steps)


def test_batches_of_similar_length_hold_each_text_once_an_epoch_and_less_padding() -> None:
    """Epochs of 103 texts in batches of 8: windows and batches end apart."""
    shuffled, grouped = _windowed(1), _windowed(4)
    for epoch in range(3):
        texts = grouped.batch(epoch * 103, 103).ids
        assert sorted(map(len, texts)) == sorted(map(len, shuffled.batch(epoch * 103, 103).ids))

    def positions(sequences: LabelledSequences) -> int:
        return sum(sum(sequences.positions_of_passes(8 * step, 8, 256)) for step in range(39))

    def spread(sequences: LabelledSequences) -> float:
        batches = (sequences.batch(8 * step, 8).ids for step in range(12))
        return float(np.mean([np.ptp([len(ids) for ids in batch]) for batch in batches]))

    assert positions(grouped) < 0.95 * positions(shuffled)
    assert spread(grouped) < spread(shuffled) / 2


def test_a_window_does_not_depend_on_where_reading_begins() -> None:
    """As after a resume; and the order of batches within a window is not that of their lengths."""
    whole = [ids.tolist() for ids in _windowed(4).batch(0, 240).ids]
    for start in (8, 96, 100, 104, 200):
        assert [ids.tolist() for ids in _windowed(4).batch(start, 16).ids] == (
            whole[start : start + 16]
        )
    means = [np.mean([len(ids) for ids in whole[start : start + 8]]) for start in range(0, 96, 8)]
    assert any(means[step] > means[step + 1] for step in (0, 1, 2, 4, 5, 6, 8, 9, 10))
    assert any(means[step] < means[step + 1] for step in (0, 1, 2, 4, 5, 6, 8, 9, 10))


def test_the_positions_of_passes_are_known_without_making_them() -> None:
    sequences = LabelledSequences(_encoded([3, 9, 4, 30, 12, 7]), None, Passes(0, 32, 8), seed=7)

    passes = sequences.batch(2, 4).micro_batches((1,))

    positions = sequences.positions_of_passes(2, 4, 32)
    assert positions == [micro.inputs_BT.numel() for micro in passes]
    assert len(positions) > 1


def test_the_divisor_is_the_sum_of_the_steps_weights_whatever_the_passes() -> None:
    encoded = _encoded([4, 30, 8, 16], np.array([0, 1, 0, 1]))
    batch = LabelledSequences(
        encoded, np.array([0.5, 3.0], np.float32), Passes(0, 32, 0), seed=1
    ).batch(0, 4)

    pieces = list(batch.micro_batches((1,)))

    assert len(pieces) > 1
    assert (
        batch.loss_divisor
        == 7.0
        == sum(float(micro.weights.sum()) for micro in pieces if micro.weights is not None)
    )
    assert batch.num_target_tokens == 58
