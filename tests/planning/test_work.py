"""Operators of a step by hand: summed, and drawn out to any micro-batch, chunk of the loss and
number of blocks.
"""

from collections.abc import Callable

import numpy as np
import pytest
from fixture_types import Refuses

from brimful.base.types import JsonDict
from brimful.hardware.rates import CLASSES
from brimful.planning.block_rows import ALIKE, BlockRows
from brimful.planning.work import (
    COUNTS,
    GLOBAL,
    PARTS,
    IrregularWork,
    ParametricWork,
    Work,
    block_growth,
    chunks_of,
    refuse_others,
    repeated,
)

WorkOf = Callable[..., Work]
LENGTH = 8
"""Tokens of a sequence."""


def _totals(work: Work) -> dict[str, float]:
    names = ("flop_W", "bytes_W", "fused_bytes_W", "launches_W")
    return {
        f"{part} {name}": float(np.dot(getattr(each, name), each.repeats_W))
        for part in PARTS
        for each in [work.part(part)]
        for name in names
    }


def test_flop_count_repeats_and_are_told_apart_by_class(work_of: WorkOf) -> None:
    work = work_of(
        {"flop": 5, "kind": "matrix", "repeats": 3.0},
        {"flop": 2, "kind": "attention"},
        {"bytes": 9},
    )

    assert (len(work), work.flop()) == (3, 17.0)
    flop = {name: work.only(work.classes_W == CLASSES.index(name)).flop() for name in CLASSES}
    assert {name: each for name, each in flop.items() if each} == {
        "matrix": 15.0,
        "attention": 2.0,
    }


def test_a_part_is_its_own_operators(work_of: WorkOf) -> None:
    work = work_of(*({"flop": 10**index, "part": part} for index, part in enumerate(PARTS)))

    assert [work.part(part).flop() for part in PARTS] == [1, 10, 100, 1000]
    assert work.part("evaluation").operators == work.operators


def test_operators_of_the_update_become_one_row_for_each_kind(work_of: WorkOf) -> None:
    update: JsonDict = {"part": "optimizer", "phase": "optimizer", "kind": "optimizer"}
    norm = update | {"name": "_foreach_norm", "bytes": 7, "layer": 3}
    rows = [
        norm,
        update | {"name": "step", "bytes": 1},
        norm,
        norm | {"dtype": "16-bit"},
        norm | {"launches": 4},
    ]
    work = work_of({"bytes": 5, "layer": 2}, *rows).with_updates_summed()

    assert [
        (work.operators[row], moved, launches)
        for row, moved, launches in zip(
            work.operators_W, work.bytes_W, work.launches_W, strict=True
        )
    ] == [
        ("add", 5, 1),
        ("_foreach_norm", 21, 6),
        ("_foreach_norm", 7, 1),
        ("step", 1, 1),
    ]
    assert work.layers_W.tolist() == [2, GLOBAL, GLOBAL, GLOBAL]
    assert _totals(work) == _totals(work_of({"bytes": 5}, *rows))


def test_work_without_an_update_stays_as_it_is(work_of: WorkOf) -> None:
    assert _totals(work_of({"bytes": 5}, {"bytes": 6}).with_updates_summed()) == _totals(
        work_of({"bytes": 5}, {"bytes": 6})
    )


def _step(work_of: WorkOf, micro_batch: int, chunk: int, blocks: int = 1, factor: int = 2) -> Work:
    """A block, then a loss in chunks: 7 FLOP a token, 3 bytes a token and 100 for every chunk; an
    evaluation batch; an update that grows with blocks.
    """
    rows: list[JsonDict] = [
        {"bytes": 1000 + 10 * micro_batch, "flop": 20 * micro_batch, "layer": layer}
        for layer in range(blocks)
    ]
    for part, sequences in (("micro-batch", micro_batch), ("evaluation", factor * micro_batch)):
        tokens = sequences * LENGTH
        for start in range(0, tokens, chunk):
            length = min(chunk, tokens - start)
            rows += [
                {
                    "name": "mm",
                    "part": part,
                    "kind": "matrix",
                    "flop": 7 * length,
                    "bytes": 3 * length + 100,
                    "m": length,
                },
                {"name": "exp", "part": part, "bytes": 2 * length},
            ]
    return work_of(
        *rows, {"name": "step", "part": "optimizer", "kind": "optimizer", "bytes": 50 + 40 * blocks}
    )


