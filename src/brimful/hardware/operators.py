"""Operators to measure a device with: the products, chains and updates of a training step, small
and large, each with its work.

Shapes: M rows, N columns, K summed over, G products of a batch (heads times sequences), B
sequences, H heads, T positions, D head size, R rows of W elements.
"""

import importlib
import importlib.util
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.hardware.rates import BACKWARD_OVER_FORWARD

Call = Callable[[], object]

PRODUCTS_MNK = (
    (256, 128, 128),
    (1024, 256, 256),
    (1024, 1024, 256),
    (1024, 256, 1024),
    (2048, 1536, 512),
    (1024, 1024, 1024),
    (1024, 8192, 256),
    (512, 128, 512),
    (2048, 512, 8),
)
"""Rows are tokens: projections and MLPs of widths from 128 up, a square, a vocabulary, the second
half of an adapter.
"""
WEIGHT_GRADIENTS_MNK = ((256, 256, 4096), (1024, 256, 1024), (8192, 256, 1024), (512, 512, 2048))
INPUT_GRADIENTS_MNK = ((1024, 256, 1024), (2048, 512, 512), (2048, 512, 8))
THIN_MNK = ((2048, 8, 512), (1024, 16, 256))
THIN_INPUT_GRADIENTS_MNK = ((2048, 8, 512), (1024, 16, 256))
THIN_WEIGHT_GRADIENTS_MNK = ((8, 512, 2048), (16, 256, 1024), (512, 8, 2048), (256, 16, 1024))
"""Sizes of the gradients of adapters' weights: a fast layout of one is a slow one of the other, and
both come in every step.
"""
BATCHED_GKD = ((32, 64, 32), (32, 192, 64), (16, 512, 64), (64, 128, 64))
BLOCK_ROWS = 64
ATTENTION_BHTD = ((4, 4, 128, 64), (4, 8, 256, 32), (2, 4, 512, 64), (1, 4, 1024, 64))
GPU_SCALE = 8
"""GPUs get as many times more rows: sizes at which a CPU's cores are busy leave most of a GPU idle.
"""
CACHED_ELEMENTS, MIDDLE_ELEMENTS, LARGE_ELEMENTS = 1 << 17, 1 << 21, 1 << 24
"""0.5 MiB of fp32 fits the caches next to a core, 8 MiB a shared one, 64 MiB none of a CPU."""
TINY_ELEMENTS = 256
DRAWN_ELEMENTS = 1 << 16
COLD_BYTES = 12 << 20
MOST_SETS = 32
"""Operands rotate through this much memory, or this often."""
ROW, HEAD = 512, 64
"""Elements of a row in norms and softmax, and of a head."""
DEQUANTISED_SIDES = (512, 2048)
NF4_BLOCK = 64
"""Weights that share a scale (Dettmers et al. 2023)."""
OPTIMIZER_SIZES = (1 << 18, 1 << 23)
OPTIMIZER_TENSORS = 8
ADAMW_BYTES = 32
"""fp32 parameter, gradient and two states per parameter, each counted as read and written, as the
operator declares.
"""


@dataclass(frozen=True)
class Case:
    """One operator to measure.

    Attributes:
        name: Name that people read.
        operator: torch's name of it; "" for products, whose shapes tell them apart.
        class_name: One of rates.CLASSES.
        dtype: "fp32", "tf32", "bf16" or "fp16".
        flop: Floating-point operations.
        num_bytes: Read and written.
        smallest: Smaller one of a product's rows and columns; 0 for other operators.
        make: Makes the operands on a device and gives what runs the operator on them.
    """

    name: str
    operator: str
    class_name: str
    dtype: str
    flop: int
    num_bytes: int
    smallest: int
    make: Callable[[torch.device], Call]


TORCH_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def cases(device: torch.device, dtypes: tuple[str, ...]) -> list[Case]:
    """What to measure on a device in these dtypes, the optimizer in fp32."""
    rows = GPU_SCALE if device.type == "cuda" else 1
    all_cases: list[Case] = []
    for dtype in dtypes:
        all_cases += [*_products(dtype, rows), *_batched(dtype, rows), *_attention(dtype, rows)]
        if dtype != "tf32":
            all_cases += _elementwise(dtype, rows)
    # 4-bit weights are unpacked into the 16-bit types; where none of these pays, into fp32.
    for dtype in [each for each in dtypes if each in ("bf16", "fp16")] or ["fp32"]:
        all_cases += _dequantise(dtype, rows)
    return [*all_cases, *(case for size in OPTIMIZER_SIZES for case in _optimizer(size))]


