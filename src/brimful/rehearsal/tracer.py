"""Records families of steps: a few small members, with fewer blocks, few sequences and two pieces
of the loss.
"""

import dataclasses
import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from transformers import PretrainedConfig

from brimful.base.errors import PlanError
from brimful.base.types import Counts
from brimful.model import attention
from brimful.model.blocks import named_blocks_of
from brimful.model.quiet import quiet_logger
from brimful.planning.architecture import SMALL_STATES, Widths, values_of, widths
from brimful.planning.block_rows import (
    ALIKE,
    NEIGHBOURS,
    BlockRows,
    Irregular,
    longer_rows,
    shortened,
)
from brimful.planning.family import Family
from brimful.planning.family_key import GRANULE, StepSize, TraceFamilyKey
from brimful.planning.parametric import stretch
from brimful.planning.products import SmallRecording, TooFew
from brimful.planning.recordings import Recordings
from brimful.planning.step import StepSpec, canonical
from brimful.planning.trace import Trace
from brimful.rehearsal.models import (
    config_of,
    kinds_of_blocks,
    meta_model,
    num_blocks,
    plain_model,
    with_layers,
)
from brimful.rehearsal.ranks import rows_in_common
from brimful.rehearsal.training import compiler_of, record_training, without_garbage_collector

_MEMBERS = (
    (5, 0.1, 13, 3.0),
    (7, 0.9, 17, 4.3),
    (4, 0.42, 10, 2.0),
    (1, 0.6, 19, 0.75),
    (9, 0.6, 23, 6.5),
)
"""Micro-batch, place in the range of lengths, rank, and sequences in a piece of the loss. One of
the last two checks the others: the last one where one sequence is a special case.
"""
_SINGLE_MEMBERS = ((1, 0.1, 13, 0.75), (1, 0.9, 17, 0.6), (1, 0.42, 10, 0.9), (1, 0.6, 19, 0.7))
"""The same for one sequence; the last one checks the others."""
_COMPILED_MEMBERS = ((17, 0, 1, 14.0), (23, 0, 1, 14.0), (17, 0, 1, 10.0), (29, 0, 1, 20.0))
"""The same where blocks are compiled. The compiler reuses a buffer for another of the same number
of elements; with such primes no tensor of the batch is as large as one of the weights by accident.
"""
_BEYOND = (25, 97, 90, 42, 75)
"""Tokens of a length beyond a multiple of twice GRANULE, where that is in the range: the first two
tell what is rounded up to 32, 64, 128 and 256 apart.
"""
_SHORT = 1500
"""Longest sequences in recordings of every network, whose products would be too large."""
_ONE_IS_SPECIAL: set[str] = set()
"""Configs of models of which a step with one sequence was seen to have other tensors."""
_UNEVEN: set[str] = set()
"""Configs of models whose blocks differ in ways that no list of the config tells: few of them never
stand for all.
"""
_RANKS = (4, 2, 8, 2, 2)
"""Devices among which the model is divided, in parts."""
_LAST_RANKS, _LAST_RANK = 8, 5
"""Devices and adapter rank of a second recording that checks the others, in parts: the adapter has
fewer rows than there are devices.
"""
_BLOCKS = 9
"""Blocks of the network whose recordings serve every width: more than are recorded."""


def record_family(key: TraceFamilyKey, example: Widths | None = None, fewest: int = 0) -> Family:
    """Record a step for everything that its key leaves open.

    Args:
        key: What the members share.
        example: Widths of a network, where the family is of every one.
        fewest: Blocks that are needed at least: those of the family of all micro-batches, for that
            of single sequences.

    Raises:
        Irregular: sizes are no products of what is open.
        PlanError: the step cannot be recorded at all.
    """
    if key.spec.compiled == "model" and not key.micro_batch:
        raise Irregular("a graph of the whole model has no blocks that repeat")
    problem = Irregular()
    with without_garbage_collector(), ExitStack() as stack:
        with _as_plan_error(key.spec):
            stack.enter_context(compiler_of(key.spec))
        networks = () if example is None else _networks(key, example)
        row, examples = _row_of(key)
        _refuse_mixed_states(key)
        weight_rows = _weight_rows(key)
        first = Recordings(key, (), (), BlockRows(row, row), row, 0, weight_rows, networks)
        for few, neighbours in examples:
            if len(few) < fewest:
                continue
            made = dataclasses.replace(first, rows=BlockRows(few, row))
            try:
                return _from_members(made, _longer(made, neighbours))
            except Irregular as irregular:
                problem = irregular
            if key.spec.config_json in _UNEVEN:
                break
        if key.micro_batch:  # as it is
            return _with_members(first, [0]).family().pruned()
        if key.spec.config_json in _UNEVEN and _may_record_all(key):
            return _from_members(first, {row: 0})
    raise problem


