"""Batches are pure functions of seed and number; nothing is lost, doubled or mixed."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fixture_types import Refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.base.errors import DataError
from brimful.data.batches import IGNORED
from brimful.data.sequences import TokenSequences, evaluation_batches
from brimful.data.tokens import TokenSplit

Split = Callable[..., TokenSplit]


def counting(num_tokens: int) -> TokenSplit:
    """Token n is number n, so a batch shows where it was read."""
    return TokenSplit(
        np.arange(num_tokens, dtype="<u4"),
        np.array([0, num_tokens], dtype="<u8"),
        num_tokens,
        num_tokens,
        1,
    )


def rows(sequences: TokenSequences, first: int, count: int) -> list[tuple[list[int], list[int]]]:
    """(inputs, targets) of each sample without padding."""
    batch = sequences.batch(first, count)
    return [
        (inputs[: (targets != IGNORED).sum()].tolist(), targets[targets != IGNORED].tolist())
        for inputs, targets in zip(batch.inputs_BT, batch.targets_BT, strict=True)
    ]


def test_a_batch_holds_each_position_and_what_follows_it() -> None:
    """int64 on the CPU, with as many target tokens as positions."""
    batch = TokenSequences(counting(1000), 8, seed=3).batch(5, 4)
    assert batch.inputs_BT.shape == batch.targets_BT.shape == (4, 8)
    assert batch.inputs_BT.dtype == batch.targets_BT.dtype == torch.int64
    assert torch.equal(batch.targets_BT, batch.inputs_BT + 1)
    assert batch.num_target_tokens == 32


@pytest.mark.parametrize("layout", ["stream", "document"])
def test_any_partition_into_batches_gives_the_same_samples(layout: str, token_split: Split) -> None:
    """Also across the border of an epoch, and in any order of asking."""
    split = token_split(*(1 + number % 7 for number in range(23)))
    make = lambda: TokenSequences(split, 8, layout, "error", seed=5)  # type: ignore[arg-type]  # noqa: E731
    whole = rows(make(), 3, 40)
    fresh = make()
    assert whole == [row for first in range(3, 43, 8) for row in rows(fresh, first, 8)]
    assert whole == [rows(fresh, first, 1)[0] for first in reversed(range(3, 43))][::-1]


@pytest.mark.parametrize("num_tokens", [17, 100, 101, 107, 1000])
def test_every_epoch_covers_all_windows_once_from_its_own_start(num_tokens: int) -> None:
    """Windows stand end to end; starts and orders differ between epochs, the number of windows does
    not.
    """
    sequences = TokenSequences(counting(num_tokens), 8, seed=1)
    starts, orders = set(), set()
    for epoch in range(30):
        firsts = [
            inputs[0] for inputs, _ in rows(sequences, epoch * len(sequences), len(sequences))
        ]
        assert sorted(firsts) == list(range(min(firsts), min(firsts) + 8 * len(sequences), 8))
        starts.add(min(firsts))
        orders.add(tuple(np.argsort(firsts)))
    assert starts <= set(range(8))
    assert len(starts) >= min(8, num_tokens - 8 * len(sequences)) - 2
    assert len(orders) == 30 or len(sequences) < 4


def test_the_seed_decides_the_order() -> None:
    """Same seed, same samples; another seed, others."""
    split = counting(5000)
    assert (
        rows(TokenSequences(split, 8, seed=1), 0, 50)
        == rows(TokenSequences(split, 8, seed=1), 0, 50)
        != rows(TokenSequences(split, 8, seed=2), 0, 50)
    )


def test_one_window_is_enough_and_less_is_an_error(refuses: Refuses) -> None:
    """9 tokens make one sequence of 8."""
    assert rows(TokenSequences(counting(9), 8), 0, 2) == [(list(range(8)), list(range(1, 9)))] * 2
    with refuses(DataError, names=["8 tokens"]):
        TokenSequences(counting(8), 8)


def test_a_document_sequence_runs_from_end_of_text_to_end_of_text(token_split: Split) -> None:
    """No sequence sees another document."""
    samples = sorted(
        rows(TokenSequences(token_split(2, 1, 3), 8, "document"), 0, 3), key=lambda row: row[1][0]
    )
    assert samples == [([0, 1, 2], [1, 2, 0]), ([0, 4], [4, 0]), ([0, 6, 7, 8], [6, 7, 8, 0])]


def test_documents_are_padded_to_a_multiple_of_eight_and_at_most_the_sequence_length(
    token_split: Split,
) -> None:
    """Padding is never a target."""
    batch = TokenSequences(token_split(2, 8), 12, "document").batch(0, 2)
    assert batch.inputs_BT.shape == (2, 12)
    assert batch.num_target_tokens == 3 + 9
    assert TokenSequences(token_split(2, 6), 12, "document").batch(0, 2).inputs_BT.shape == (2, 8)


def test_long_documents_are_an_error_unless_declared(token_split: Split, refuses: Refuses) -> None:
    """The error has the numbers; a document whose tokens and end-of-text just fit is not long."""
    assert len(TokenSequences(token_split(3, 2), 4, "document")) == 2
    with refuses(DataError, names=["1 of 2", "5 tokens"]):
        TokenSequences(token_split(3, 4), 4, "document")


def test_truncated_documents_lose_their_end(token_split: Split) -> None:
    """What is left has no false end-of-text."""
    sequences = TokenSequences(token_split(6, 2), 4, "document", "truncate")
    assert sorted(rows(sequences, 0, 2)) == [([0, 1, 2, 3], [1, 2, 3, 4]), ([0, 8, 9], [8, 9, 0])]


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=8), sequence_length=st.integers(2, 9)
)
@settings(max_examples=60, deadline=None)
def test_split_documents_have_every_token_as_target_once(
    lengths: list[int], sequence_length: int
) -> None:
    """The pieces continue one another."""
    offsets = np.cumsum([0, *(length + 1 for length in lengths)])
    ids = np.arange(1, offsets[-1] + 1)
    ids[offsets[1:] - 1] = 0
    split = TokenSplit(ids.astype("<u2"), offsets.astype("<u8"), 0, 0, len(lengths))
    sequences = TokenSequences(split, sequence_length, "document", "split", seed=1)
    samples = rows(sequences, 0, len(sequences))
    assert sorted(target for _, targets in samples for target in targets) == sorted(ids.tolist())
    assert all(len(targets) <= sequence_length for _, targets in samples)
    assert all(inputs[1:] == targets[:-1] for inputs, targets in samples)
    assert all(
        inputs[0] == (targets[0] - 1 if targets[0] - 1 in ids and targets[0] > 1 else 0)
        for inputs, targets in samples
        if targets[0]
    )


@given(num_tokens=st.integers(2, 200), context=st.integers(1, 20), data=st.data())
@settings(max_examples=100, deadline=None)
def test_every_token_but_the_first_is_scored_once(
    num_tokens: int, context: int, data: st.DataObject
) -> None:
    """For any context, stride and batch size; the target is what follows the input, in windows of
    the full width.
    """
    stride = data.draw(st.integers(1, context))
    batches = list(
        evaluation_batches(counting(num_tokens), context, stride, data.draw(st.integers(1, 5)))
    )
    targets = torch.cat([batch.targets_BT[batch.targets_BT != IGNORED] for batch in batches])
    assert sorted(targets.tolist()) == list(range(1, num_tokens))
    for batch in batches:
        scored = batch.targets_BT != IGNORED
        assert torch.equal(batch.inputs_BT[scored] + 1, batch.targets_BT[scored])
        assert batch.inputs_BT.shape[1] == context


def test_a_sliding_window_gives_every_later_target_its_context() -> None:
    """With context 8 and stride 2 no target after the first window has fewer than 6 tokens before
    it in its window.
    """
    windows = torch.cat([batch.targets_BT for batch in evaluation_batches(counting(101), 8, 2, 3)])
    assert (windows[1:, :6] == IGNORED).all()
    assert (windows[1:-1, 6:] != IGNORED).all()


def test_a_limit_spreads_the_windows_evenly() -> None:
    """From the first to the last, each once."""
    batches = list(evaluation_batches(counting(801), 8, 8, 4, max_sequences=5))
    assert torch.cat([batch.inputs_BT[:, 0] for batch in batches]).tolist() == [
        0,
        192,
        392,
        592,
        792,
    ]
    assert (
        sum(
            len(batch.inputs_BT)
            for batch in evaluation_batches(counting(801), 8, 8, 4, max_sequences=1000)
        )
        == 100
    )


def test_wrong_windows_are_refused_at_once(refuses: Refuses) -> None:
    """Not at the first batch."""
    with refuses(ValueError):
        evaluation_batches(counting(100), 8, 9, 1)
    with refuses(DataError):
        evaluation_batches(counting(1), 8, 8, 1)
    with refuses(ValueError):
        TokenSequences(counting(100), 8).batch(-1, 2)
