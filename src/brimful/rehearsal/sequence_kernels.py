"""Linear attention, state-space blocks and short convolutions as the kernels of a GPU compute them,
while a step is rehearsed on fake tensors: they allocate and keep what those kernels do.

transformers asks three packages for these kernels and computes with torch where they are absent
(`use_kernel_func_from_hub_with_fallback`), in many times the operators and the memory. What is
allocated was read in the packages' sources: flash-linear-attention 0.4 to 0.5
(fla/ops/gated_delta_rule/chunk.py and fla/ops/kda/chunk.py with chunk_fwd.py), mamba-ssm 2.2 to 2.3
(mamba_ssm/ops/triton/ssd_combined.py, ops/selective_scan_interface.py) and causal-conv1d 1.5 to 1.6
(causal_conv1d/causal_conv1d_interface.py). The package kernels downloads RWKV's, whose caller is in
transformers 5.23 (RwkvLinearAttention in models/rwkv/modeling_rwkv.py). Scratch inside of a kernel
call counts at its largest set. Values mean nothing.

Shapes: B batch, T positions, H key heads, G value heads, K key size, V value size, C chunks,
D channels, N size of a state.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.planning.family_key import CHUNKS
from brimful.rehearsal.recorder import note_kernel

DELTA_CHUNK, SCAN_CHUNK = CHUNKS["K"], CHUNKS["S"]
"""The selective scan keeps a state for each of these (selective_scan_fwd_kernel.cuh)."""


Shapes = Sequence[tuple[tuple[int, ...], torch.dtype]]
"""Shapes and types of tensors."""


@dataclass(frozen=True)
class _Sizes:
    """What a kernel allocates.

    Attributes:
        out: Shape of the result, in the type of the first input.
        kept: Shapes and types of what it makes and keeps for the backward pass.
        forward: Bytes of scratch beside that.
        backward: Bytes of scratch of the backward pass beside the gradients.
        flop: Arithmetic of the forward pass.
    """

    out: tuple[int, ...]
    kept: Shapes = ()
    forward: Shapes = ()
    backward: Shapes = ()
    flop: int = 0


class _SequenceKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, sizes: _Sizes, drops: int, *inputs: Tensor | None) -> Tensor:
        """`drops`: how many of the first inputs are not kept."""
        given, scratch = _given(inputs), _made(sizes.forward)
        out, kept = torch.empty(sizes.out, dtype=given[0].dtype), _made(sizes.kept)
        note_kernel(name, "attention", given, (out, *kept, *scratch), flop=sizes.flop)
        ctx.save_for_backward(*inputs[drops:], *kept)
        ctx.kernel, ctx.sizes = name, sizes
        ctx.likes = [None if each is None else (each.shape, each.dtype) for each in inputs]
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        saved, sizes = _given(ctx.saved_tensors), ctx.sizes
        scratch = _made(sizes.backward)
        grads = [
            None if like is None or not needed else torch.empty(like[0], dtype=like[1])
            for like, needed in zip(ctx.likes, ctx.needs_input_grad[3:], strict=True)
        ]
        note_kernel(
            f"{ctx.kernel}_backward",
            "attention backward",
            (*saved, *grad_outputs),
            (*_given(grads), *scratch),
            flop=5 * sizes.flop // 2,
        )
        return None, None, None, *grads


def _made(shapes: Shapes) -> list[Tensor]:
    return [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]


def _given(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    return [each for each in tensors if each is not None]


def _run(name: str, sizes: _Sizes, *inputs: Tensor | None, drops: int = 0) -> Tensor:
    out: Tensor = _SequenceKernel.apply(name, sizes, drops, *inputs)  # type: ignore[no-untyped-call]
    return out


def causal_conv1d(
    inputs_BDT: Tensor, weight: Tensor, bias: Tensor | None = None, **_: Any
) -> Tensor:
    """A short convolution: keeps its input and the weights."""
    flop = 2 * weight.shape[-1] * inputs_BDT.numel()
    weights_in_fp32 = [(tuple(weight.shape), torch.float32)]
    sizes = _Sizes(tuple(inputs_BDT.shape), backward=weights_in_fp32, flop=flop)
    return _run("causal_conv1d", sizes, inputs_BDT, weight, bias)


def gated_delta_rule(
    query_BTHK: Tensor,
    key_BTHK: Tensor,
    value_BTGV: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """The chunked delta rule with a gate for each head, or for each head and channel (KDA).

    Keeps normalised queries and keys with the factors of that, values, the summed gates in fp32,
    beta, and a matrix of DELTA_CHUNK numbers for each position (KDA: two). Both passes make w, u,
    new values and the states of the chunks.
    """
    inputs = [each.contiguous() for each in (query_BTHK, key_BTHK, value_BTGV, g, beta)]
    batch, length, heads, width = key_BTHK.shape
    value_heads, value_width = value_BTGV.shape[-2:]
    half, full = key_BTHK.dtype, torch.float32
    for_positions, per_channel = (batch, length, value_heads), g.ndim == 4
    chunks = -(-length // DELTA_CHUNK)
    matrix = ((*for_positions, DELTA_CHUNK), half)
    normalised = [(tuple(key_BTHK.shape), half), ((batch, length, heads), full)] * 2
    keys, values = ((*for_positions, width), half), ((*for_positions, value_width), half)
    states = ((batch, chunks, value_heads, width, value_width), half)
    scratch = [keys, values, values, states]
    flop = batch * length * value_heads
    flop *= 4 * DELTA_CHUNK * (width + value_width) + 6 * width * value_width
    sizes = _Sizes(
        out=tuple(value_BTGV.shape),
        kept=[
            *(normalised if use_qk_l2norm_in_kernel else ()),
            (tuple(g.shape), full),
            *[matrix] * (2 if per_channel else 1),
        ],
        forward=[*scratch, ((*for_positions, DELTA_CHUNK), full)],
        backward=[*scratch, values, states, keys, keys, keys, (tuple(g.shape), full)],
        flop=flop,
    )
    drops = 2 if use_qk_l2norm_in_kernel else 0  # the normalised ones are kept in their place
    return _run("gated_delta_rule", sizes, *inputs, drops=drops), None


def mamba2(
    projected_BTD: Tensor,
    *weights: Tensor | None,
    D: Tensor,
    chunk_size: int,
    headdim: int,
    ngroups: int = 1,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """A Mamba-2 block from its first projection to its last: convolution, scan in chunks, gated
    norm, product. Keeps its input and the scan's output; the rest is computed again.

    Args:
        weights: The weights of the convolution with its bias, the bias of steps, the decays.
    """
    batch, length, _width = projected_BTD.shape
    heads, half, full = D.shape[0], projected_BTD.dtype, torch.float32
    inner, channels = heads * headdim, _given(weights)[0].shape[0]
    state = (channels - inner) // ngroups // 2
    chunks = -(-length // chunk_size)
    steps = ((batch, heads, chunks, chunk_size), full)
    states = ((batch, chunks, heads, headdim, state), full)
    scores = ((batch, chunks, ngroups, chunk_size, chunk_size), full)
    convolved, inside = ((batch, length, channels), half), ((batch, length, inner), half)
    scratch = [convolved, steps, steps, states, states, scores]
    sizes = _Sizes(
        out=(batch, length, inner),
        kept=[inside, ((batch * length * ngroups,), full)],
        forward=scratch,
        backward=[*scratch, convolved, inside, inside, states, states, steps, scores],
        flop=batch * length * heads * 2 * (chunk_size * (state + headdim) + 3 * headdim * state),
    )
    scanned = _run("mamba2", sizes, projected_BTD, *weights, D, others.get("rmsnorm_weight"))
    if outproj_weight is None:
        return scanned
    return F.linear(scanned, outproj_weight.to(scanned.dtype), outproj_bias)


def chunk_scan(hidden_BTHP: Tensor, dt: Tensor, *others: Any, **_: Any) -> Tensor:
    """Mamba-2's scan alone, as in evaluation: no gradient runs through it."""
    batch, length, heads, size = hidden_BTHP.shape
    states = ((batch, -(-length // CHUNKS["Q"]), heads, size, others[1].shape[-1]), torch.float32)
    sizes = _Sizes(tuple(hidden_BTHP.shape), forward=[states, states], flop=6 * hidden_BTHP.numel())
    return _run("chunk_scan", sizes, hidden_BTHP, dt)


def selective_scan(
    inputs_BDT: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    return_last_state: bool = False,
    **_: Any,
) -> Tensor | tuple[Tensor, None]:
    """Mamba's scan: keeps its inputs, a state every SCAN_CHUNK positions and, with a gate, the
    output before it.
    """
    batch, channels, length = inputs_BDT.shape
    states = ((batch, channels, -(-length // SCAN_CHUNK), 2 * A.shape[-1]), torch.float32)
    shape = tuple(inputs_BDT.shape)
    sizes = _Sizes(
        out=shape,
        kept=[states, *([] if z is None else [(shape, inputs_BDT.dtype)])],
        backward=[(tuple(each.shape), torch.float32) for each in (B, C)],
        flop=9 * A.shape[-1] * inputs_BDT.numel(),
    )
    out = _run("selective_scan", sizes, inputs_BDT, delta, A, B, C, D, z, delta_bias)
    return (out, None) if return_last_state else out


def mamba(
    xz_BDT: Tensor, *weights: Tensor | None, delta_bias: Tensor | None = None, **_: Any
) -> Tensor:
    """A Mamba block from its first projection to its last. Keeps its input, what the projection to
    steps and states gives, and what the scan keeps; the convolution is computed again.

    Args:
        weights: Weights of the convolution with its bias, the projections to steps and states, the
            last projection with its bias, the decays, and what follows in `mamba_inner_fn`.
    """
    convolution, its_bias, to_states, to_steps, last, last_bias, decays, *rest = weights
    small, inner = _given([to_states])[0].shape
    (batch, _width, length), state = xz_BDT.shape, _given([decays])[0].shape[-1]
    half, full = xz_BDT.dtype, torch.float32
    wide = ((batch, inner, length), half)
    both = [((batch, 1, state, length), half)] * 2
    sizes = _Sizes(
        out=(batch, length, inner),
        kept=[
            ((batch * length, small), half),
            *both,
            ((batch, inner, -(-length // SCAN_CHUNK), 2 * state), full),
            wide,
        ],
        forward=[wide, wide],
        backward=[*[wide] * 5, ((batch * length, small), half), *both],
        flop=9 * batch * inner * length * state,
    )
    inside = (convolution, its_bias, to_states, to_steps, decays, *rest, delta_bias)
    scanned = _run("mamba", sizes, xz_BDT, *inside)
    return F.linear(scanned, _given([last])[0].to(scanned.dtype), last_bias)


def wkv(
    decay_D: Tensor, first_D: Tensor, key_BTD: Tensor, value_BTD: Tensor, **_: Any
) -> tuple[Tensor, None]:
    """RWKV's attention: keeps its inputs, of the decays their negated exponentials in fp32."""
    sizes = _Sizes(
        out=tuple(key_BTD.shape),
        kept=[(tuple(decay_D.shape), torch.float32)],
        flop=16 * key_BTD.numel(),
    )
    return _run("wkv", sizes, decay_D, first_D, key_BTD, value_BTD, drops=1), None


STAND_INS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": causal_conv1d,
    "chunk_gated_delta_rule": gated_delta_rule,
    "chunk_kda": gated_delta_rule,
    "mamba_split_conv1d_scan_combined": mamba2,
    "mamba_chunk_scan_combined": chunk_scan,
    "mamba_inner_fn": mamba,
    "selective_scan_fn": selective_scan,
    "rwkv_linear_attention": wkv,
}
"""By the name that transformers asks a package for, or that of its own function around a kernel."""


@contextmanager
def sequence_kernels() -> Iterator[None]:
    """Let the models whose code is loaded compute with these in place of torch."""
    with ExitStack() as stack:
        for module_name, module in list(sys.modules.items()):
            if not module_name.startswith("transformers.models."):
                continue
            for name, value in list(vars(module).items()):
                if (stand_in := STAND_INS.get(_kernel_of(value))) is not None:
                    stack.enter_context(mock.patch.object(module, name, stand_in))
        yield


def _kernel_of(function: Any) -> str:
    """Return the name of the kernel that a function of transformers stands for, else its own."""
    code = getattr(function, "__code__", None)
    if code is None or "func_name" not in code.co_freevars or "package" not in code.co_freevars:
        return str(getattr(function, "__name__", ""))
    return str(function.__closure__[code.co_freevars.index("func_name")].cell_contents)
