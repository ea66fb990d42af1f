"""Traces of a declared step for any micro-batch, from a few small ones: fewer blocks, a few sequences, two chunks of the loss."""

import dataclasses
import functools

import numpy as np
from transformers import PretrainedConfig

from brimful.base.errors import PlanError
from brimful.planning.parametric import EXAMPLE_BLOCKS, Irregular, ParametricTrace, affine, equal, stretch
from brimful.planning.step import StepSpec
from brimful.planning.trace import Int64Array, Trace
from brimful.rehearsal.models import config_of, num_blocks, with_layers
from brimful.rehearsal.training import record_training, without_garbage_collector

LOW_BATCH, HIGH_BATCH, CHECK_BATCH = 4, 5, 7
"""Micro-batches traced; the third only to see whether it lies on the line through the others."""
CHUNK_SEQUENCES, OTHER_CHUNK_SEQUENCES, CHECK_CHUNK_SEQUENCES = 3, 2, 5
"""Sequences whose tokens make a chunk of the loss, so that every traced micro-batch has exactly two chunks."""


@functools.lru_cache(maxsize=16)
def trace_all(spec: StepSpec) -> ParametricTrace:
    """The step for every micro-batch from 2 on.

    Raises:
        Irregular: it cannot be derived from small traces; `trace_one` still works.
        PlanError: the step cannot be traced at all.
    """
    config = config_of(spec)
    blocks = num_blocks(config)
    stretches = blocks > EXAMPLE_BLOCKS + 1
    with without_garbage_collector():
        low = _trace(spec, config, LOW_BATCH, CHUNK_SEQUENCES)
        base_S, slope_S = affine(low, _trace(spec, config, HIGH_BATCH, CHUNK_SEQUENCES), LOW_BATCH, HIGH_BATCH)
        chunk_slope_S = np.zeros_like(base_S)
        if spec.loss == "chunked":
            other = _trace(spec, config, LOW_BATCH, OTHER_CHUNK_SEQUENCES)
            _, chunk_slope_S = affine(other, low, OTHER_CHUNK_SEQUENCES * spec.sequence_length, CHUNK_SEQUENCES * spec.sequence_length)
            base_S = base_S - chunk_slope_S * CHUNK_SEQUENCES * spec.sequence_length
        check = _trace(spec, config, CHECK_BATCH, CHECK_CHUNK_SEQUENCES, extra_blocks=int(stretches))
    at_check = dataclasses.replace(low, sizes_S=base_S + slope_S * CHECK_BATCH + chunk_slope_S * CHECK_CHUNK_SEQUENCES * spec.sequence_length)
    if not stretches:
        _require_equal(at_check, check)
        return ParametricTrace(low, base_S, slope_S, chunk_slope_S, spec.sequence_length, spec.loss_chunk)
    _require_equal(stretch(at_check, EXAMPLE_BLOCKS + 1, check), check)
    grown = stretch(at_check, blocks, check)
    slope_S, chunk_slope_S = (_stretched(low, values_S, blocks) for values_S in (slope_S, chunk_slope_S))
    base_S = grown.sizes_S - slope_S * CHECK_BATCH - chunk_slope_S * CHECK_CHUNK_SEQUENCES * spec.sequence_length
    return ParametricTrace(grown, base_S, slope_S, chunk_slope_S, spec.sequence_length, spec.loss_chunk)


@functools.lru_cache(maxsize=16)
def trace_one(spec: StepSpec, micro_batch: int) -> Trace:
    """The step at one micro-batch, from two small traces where its blocks repeat, else as it is.

    Raises:
        PlanError: the step cannot be traced at all.
    """
    config = config_of(spec)
    blocks = num_blocks(config)
    if blocks > EXAMPLE_BLOCKS + 1:
        short, longer = (record_training(spec, with_layers(config, count), micro_batch) for count in (EXAMPLE_BLOCKS, EXAMPLE_BLOCKS + 1))
        try:
            if equal(stretch(short, EXAMPLE_BLOCKS + 1, longer), longer):
                return stretch(short, blocks, longer)
        except Irregular:
            pass
    return record_training(spec, config, micro_batch)


def _trace(spec: StepSpec, config: PretrainedConfig, micro_batch: int, chunk_sequences: int, extra_blocks: int = 0) -> Trace:
    if num_blocks(config) > EXAMPLE_BLOCKS + 1:
        config = with_layers(config, EXAMPLE_BLOCKS + extra_blocks)
    small = dataclasses.replace(spec, loss_chunk=chunk_sequences * spec.sequence_length)
    try:
        return record_training(small, config, micro_batch)
    except RuntimeError as error:
        raise PlanError(f"the training step of a {config.model_type} model cannot be traced: {error}") from error


def _require_equal(derived: Trace, traced: Trace) -> None:
    if not equal(derived, traced):
        raise Irregular("a further trace is not what two others say it is")


def _stretched(short: Trace, values_S: Int64Array, blocks: int) -> Int64Array:
    return stretch(dataclasses.replace(short, sizes_S=values_S), blocks).sizes_S
