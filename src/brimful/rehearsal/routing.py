"""Experts on fake tensors, whose values nobody knows: each gets as many tokens as any other.

A layer that computes each expert's own tokens asks tensors for values: which experts were chosen
(`nonzero` of a flag for each), which tokens one got (`where` of its part of a mask, or that mask as
an index), or how many each got (`tolist`, and then `split`). How tokens are shared changes neither
the sum of what is computed nor that of what is kept.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, _meta_registrations
from torch._subclasses.fake_tensor import FakeTensor

from brimful.base.types import Json

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Where configs, or those within them, say how many experts a layer has."""
_nonzero, _tolist, _split = FakeTensor.nonzero, FakeTensor.tolist, FakeTensor.split
_get, _set = FakeTensor.__getitem__, FakeTensor.__setitem__
_where = torch.where
_grouped = _meta_registrations._meta_grouped_mm_common


@contextmanager
def even_routing(config: Json) -> Iterator[None]:
    """Let layers with experts run on fake tensors, each expert with an equal share of the tokens.
    Grouped matrix products work in any dtype: torch's shape function accepts bf16 alone, though its
    kernels take the others, too.

    Args:
        config: Values of the model's transformers config.
    """
    parts = [config, *(each for each in config.values() if isinstance(each, dict))]
    found = [part[key] for part in parts for key in _COUNTS if isinstance(part.get(key), int)]
    found.append(len(config.get("languages") or ()))  # X-MOD has an adapter for each
    with ExitStack() as stack:
        if experts := max(found, default=0):
            routing = _Routing(experts)
            for name, answer in routing.answers().items():
                stack.enter_context(mock.patch.object(FakeTensor, name, _as_method(answer)))
            stack.enter_context(mock.patch.object(torch, "where", routing.where))
            shapes = mock.patch.object(_meta_registrations, _grouped.__name__, _of_any_type)
            stack.enter_context(shapes)
        yield


class _Counts(list[int]):
    """Tokens of each expert, which the tensor that is split among them tells."""


class _Routing:
    def __init__(self, experts: int) -> None:
        self._experts = self._chosen = experts

    def answers(self) -> dict[str, Callable[..., Any]]:
        """Return what answers a tensor's methods, by their names."""
        return {
            "nonzero": self._nonzero,
            "tolist": self._tolist,
            "split": self._split,
            "__getitem__": lambda tensor, index: _get(tensor, self._part_of(index)),
            "__setitem__": lambda tensor, index, value: _set(tensor, self._part_of(index), value),
        }

    def _nonzero(self, flags: FakeTensor, **how: Any) -> Any:
        if flags.constant is not None or flags.ndim != 1:
            return _nonzero(flags, **how)
        # One flag more than there are experts stands for tokens that other devices compute.
        self._chosen = len(flags) - (len(flags) == self._experts + 1)
        return [torch.tensor([index]) for index in range(self._chosen)]

    def where(self, condition: Tensor, *values: Any, **others: Any) -> Any:
        is_unknown = isinstance(condition, FakeTensor) and condition.constant is None
        if values or others or not is_unknown:
            return _where(condition, *values, **others)
        rows = -(-condition.numel() // self._chosen)
        return torch.empty(rows, condition.ndim, dtype=torch.int64).unbind(1)

    def _tolist(self, sizes: FakeTensor) -> Any:
        if sizes.constant is None and tuple(sizes.shape) == (self._experts,):
            return _Counts([0] * self._experts)
        return _tolist(sizes)

    def _split(self, tensor: FakeTensor, sizes: Any, dim: int = 0) -> Any:
        if isinstance(sizes, _Counts):
            return torch.tensor_split(tensor, len(sizes), dim)
        return _split(tensor, sizes, dim)  # type: ignore[no-untyped-call]

    def _part_of(self, index: Any) -> Any:
        """Return the indices that stand for a boolean mask, as many as an expert's equal share; any
        other index as it is.
        """
        if not isinstance(index, FakeTensor) or index.dtype != torch.bool:
            return index
        return self.where(index)


def _as_method(answer: Callable[..., Any]) -> Callable[..., Any]:
    def asked(tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        return answer(tensor, *args, **kwargs)

    return asked


def _of_any_type(first: Tensor, second: Tensor, *others: Any, **given: Any) -> Tensor:
    if first.dtype == torch.bfloat16 or given["scale_a"] is not None:
        made: Tensor = _grouped(first, second, *others, **given)
    else:
        create = _meta_registrations._create_grouped_mm_output_tensor
        made = create(first, second, given["offs"], first.dtype)  # type: ignore[no-untyped-call]
    return made
