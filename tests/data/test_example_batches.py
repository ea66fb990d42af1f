"""Packed or padded, in many pieces or few: a batch holds the same inputs and targets, each once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import Refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.data.batches import IGNORED, MicroBatch
from brimful.data.example_batches import (
    ExampleBatch,
    ExampleSequences,
    evaluation_batches,
    pairs_of,
)
from brimful.data.examples import ExampleSplit
from brimful.data.formats import Example

Split = Callable[..., ExampleSplit]
SIZES = [(3, 4), (1, 1), (2, 14), (5, 1), (1, 7), (6, 6), (1, 2), (9, 3), (4, 4), (2, 2), (8, 1)]


def one_by_one(micro: MicroBatch) -> list[tuple[list[int], list[int]]]:
    """Inputs and targets of each example of a micro-batch, padding left out."""
    if micro.lengths_E is not None:
        lengths = micro.lengths_E.tolist()
        after = [-1] * len(lengths) if micro.after_E is None else micro.after_E.tolist()
        parts = [row_BT[0].split(lengths) for row_BT in (micro.inputs_BT, micro.targets_BT)]
        pieces = zip(
            *(
                [
                    part[number] if before < 0 else torch.cat([part[before], part[number]])
                    for number, before in enumerate(after)
                    if number not in after
                ]
                for part in parts
            ),
            strict=True,
        )
    else:
        pieces = zip(micro.inputs_BT, micro.targets_BT, strict=True)
    trimmed = ((inputs[: int((inputs != 0).sum())].tolist(), targets) for inputs, targets in pieces)
    return [(inputs, targets[: len(inputs)].tolist()) for inputs, targets in trimmed if inputs]


def contents(batch: ExampleBatch, sizes: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    return sorted(pair for micro in batch.micro_batches(sizes) for pair in one_by_one(micro))


def expected(split: ExampleSplit, numbers: Any) -> list[tuple[list[int], list[int]]]:
    pairs = []
    for number in numbers:
        ids = split.tokens_N[split.offsets_E[number] : split.offsets_E[number + 1]].tolist()
        is_target = split.is_target_N[
            split.offsets_E[number] : split.offsets_E[number + 1]
        ].tolist()
        pairs.append(
            (
                ids[:-1],
                [
                    token if is_one else IGNORED
                    for token, is_one in zip(ids[1:], is_target[1:], strict=True)
                ],
            )
        )
    return sorted(pairs)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_an_epoch_holds_every_example_once(example_split: Split, layout: Any) -> None:
    """With each input and what follows it, where that is learned."""
    split = example_split(*SIZES)
    batch = ExampleSequences(split, 15, layout, seed=3).batch(0, len(SIZES))
    assert contents(batch, (2,)) == expected(split, range(len(SIZES)))
    assert batch.num_target_tokens == split.num_target_tokens


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_batch_depends_on_seed_and_numbers_only(example_split: Split, layout: Any) -> None:
    """Any partition gives the same examples, also across the border of an epoch; another seed gives
    another order.
    """
    split = example_split(*SIZES)
    make = lambda seed: ExampleSequences(split, 15, layout, seed=seed)  # noqa: E731
    whole = contents(make(1).batch(4, 20), (4,))
    assert whole == sorted(
        pair for first in range(4, 24, 5) for pair in contents(make(1).batch(first, 5), (4,))
    )
    orders = [
        [contents(make(seed).batch(sample, 1), (1,)) for sample in range(len(SIZES))]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert len(make(1)) == len(SIZES)


def test_a_packed_row_says_where_its_examples_end_and_what_is_scored(example_split: Split) -> None:
    """Examples of 7 and 2 tokens are 6 and 1 positions; within each, prompt positions but the last
    are not scored.
    """
    split = example_split((3, 4), (1, 1))
    (micro,) = ExampleSequences(split, 15).batch(0, 2).micro_batches((2,))
    assert micro.lengths_E is not None
    assert micro.scored_N is not None
    assert sorted(micro.lengths_E.tolist()) == [1, 6]
    assert micro.inputs_BT.shape == (1, 7)
    assert {
        tensor.dtype
        for tensor in (micro.inputs_BT, micro.targets_BT, micro.lengths_E, micro.scored_N)
    } == {torch.int64}
    assert (
        micro.targets_BT.flatten()[micro.scored_N].tolist()
        == micro.targets_BT[micro.targets_BT != IGNORED].tolist()
    )
    assert sorted(micro.targets_BT[micro.targets_BT != IGNORED].tolist()) == [4, 5, 6, 7, 9]


def test_packed_rows_are_as_few_and_as_even_as_they_can_be(example_split: Split) -> None:
    """Six examples of 10 positions under 40: two rows of 30, not 40 and 20."""
    batch = ExampleSequences(example_split(*[(1, 10)] * 6), 20).batch(0, 6)
    assert [micro.inputs_BT.shape[1] for micro in batch.micro_batches((2, 2, 2))] == [30, 30]


def test_rows_that_fill_their_budget_need_best_fit(example_split: Split) -> None:
    """Evenly dealt, 6, 6, 4, 4 and 4 positions under 12 give no two rows; best fit does."""
    batch = ExampleSequences(example_split((1, 6), (1, 6), (1, 4), (1, 4), (1, 4)), 12).batch(0, 5)
    assert [micro.inputs_BT.shape[1] for micro in batch.micro_batches((1,))] == [12, 12]


def test_padded_rows_are_of_similar_length(example_split: Split) -> None:
    """Widths are multiples of 8, at most the sequence length; there is no packing."""
    batch = ExampleSequences(example_split(*SIZES), 15, "padded").batch(0, len(SIZES))
    micros = list(batch.micro_batches((3,)))
    assert [tuple(micro.inputs_BT.shape) for micro in micros] == [(3, 15), (5, 8), (3, 8)]
    assert all(micro.lengths_E is None for micro in micros)


def test_a_question_lies_once_before_all_its_answers(example_split: Split) -> None:
    """One that is a small part of its answers, whose copies would take more, lies in each."""
    asked, said = [[1, 2, 3, 4], [5, 6, 7, 8, 9]], [[10, 11], [12], [13, 14, 15]]
    rows = [[*question, *answer] for answer in said for question in asked]
    rows += [[1, 2, *range(20, 40)], [1, 2, *range(20, 39)]]
    lengths = [len(row) for row in rows]
    starts = [len(question) for _ in said for question in asked] + [2, 2]
    is_target = [
        place >= start for start, n in zip(starts, lengths, strict=True) for place in range(n)
    ]
    split = ExampleSplit(
        np.concatenate(rows).astype(np.uint32),
        np.array(is_target),
        np.cumsum([0, *lengths]),
        0,
        (Example("", "", "", ""),) * len(rows),
    )
    numbers = np.arange(len(rows))
    kept = {"number": numbers.astype(np.float32)}
    batch = ExampleBatch(pairs_of(split, numbers), 200, "shared", kept=kept)

    (micro,) = batch.micro_batches((1,))

    assert sorted(one_by_one(micro)) == expected(split, numbers)
    assert micro.lengths_E is not None
    assert micro.after_E is not None
    assert micro.lengths_E.tolist() == [3, 2, 1, 3, 4, 2, 1, 3, 21, 20]
    assert micro.after_E.tolist() == [-1, 0, 0, 0, -1, 4, 4, 4, -1, -1]
    assert micro.kept["number"].tolist() == [0, 2, 4, 1, 3, 5, 6, 7]
    assert micro.model_inputs()["position_ids"][0, :9].tolist() == [0, 1, 2, 3, 4, 3, 3, 4, 5]
    assert len(list(batch.micro_batches((1,)))) == 1
    assert len(list(ExampleBatch(batch.pairs, 30, "shared").micro_batches((1,)))) == 3


def test_a_split_with_too_long_an_example_is_a_mistake_of_the_caller(
    example_split: Split, refuses: Refuses
) -> None:
    with refuses(ValueError):
        ExampleSequences(example_split((5, 5)), 8)


@st.composite
def splits(draw: st.DrawFn) -> ExampleSplit:
    sizes = draw(
        st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=25)
    )
    is_target = [
        bool(place) and (place >= prompt)
        for prompt, answer in sizes
        for place in range(prompt + answer)
    ]
    lengths = [sum(size) for size in sizes]
    examples = tuple(Example("", "", "", "") for _ in sizes)
    return ExampleSplit(
        np.arange(1, sum(lengths) + 1, dtype=np.uint32),
        np.array(is_target),
        np.cumsum([0, *lengths]),
        0,
        examples,
    )


@settings(deadline=None, max_examples=60)
@given(splits(), st.integers(1, 4))
def test_every_layout_and_size_holds_the_same_within_its_budget(
    split: ExampleSplit, size: int
) -> None:
    """Halved sizes, padded or packed: the same pairs, every target once, no micro-batch above its
    budget or empty. The positions of each are known without making it.
    """
    longest, count = 23, split.num_examples
    for layout in ("packed", "padded", "shared"):
        sequences = ExampleSequences(split, longest, layout, seed=0)  # type: ignore[arg-type]
        batch = sequences.batch(0, count)
        for sizes in ((2 * size,), (size, size), (1,)):
            micros = list(batch.micro_batches(sizes))
            assert sorted(pair for micro in micros for pair in one_by_one(micro)) == expected(
                split, range(split.num_examples)
            )
            targets = [
                token
                for micro in micros
                for token in micro.targets_BT.flatten()[micro.scored_N].tolist()
            ]
            assert sorted(targets) == split.tokens_N[split.is_target_N].tolist()
            budget, positions = max(sizes) * longest, [micro.inputs_BT.numel() for micro in micros]
            assert max(positions) <= budget
            if layout != "shared":
                assert sequences.positions_of_passes(0, count, budget) == positions
            assert all(len(micro.scored_N) for micro in micros if micro.scored_N is not None)


def test_evaluation_scores_every_example_once_longest_first(example_split: Split) -> None:
    """Rows say which example they are; a row longer than the budget stands alone."""
    split = example_split(*SIZES)
    found = list(evaluation_batches(split, 14))
    assert sorted(pair for micro, _ in found for pair in one_by_one(micro)) == expected(
        split, range(len(SIZES))
    )
    for micro, numbers in found:
        assert [one_by_one(micro)[row] for row in range(len(numbers))] == [
            expected(split, [number])[0] for number in numbers
        ]
    assert [tuple(micro.inputs_BT.shape) for micro, _ in found][:3] == [(1, 15)] * 3
    assert sorted(np.concatenate([numbers for _, numbers in found]).tolist()) == list(
        range(len(SIZES))
    )


def test_evaluation_can_take_examples_spread_over_the_split(example_split: Split) -> None:
    """The first and the last among them."""
    numbers = np.concatenate(
        [numbers for _, numbers in evaluation_batches(example_split(*SIZES), 100, max_examples=3)]
    )
    assert sorted(numbers.tolist()) == [0, 5, 10]
