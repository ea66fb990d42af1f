"""Tensors that operators allocate inside and free before they return.

Sources: torch 2.13, aten/src/ATen/native; each was also seen in profiles of real steps
(benchmarks/memory_cpu.py).
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_LOGSUMEXP = {torch.ops.aten.logsumexp.default}
_SOFTMAX_BACKWARD = torch.ops.aten._softmax_backward_data.default


def scratch_bytes(func: Any, args: Any, out: Any, *, cuda: bool) -> list[int]:
    """Return the sizes of an operator's inner tensors, all alive together with its output.

    Args:
        cuda: Whether it is as on CUDA, where element-wise kernels convert in registers; else as on
            a CPU.
    """
    if func in _LOGSUMEXP:
        # max and exp(x - max), ReduceOps.cpp
        return [out.numel() * out.element_size(), args[0].numel() * out.element_size()]
    if cuda and func is _SOFTMAX_BACKWARD:
        # tmp = grad * output, cuda/SoftMax.cu, softmax_backward_cuda_out; a CPU has none
        grad, output = args[:2]
        return [grad.numel() * torch.promote_types(grad.dtype, output.dtype).itemsize]
    if not cuda and torch.Tag.pointwise in func.tags:
        return _promoted(func, args, out)
    return []


def _promoted(func: Any, args: Any, out: Any) -> list[int]:
    """Return the sizes of operands converted to the common type, which TensorIterator does first on
    a CPU (TensorIterator.cpp, compute_types).
    """
    operands = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
    if len({operand.dtype for operand in operands}) < 2 or not isinstance(out, Tensor):
        return []
    common = operands[0].dtype
    for operand in operands[1:]:
        common = torch.promote_types(common, operand.dtype)
    return [
        operand.numel() * common.itemsize
        for operand in operands
        if operand.dtype != common and operand.ndim
    ]
