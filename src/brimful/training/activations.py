"""What a block of a model keeps for the backward pass: what is computed again there, and what lies
in the host's memory until then.

Selective recomputation: a checkpointed block keeps the outputs of its expensive operators, matrix
products and attention kernels, and computes only the others again in the backward pass. torch's
`create_selective_checkpoint_contexts` decides when an operator runs. It would keep the last product
of every block, which the backward pass of most blocks never asks for, and it fails where the second
pass has more operators of a kind than the first one, as with blocks that share weights under
autocast. So the two passes are watched here.

Offloading: with activation checkpointing a block keeps its input only, so that is all that moves,
once to the host and once back. Values do not change by either.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode_temporarily,
)
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers import PreTrainedModel

from brimful.planning.step import Recompute

PRODUCTS = {
    "aten::mm": 1,
    "aten::addmm": 2,
    "aten::linear": 1,
    "aten::_grouped_mm": 1,
    "bitsandbytes::gemm_4bit": 2,
}
"""Operators whose outputs are kept, with the place of the weight, or of its shape, among their
arguments.
"""
ATTENTION = frozenset(
    {
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",
        "aten::_flash_attention_forward",
        "aten::_efficient_attention_forward",
    }
)
"""Kernels whose outputs are kept; none of them returns the weights of all pairs of positions.
"""
NARROW = 8
"""A product is computed again where its weight is more than so many times longer than wide, or the
other way round, as both of a low-rank adapter: it takes little time for what it would keep
(assumption).
"""
Made = TypeVar("Made")


class _LetGo:
    """What stands in place of an output that is not kept."""


class Kept:
    """What one pass of a block keeps for its second one.

    Args:
        memory: What the passes of all blocks have in common.
    """

    def __init__(self, memory: "KeptOutputs") -> None:
        self._memory = memory
        self._outputs: list[Any] = []
        self._versions: list[tuple[int, ...]] = []
        self._last_is_product = False
        self._next = 0

    def keep(self, out: Any, *, is_product: bool) -> None:
        """Keep what an operator returned."""
        self._outputs.append(tree_map_only(Tensor, _alias, out))
        self._versions.append(_versions(self._outputs[-1]))
        self._last_is_product = is_product

    def end_first_pass(self) -> None:
        """Let go what was changed in place since, and the last product unless it will be asked
        for.
        """
        for index, (out, versions) in enumerate(zip(self._outputs, self._versions, strict=True)):
            if _versions(out) != versions:
                self._outputs[index] = _LetGo
        if self._last_is_product and not self._memory.last_is_needed:
            self._outputs[-1] = _LetGo

    def begin_second_pass(self) -> None:
        """The operators of the first pass follow again, in the same order."""
        self._next = 0

    def take(self) -> Any:
        """Return what the next of these operators returned, or _LetGo where it has to run again."""
        index, self._next = self._next, self._next + 1
        out, self._outputs[index] = self._outputs[index], _LetGo
        if index == len(self._outputs) - 1 and self._last_is_product:
            self._memory.last_is_needed = True
        return out


class KeptOutputs:
    """Makes the two contexts of every checkpointed block, for torch's `checkpoint(context_fn=)`.

    Attributes:
        last_is_needed: The second pass of a block asked for its last product, because something
            that follows it, such as dropout or a norm, keeps its input. Until the first block does,
            that product is let go.
    """

    def __init__(self) -> None:
        self.last_is_needed = False

    def __call__(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        kept = Kept(self)
        return _FirstPass(kept), _SecondPass(kept)


class _Pass(TorchDispatchMode, ABC):
    """Watches the operators of one of the two passes of a block."""

    def __init__(self, kept: Kept) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept = kept

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave `__torch_dispatch__` as it is. By default torch keeps its compiler away from it in
        every call, which takes longer than all else here; blocks are not compiled with this.
        """
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_expensive(func, args, kwargs):
            return func(*args, **kwargs)
        return self.expensive(
            functools.partial(func, *args, **kwargs), is_product=_name(func) in PRODUCTS
        )

    @abstractmethod
    def expensive(self, compute: Callable[[], Any], *, is_product: bool) -> Any:
        """Return what an operator returns whose output is worth keeping."""


class _FirstPass(_Pass):
    """Keeps outputs of operators."""

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.kept.end_first_pass()

    def expensive(self, compute: Callable[[], Any], *, is_product: bool) -> Any:
        out = compute()
        self.kept.keep(out, is_product=is_product)
        return out


class _SecondPass(_Pass):
    """Returns the kept outputs in place of running their operators."""

    def __enter__(self) -> Self:
        self.kept.begin_second_pass()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def expensive(self, compute: Callable[[], Any], *, is_product: bool) -> Any:
        out = self.kept.take()
        return compute() if out is _LetGo else out


