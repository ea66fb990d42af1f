"""Values of the small whole-number tensors of a step that runs on tensors without values.

Whether a mask hides anything, how many labels count, where packed examples begin: a step may read
that. It follows from the batch alone, so it is computed beside the fake tensors.
"""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from brimful.base.errors import PlanError

MOST_ELEMENTS = 1 << 22
"""Larger tensors have no values: masks of (positions, positions) stay below it up to 2048."""
_SELECTS, _FINDS = torch.ops.aten.index.Tensor, torch.ops.aten.nonzero.default
_READS_NUMBER = torch.ops.aten._local_scalar_dense.default
_RANDOM = torch.Tag.nondeterministic_seeded
_HAS_NO_VALUE = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}


class KnownValues(TorchDispatchMode):
    """Computes what follows from known tensors, beside the operators on fake ones.

    Attributes:
        in_model: The model's own forward pass runs, whose reading of an unknown number would decide
            what it computes; outside, an unknown number is one for the logs and counts as 0.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.in_model = False
        self._values: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def know(self, tensor: Tensor, value: Tensor) -> None:
        """Take `value` as what a fake tensor of the same shape and type holds."""
        key = id(tensor)
        self._values[key] = (weakref.ref(tensor, lambda _: self._values.pop(key, None)), value)

    def value_of(self, tensor: Tensor) -> Tensor | None:
        """Return what a tensor holds; None where that is not known. A real one, as a number that a
        program writes down, is its own value; of weights nothing is read.
        """
        if not isinstance(tensor, FakeTensor):
            is_plain = not isinstance(tensor, nn.Parameter) and tensor.numel() <= MOST_ELEMENTS
            return tensor if is_plain else None
        kept = self._values.get(id(tensor))
        return kept[1] if kept is not None and kept[0]() is tensor else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        values = [self.value_of(each) for each in given]
        if func is _READS_NUMBER:
            return self._read(given[0], values[0], func, args)
        if func is _FINDS and values[0] is not None:
            return self._found(given[0], values[0])
        if func is _SELECTS:
            args = self._with_positions(args)
        out = func(*args, **kwargs)
        is_small = all(each.numel() <= MOST_ELEMENTS for each in _tensors(out))
        if is_small and _is_repeatable(func) and not any(value is None for value in values):
            self._compute(func, args, kwargs, out)
        else:
            self._forget_written(func, args, kwargs)
        return out

    def _compute(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Do with the known values what was done with the tensors, whose result is `out`."""

        def known(leaf: Any) -> Any:
            return self.value_of(leaf) if isinstance(leaf, Tensor) else leaf

        with _disable_current_modes():
            computed = func(*tree_map(known, args), **tree_map(known, kwargs))
        for fake, value in zip(tree_leaves(out), tree_leaves(computed), strict=True):
            if isinstance(fake, Tensor):
                self.know(fake, value)

    def _found(self, mask: Tensor, value: Tensor) -> Tensor:
        """Return the positions of what is true in a known mask, whose number is known, too."""
        with _disable_current_modes():
            positions = value.nonzero()
        out = mask.new_empty(positions.shape, dtype=torch.int64)
        self.know(out, positions)
        return out

    def _with_positions(self, args: Any) -> Any:
        """Return the arguments of a selection with positions in place of known masks, as the real
        operator finds them.
        """
        tensor, places, *rest = args
        found: list[Tensor | None] = []
        for place in places:
            value = None if place is None or place.dtype != torch.bool else self.value_of(place)
            if value is None:
                found.append(place)
            else:
                found += self._found(place, value).unbind(1)
        return (tensor, found, *rest)

    def _forget_written(self, func: Any, args: Any, kwargs: Any) -> None:
        """Forget what an operator with an unknown operand wrote, and its views."""
        schema = getattr(func, "_schema", None)
        if schema is None or not schema.is_mutable:
            return
        given = {
            **kwargs,
            **dict(zip((each.name for each in schema.arguments), args, strict=False)),
        }
        for argument in schema.arguments:
            written = given.get(argument.name) if argument.is_write else None
            for tensor in _tensors(written):
                self._forget(tensor)

    def _forget(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()._cdata
        for key, (kept, _) in list(self._values.items()):
            other = kept()
            if other is None or other.untyped_storage()._cdata == storage:
                self._values.pop(key, None)

    def _read(self, tensor: Tensor, value: Tensor | None, func: Any, args: Any) -> Any:
        if value is not None:
            with _disable_current_modes():
                return value.item()
        if tensor.dtype == torch.bool:
            return func(*args)  # the recorder answers: nothing overflowed, nothing was skipped
        if self.in_model:
            raise PlanError(
                "the model's forward pass reads a number that its own layers computed, which cannot"
                " be known without training. BrimfulCallback measures such a training as it is."
            )
        return 0.0 if tensor.is_floating_point() else 0


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _is_repeatable(func: Any) -> bool:
    """Return whether an operator gives the same again for the same values."""
    return (
        isinstance(func, torch._ops.OpOverload)
        and _RANDOM not in func.tags
        and func not in _HAS_NO_VALUE
    )