def _line(work_of: WorkOf, blocks: int = 1) -> ParametricWork:
    """As the tracer makes it: two chunks in every trace, in evaluation too."""
    low, high, other = (
        _step(work_of, size, chunk, blocks, factor=1) for size, chunk in ((4, 24), (5, 24), (4, 16))
    )
    slope = high.counts() - low.counts()
    chunk_slope = (low.counts() - other.counts()) // 8
    base = low.counts() - 4 * slope - 24 * chunk_slope
    return ParametricWork(low, base, slope, chunk_slope, chunks_of(low, chunk_slope), LENGTH)


@pytest.mark.parametrize("loss_chunk", [3, 8, 16, 24, 1000])
@pytest.mark.parametrize("micro_batch", [1, 2, 7])
def test_a_line_through_few_sizes_gives_every_micro_batch_with_every_chunk(
    work_of: WorkOf, micro_batch: int, loss_chunk: int
) -> None:
    assert _totals(_line(work_of).at(micro_batch, loss_chunk)) == _totals(
        _step(work_of, micro_batch, loss_chunk)
    )


def test_full_chunks_are_one_row_that_repeats(work_of: WorkOf) -> None:
    """7 sequences of 8 tokens are 5 chunks of 11 and one."""
    work = _line(work_of).at(7, 11).part("micro-batch")

    assert [
        (rows, repeats) for rows, repeats in zip(work.m_W, work.repeats_W, strict=True) if rows
    ] == [(11, 5.0), (1, 1.0)]


@pytest.mark.parametrize(
    "row",
    [{"name": "sub"}, {"kind": "copy"}, {"phase": "backward"}, {"layer": 5}, {"dtype": "16-bit"}],
    ids=["operator", "class", "phase", "block", "type"],
)
def test_steps_with_different_operators_are_told_apart(
    work_of: WorkOf, row: JsonDict, refuses: Refuses
) -> None:
    with refuses(IrregularWork):
        refuse_others(work_of({"flop": 4}), work_of({"flop": 5} | row))


def test_a_last_chunk_that_does_other_things_is_refused(work_of: WorkOf, refuses: Refuses) -> None:
    work = work_of({"name": "mm"}, {"name": "bmm"})
    chunk_slope = np.zeros((len(COUNTS), 2), np.int64)
    chunk_slope[0] = 1, -1

    with refuses(IrregularWork):
        chunks_of(work, chunk_slope)


def _rows(few: int, every: int) -> BlockRows:
    return BlockRows(ALIKE * few, ALIKE * every)


@pytest.mark.parametrize("blocks", [3, 4, 7, 30])
def test_three_blocks_and_one_more_give_any_number(work_of: WorkOf, blocks: int) -> None:
    few, longer = (_step(work_of, 7, 40, blocks=count) for count in (3, 4))

    growth = block_growth(few, longer, _rows(3, 4))

    grown = repeated(few, _rows(3, blocks)).with_counts(few.counts() + growth * (blocks - 3))
    assert _totals(grown) == _totals(_step(work_of, 7, 40, blocks))


def test_only_blocks_in_the_middle_repeat(work_of: WorkOf) -> None:
    work = work_of(*({"layer": layer} for layer in (GLOBAL, 0, 1, 2, 3)))

    assert repeated(work, _rows(4, 10)).repeats_W.tolist() == [1, 1, 4, 4, 1]


def test_blocks_that_are_not_alike_are_refused(work_of: WorkOf, refuses: Refuses) -> None:
    short = work_of(*({"layer": layer, "flop": 10, "bytes": 4} for layer in range(3)))
    longer = work_of(
        *({"layer": layer, "flop": 10 + 2 * (layer == 2), "bytes": 4} for layer in range(4))
    )

    with refuses(IrregularWork):
        block_growth(short, longer, _rows(3, 4))
