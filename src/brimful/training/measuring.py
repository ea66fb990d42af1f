"""What a method has to know of a whole step before its first gradient, such as how far the model is
from another one: computed in passes without gradients.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from brimful.data.batches import MicroBatch
from brimful.training.memory_errors import (
    FoundOutOfMemory,
    OutOfMemory,
    attempt,
    first_failure,
)
from brimful.training.method import Method, Network
from brimful.training.precision import Precision
from brimful.training.world import World


def measured(
    network: Network,
    method: Method,
    precision: Precision,
    device: torch.device,
    micro_batches: Iterable[MicroBatch],
    divisor: float,
) -> Network:
    """Return the network with what the method measures, without dropout; as it is where the method
    measures nothing.

    Args:
        network: Its model is left in training mode.
        method: Says what is measured.
        precision: Precision of the passes.
        device: Where the micro-batches are.
        micro_batches: Micro-batches of the step.
        divisor: What the loss of the step is divided by.
    """
    if method.measure is None:
        return network
    found = torch.zeros((), dtype=torch.float32, device=device)
    network.model.eval()
    with torch.no_grad():
        for micro in micro_batches:
            with precision.autocast(device):
                found += method.measure(network, micro)
    network.model.train()
    return replace(network, of_step=found / divisor)


def by_all(world: World, measure: Callable[[], Network]) -> Network:
    """Return what all ranks measured together, each on its part of the step.

    Raises:
        FoundOutOfMemory: on every rank, if memory ran out on any.
    """
    if world.is_alone:
        return measure()
    network = attempt(measure)
    if any(world.largest([isinstance(network, OutOfMemory)])):
        raise FoundOutOfMemory(first_failure(world, network))
    assert isinstance(network, Network)  # noqa: S101 - for the type checker
    assert network.of_step is not None  # noqa: S101 - for the type checker
    world.add_up(network.of_step)
    return network