def _may_record_all(key: TraceFamilyKey) -> bool:
    """Return whether all blocks are recorded for a family where few do not stand for them: only for
    the last one that a step may belong to, and not where they are compiled, which takes minutes.
    """
    return key.is_alone and not key.micro_batch and key.spec.compiled == "none"


def _from_members(first: Recordings, longer: Counts) -> Family:
    """Return the family from its first small member and as many more as it takes: two determine the
    products of all sizes, the third tells those apart that agree in two, and sums.

    Args:
        first: What the members share.
        longer: Rows of further recordings, and how often the model has what each has more.

    Raises:
        Irregular: also with all members sizes are no products.
    """
    key, few = first.key, _with_members(first, [0])
    for row in (*longer, few.rows.all):
        try:
            if row != few.rows.few:  # else further ones are made in vain
                stretch(few.few[0].trace, BlockRows(few.rows.few, row))
        except Irregular:
            if few.rows.few == shortened(few.rows.all, max(NEIGHBOURS)) and not few.networks:
                _UNEVEN.add(key.spec.config_json)
            raise
    if key.micro_batch:
        return _family(few, longer, 0)
    sums = bool(key.sums) and (key.in_parts or key.spec.loss == "chunked")
    few, problem = _with_members(few, [1, 2] if sums else [1]), Irregular()
    for number in _checks_of(key):
        try:
            try:
                return _family(few, longer, number)
            except TooFew:
                few = _with_members(few, range(len(few.few), 3))
                return _family(few, longer, number)
        except Irregular as irregular:
            problem = irregular
    raise problem


def _family(few: Recordings, longer: Counts, number: int) -> Family:
    """Return the family that the recordings give, after each of the longer rows was recorded, too,
    as a check.
    """
    made = [
        _checked(dataclasses.replace(few, longer=row, times=times), number).family()
        for row, times in longer.items()
    ]
    if any(each.work is None for each in made):
        made = [dataclasses.replace(each, work=None) for each in made]
    if made[0].lowest > 1:
        _ONE_IS_SPECIAL.add(few.key.spec.config_json)
    segments = tuple(more for each in made for more in each.segments)
    return dataclasses.replace(made[0], segments=segments).pruned()


def _checks_of(key: TraceFamilyKey) -> tuple[int, ...]:
    """Return the members of which one is enough to check a family: one sequence where it is no
    special case. To attention in blocks it always is, and to a network that it once was to.
    """
    if key.is_single or key.spec.compiled != "none":
        return (3,)
    is_special = key.spec.attention == attention.NAME or key.spec.config_json in _ONE_IS_SPECIAL
    return (4, 3) if is_special else (3, 4)


def _members_of(key: TraceFamilyKey) -> tuple[tuple[int, float, int, float], ...]:
    if key.spec.compiled != "none":
        return _COMPILED_MEMBERS
    return _SINGLE_MEMBERS if key.is_single else _MEMBERS


def _networks(key: TraceFamilyKey, example: Widths) -> tuple[Widths, ...]:
    """Return widths that have no factors in common by which products could be mistaken. For an
    8-bit optimizer they are so wide that no weight counts as small: counts of shared scales are
    exact there, which rounding up hides in narrow networks. They are narrow if the example is.
    """
    large = example.values["h"] >= SMALL_STATES or "8bit" not in key.spec.optimizer
    every_head = example.values["n"] == example.values["g"]
    hidden = (5162, 5559, 5842, 6014, 6215) if large else (1310, 1221, 1246, 1378, 1435)
    heads = (
        ((58, 2), (51, 3), (46, 2), (62, 2), (55, 5))
        if large
        else ((10, 2), (33, 3), (14, 2), (26, 2), (35, 5))
    )
    sizes = zip(
        hidden,
        (72, 104, 56, 88, 80),
        heads,
        (536, 664, 776, 712, 824),
        (2018, 2206, 2122, 2234, 2326),
        strict=True,
    )
    return tuple(
        widths(h, d, n, n if every_head else g, f, v, _BLOCKS) for h, d, (n, g), f, v in sizes
    )


