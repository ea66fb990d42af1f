"""Traces of a step for any micro-batch, derived from a few small ones: with fewer blocks, few
sequences and two chunks of the loss.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from transformers import PretrainedConfig

from brimful.base.errors import PlanError
from brimful.model import attention
from brimful.planning.family import Family, ShortFamily
from brimful.planning.family_key import GRANULE, StepSize, TraceFamilyKey
from brimful.planning.parametric import (
    EXAMPLES,
    Irregular,
    ParametricTrace,
    affine,
    equal,
    stretch,
    stretch_values,
)
from brimful.planning.parts import CHECKED, FEW, MORE, TraceInParts, through
from brimful.planning.recorded_sums import TooFew
from brimful.planning.recordings import Recordings
from brimful.planning.step import EVALUATION_FACTOR, StepSpec
from brimful.planning.trace import Trace, same_events
from brimful.planning.work import (
    IrregularWork,
    ParametricWork,
    Work,
    block_growth,
    refuse_others,
    repeated,
)
from brimful.rehearsal.models import config_of, meta_model, num_blocks, with_layers
from brimful.rehearsal.ranks import rows_in_common
from brimful.rehearsal.training import compiler_of, record_training, without_garbage_collector


@dataclass(frozen=True)
class _Sizes:
    """The micro-batches of the traces behind a line.

    Attributes:
        low, high: Those of the line.
        checks: Further ones, the first that agrees with the line is enough.
        chunks: Sequences whose tokens make a chunk of the loss, by micro-batch, so that every trace
            has exactly two chunks; `low` and `high` have the same.
        other_chunk: The same in another trace of `low`.
    """

    low: int
    high: int
    checks: tuple[int, ...]
    chunks: Mapping[int, float]
    other_chunk: float


_EAGER = _Sizes(4, 5, (1, 7), {4: 3.0, 5: 3.0, 1: 0.75, 7: 5.0}, 2.0)
"""A line is checked with 1, or 7 where one sequence is a special case."""
_IN_BLOCKS = dataclasses.replace(_EAGER, checks=(7, 1))
"""To attention in blocks one sequence always is a special case: a trace of it would be in vain."""
_COMPILED = _Sizes(17, 23, (29,), {17: 14.0, 23: 14.0, 29: 20.0}, 10.0)
"""The compiler reuses a buffer for another of the same number of elements. With such primes no
tensor of the batch is as large as one of the weights by accident.
"""


def _sizes_of(spec: StepSpec) -> _Sizes:
    if spec.compiled != "none":
        return _COMPILED
    return _IN_BLOCKS if spec.attention == attention.NAME else _EAGER


@functools.lru_cache(maxsize=16)
def trace_all(spec: StepSpec) -> ParametricTrace:
    """Trace the step for every micro-batch.

    Raises:
        Irregular: it cannot be derived from small traces; `trace_one` still works.
        PlanError: the step cannot be traced at all.
    """
    if spec.compiled == "model":
        raise Irregular("a graph of the whole model has no blocks that repeat")
    with compiler_of(spec):
        return _from_few_blocks(spec, _line_of)


@functools.lru_cache(maxsize=16)
def trace_parts(spec: StepSpec) -> TraceInParts:
    """Trace the step of a model in parts for every number of ranks and every micro-batch.

    Raises:
        Irregular: it cannot be derived from small traces; `trace_all` of each number still works.
        PlanError: the step cannot be traced at all.
    """
    return _from_few_blocks(spec, _parts_of)


_Made = TypeVar("_Made")


def _from_few_blocks(
    spec: StepSpec, make: Callable[[StepSpec, PretrainedConfig, int], _Made]
) -> _Made:
    """Return what `make` returns for the fewest blocks that are enough."""
    config = config_of(spec)
    problem = Irregular()
    with without_garbage_collector():
        for example in _examples(spec, config):
            try:
                return make(spec, config, example)
            except Irregular as irregular:
                problem = irregular
    raise problem


def trace_family(key: TraceFamilyKey, like: Family | None = None) -> ShortFamily:
    """Trace the step for every micro-batch (or for one sequence), sequence length and rank.

    Args:
        key: What the members share.
        like: For a family of single sequences, the family of all micro-batches; fewer blocks than
            it was traced with are not enough here.

    Raises:
        Irregular: sizes are no products of these; `trace_all` of every member still works.
        PlanError: the step cannot be traced at all.
    """
    problem = Irregular()
    with without_garbage_collector():
        spec = key.member(_size_of(key, 0))
        blocks = num_blocks(config := config_of(spec))
        rows = _rows(key, config)
        for example in _examples(spec, config):
            if like is not None and example < blocks - like.work.more_blocks:
                continue
            few = _with_members(Recordings(key, (), (), example, blocks, rows), [0])
            try:
                _refuse_unrepeated(few.traces[0], example, blocks)
            except Irregular as irregular:
                problem = irregular
                continue
            try:
                return _from_members(few)
            except Irregular as irregular:
                problem = irregular
    raise problem


def _from_members(first: Recordings) -> ShortFamily:
    """Return the family from its first small member and as many more as it takes: two determine the
    products of all sizes, the third tells those apart that agree in two, and what grows with rank
    and length.

    Raises:
        Irregular: also with all members sizes are no products.
    """
    few, problem = _with_members(first, [1, 2] if first.key.sums else [1]), Irregular()
    for number in (3,) if few.key.is_single else (3, 4):
        further = _with_further(few, number)
        try:
            try:
                return _family_of(few, further)
            except TooFew:
                few = _with_members(few, range(len(few.traces), 3))
                return _family_of(few, further)
        except Irregular as irregular:
            problem = irregular
    raise problem


def _family_of(few: Recordings, further: Recordings) -> ShortFamily:
    """Return the family of a few members, checked with the last ones of others."""
    sizes, traces = (
        (*own, *others[-few.checks :])
        for own, others in ((few.sizes, further.sizes), (few.traces, further.traces))
    )
    return dataclasses.replace(few, sizes=sizes, traces=traces).short_family()


_MEMBERS = (
    (4, 0.0, 4, 3.0),
    (5, 1.0, 6, 3.25),
    (4, 0.4, 10, 2.0),
    (1, 1.0, 16, 0.75),
    (7, 1.0, 16, 5.0),
)
"""Micro-batch, position in the range of lengths, rank, and sequences in a piece of the loss. One of
the last two is the recording that checks the others.
"""
_SINGLE_MEMBERS = ((1, 0.0, 4, 0.75), (1, 1.0, 6, 0.6), (1, 0.4, 10, 0.9), (1, 0.7, 16, 0.7))
"""The same for one sequence; the last one is the further recording."""
_RANKS = (4, 2, 8, 2, 2)
"""Devices among which the model is divided, in parts."""
_LAST_RANKS, _LAST_RANK = 8, 5
"""Of a second recording that checks the others, in parts: an adapter with fewer rows than there are
devices.
"""


def _rows(key: TraceFamilyKey, config: PretrainedConfig) -> int:
    """Return the greatest common divisor of the rows of all weights, but for an adapter's first
    matrices, which have as many as its rank; 1 where the model is not divided among devices.

    Raises:
        Irregular: so many devices as are recorded cannot hold equal parts.
    """
    if not key.in_parts:
        return 1
    spec = key.member(_size_of(key, 0))
    rows = rows_in_common(meta_model(spec, _with_blocks(config, 1)), with_ranks=False)
    if rows % max(*_RANKS, _LAST_RANKS):
        raise Irregular("the rows of a weight cannot be divided evenly")
    return rows


def _size_of(key: TraceFamilyKey, number: int, rows: int = 1) -> StepSize:
    micro_batch, place, rank, chunk = (_SINGLE_MEMBERS if key.is_single else _MEMBERS)[number]
    length = key.spec.sequence_length
    if key.lengths is not None:
        low, high = key.lengths
        length = low + round(place * (high - low) / GRANULE) * GRANULE
        if key.any_length:  # not at the ends, where it may be a multiple
            length = low + round((0.1 + 0.8 * place) * (high - low))
    scored = dataclasses.replace(key.spec, sequence_length=length).scored_tokens
    ranks = _RANKS[number] if key.in_parts else 1
    return StepSize(
        micro_batch,
        length,
        rank if key.has_rank else 1,
        scored,
        max(1, round(chunk * scored)),
        ranks,
        rows // ranks,
    )


def _with_members(made: Recordings, numbers: Iterable[int]) -> Recordings:
    """Record further small members. Raises Irregular at the first that differs from the others."""
    for number in numbers:
        size = _size_of(made.key, number, made.rows)
        member = _member(made.key, size, made.example)
        made = dataclasses.replace(made, sizes=(*made.sizes, size), traces=(*made.traces, member))
        made.refuse_unlike()
    return made


def _with_further(few: Recordings, number: int) -> Recordings:
    sizes = [_size_of(few.key, number, few.rows)]
    if few.key.in_parts:
        rank = _LAST_RANK if few.key.has_rank else 1
        part = few.rows // _LAST_RANKS
        sizes.append(dataclasses.replace(sizes[0], rank=rank, ranks=_LAST_RANKS, part=part))
    blocks = few.example + int(few.example < few.blocks)
    checks = [_member(few.key, size, blocks) for size in sizes]
    return dataclasses.replace(few, sizes=(*few.sizes, *sizes), traces=(*few.traces, *checks))


def _member(key: TraceFamilyKey, size: StepSize, blocks: int) -> Trace:
    spec = key.member(size)
    shorter = _with_blocks(config_of(spec), blocks)
    return _record(spec, shorter, size.micro_batch, key.evaluation_factor, key.evaluation_factor)


def _refuse_unrepeated(first: Trace, example: int, blocks: int) -> None:
    """Raise Irregular where the model has more blocks and the first small trace already shows that
    they do not repeat: no further one is made in vain.
    """
    if example < blocks:
        stretch(first, example + 1)


def _with_blocks(config: PretrainedConfig, blocks: int) -> PretrainedConfig:
    return config if blocks == num_blocks(config) else with_layers(config, blocks)


@functools.lru_cache(maxsize=16)
def trace_one(spec: StepSpec, micro_batch: int) -> Trace:
    """Trace the step at one micro-batch, from two small traces where its blocks repeat.

    Raises:
        PlanError: the step cannot be traced at all.
    """
    config = config_of(spec)
    for example in _examples(spec, config):
        if example == num_blocks(config):
            break
        short, longer = (
            _record(spec, with_layers(config, count), micro_batch)
            for count in (example, example + 1)
        )
        try:
            if equal(stretch(short, example + 1, longer), longer):
                grown = stretch(short, num_blocks(config), longer)
                return dataclasses.replace(
                    grown, work=_grown_work(short.work, longer.work, example, num_blocks(config))
                )
        except Irregular:
            continue
    return _record(spec, config, micro_batch)


def _examples(spec: StepSpec, config: PretrainedConfig) -> list[int]:
    """Return the numbers of blocks to trace with: few where these include every kind of block of
    the model, else all; all of a model that is compiled as one graph, too.
    """
    blocks, kinds = num_blocks(config), list(getattr(config, "layer_types", None) or ())
    if spec.compiled == "model":
        return [blocks]
    first = EXAMPLES[::-1] if _needs_five(spec) else EXAMPLES
    few = [
        example for example in first if blocks > example + 1 and set(kinds[:example]) == set(kinds)
    ]
    return few or [blocks]


def _needs_five(spec: StepSpec) -> bool:
    """Return whether a block touches both neighbours in one pass, so that four blocks are tried in
    vain: FSDP2 gathers the next block while one computes, and gradients of the last are reduced.
    """
    return spec.ranks > 1 and (bool(spec.recompute) or spec.adapter is None)


def _line_of(spec: StepSpec, config: PretrainedConfig, example: int) -> ParametricTrace:
    """Return the line through traces with `example` blocks for all blocks of the model, checked
    against further traces.
    """
    line = _small_line(spec, config, example)
    return _checked_by_any(spec, config, line, example)


def _parts_of(spec: StepSpec, config: PretrainedConfig, example: int) -> TraceInParts:
    """Return the same for any number of ranks."""

    def on(ranks: int) -> StepSpec:
        return dataclasses.replace(spec, ranks=ranks)

    line = _small_line(on(FEW), config, example)
    low = _trace(on(MORE), config, _sizes_of(spec).low, example)
    if not same_events(low, line.trace):
        raise Irregular("the events differ between two numbers of ranks")
    rows = rows_in_common(meta_model(spec, _with_blocks(config, example)))
    small = through(line, _with_trace(line, low), (FEW, MORE), rows)
    more, checked = (
        _checked_by_any(on(ranks), config, small.at(ranks), example) for ranks in (MORE, CHECKED)
    )
    return through(more, checked, (MORE, CHECKED), rows)


def _with_trace(line: ParametricTrace, low: Trace) -> ParametricTrace:
    """Return the line through the same step in more parts, of which one trace was made."""
    base_S = line.base_S + low.sizes_S - line.trace.sizes_S
    work = line.work
    if work is not None and low.work is not None:
        refuse_others(work.work, low.work)
        work = dataclasses.replace(work, base=work.base + low.work.counts() - work.work.counts())
    return dataclasses.replace(line, base_S=base_S, work=work)


def _small_line(spec: StepSpec, config: PretrainedConfig, example: int) -> ParametricTrace:
    """Return the line for `example` blocks."""
    sizes = _sizes_of(spec)
    low = _trace(spec, config, sizes.low, example)
    _refuse_unrepeated(low, example, num_blocks(config))
    high, other = _trace(spec, config, sizes.high, example), None
    base_S, slope_S = affine(low, high, sizes.low, sizes.high)
    chunk_slope_S = np.zeros_like(base_S)
    if spec.loss == "chunked":
        other, chunk = (
            _trace(spec, config, sizes.low, example, sizes.other_chunk),
            _chunk_tokens(spec, sizes.chunks[sizes.low]),
        )
        _, chunk_slope_S = affine(other, low, _chunk_tokens(spec, sizes.other_chunk), chunk)
        base_S = base_S - chunk_slope_S * chunk
    work = _work_line(spec, low.work, high.work, None if other is None else other.work)
    return ParametricTrace(
        low, base_S, slope_S, chunk_slope_S, spec.scored_tokens, spec.loss_chunk, work=work
    )


def _checked_by_any(
    spec: StepSpec, config: PretrainedConfig, line: ParametricTrace, example: int
) -> ParametricTrace:
    """Return the line for all blocks, after checking it with one of the further traces."""
    problem = Irregular()
    for micro_batch in _sizes_of(spec).checks:
        try:
            return _checked(spec, config, line, micro_batch, example)
        except Irregular as irregular:
            problem = irregular
    raise problem


def _checked(
    spec: StepSpec, config: PretrainedConfig, line: ParametricTrace, micro_batch: int, example: int
) -> ParametricTrace:
    """Return the line for all blocks of the model, after checking it with a further trace: of
    another micro-batch, and with one block more where blocks repeat.
    """
    blocks = num_blocks(config)
    stretches = example < blocks
    check = _trace(spec, config, micro_batch, example + int(stretches))
    chunk = _chunk_tokens(spec, _sizes_of(spec).chunks[micro_batch])
    at_check = dataclasses.replace(
        line.trace, sizes_S=line.base_S + line.slope_S * micro_batch + line.chunk_slope_S * chunk
    )
    if not equal(stretch(at_check, example + 1, check) if stretches else at_check, check):
        raise Irregular("a further trace is not what two others say it is")
    lowest = 1 if micro_batch == 1 else 2
    if not stretches:
        return dataclasses.replace(line, lowest=lowest)
    grown = stretch(at_check, blocks, check)
    slope_S, chunk_slope_S = (
        stretch_values(line.trace, values_S, blocks)
        for values_S in (line.slope_S, line.chunk_slope_S)
    )
    base_S = grown.sizes_S - slope_S * micro_batch - chunk_slope_S * chunk
    work = None
    if line.work is not None and check.work is not None:
        with contextlib.suppress(IrregularWork):
            work = line.work.grown(check.work, micro_batch, chunk, example, blocks)
    return ParametricTrace(
        grown, base_S, slope_S, chunk_slope_S, spec.scored_tokens, spec.loss_chunk, lowest, work
    )


def _work_line(
    spec: StepSpec, low: Work | None, high: Work | None, other: Work | None
) -> ParametricWork | None:
    """Return the work for every micro-batch of the traced blocks; None where it is not affine."""
    if low is None or high is None:
        return None
    sizes = _sizes_of(spec)
    another = None if other is None else (other, _chunk_tokens(spec, sizes.other_chunk))
    try:
        return ParametricWork.through(
            low,
            high,
            (sizes.low, sizes.high),
            spec.scored_tokens,
            _chunk_tokens(spec, sizes.chunks[sizes.low]),
            another,
        )
    except IrregularWork:
        return None


def _grown_work(short: Work | None, longer: Work | None, example: int, blocks: int) -> Work | None:
    if short is None or longer is None:
        return None
    try:
        growth = block_growth(short, longer, example)
    except IrregularWork:
        return None
    return repeated(short, example, blocks).with_counts(
        short.counts() + growth * (blocks - example)
    )


def _chunk_tokens(spec: StepSpec, sequences: float) -> int:
    return max(1, round(sequences * spec.scored_tokens))


def _trace(
    spec: StepSpec,
    config: PretrainedConfig,
    micro_batch: int,
    blocks: int,
    chunk: float | None = None,
) -> Trace:
    """Return a small trace; `chunk` in sequences, by default such that the loss has two chunks."""
    small = dataclasses.replace(
        spec,
        loss_chunk=_chunk_tokens(
            spec, _sizes_of(spec).chunks[micro_batch] if chunk is None else chunk
        ),
    )
    return _record(small, _with_blocks(config, blocks), micro_batch, evaluation_factor=1)


def _record(
    spec: StepSpec,
    config: PretrainedConfig,
    micro_batch: int,
    evaluation_factor: int = EVALUATION_FACTOR,
    chunk_factor: int = 1,
) -> Trace:
    try:
        return record_training(spec, config, micro_batch, evaluation_factor, chunk_factor)
    except (RuntimeError, ValueError, TypeError) as error:
        if spec.compiled != "none":
            first = str(error).split("\n", maxsplit=1)[0][:200]
            raise PlanError(
                f"the compiled step of a {config.model_type} model cannot be traced: {first}"
            ) from error
        raise PlanError(
            f"the training step of a {config.model_type} model cannot be traced: {error}"
        ) from error
