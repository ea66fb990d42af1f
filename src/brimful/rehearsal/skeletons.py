"""Records skeletons: families of traces for every network of a structure (planning.skeleton)."""

import dataclasses
import json
from typing import Any

from brimful.planning.architecture import LETTERS, Widths, values_of, widths
from brimful.planning.family_key import GRANULE, StepSize, TraceFamilyKey
from brimful.planning.parametric import EXAMPLES, Irregular, stretch
from brimful.planning.skeleton import Skeleton
from brimful.planning.skeleton_recordings import SkeletonRecordings
from brimful.planning.step import canonical
from brimful.planning.trace import Trace
from brimful.rehearsal.models import config_of, with_layers
from brimful.rehearsal.training import record_training, without_garbage_collector

_MEMBERS = ((5, 3, 13, 3.0), (7, 11, 17, 4.3), (1, 7, 19, 0.75), (9, 7, 19, 6.5))
"""Micro-batch, sequence length in GRANULEs, rank, and sequences in a piece of the loss. One of the
last two is the recording that checks the others.
"""
_SINGLE_MEMBERS = ((1, 3, 13, 0.75), (1, 11, 17, 0.6), (1, 7, 19, 0.9))
"""The same for one sequence."""
_BEYOND = (57, -31, 90, 90)
"""Tokens beyond a multiple of GRANULE, in recordings for any length."""
_BLOCKS = 9
"""More than are recorded."""


def trace_skeleton(
    key: TraceFamilyKey, *, every_head: bool = False, large: bool = True
) -> Skeleton:
    """Trace a step for every network of a structure.

    Args:
        key: What the steps share, with a config without widths.
        every_head: Every query head has keys and values of its own.
        large: The networks are so wide that no weight counts as small in an 8-bit optimizer.
            Counts of shared scales are exact there, which rounding up hides in narrow networks.

    Raises:
        Irregular: sizes are no products of widths.
        PlanError: the step cannot be traced.
    """
    problem = Irregular()
    with without_garbage_collector():
        for example in EXAMPLES:
            try:
                few = first_recordings(key, example, every_head=every_head, large=large)
            except Irregular as irregular:
                problem = irregular
                continue
            for check in (2,) if key.is_single else (2, 3):
                try:
                    return with_check(few, check, large=large).skeleton()
                except Irregular as irregular:
                    problem = irregular
    raise problem


def first_recordings(
    key: TraceFamilyKey, example: int, *, every_head: bool = False, large: bool = True
) -> SkeletonRecordings:
    """Return the recordings that determine a skeleton; for the others see `trace_skeleton`.

    Raises:
        Irregular: their events differ, or so many blocks do not repeat.
    """
    letters = LETTERS.replace("g", "") if every_head else LETTERS
    few = _with_member(SkeletonRecordings(key, (), (), (), example, letters), 0, example, large)
    stretch(few.traces[0], example + 1)
    few = _with_member(few, 1, example, large)
    few.refuse_unlike()
    return few


def with_check(few: SkeletonRecordings, number: int, *, large: bool = True) -> SkeletonRecordings:
    """Return the recordings with one that checks them, with one block more."""
    return _with_member(few, number, few.example + 1, large)


def _networks(*, every_head: bool, large: bool) -> tuple[Widths, ...]:
    """Return widths that have no factors in common by which products could be mistaken."""
    hidden = (5162, 5559, 6014, 6215) if large else (1310, 1221, 1378, 1435)
    heads = ((58, 2), (51, 3), (62, 2), (55, 5)) if large else ((10, 2), (33, 3), (26, 2), (35, 5))
    sizes = zip(
        hidden,
        (72, 104, 88, 80),
        heads,
        (536, 664, 712, 824),
        (2018, 2206, 2234, 2326),
        strict=True,
    )
    return tuple(
        widths(h, d, n, n if every_head else g, f, v, _BLOCKS) for h, d, (n, g), f, v in sizes
    )


def _with_member(
    made: SkeletonRecordings, number: int, blocks: int, large: bool
) -> SkeletonRecordings:
    network = _networks(every_head="g" not in made.letters, large=large)[number]
    size = _size_of(made.key, number)
    return dataclasses.replace(
        made,
        sizes=(*made.sizes, size),
        widths=(*made.widths, network),
        traces=(*made.traces, _record(made.key, size, network, blocks)),
    )


def _size_of(key: TraceFamilyKey, number: int) -> StepSize:
    micro_batch, granules, rank, chunk = (_SINGLE_MEMBERS if key.is_single else _MEMBERS)[number]
    length = key.spec.sequence_length if key.lengths is None else granules * GRANULE
    length += key.any_length * _BEYOND[number]
    scored = dataclasses.replace(key.spec, sequence_length=length).scored_tokens
    return StepSize(
        micro_batch, length, rank if key.has_rank else 1, scored, max(1, round(chunk * scored))
    )


def _record(key: TraceFamilyKey, size: StepSize, network: Widths, blocks: int) -> Trace:
    structure: dict[str, Any] = json.loads(key.spec.config_json)
    config = canonical({**structure, **values_of(network)})
    spec = dataclasses.replace(key.member(size), config_json=config)
    shorter = with_layers(config_of(spec), blocks)
    factor = key.evaluation_factor
    return record_training(spec, shorter, size.micro_batch, factor, factor)