def _row_of(key: TraceFamilyKey) -> tuple[str, list[tuple[str, int]]]:
    """Return the row of a model's blocks, and short ones to record, each with the neighbours that
    are alike there; the whole one where no short one stands for it.
    """
    if key.any_width:
        row = ALIKE * _BLOCKS
        return row, [(shortened(row, each), each) for each in NEIGHBOURS]
    config = config_of(_spec_of(key))
    kinds = kinds_of_blocks(config)
    letters = {kind: chr(ord(ALIKE) + place) for place, kind in enumerate(dict.fromkeys(kinds))}
    row = "".join(letters[kind] for kind in kinds)
    whole: list[tuple[str, int]] = [] if key.micro_batch else [(row, 0)]
    # The last blocks may take keys of others.
    if key.spec.compiled == "model" or getattr(config, "num_kv_shared_layers", 0) > 0:
        return row, whole
    if key.spec.config_json in _UNEVEN:
        return row, []
    order = NEIGHBOURS[::-1] if _needs_three(key.spec) else NEIGHBOURS
    few = [(shortened(row, each), each) for each in order]
    return row, [each for each in few if len(each[0]) + 1 < len(row)] or whole


def _longer(made: Recordings, neighbours: int) -> Counts:
    """Return rows of further recordings; see `longer_rows`. There are none for a whole row."""
    few = made.rows.few
    if few == made.rows.all:
        return {few: 0}
    like = {letter: letter for letter in few}
    if len(like) > 1:
        spec = _spec_of(made.key)
        model = plain_model(spec, _shorter(config_of(spec), few, made.rows.all))
        weights: dict[str, str] = {}
        blocks = named_blocks_of(model)[1]
        if len(blocks) != len(few):
            raise Irregular("a model has other blocks than its config says")
        for letter, block in zip(few, blocks, strict=True):
            shapes = str([(name, each.shape) for name, each in block.named_parameters()])
            like[letter] = weights.setdefault(shapes, letter)
    found = longer_rows(made.rows, neighbours, like)
    if found is None or any(len(each) >= len(made.rows.all) for each in found):
        raise Irregular("no longer row is shorter than the model")
    return found


def _needs_three(spec: StepSpec) -> bool:
    """Return whether a block touches both neighbours in one pass, so that two alike are tried in
    vain: FSDP2 gathers the next block while one computes, and gradients of the last are reduced.
    """
    return spec.ranks != 1 and (bool(spec.recompute) or spec.adapter is None)


def _refuse_mixed_states(key: TraceFamilyKey) -> None:
    """Raise Irregular before anything is recorded where an 8-bit optimizer keeps the states of one
    adapter in 32 bits at some of the recorded ranks and not at others.
    """
    if not key.has_rank or key.any_width or "8bit" not in key.spec.optimizer:
        return
    spec = _spec_of(key)
    config = config_of(spec)
    if not getattr(config, "num_kv_shared_layers", 0):
        config = with_layers(config, range(1))
    ranks = [rank for _, _, rank, _ in _members_of(key)]
    for parameter in meta_model(spec, config).parameters():
        rows = parameter.numel() // ranks[0]
        if parameter.requires_grad and len({rows * rank < SMALL_STATES for rank in ranks}) > 1:
            raise Irregular("states of an adapter are kept in 8 bits at some ranks only")


def _weight_rows(key: TraceFamilyKey) -> int:
    """Return the greatest common divisor of the rows of all weights, but for an adapter's first
    matrices, which have as many as its rank; 1 where the model is not divided among any number of
    devices.

    Raises:
        Irregular: so many devices as are recorded cannot hold equal parts.
    """
    if not key.in_parts:
        return 1
    spec = _spec_of(key)
    rows = rows_in_common(meta_model(spec, with_layers(config_of(spec), range(1))))
    if rows % max(*_RANKS, _LAST_RANKS):
        raise Irregular("the rows of a weight cannot be divided evenly")
    return rows