def on_cold_operands(case: Case, device: torch.device) -> Call:
    """The operator as training has it: operands were made a while ago and results outlive many
    others, so neither is in the nearest cache.
    """
    sets = max(1, min(MOST_SETS, COLD_BYTES // case.num_bytes))
    runs = cycle([case.make(device) for _ in range(sets)])
    results: deque[object] = deque(maxlen=sets)
    return lambda: results.append(next(runs)())


def random_operand(device: torch.device, dtype: str, *shape: int) -> Tensor:
    """Operands from a private generator; large ones repeat themselves."""
    generator = torch.Generator(device).manual_seed(0)
    elements = math.prod(shape)
    drawn = torch.randn(min(elements, DRAWN_ELEMENTS), generator=generator, device=device).to(
        TORCH_DTYPES[dtype]
    )
    return drawn.repeat(-(-elements // len(drawn)))[:elements].view(shape)


def _transposed(x_RW: Tensor) -> Tensor:
    """Equal values, laid out the other way round."""
    return x_RW.t().contiguous().t()


_LAYOUTS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "product": lambda left_MK, right_KN: (left_MK, _transposed(right_KN)),
    "input gradient": lambda left_MK, right_KN: (left_MK, right_KN),
    "weight gradient": lambda left_MK, right_KN: (_transposed(left_MK), right_KN),
}
"""How the operands of x W^T, dy W and dy^T x lie in memory, x and dy with a row per token."""


def _products(dtype: str, rows: int) -> Iterator[Case]:
    size = TORCH_DTYPES[dtype].itemsize

    def case(kind: str, m: int, n: int, k: int) -> Case:
        def make(device: torch.device) -> Call:
            left, right = _LAYOUTS[kind](
                random_operand(device, dtype, m, k), random_operand(device, dtype, k, n)
            )
            return lambda: left @ right

        return Case(
            f"{kind} {m}x{n}x{k}",
            "",
            "matrix",
            dtype,
            2 * m * n * k,
            size * (m * k + k * n + m * n),
            min(m, n),
            make,
        )

    for m, n, k in (*PRODUCTS_MNK, *THIN_MNK):
        yield case("product", m * rows, n, k)
    for m, n, k in (*INPUT_GRADIENTS_MNK, *THIN_INPUT_GRADIENTS_MNK):
        yield case("input gradient", m * rows, n, k)
    for m, n, k in (*WEIGHT_GRADIENTS_MNK, *THIN_WEIGHT_GRADIENTS_MNK):
        yield case("weight gradient", m, n, k * rows)


def _batched(dtype: str, rows: int) -> Iterator[Case]:
    """Products of attention in blocks of rows, on slices of longer sequences, as `model.attention`
    has them.
    """
    size = TORCH_DTYPES[dtype].itemsize

    def case(kind: str, g: int, m: int, n: int, k: int) -> Case:
        def make(device: torch.device) -> Call:
            left_GMK, right_GKN = _SLICES[kind](
                lambda *shape: random_operand(device, dtype, g, *shape), m, n, k
            )
            return lambda: torch.bmm(left_GMK, right_GKN)

        return Case(
            f"{kind} {g}x{m}x{n}x{k}",
            "",
            "batched matrix",
            dtype,
            2 * g * m * n * k,
            size * g * (m * k + k * n + m * n),
            min(m, n),
            make,
        )

    for batch, keys, head in BATCHED_GKD:
        g = batch * rows
        yield case("scores", g, BLOCK_ROWS, keys, head)
        yield case("attended values", g, BLOCK_ROWS, head, keys)
        yield case("gradient of keys", g, keys, head, BLOCK_ROWS)


_SLICES: dict[str, Callable[[Callable[..., Tensor], int, int, int], tuple[Tensor, Tensor]]] = {
    "scores": lambda make, m, n, k: (make(2 * m, k)[:, m:], make(2 * n, k)[:, :n].transpose(1, 2)),
    "attended values": lambda make, m, n, k: (make(m, k), make(2 * k, n)[:, :k]),
    "gradient of keys": lambda make, m, n, k: (make(k, m).transpose(1, 2), make(2 * k, n)[:, k:]),
}
"""Operands from what makes a batch of (rows, columns): slices of queries, keys, values and
gradients, and whole blocks of weights.
"""


def _attention(dtype: str, rows: int) -> Iterator[Case]:
    size = TORCH_DTYPES[dtype].itemsize
    for batch, h, t, d in ATTENTION_BHTD:
        b = batch * rows

        def forward(device: torch.device, shape: tuple[int, ...] = (b, h, t, d)) -> Call:
            q, k, v = (random_operand(device, dtype, *shape) for _ in range(3))
            return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def backward(device: torch.device, shape: tuple[int, ...] = (b, h, t, d)) -> Call:
            leaves = [random_operand(device, dtype, *shape).requires_grad_() for _ in range(3)]
            with torch.enable_grad():
                out = F.scaled_dot_product_attention(
                    leaves[0], leaves[1], leaves[2], is_causal=True
                )
            grad = torch.ones_like(out)
            return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)

        flop, moved = 2 * b * h * t * t * d, size * b * h * t * d
        shape = f"{b}x{h}x{t}x{d}"
        yield Case(f"attention {shape}", "", "attention", dtype, flop, 4 * moved, 0, forward)
        yield Case(
            f"attention backward {shape}",
            "",
            "attention backward",
            dtype,
            int(flop * BACKWARD_OVER_FORWARD),
            8 * moved,
            0,
            backward,
        )


Elementwise = Callable[[Tensor, Tensor], object]
"""An operator on two (R, W) tensors of the same size."""


def _heads(x_RW: Tensor) -> Tensor:
    """(H, R, D) in the strides in which attention gets its heads."""
    return x_RW.view(-1, ROW // HEAD, HEAD).transpose(0, 1)


def _backwards(x_RW: Tensor) -> Tensor:
    return torch.arange(len(x_RW) - 1, -1, -1, device=x_RW.device)


def _norm_backward(grad_RW: Tensor, x_RW: Tensor) -> object:
    mean_R1 = torch.zeros(len(x_RW), 1, dtype=x_RW.dtype, device=x_RW.device)
    weight_W = x_RW[0]
    return torch.ops.aten.native_layer_norm_backward(
        grad_RW, x_RW, [ROW], mean_R1, mean_R1, weight_W, weight_W, [True, True, True]
    )


_SAME: tuple[tuple[str, str, int, Elementwise], ...] = (
    ("add", "pointwise", 3, lambda x, y: x + y),
    ("add_", "pointwise", 3, lambda x, y: x.add_(y)),
    ("mul", "pointwise", 3, lambda x, y: x * y),
    ("mul", "pointwise", 2, lambda x, y: x * y[:, :1]),
    ("mul", "pointwise", 2, lambda x, y: _heads(x) * _heads(y)[:1, :1]),
    ("neg", "pointwise", 2, lambda x, y: -x),
    ("silu", "transcendental", 2, lambda x, y: F.silu(x)),
    ("silu_backward", "transcendental", 3, torch.ops.aten.silu_backward),
    ("gelu", "transcendental", 2, lambda x, y: F.gelu(x)),
    ("gelu_backward", "transcendental", 3, torch.ops.aten.gelu_backward),
    ("tanh", "transcendental", 2, lambda x, y: x.tanh()),
    ("pow", "transcendental", 2, lambda x, y: x.pow(2)),
    ("exp", "transcendental", 2, lambda x, y: x.exp()),
    ("bernoulli_", "transcendental", 1, lambda x, y: x.bernoulli_(0.9)),
    ("_softmax", "reduction", 2, lambda x, y: torch.softmax(x, -1)),
    (
        "_softmax_backward_data",
        "reduction",
        3,
        lambda x, y: torch._softmax_backward_data(x, y, -1, x.dtype),
    ),
    ("native_layer_norm", "reduction", 2, lambda x, y: F.layer_norm(x, (ROW,), y[0], y[0])),
    ("native_layer_norm_backward", "reduction", 3, _norm_backward),
    ("mean", "reduction", 1, lambda x, y: x.mean(-1, keepdim=True)),
    ("sum", "reduction", 1, lambda x, y: x.sum(0)),
    ("logsumexp", "reduction", 1, lambda x, y: x.logsumexp(-1)),
    ("embedding", "gather", 2, lambda x, y: F.embedding(_backwards(x), y)),
    (
        "embedding_dense_backward",
        "gather",
        2,
        lambda x, y: torch.ops.aten.embedding_dense_backward(x, _backwards(x), len(x), -1, False),
    ),
    ("cat", "copy", 4, lambda x, y: torch.cat((_heads(x), _heads(y)), -1)),
    ("clone", "copy", 2, lambda x, y: _heads(x).contiguous()),
    (
        "slice_backward",
        "copy",
        3,
        lambda x, y: torch.ops.aten.slice_backward(x, [len(x), 2 * ROW], 1, 0, ROW, 1),
    ),
)
"""torch's operator, its class, elements read and written per element, and a call; two variants of
one share a rate.
"""


def _elementwise(dtype: str, rows: int) -> Iterator[Case]:
    """Operators without products, at sizes inside and outside of the caches, and the smallest."""
    size = TORCH_DTYPES[dtype].itemsize
    other = torch.bfloat16 if dtype == "fp32" else torch.float32
    converts = ("_to_copy", "copy", (size + other.itemsize) / size, lambda x, y: x.to(other))
    for elements in (CACHED_ELEMENTS, MIDDLE_ELEMENTS, LARGE_ELEMENTS):
        for operator, class_name, per_element, call in (*_SAME, converts):

            def make(
                device: torch.device, n: int = elements * rows, call: Elementwise = call
            ) -> Call:
                x_RW, y_RW = (random_operand(device, dtype, n // ROW, ROW) for _ in range(2))
                return lambda: call(x_RW, y_RW)

            yield Case(
                f"{operator}, {elements * rows:,} elements",
                operator,
                class_name,
                dtype,
                0,
                int(per_element * size * elements * rows),
                0,
                make,
            )

    def tiny(device: torch.device) -> Call:
        x_W, y_W = (
            random_operand(device, dtype, TINY_ELEMENTS),
            random_operand(device, dtype, TINY_ELEMENTS),
        )
        return lambda: x_W + y_W

    yield Case("add, tiny", "add", "pointwise", dtype, 0, 3 * size * TINY_ELEMENTS, 0, tiny)


def _dequantise(dtype: str, rows: int) -> Iterator[Case]:
    """NF4 weights with double quantisation, unpacked; nothing where bitsandbytes is not
    installed.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        return
    for side in DEQUANTISED_SIDES:
        elements = side * side * rows

        def make(device: torch.device, shape: tuple[int, int] = (side * rows, side)) -> Call:
            functional = _bitsandbytes()
            packed, state = functional.quantize_4bit(
                random_operand(device, dtype, *shape), quant_type="nf4", compress_statistics=True
            )
            return lambda: functional.dequantize_4bit(packed, state)

        scales = 2 * 4 * elements // NF4_BLOCK
        moved = elements // 2 + TORCH_DTYPES[dtype].itemsize * elements + scales
        yield Case(
            f"NF4, {elements:,} weights", "dequantise_nf4", "dequantise", dtype, 0, moved, 0, make
        )


def _bitsandbytes() -> Any:
    """Its functions; importing it tells about an optional CPU kernel that training does not use."""
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return importlib.import_module("bitsandbytes.functional")
    finally:
        logger.setLevel(level)


def _optimizer(size: int) -> Iterator[Case]:
    def gradients(device: torch.device) -> list[Tensor]:
        return [
            random_operand(device, "fp32", size // OPTIMIZER_TENSORS)
            for _ in range(OPTIMIZER_TENSORS)
        ]

    def update(device: torch.device) -> Call:
        parameters = [torch.nn.Parameter(values) for values in gradients(device)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        return torch.optim.AdamW(parameters, lr=1e-9, fused=device.type in ("cpu", "cuda")).step

    def norm(device: torch.device) -> Call:
        held = gradients(device)
        return lambda: torch.nn.utils.get_total_norm(held)

    def scale(device: torch.device) -> Call:
        held = gradients(device)
        return lambda: torch._foreach_mul_(held, 1.0)

    for name, per_parameter, make in (
        ("_fused_adamw_", ADAMW_BYTES, update),
        ("linalg_vector_norm", 4, norm),
        ("_foreach_mul_", 8, scale),
    ):
        yield Case(
            f"{name}, {size:,} parameters",
            name,
            "optimizer",
            "fp32",
            0,
            per_parameter * size,
            0,
            make,
        )
