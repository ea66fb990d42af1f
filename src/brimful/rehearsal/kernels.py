"""CUDA's attention kernels, autocast, copies to the device and to the host's memory, while a step
for a CUDA device is rehearsed on fake CPU tensors: they allocate what the device's kernels do.

Shapes: B batch, H query heads, G key/value heads, T query and S key positions, D head size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from torch.overrides import TorchFunctionMode

from brimful.rehearsal.kernel_sizes import attention_product
from brimful.rehearsal.recorder import note_kernel
from brimful.training.activations import as_one_operator

Kernel = Literal["flash", "efficient", "math"]
"""Backends of scaled_dot_product_attention on CUDA."""
FLASH_LARGEST_HEAD = 256
FLASH_ROWS = 128
"""The flash backward pass works on query rows rounded up to this."""

_FP32_NAMES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        F,
        (
            "layer_norm",
            "group_norm",
            "log_softmax",
            "softmin",
            "cross_entropy",
            "nll_loss",
            "cosine_similarity",
            "binary_cross_entropy_with_logits",
            "kl_div",
            "l1_loss",
            "mse_loss",
            "smooth_l1_loss",
            "normalize",
            "softplus",
            "cosine_embedding_loss",
            "rms_norm",
        ),
    ),
    (
        torch,
        (
            "layer_norm",
            "log_softmax",
            "pow",
            "cumsum",
            "cumprod",
            "exp",
            "log",
            "rsqrt",
            "reciprocal",
            "sum",
            "prod",
            "norm",
            "renorm",
            "log1p",
            "expm1",
            "cosh",
            "sinh",
            "tan",
            "acos",
            "asin",
            "erfinv",
        ),
    ),
    (
        torch.Tensor,
        (
            "pow",
            "__pow__",
            "log_softmax",
            "cumsum",
            "exp",
            "log",
            "rsqrt",
            "reciprocal",
            "sum",
            "norm",
        ),
    ),
)
FP32_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    getattr(where, name) for where, names in _FP32_NAMES for name in names
)
"""Operators that CUDA's autocast runs in fp32 (torch docs, "CUDA Ops that can autocast to
float32"); the CPU's list is shorter.
"""


class OnCuda(TorchFunctionMode):
    """Runs Python-level torch calls with the allocations of a CUDA device.

    Args:
        flash: Whether the device has a flash kernel.
    """

    def __init__(self, *, flash: bool) -> None:
        super().__init__()
        self._flash = flash

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func in _STAND_INS:
            return _STAND_INS[func](*args, **kwargs)
        if func is torch.Tensor.backward:
            with self:  # recomputation runs inside, and must meet the same kernels
                return _engine_run_backward(
                    args,
                    (torch.ones_like(args[0]),),
                    False,
                    False,
                    (),
                    allow_unreachable=True,
                    accumulate_grad=True,
                )
        if func is torch.Tensor.to and kwargs.get("non_blocking"):
            return args[0].clone()
        if func in FP32_FUNCTIONS and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return func(
                    *(to_fp32(value) for value in args),
                    **{key: to_fp32(value) for key, value in kwargs.items()},
                )
        return func(*args, **kwargs)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            query, key, value = (
                tensor.to(torch.get_autocast_dtype("cpu")) for tensor in (query, key, value)
            )
        kernel = kernel_for(
            query,
            key,
            has_mask=attn_mask is not None,
            dropout=dropout_p,
            gqa=enable_gqa,
            flash=self._flash,
        )
        with torch.autocast("cpu", enabled=False):
            if kernel == "math":
                attended: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
                    query,
                    key,
                    value,
                    attn_mask,
                    dropout_p,
                    is_causal,
                    None,
                    scale=scale,
                    enable_gqa=enable_gqa,
                )[0]
                return attended
            inputs = (query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
            return fused_attention(
                *inputs, kernel=kernel, causal=is_causal, dropout=dropout_p
            ).transpose(1, 2)


def _softmax(
    input: Tensor, dim: int, *others: Any, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    """Apply a softmax as CUDA does: one in fp32 of fp16 scores is computed without a copy of them,
    and their gradient is fp16 (aten/native/SoftMax.cpp, half_to_float). Autocast asks for fp32.
    """
    dtype = next((each for each in others if isinstance(each, torch.dtype)), dtype)
    if dtype is None and torch.is_autocast_enabled("cpu"):
        dtype = torch.float32
    with torch.autocast("cpu", enabled=False):
        if (input.dtype, dtype) == (torch.float16, torch.float32):
            made: Tensor = torch.ops.aten._softmax.default(input, dim, half_to_float=True)
            return made
        return torch.softmax(input, dim, dtype=dtype)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Apply dropout as CUDA does, which keeps a mask of bytes; a CPU keeps one in the input's
    type.
    """
    if not training or p <= 0:
        return input
    return torch.native_dropout(input, p, True)[0]


_STAND_INS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.dropout: _dropout,
    F.softmax: _softmax,
    torch.softmax: _softmax,
    torch.Tensor.softmax: _softmax,
}