def _size_of(key: TraceFamilyKey, number: int, rows: int = 1) -> StepSize:
    micro_batch, place, rank, chunk = _members_of(key)[number]
    length = key.spec.sequence_length
    if key.lengths is not None:
        low, high = key.lengths
        high = min(high, low + _SHORT) if key.any_width else high
        length = low + round(place * (high - low))
        if high - low > 2 * GRANULE:
            # In a short range they are to be rounded up to different multiples.
            step = 2 * GRANULE if high - low > 8 * GRANULE else GRANULE
            length += (_BEYOND[number] - length) % step
            length -= step if length > high else 0
    scored = dataclasses.replace(key.spec, sequence_length=length).scored_tokens
    piece = max(1, round(chunk * scored))
    if key.micro_batch:
        micro_batch, piece = key.micro_batch, key.spec.loss_chunk
    ranks = _RANKS[number] if key.in_parts else 1
    rank = rank if key.has_rank else 1
    return StepSize(micro_batch, length, rank, scored, piece, ranks, rows // ranks)


def _spec_of(key: TraceFamilyKey) -> StepSpec:
    """Return the first small member."""
    return key.member(_size_of(key, 0))


def _with_members(made: Recordings, numbers: Iterable[int]) -> Recordings:
    """Record further small members. Raises Irregular at the first that differs from the others."""
    for number in numbers:
        size = _size_of(made.key, number, made.weight_rows)
        member = _member(made, size, number, made.rows.few)
        made = dataclasses.replace(made, few=(*made.few, member))
        made.refuse_unlike()
    return made


def _checked(few: Recordings, number: int) -> Recordings:
    """Return the recordings with those that check them, with more blocks where there are more."""
    sizes = [_size_of(few.key, number, few.weight_rows)]
    if few.key.in_parts:
        rank = _LAST_RANK if few.key.has_rank else 1
        part = few.weight_rows // _LAST_RANKS
        sizes.append(dataclasses.replace(sizes[0], rank=rank, ranks=_LAST_RANKS, part=part))
    checks = [_member(few, size, number, few.longer) for size in sizes]
    return dataclasses.replace(few, checks=tuple(checks))


def _member(made: Recordings, size: StepSize, number: int, row: str) -> SmallRecording:
    spec, network = made.key.member(size), None
    if made.networks:
        network = made.networks[number]
        config = canonical({**spec.config, **values_of(network)})
        spec = dataclasses.replace(spec, config_json=config)
    shorter = _shorter(config_of(spec), row, made.rows.all)
    trace = _record(spec, shorter, size.micro_batch, made.key.evaluation_factors)
    return SmallRecording(size, network, trace)


def _record(
    spec: StepSpec, config: PretrainedConfig, micro_batch: int, factors: tuple[int, int]
) -> Trace:
    with _as_plan_error(spec):
        return record_training(spec, config, micro_batch, *factors)


def _shorter(config: PretrainedConfig, row: str, whole: str) -> PretrainedConfig:
    """Return the config of a model with the blocks of a row."""
    if len(row) == num_blocks(config):
        return config
    if len(set(row)) == 1:
        return with_layers(config, range(len(row)))
    middle = (whole.index(letter, 1) for letter in row[1:-1])
    return with_layers(config, [0, *middle, len(whole) - 1])


@contextmanager
def _as_plan_error(spec: StepSpec) -> Iterator[None]:
    """Say of what torch and transformers raise that the step cannot be traced."""
    try:
        with quiet_logger(FakeTensor.__module__, logging.CRITICAL):  # prints what it raises, too
            yield
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
        what, said = f"training step of a {spec.config['model_type']} model", str(error)
        if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
            said = (
                "what it computes depends on the values of its tensors, such as how many tokens an"
                " expert gets. No plan can be made of this type; choose another model=NAME."
            )
        elif spec.quantize == "nf4" and "uint8" in said:
            said = "its blocks multiply by weights that 4 bits pack; use quantize=none"
        if spec.compiled != "none":
            what, said = what.replace("training", "compiled"), said.partition("\n")[0][:200]
        raise PlanError(f"the {what} cannot be traced: {said}") from error