def as_one_operator(compute: Callable[[], Made], weight: Sequence[int] = ()) -> Made:
    """Return what `compute` returns, which is one expensive operator on the device that a step is
    recorded for, and several here.

    Args:
        compute: Runs it.
        weight: The shape of a product's weight; empty for an attention kernel.
    """
    stack = _get_current_dispatch_mode_stack()
    watching = stack[-1] if stack and isinstance(stack[-1], _Pass) else None
    if watching is None:
        return compute()
    with _pop_mode_temporarily():
        if weight and not _is_worth_keeping(weight):
            return compute()
        made: Made = watching.expensive(compute, is_product=bool(weight))
        return made


def is_expensive(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether the output of an operator is worth its memory: a product that is no adapter's,
    or an attention kernel without dropout. One with dropout has to draw its numbers again, because
    what follows it draws the next ones.
    """
    name = _name(func)
    if name in ATTENTION:
        return not _argument(func, args, kwargs, "dropout_p")
    if name not in PRODUCTS:
        return False
    weight = args[PRODUCTS[name]]
    return _is_worth_keeping(weight.shape if isinstance(weight, Tensor) else weight)


def _is_worth_keeping(weight: Sequence[int]) -> bool:
    narrow, wide = sorted(weight[-2:])
    return NARROW * narrow >= wide


@functools.cache
def _name(func: Any) -> str:
    schema = getattr(func, "_schema", None)
    return "" if schema is None else str(schema.name)


def _argument(func: Any, args: Any, kwargs: Any, name: str) -> Any:
    """Return an argument of an operator by name; its default, or None, where it was not given."""
    for index, each in enumerate(func._schema.arguments):
        if each.name == name:
            given = args[index] if index < len(args) else each.default_value
            return kwargs.get(name, given)
    return None


def _alias(tensor: Tensor) -> Tensor:
    """Return a tensor of the same memory outside of autograd's graph that notes changes in place,
    too.
    """
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()


def _versions(out: Any) -> tuple[int, ...]:
    return tuple(leaf._version for leaf in tree_leaves(out) if isinstance(leaf, Tensor))


def recompute_activations(
    model: PreTrainedModel, how: Recompute = True, *, reentrant: bool = False
) -> None:
    """Switch activation checkpointing on for every block, by the name that this version of
    transformers has for it.

    Args:
        how: True: blocks keep their inputs; selective: outputs of their expensive operators, too.
        reentrant: Whether torch's older implementation is used, which knows no selection.
    """
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    selection = {"context_fn": KeptOutputs()} if how == "selective" else {}
    enable({"use_reentrant": reentrant, **selection})


CHECKPOINT = "_gradient_checkpointing_func"
"""Where transformers keeps the function by which a layer is checkpointed."""


class Elsewhere(Protocol):
    """A place outside the device's memory."""

    def away(self, tensor: Tensor) -> Any:
        """Put a tensor there; return what `back` needs."""

    def back(self, kept: Any) -> Tensor:
        """Return the tensor on the device that it came from."""


class _Copy(NamedTuple):
    host: Tensor
    device: torch.device


class HostMemory:
    """The host's memory, page-locked where the tensor comes from a GPU, so that copies need not
    wait for the program.
    """

    def away(self, tensor: Tensor) -> _Copy:
        """Copy a tensor to the host."""
        host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        host.copy_(tensor, non_blocking=tensor.is_cuda)
        return _Copy(host, tensor.device)

    def back(self, kept: _Copy) -> Tensor:
        """Copy it back."""
        if kept.device.type == "cpu":
            return kept.host
        return kept.host.to(kept.device, non_blocking=True)


def offload_activations(model: nn.Module, elsewhere: Elsewhere) -> int:
    """Let what checkpointed layers keep lie elsewhere until the backward pass; return their number.

    Args:
        model: A model with activation checkpointing switched on.
        elsewhere: Usually HostMemory().
    """
    layers = [module for module in model.modules() if hasattr(module, CHECKPOINT)]
    for layer in layers:
        setattr(layer, CHECKPOINT, _offloaded(getattr(layer, CHECKPOINT), elsewhere))
    return len(layers)


def _offloaded(checkpoint: Callable[..., Any], elsewhere: Elsewhere) -> Callable[..., Any]:
    """Return a checkpointing function whose saved inputs lie elsewhere. Tensors inside the layer
    are not saved by it, and its second forward pass runs outside of this context.
    """

    def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(elsewhere.away, elsewhere.back):
            return checkpoint(function, *args, **kwargs)

    return run
