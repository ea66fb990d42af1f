"""A model whose weights, gradients and optimizer states lie in parts on several ranks, by torch's
FSDP2 (`fully_shard`).

Each block of the model is gathered while it computes and given up again; what lies around the
blocks (embedding, last norm, head) is gathered for a whole pass. Gradients are sums over all ranks,
reduced in fp32. Rank r holds the r-th part of the rows of every weight (dimension 0). Where each
machine has a copy, the ranks of every machine hold its parts in their order there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)
from torch.distributed.tensor import DTensor

from brimful.data.batches import MicroBatch
from brimful.model.blocks import named_blocks_of
from brimful.training.method import LossSum, Network
from brimful.training.pace import Spans
from brimful.training.world import World

SCALES = "scales"
"""Name of the parameter that holds a layer's 8-bit scales."""


def as_plain_parameters(model: nn.Module, device: torch.device) -> None:
    """Make packed weights and their scales plain parameters of bytes, in place. Layers compute with
    what these hold when they are called; a model without 4-bit layers stays as it is.

    Args:
        model: A model with bitsandbytes' layers, on the host.
        device: Where they will compute.
    """
    for layer in model.modules():
        weight = layer._parameters.get("weight")
        state = getattr(weight, "quant_state", None)
        if weight is None or state is None:
            continue
        scales, state.absmax = state.absmax, state.absmax.new_empty(0)
        state.to(device)
        layer.quant_state = state
        layer.weight = nn.Parameter(weight.data, requires_grad=False)
        layer.register_parameter(SCALES, nn.Parameter(scales, requires_grad=False))
        layer.register_forward_pre_hook(_with_own_scales)


def _with_own_scales(layer: nn.Module, _: object) -> None:
    """Let bitsandbytes read the gathered scales before a call. It takes a plain weight as its own,
    with the layer's state.
    """
    layer.quant_state.absmax = layer.get_parameter(SCALES)  # type: ignore[union-attr]


_WITHIN = "_brimful_within"
"""Name under which `within` is a method of the model, so that FSDP2 takes it for a forward pass."""


class _TimedGather(DefaultAllGather):
    """FSDP2's all-gather, which also notes how long it takes."""

    def __init__(self, talking: Spans) -> None:
        self._talking = talking

    def __call__(self, *args: Any, **options: Any) -> Any:
        with self._talking.span():
            return super().__call__(*args, **options)


class _TimedReduce(DefaultReduceScatter):
    """FSDP2's reduce-scatter, which also notes how long it takes."""

    def __init__(self, talking: Spans) -> None:
        self._talking = talking

    def __call__(self, *args: Any, **options: Any) -> Any:
        with self._talking.span():
            return super().__call__(*args, **options)


def shard(
    model: nn.Module,
    world: World,
    device: torch.device,
    talking: Spans | None = None,
    copies: int = 1,
) -> None:
    """Spread a model over all ranks, in place. Its parameters become DTensors on the device.

    Args:
        model: A model with the same weights on every rank, on any device.
        talking: Takes the time of what ranks exchange.
        copies: Number of copies of the model, each in parts among as many ranks in a row.
    """
    mesh = init_device_mesh(device.type, (world.size,))
    if copies > 1:
        shape = (copies, world.size // copies)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("copies", "parts"))
    as_plain_parameters(model, device)
    for block in named_blocks_of(model)[1]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Sums over ranks, not means: the loop divides by the tokens of all ranks.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            if talking is not None:
                module.set_custom_all_gather(_TimedGather(talking))
                module.set_custom_reduce_scatter(_TimedReduce(talking))
    model.lies_in_parts = True  # type: ignore[assignment]  # a mark, not a module
    setattr(model, _WITHIN, lambda act: act())
    register_fsdp_forward_method(model, _WITHIN)


def within(model: nn.Module, act: Callable[[], Any]) -> Any:
    """Return `act()`, in which parts of the model may be called and its weights be read. What it
    returns is a loss to go backward from, or holds no tensors.
    """
    return getattr(model, _WITHIN)(act)


def scored(model: nn.Module, score: Callable[[], Any]) -> Any:
    """Return `score()`, in which parts of the model may be called without gradients; then only this
    rank's parts are kept again.
    """
    kind = next(model.parameters()).device.type
    with torch.no_grad(), torch.autocast(kind, enabled=False, cache_enabled=False):
        result = within(model, score)
    give_up_gathered(model)
    return result


def gathering(loss_sum: LossSum) -> LossSum:
    """Return the loss of a model in parts. No pass keeps 16-bit copies of gathered weights: they
    would lie whole on every rank until the backward pass.
    """

    def gathered(network: Network, micro: MicroBatch) -> Tensor:
        with _casts_made_again(micro.inputs_BT.device.type):
            loss: Tensor = within(network.model, partial(loss_sum, network, micro))
        return loss

    return gathered


@contextmanager
def _casts_made_again(device_type: str) -> Iterator[None]:
    """Keep none of autocast's 16-bit copies of gathered weights for the backward pass, because all
    of them together are the whole model. The backward pass casts again, from the weight that FSDP2
    has gathered again by then.
    """
    autocast = torch.autocast(
        device_type,
        dtype=torch.get_autocast_dtype(device_type),
        enabled=torch.is_autocast_enabled(device_type),
        cache_enabled=False,
    )
    with autocast, saved_tensors_hooks(_pack, _unpack):
        yield


def _pack(tensor: Tensor) -> Any:
    weight = _cast_weight(tensor)
    if weight is None:
        return tensor
    return weight, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()


def _unpack(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    weight, dtype, size, stride, offset = packed
    with torch.no_grad():
        again: Tensor = weight.to(dtype).as_strided(size, stride, offset)
    return again


def _cast_weight(tensor: Tensor) -> Tensor | None:
    """Return the weight that a tensor is a cast of, or a transposed cast; None for others."""
    made_by = tensor.grad_fn
    if made_by is not None and made_by.name() == "TBackward0":
        made_by = made_by.next_functions[0][0]
    if made_by is None or made_by.name() != "ToCopyBackward0":
        return None
    weight = getattr(made_by.next_functions[0][0], "variable", None)
    return weight if isinstance(weight, nn.Parameter) else None


def give_up_gathered(model: nn.Module) -> None:
    """Keep only this rank's parts again, after passes without a backward pass."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def own_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """Return this rank's part of a tensor and the number of its first row; a tensor that is not
    sharded is its own only part.
    """
    if not isinstance(tensor, DTensor):
        return tensor, 0
    mesh, parts = tensor.device_mesh, tensor.device_mesh.ndim - 1
    each = -(-tensor.shape[0] // mesh.size(parts))
    first = min(mesh.get_local_rank(parts) * each, tensor.shape[0])
    return tensor.to_local(), first


def like(parameter: Tensor, whole: Tensor) -> Tensor:
    """Return a tensor of the parameter's shape as a DTensor with the same rows on this rank, if the
    parameter is one; else the tensor on its device.

    Args:
        whole: All its rows, on the host.
    """
    if not isinstance(parameter, DTensor) or whole.shape != parameter.shape:
        return whole.to(parameter.device, copy=True)
    local, first = own_rows(parameter)
    rows = whole[first : first + len(local)].to(local.device, copy=True)
    return DTensor.from_local(
        rows,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
