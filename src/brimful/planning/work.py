"""The work of one training step, operator by operator: arithmetic and bytes, for any micro-batch
and number of blocks.

Recorded with the memory trace (`brimful.rehearsal`), turned into time by `timing`. Nothing here
imports torch.

Suffixes: W operators ("pieces of work").
"""

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np

from brimful.base.arrays import Bools, Floats, Ints
from brimful.base.types import Json
from brimful.hardware.rates import CLASSES
from brimful.planning.block_rows import BlockRows
from brimful.planning.step import EVALUATION_FACTOR

PARTS = ("micro-batch", "further micro-batch", "optimizer", "evaluation")
"""Parts of a step: its first micro-batch, each one after it (which adds to gradients), the update,
and an evaluation batch.
"""
PHASES = ("forward", "backward", "recomputation", "optimizer", "evaluation")
DTYPES = ("fp32", "16-bit", "other")
"""Arithmetic of an operator; the plan decides which 16-bit type."""

GLOBAL = -1
"""Layer of an operator that belongs to no block."""

COUNTS = (
    "flop_W",
    "bytes_W",
    "fused_bytes_W",
    "batch_W",
    "m_W",
    "n_W",
    "k_W",
    "launches_W",
    "fused_launches_W",
)
"""Fields that are affine in the micro-batch."""
_SHAPE = ("classes_W", "dtypes_W", "parts_W", "phases_W", "layers_W", "operators_W")
"""Fields that are the same for all micro-batches."""
ARRAYS = (*COUNTS, *_SHAPE, "repeats_W")
"""All fields of a Work but the operators' names."""


LIST_ELEMENTS = 320 * 65_536
"""Elements per kernel of an operator on lists of tensors: blocks times chunk (torch,
aten/native/cuda/MultiTensorApply.cuh).
"""


def _nothing() -> Ints:
    return np.zeros(0, np.int64)


class IrregularWork(Exception):
    """Operators differ between two sizes of a step in more than their sizes."""


@dataclass(frozen=True, eq=False)
class Work:
    """Operators of a step, each with how often it runs.

    Attributes:
        flop_W: Floating-point operations of products and attention (causal: half the scores); 0 for
            the rest.
        bytes_W: Bytes read and written when every operator is a kernel of its own.
        fused_bytes_W: The same when chains of element-wise operators and reductions are one kernel:
            only what enters or leaves the chain.
        m_W, n_W, k_W: A product of (m x k) and (k x n), 0 for other operators; attention has
            queries, keys and head size here.
        batch_W: Products of a batch; 1 for single ones; heads times sequences for attention.
        launches_W: Number of kernels without fusion.
        fused_launches_W: Kernels when chains are fused; 0 for all but the first of a chain.
        classes_W: Index into hardware.rates.CLASSES.
        dtypes_W: Index into DTYPES.
        parts_W: Index into PARTS.
        phases_W: Index into PHASES.
        layers_W: Block, GLOBAL outside.
        operators_W: Index into `operators`.
        repeats_W: How often the operator runs in its part.
        operators: Names.
    """

    flop_W: Ints
    bytes_W: Ints
    fused_bytes_W: Ints
    m_W: Ints
    n_W: Ints
    k_W: Ints
    batch_W: Ints
    launches_W: Ints
    fused_launches_W: Ints
    classes_W: Ints
    dtypes_W: Ints
    parts_W: Ints
    phases_W: Ints
    layers_W: Ints
    operators_W: Ints
    repeats_W: Floats
    operators: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.flop_W)

    def only(self, chosen_W: Bools) -> "Work":
        """Return the chosen operators."""
        arrays = {name: getattr(self, name)[chosen_W] for name in ARRAYS}
        return Work(**arrays, operators=self.operators)

    def part(self, name: str) -> "Work":
        """Return the operators of one of PARTS."""
        if name not in self._parts:
            self._parts[name] = self.only(self.parts_W == PARTS.index(name))
        return self._parts[name]

    @functools.cached_property
    def _parts(self) -> "dict[str, Work]":
        return {}

    def of_head(self) -> "Work":
        """Return the operators of no block, but for those that look values up: head and loss."""
        if "head" not in self._parts:
            is_head_W = (self.layers_W == GLOBAL) & (self.classes_W != CLASSES.index("gather"))
            self._parts["head"] = self.only(is_head_W)
        return self._parts["head"]

    def forward_of_blocks(self) -> "Work":
        """Return the operators of the blocks' forward passes."""
        return self.only((self.phases_W == PHASES.index("forward")) & (self.layers_W != GLOBAL))

    def flop(self) -> float:
        """Return the floating-point operations of all operators and their repeats."""
        return float(np.dot(self.flop_W, self.repeats_W))

    @property
    def is_possible(self) -> bool:
        """Whether no count is below 0, as it is where a step has fewer rows than one of its
        tiles, and counts are drawn out from larger ones.
        """
        return bool((self.counts() >= 0).all())

    def counts(self) -> Ints:
        """Return the fields of COUNTS as rows."""
        return np.stack([getattr(self, name) for name in COUNTS])

    def with_counts(self, counts: Ints) -> "Work":
        """Return the operators with other counts."""
        return self.replaced(dict(zip(COUNTS, counts, strict=True)))

    def replaced(self, arrays: Json) -> "Work":
        """Return the work with other arrays."""
        return dataclasses.replace(self, **arrays)

    def places_with_updates_summed(self) -> Ints:
        """Return the row of every operator in `with_updates_summed`."""
        update_W = self.parts_W == PARTS.index("optimizer")
        place_W = np.cumsum(~update_W) - 1
        _, group_W = self.only(update_W)._kinds_of_update()
        place_W[update_W] = (~update_W).sum() + group_W
        return place_W

    def _kinds_of_update(self) -> tuple[Ints, Ints]:
        """Return the first operator of each kind, and the kind of each operator."""
        keys = np.stack([self.operators_W, self.classes_W, self.dtypes_W])
        _, first, group_W = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        return first, group_W.ravel()

    def with_updates_summed(self) -> "Work":
        """Return the work with one row for each kind of operator in the update, because their
        number depends on the number of parameters.
        """
        update_W = self.parts_W == PARTS.index("optimizer")
        rest, update = self.only(~update_W), self.only(update_W)
        if not len(update):
            return self
        first, group_W = update._kinds_of_update()
        summed = {
            name: np.bincount(group_W, weights=getattr(update, name), minlength=len(first)).astype(
                np.int64
            )
            for name in ("flop_W", "bytes_W", "fused_bytes_W", "launches_W", "fused_launches_W")
        }
        ones = np.ones(len(first), np.int64)
        kept = {
            name: getattr(update, name)[first]
            for name in ("classes_W", "dtypes_W", "parts_W", "phases_W", "operators_W")
        }
        shapes = {
            "batch_W": ones,
            "m_W": 0 * ones,
            "n_W": 0 * ones,
            "k_W": 0 * ones,
            "layers_W": GLOBAL * ones,
            "repeats_W": np.ones(len(first)),
        }
        return joined(rest, self.replaced(kept | summed | shapes))


