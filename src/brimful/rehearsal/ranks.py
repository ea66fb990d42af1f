"""The first of several ranks that hold a model in parts, rehearsed alone: torch's collectives
allocate what they would and send nothing.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from brimful.base.errors import PlanError
from brimful.rehearsal.models import Linear4bit
from brimful.training.sharding import SCALES, shard
from brimful.training.world import World


def with_divisible_scales(model: nn.Module) -> nn.Module:
    """Make the scales of 4-bit layers parameters, in place, as training in parts does; return the
    model.
    """
    for layer in model.modules():
        if isinstance(layer, Linear4bit):
            scales = layer.get_buffer(SCALES)
            delattr(layer, SCALES)
            layer.register_parameter(SCALES, nn.Parameter(scales, requires_grad=False))
    return model


def rows_in_common(model: nn.Module) -> int:
    """Return the greatest common divisor of the rows of all parameters that are divided, but for
    those that have as many rows as an adapter's rank; 4-bit layers of the model are changed as
    `with_divisible_scales` says.
    """
    with_divisible_scales(model)
    return math.gcd(
        *(len(parameter) for name, parameter in model.named_parameters() if "lora_A" not in name)
    )


@contextmanager
def in_parts(model: nn.Module, ranks: int) -> Iterator[None]:
    """Give a meta model's parameters only the part of the first of so many ranks, in place.

    Raises:
        PlanError: this process already is one of several ranks.
    """
    with fake_group(ranks):
        if ranks > 1:
            shard(with_divisible_scales(model), World(0, ranks, 0, ranks), torch.device("cpu"))
        yield


@contextmanager
def fake_group(ranks: int) -> Iterator[None]:
    """Be the first of so many ranks in a group that sends nothing; with one rank there is none.

    Raises:
        PlanError: this process already is one of several ranks.
    """
    if ranks == 1:
        yield
        return
    if dist.is_initialized():
        raise PlanError(
            "a process that trains with others cannot trace what a part of a model needs"
        )
    # The store that the fake backend needs has no public name.
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    told_by = sys.excepthook  # which init_process_group replaces by one that names the rank
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = told_by
