"""A model in parts by torch's older FullyShardedDataParallel, wrapped as transformers' Trainer does
it through accelerate: a unit for every block, and one for what lies around the blocks. Adapters are
units of their own (peft's `fsdp_auto_wrap_policy`), or lie whole on every rank.

The real wrapper runs, on tensors without values and a group that sends nothing. So what it holds
is recorded: blocks that are gathered ahead, and inputs of frozen blocks with their gradients, which
its hooks keep until the backward pass is over.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp._runtime_utils import _lazy_init
from torch.utils.checkpoint import checkpoint

from brimful.data.batches import MicroBatch
from brimful.integrations.other_tools.step import ForeignStep
from brimful.model.blocks import named_blocks_of
from brimful.rehearsal.models import DTYPES, PackedLinear, transformers_model
from brimful.training.method import LossSum, Network

_ROOT = "_brimful_fsdp_root"
"""Attribute of a transformers model, outside its modules: the unit around the whole step."""


def wrap(spec: ForeignStep, model: nn.Module) -> None:
    """Wrap the blocks of a model on fake tensors in place, recomputation around them."""
    inner = transformers_model(model)
    _give_packed_weights_one_type(model, DTYPES[spec.weights])
    unit = partial(
        FullyShardedDataParallel,
        device_id=torch.device("cpu"),
        use_orig_params=True,
        mixed_precision=_mixed_precision(spec),
        ignored_states=_whole_adapters(spec, model),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and addresses of fake tensors are compared
        if not spec.replicates_adapters:
            _wrap_adapters(model, unit)
        _, blocks = named_blocks_of(inner)
        for index, block in enumerate(blocks):
            wrapped = unit(block)
            blocks[index] = _Recomputed(wrapped, spec) if spec.recompute else wrapped
        root: Any = unit(_Within(inner))
        # Its first pass would do so, and make tensors that no other pass makes.
        _lazy_init(root, root)
        inner.__dict__[_ROOT] = root


def in_root(loss_sum: LossSum) -> LossSum:
    """Return the loss inside the forward pass of the unit around the whole model."""

    def gathered(network: Network, micro: MicroBatch) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in `wrap`
            root = network.model.__dict__[_ROOT]
            loss: Tensor = root(partial(loss_sum, network, micro))
        return loss

    return gathered


class _Within(nn.Module):
    """Calls a function in which parts of the model are called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, act: Callable[[], Tensor]) -> Tensor:
        return act()


class _Recomputed(nn.Module):
    """A wrapped block that is recomputed from outside, so that a recomputation gathers it again."""

    def __init__(self, block: nn.Module, spec: ForeignStep) -> None:
        super().__init__()
        self.block, self._reentrant = block, spec.quirks.reentrant

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return self.block(*args, **kwargs)
        return checkpoint(
            partial(self.block, **kwargs),
            *args,
            use_reentrant=self._reentrant,
            preserve_rng_state=False,
        )


def _mixed_precision(spec: ForeignStep) -> MixedPrecision | None:
    """Return what accelerate asks for where the trainer's precision is 16-bit."""
    if spec.autocast == "none":
        return None
    dtype = DTYPES[spec.autocast]
    return MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype)


def _give_packed_weights_one_type(model: nn.Module, dtype: torch.dtype) -> None:
    """Store packed weights in elements of the other weights' type, as `bnb_4bit_quant_storage`
    does: a unit's parameters become one tensor.
    """
    for module in model.modules():
        if isinstance(module, PackedLinear):
            packed = module.weight
            count = packed.numel() * packed.element_size() // dtype.itemsize
            weight = torch.empty((count, 1), dtype=dtype)
            module.weight = nn.Parameter(weight, requires_grad=False)


def _adapter_layers(model: nn.Module) -> Iterator[tuple[nn.ModuleDict, str]]:
    """Yield the places of the two matrices of every adapter."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in {"lora_A", "lora_B"} and isinstance(module, nn.ModuleDict):
            yield from ((module, key) for key in module)


def _wrap_adapters(model: nn.Module, unit: Callable[[nn.Module], nn.Module]) -> None:
    for parent, key in list(_adapter_layers(model)):
        parent[key] = unit(parent[key])


def _whole_adapters(spec: ForeignStep, model: nn.Module) -> list[nn.Parameter] | None:
    if not spec.replicates_adapters:
        return None
    return [weight for parent, key in _adapter_layers(model) for weight in parent[key].parameters()]
