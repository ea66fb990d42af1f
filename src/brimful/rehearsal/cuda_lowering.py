"""Compiled parts of a step as on a CUDA device, while they are compiled on fake CPU tensors.

`kernels.OnCuda` does this for what runs eagerly. The compiler traces below Python calls, so here
autocast's rules are replaced in torch's dispatcher, and attention and dropout call the operators of
CUDA's kernels. Not modelled: Triton's choice of what to fuse; the C++ scheduler's stands for it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch import library as operator_library
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from torch.overrides import _get_current_function_mode_stack, get_overridable_functions
from torch.utils._pytree import tree_map

from brimful.rehearsal.kernels import kernel_for, to_fp32

FP32_OPERATORS = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p"),
    *("reciprocal", "rsqrt", "sinh", "tan", "softplus", "renorm", "logsumexp", "dist", "cdist"),
    *("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "layer_norm", "native_layer_norm"),
    *("rms_norm", "group_norm", "cosine_similarity", "cosine_embedding_loss", "nll_loss"),
    *("nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("mse_loss", "margin_ranking_loss", "soft_margin_loss", "multi_margin_loss"),
    "binary_cross_entropy_with_logits",
)
"""Operators that CUDA's autocast runs in fp32 (ATen/autocast_mode.h, AT_FORALL_FP32, torch 2.13); a
CPU's autocast leaves most of them in 16 bit.
"""
FP32_RESULTS = (
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum"),
    *("linalg_vector_norm", "sum", "sum.dim_IntList"),
)
"""Those that it asks for an fp32 result, unless the caller asks for a type
(AT_FORALL_FP32_SET_OPT_DTYPE). cross_entropy asks for the type of its input, so that the
log-softmax of 16-bit logits stays in 16 bit (ATen/native/LossNLL.cpp).
"""
_AUTOCAST_CPU = "AutocastCPU"


@contextmanager
def lowered_for_cuda(*, flash: bool) -> Iterator[None]:
    """Compile as for a CUDA device with or without a flash-attention kernel."""
    from torch._inductor import config  # noqa: PLC0415 - two seconds

    get_overridable_functions()  # torch keeps the list: it must not be that of below
    library = operator_library.Library("aten", "IMPL")
    try:
        for names, kernel_of in ((FP32_OPERATORS, _in_fp32), (FP32_RESULTS, _to_fp32_result)):
            for name in names:
                if not _has_autocast(name):
                    library.impl(name, kernel_of(_operator(name)), _AUTOCAST_CPU)
        with ExitStack() as stack:
            # Rows of a buffer begin at multiples of 128 bytes.
            stack.enter_context(config.patch(disable_padding_cpu=False))
            stack.enter_context(
                mock.patch.object(
                    F,
                    "scaled_dot_product_attention",
                    _attention_of(F.scaled_dot_product_attention, flash=flash),
                )
            )
            stack.enter_context(mock.patch.object(F, "dropout", _dropout_of(F.dropout)))
            yield
    finally:
        library._destroy()


def _operator(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operator: Callable[..., Any] = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return operator


def _has_autocast(name: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", _AUTOCAST_CPU))


def _without_autocast() -> AbstractContextManager[Any]:
    guard: AbstractContextManager[Any] = torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    )
    return guard


def _in_fp32(operator: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            return operator(*tree_map(to_fp32, args), **tree_map(to_fp32, kwargs))

    return kernel


def _to_fp32_result(operator: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        asked = [*args[1:], kwargs.get("dtype")]
        if not any(isinstance(value, torch.dtype) for value in asked) and _is_16_bit(args[0]):
            kwargs = {**kwargs, "dtype": torch.float32}
        with _without_autocast():
            return operator(*args, **kwargs)

    return kernel


def _is_16_bit(tensor: Tensor) -> bool:
    return tensor.dtype in {torch.float16, torch.bfloat16}


def _is_eager() -> bool:
    """Return whether OnCuda sees calls: it is switched off where blocks are compiled."""
    return bool(_get_current_function_mode_stack()) and not torch.compiler.is_compiling()


def _attention_of(eager: Callable[..., Tensor], *, flash: bool) -> Callable[..., Tensor]:
    """Return scaled_dot_product_attention by the operator of the kernel that CUDA would choose."""
    operators = torch.ops.aten

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **others: Any,
    ) -> Tensor:
        if _is_eager():
            return eager(query, key, value, attn_mask, dropout_p, is_causal, **others)
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        scale, gqa = others.get("scale"), others.get("enable_gqa", False)
        kernel = kernel_for(
            query, key, has_mask=attn_mask is not None, dropout=dropout_p, gqa=gqa, flash=flash
        )
        if kernel == "flash":
            made = operators._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )
        elif kernel == "efficient":
            made = operators._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
            )
        else:
            made = operators._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=gqa
            )
        attended: Tensor = made[0]
        return attended

    return attend


def _dropout_of(eager: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return dropout that keeps a mask of bytes, as on CUDA."""

    def dropout(
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if _is_eager() or not training or p <= 0:
            return eager(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    return dropout
