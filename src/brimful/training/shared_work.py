"""Work without a backward pass, divided among ranks that hold the whole model: every rank does some
of the pieces, and all get the results of all. A piece is computed as in one process, so its result
is the same, bit for bit.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from brimful.training.world import World


def is_own(world: World, number: int) -> bool:
    """Return whether this rank does the piece of a number, counted from 0."""
    return number % world.size == world.rank


def merged(world: World, own: Mapping[int, Any]) -> list[Any]:
    """Return what all ranks made, by the pieces' numbers.

    Args:
        own: What this rank made, by number; JSON if there are other ranks.
    """
    every = {number: made for part in world.gather(list(own.items())) for number, made in part}
    return [every[number] for number in sorted(every)]


def merged_numbers(world: World, own: Mapping[int, Tensor]) -> NDArray[np.float64]:
    """Return the numbers of all pieces in a row, in the order of the pieces.

    Args:
        own: Tensors of one dimension, of this rank's pieces by number.
    """
    if world.is_alone:
        return np.asarray(torch.cat(list(own.values())).cpu().double().numpy())
    lists = merged(world, {number: each.cpu().double().tolist() for number, each in own.items()})
    return np.concatenate([np.asarray(each, dtype=np.float64) for each in lists])