def joined(one: Work, other: Work) -> Work:
    """Return the operators of both, which have the same names."""
    return one.replaced(
        {name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in ARRAYS}
    )


@dataclass(frozen=True, eq=False)
class Calls:
    """Lists of tensors that operators of the update work on. They determine the number of kernels.

    Suffix: L calls.

    Attributes:
        rows_L: The row of the Work that the call is part of.
        limits_L: Tensors that one kernel takes.
        tensors_L: Number of tensors in the longest list.
        elements_L: The number of elements of all its tensors.
    """

    rows_L: Ints
    limits_L: Ints
    tensors_L: Ints
    elements_L: Ints

    def launches(self, rows: int) -> Ints:
        """Return the number of kernels of each of `rows` operators."""
        launches_L = np.maximum(
            -(-self.tensors_L // self.limits_L), -(-self.elements_L // LIST_ELEMENTS)
        )
        return np.bincount(self.rows_L, weights=launches_L, minlength=rows).astype(np.int64)

    def alike(self, other: "Calls") -> bool:
        """Return whether they differ in elements only."""
        return all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("rows_L", "limits_L", "tensors_L")
        )


@dataclass(frozen=True, eq=False)
class Details:
    """The summands of a Work's counts, needed only while families are made.

    Suffixes: D accesses to storages, without those of the update; U those of the update; N tensors
    in the lists of the update's calls; P parameters.

    Attributes:
        rows_D: The row of the Work that an access belongs to.
        bytes_D, fused_bytes_D: Bytes that it adds to the row's.
        calls: The calls of the update.
        rows_U, bytes_U, fused_bytes_U: The same of the update.
        calls_N, elements_N: The call whose longest list a tensor is in, and its elements.
        parameters_P: Weights in each parameter of the model; a packed one counts as what it holds.
        trains_P: 1 where it is trained, else 0.
    """

    rows_D: Ints
    bytes_D: Ints
    fused_bytes_D: Ints
    calls: Calls
    rows_U: Ints = dataclasses.field(default_factory=_nothing)
    bytes_U: Ints = dataclasses.field(default_factory=_nothing)
    fused_bytes_U: Ints = dataclasses.field(default_factory=_nothing)
    calls_N: Ints = dataclasses.field(default_factory=_nothing)
    elements_N: Ints = dataclasses.field(default_factory=_nothing)
    parameters_P: Ints = dataclasses.field(default_factory=_nothing)
    trains_P: Ints = dataclasses.field(default_factory=_nothing)