def kernel_for(
    query: Tensor, key: Tensor, *, has_mask: bool, dropout: float, gqa: bool, flash: bool
) -> Kernel:
    """Return the backend that torch chooses on CUDA (aten/native/transformers/cuda/sdp_utils.cpp,
    torch 2.11 to 2.13).

    flash: fp16 or bf16, head size up to 256, no mask. efficient: as many key heads as query heads,
    a multiple-of-8 head size in 16 bit. math: everything else; it stores the scores. cuDNN's
    kernel, preferred on some Hopper set-ups, saves the same tensors as flash.
    """
    half = query.dtype in {torch.float16, torch.bfloat16}
    head = query.shape[-1]
    if flash and half and not has_mask and head <= FLASH_LARGEST_HEAD:
        return "flash"
    grouped = gqa and key.shape[1] != query.shape[1]
    if not grouped and head % (8 if half else 4) == 0:
        return "efficient"
    return "math"


def fused_attention(
    query_BTHD: Tensor,
    key_BSGD: Tensor,
    value_BSGD: Tensor,
    *,
    kernel: Kernel,
    causal: bool = True,
    dropout: float = 0.0,
) -> Tensor:
    """Allocate and save what the fused kernel does; values mean nothing. A causal kernel computes
    half of the scores.
    """
    attended: Tensor = _FusedAttention.apply(
        query_BTHD, key_BSGD, value_BSGD, kernel, causal, dropout
    )  # type: ignore[no-untyped-call]
    return attended


class _FusedAttention(torch.autograd.Function):
    """Memory of flash-attention 2 and of CUTLASS's memory-efficient attention.

    Forward: the output and an fp32 log-sum-exp per row. Backward: gradients of all three inputs;
    flash also an fp32 accumulator of the query's gradient, an fp32 row sum and, for grouped heads,
    gradients of expanded keys and values (csrc/flash_attn/flash_api.cpp, mha_bwd;
    aten/native/transformers/cuda/attention_backward.cu).
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kernel: Kernel,
        causal: bool,
        dropout: float,
    ) -> Tensor:
        compute = partial(_attended, query, key, value, kernel, causal)
        attended, lse = compute() if dropout else as_one_operator(compute)
        if any(ctx.needs_input_grad[:3]):
            ctx.save_for_backward(query, key, value, attended, lse)
        ctx.kernel, ctx.causal = kernel, causal
        return attended

    @staticmethod
    def backward(
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        query, key, value, _, _ = ctx.saved_tensors
        batch, rows, heads, head = query.shape
        rounded = -(-rows // FLASH_ROWS) * FLASH_ROWS
        scratch = [torch.empty((batch, heads, rounded), dtype=torch.float32)]
        if ctx.kernel == "flash":
            scratch.append(
                torch.empty((batch, rounded, heads, -(-head // 32) * 32), dtype=torch.float32)
            )
        grads = [torch.empty_like(tensor) for tensor in (query, key, value)]
        if key.shape[2] != heads:
            scratch += [
                torch.empty((batch, tensor.shape[1], heads, head), dtype=key.dtype)
                for tensor in (key, value)
            ]
        reads = (query, key, value, query, grad_outputs[0])
        _note_attention(
            query, key, causal=ctx.causal, backward=True, reads=reads, writes=(*grads, *scratch[1:])
        )
        return grads[0], grads[1], grads[2], None, None, None


def _attended(
    query: Tensor, key: Tensor, value: Tensor, kernel: Kernel, causal: bool
) -> tuple[Tensor, Tensor]:
    batch, rows, heads, _ = query.shape
    attended = torch.empty((batch, rows, heads, value.shape[-1]), dtype=query.dtype)
    lse = torch.empty(
        (batch, heads, rows if kernel == "flash" else -(-rows // 32) * 32), dtype=torch.float32
    )
    reads, writes = (query, key, value), (attended, lse)
    _note_attention(query, key, causal=causal, backward=False, reads=reads, writes=writes)
    return attended, lse


def _note_attention(
    query_BTHD: Tensor, key_BSGD: Tensor, *, causal: bool, backward: bool, reads: Any, writes: Any
) -> None:
    batch, rows, heads, head = query_BTHD.shape
    flop, *shape = attention_product(
        (batch, heads, rows, head), key_BSGD.shape[1], causal=causal, backward=backward
    )
    suffix = "backward" if backward else ""
    note_kernel(
        f"fused_attention_{suffix}".rstrip("_"),
        f"attention {suffix}".rstrip(),
        reads,
        writes,
        flop=flop,
        shape=tuple(shape),
    )


def to_fp32(value: Any) -> Any:
    """Return 16-bit tensors in fp32, everything else as it is."""
    if isinstance(value, Tensor) and value.dtype in {torch.float16, torch.bfloat16}:
        return value.float()
    return value


class _Shape(NamedTuple):
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class NotOnCuda:
    """Forgets a tensor and makes one like it, as copying to the host and back does to the device's
    memory. Only for tensors without values.
    """

    def away(self, tensor: Tensor) -> _Shape:
        """Forget a tensor but its shape."""
        return _Shape(tensor.size(), tensor.stride(), tensor.dtype)

    def back(self, kept: _Shape) -> Tensor:
        """Return another one of that shape."""
        return torch.empty_strided(kept.size, kept.stride, dtype=kept.dtype)
