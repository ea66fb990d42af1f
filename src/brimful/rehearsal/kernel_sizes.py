"""Sizes of kernels: floating-point operations and shapes of products, and the number of kernels of
operators on lists of tensors.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from brimful.hardware.rates import BACKWARD_OVER_FORWARD
from brimful.planning.work import LIST_ELEMENTS

_LIST_LIMITS = (110, 64, 48, 36, 30)
"""Tensors per kernel of a foreach operator by number of lists (torch,
aten/native/cuda/MultiTensorApply.cuh).
"""
ListSizes = tuple[int, int, int]
"""Tensors per kernel, tensors and elements of the lists that an operator works on."""
NO_LIST: ListSizes = (1, 1, 0)
"""Those of an operator that does not work on lists."""
Product = tuple[int, int, int, int, int]
"""Floating-point operations, batch, m, n, k."""


def lists_of(name: str, operands: Sequence[Sequence[Tensor]]) -> ListSizes:
    """Return tensors per kernel, tensors and elements of the lists that an operator works on."""
    lists = [group for group in operands if len(group) > 1]
    if not lists or not name.startswith(("_fused_adam", "_foreach")):
        return NO_LIST
    depth = len(lists) - name.startswith("_fused_adam")  # counts of steps come beside
    return (
        _LIST_LIMITS[min(depth, len(_LIST_LIMITS)) - 1],
        len(lists[0]),
        sum(tensor.numel() for tensor in lists[0]),
    )


def list_elements(lists: ListSizes, operands: Sequence[Sequence[Tensor]]) -> list[int]:
    """Return the elements of each tensor that `lists_of` counts."""
    if lists == NO_LIST:
        return []
    first = next(group for group in operands if len(group) > 1)
    return [tensor.numel() for tensor in first]


def launches(limit: int, tensors: int, elements: int) -> int:
    """Return the number of kernels of an operator on lists."""
    return max(math.ceil(tensors / limit), math.ceil(elements / LIST_ELEMENTS))


def product(class_name: str, name: str, args: Sequence[Any], out: Any) -> Product:
    """Return floating-point operations, batch, m, n, k; zeros where the operator is no product."""
    if class_name == "matrix":
        return _matrix_product(name, args, out)
    if class_name == "batched matrix":
        left, right = args[-2:] if name == "bmm" else args[1:3]
        batch, m, k, n = left.shape[0], left.shape[1], left.shape[2], right.shape[2]
        return 2 * batch * m * n * k, batch, m, n, k
    if class_name in ("attention", "attention backward"):
        backward = class_name == "attention backward"
        query, key = args[1:3] if backward else args[:2]
        causal = any(value is True for value in args)
        return attention_product(query.shape, key.shape[-2], causal=causal, backward=backward)
    return 0, 1, 0, 0, 0


def _matrix_product(name: str, args: Sequence[Any], out: Tensor) -> Product:
    """Return the same of a matrix product; a grouped one (experts) is one product of all rows."""
    left = args[1] if name in ("addmm", "addmm_", "addmv") else args[0]
    k = left.shape[-1]
    m = left.numel() // max(k, 1)
    n = 1 if name in ("mv", "addmv") else out.shape[-1]
    return 2 * m * n * k, 1, m, n, k


def attention_product(
    shape_BHTD: Sequence[int], keys: int, *, causal: bool, backward: bool
) -> Product:
    """Return floating-point operations, batch, queries, keys and head size of a fused attention
    kernel; a causal one skips half of the scores.
    """
    batch, queries, head = int(np.prod(shape_BHTD[:-2])), shape_BHTD[-2], shape_BHTD[-1]
    flop = 4 * batch * queries * keys * head
    if causal:
        flop //= 2
    if backward:
        flop = int(flop * BACKWARD_OVER_FORWARD)
    return flop, batch, queries, keys, head