@dataclass(frozen=True, eq=False)
class ParametricWork:
    """Operators for every micro-batch: counts are affine in it, and in the tokens of a chunk of the
    loss.

    The chunked loss is recorded with two chunks: a full one, which is repeated, and the last.

    Attributes:
        work: The operators; their counts are of one size.
        base, slope, chunk_slope: Counts (COUNTS x W) that depend on nothing, per sequence, and per
            token of a chunk.
        chunks_W: 1 in the full chunk, 2 in the last one, 0 outside the chunked loss.
        sequence_length: Tokens per sequence.
    """

    work: Work
    base: Ints
    slope: Ints
    chunk_slope: Ints
    chunks_W: Ints
    sequence_length: int

    def at(self, micro_batch: int, loss_chunk: int) -> Work:
        """Return the operators of a micro-batch, with an evaluation batch that is EVALUATION_FACTOR
        times as large.
        """
        sequences_W = np.where(
            self.work.parts_W == PARTS.index("evaluation"),
            EVALUATION_FACTOR * micro_batch,
            micro_batch,
        )
        tokens_W = sequences_W * self.sequence_length
        chunk_W = np.minimum(loss_chunk, tokens_W)
        full_W = -(-tokens_W // chunk_W) - 1
        last_W = tokens_W - full_W * chunk_W
        batch_W = np.where(
            self.chunks_W == 2, (last_W + chunk_W) / self.sequence_length, sequences_W
        )
        counts = (
            self.base + np.rint(self.slope * batch_W).astype(np.int64) + self.chunk_slope * chunk_W
        )
        repeats_W = np.where(self.chunks_W == 1, full_W, 1) * self.work.repeats_W
        return self.work.with_counts(counts).replaced({"repeats_W": repeats_W})


def block_growth(short: Work, longer: Work, rows: BlockRows) -> Ints:
    """Return by how much the counts of operators outside the blocks grow from the short row of
    blocks to the longer one.

    Raises:
        IrregularWork: the blocks do not repeat.
    """
    outside_W, longer_outside_W = short.layers_W == GLOBAL, longer.layers_W == GLOBAL
    one, other = short.only(outside_W), longer.only(longer_outside_W)
    refuse_others(one, other)
    inside, longer_inside = (
        repeated(short, rows).only(~outside_W),
        longer.only(~longer_outside_W),
    )
    for name in ("flop_W", "bytes_W", "launches_W"):
        expected, actual = (
            float(np.dot(getattr(each, name), each.repeats_W)) for each in (inside, longer_inside)
        )
        if abs(expected - actual) > 1e-9 * actual:
            raise IrregularWork(
                f"the longer row does {actual:.0f} in place of {expected:.0f} ({name})"
            )
    growth = np.zeros((len(COUNTS), len(short)), np.int64)
    growth[:, outside_W] = other.counts() - one.counts()
    return growth


def repeated(short: Work, rows: BlockRows) -> Work:
    """Repeat the operators of blocks in the middle as often as the long row has such blocks."""
    times = [1.0, *(rows.repeats(letter) for letter in rows.few[1:-1]), 1.0, 1.0]
    # The last place is that of operators outside the blocks.
    return short.replaced({"repeats_W": np.array(times)[short.layers_W] * short.repeats_W})


def refuse_others(one: Work, other: Work) -> None:
    """Raise IrregularWork if two steps differ in more than the sizes of their operators."""
    if one.operators != other.operators or not all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in _SHAPE
    ):
        raise IrregularWork("the operators differ between two sizes of the step")


def chunks_of(work: Work, chunk_slope: Ints) -> Ints:
    """Return for each row 1 in a full chunk of the loss, 2 in its last one, else 0. The last chunk
    repeats the operators of the full one. A loss may go through its chunks several times.

    What only reads less because it is fused with the last chunk is no part of it.
    """
    chunk_slope = chunk_slope[: COUNTS.index("fused_bytes_W")]
    chunks_W = np.zeros(len(work), np.int64)
    for part in np.flatnonzero(np.bincount(work.parts_W)):
        first = np.flatnonzero((chunk_slope > 0).any(axis=0) & (work.parts_W == part))
        last = np.flatnonzero((chunk_slope < 0).any(axis=0) & (work.parts_W == part))
        while len(first) and len(last):
            start, middle = int(first[0]), int(last[0])
            end = 2 * middle - start
            misplaced = middle < start or ((first >= middle) & (first < end)).any()
            if misplaced or not np.array_equal(
                work.operators_W[start:middle], work.operators_W[middle:end]
            ):
                raise IrregularWork("chunks of the loss do not repeat")
            chunks_W[start:middle], chunks_W[middle:end] = 1, 2
            first, last = first[first >= end], last[last >= end]
        if len(last) and chunks_W[last[0] - 1]:
            raise IrregularWork("chunks of the loss do not repeat")
    return chunks_W
