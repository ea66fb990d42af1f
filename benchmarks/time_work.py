"""The operators of a declared stack in closed form, as the Work that the rehearsal records for
steps that it can run.

Every count is per GPU. Bytes follow what the named kernels read and write: T tokens, H hidden, F
inner width of the MLP, V vocabulary. Where a stack compiles, chains of element-wise operators count
once, by what enters and leaves them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from brimful.hardware.rates import CLASSES
from brimful.planning.work import DTYPES, PARTS, PHASES, Work
from time_stack import Adapter, TimedStack

COLUMNS = (
    "flop",
    "bytes",
    "fused_bytes",
    "m",
    "n",
    "k",
    "batch",
    "launches",
    "fused_launches",
    "classes",
    "dtypes",
    "parts",
    "phases",
    "repeats",
)
NF4_BYTES = 0.516
DEQUANTISE_KERNELS = 8
"""Scales of scales, offset, scales, weights, their conversions and the memory for them
(bitsandbytes 0.43, functional.py).
"""
ROUTING_BYTES, ROUTING_KERNELS = 18, 10
"""Per element of a gathered token: gather 4, weigh 4, add 10 (index_add of 16-bit rows)."""
RMS_NORM = (36, 7, 78, 14)
"""transformers' RMSNorm of a 16-bit stream: fp32 copy, square, mean, root, two products, copy back.
Bytes per element and kernels, forward and backward.
"""
LAYER_NORM = (4, 1, 10, 2)
FUSED_RMS_NORM = (4, 1, 8, 2)
ROPE = (20, 5, 22, 6)
FUSED_ROPE = (4, 1, 4, 1)
GATED = (10, 2, 18, 3)
FUSED_GATED = (6, 1, 12, 1)
GELU = (4, 1, 6, 1)
RESIDUAL = (6, 1, 6, 1)
FUSED_LOSS_BYTES, LOSS_BYTES = 8, 40
"""Per logit. Fused: read, write the gradient in place, scale. Else: to fp32, shift, log-softmax, and
the way back.
"""
METRIC_BYTES = 14
"""Per logit of a cross-entropy outside the loss: read 2 and write 4, read 4 and write 4 for the
log-softmax.
"""


@dataclass
class Operators:
    """Rows of a Work in the making.

    Attributes:
        stack: Whose operators they are.
        phase: Of the operators that are added now.
        times: How often these run in their part; 0: not at all.
    """

    stack: TimedStack
    phase: str = "forward"
    times: float = 1.0
    rows: list[tuple[float, ...]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def at(self, phase: str, times: float = 1.0) -> None:
        """Say when the operators that follow run, and how often."""
        self.phase, self.times = phase, times

    @property
    def is_backward(self) -> bool:
        return self.phase == "backward"

    @property
    def dtype(self) -> str:
        """Of the products of the stack's own layers."""
        return "fp32" if self.stack.products in ("tf32", "fp32") else "16-bit"

    def add(  # noqa: PLR0913 - the columns of a row
        self,
        name: str,
        class_name: str,
        *,
        part: str = "micro-batch",
        flop: float = 0,
        moved: float = 0,
        fused: float | None = None,
        shape: tuple[float, float, float, float] = (0, 0, 0, 0),
        launches: float = 1,
        fused_launches: float | None = None,
        dtype: str = "16-bit",
        copies: float = 1.0,
    ) -> None:
        """One operator, of which there are so many copies."""
        if self.times * copies <= 0:
            return
        batch, m, n, k = shape
        self.names.append(name)
        self.rows.append(
            (
                flop,
                moved,
                moved if fused is None else fused,
                m,
                n,
                k,
                batch,
                launches,
                launches if fused_launches is None else fused_launches,
                CLASSES.index(class_name),
                DTYPES.index(dtype),
                PARTS.index(part),
                PHASES.index(self.phase),
                self.times * copies,
            )
        )

    def product(
        self,
        name: str,
        m: float,
        n: float,
        k: float,
        *,
        batch: float = 1,
        dtype: str = "",
        copies: float = 1.0,
    ) -> None:
        """(m x k) times (k x n)."""
        dtype = dtype or self.dtype
        size = 4 if dtype == "fp32" else 2
        self.add(
            name,
            "matrix" if batch == 1 else "batched matrix",
            flop=2 * batch * m * n * k,
            moved=size * batch * (m * k + k * n + m * n),
            shape=(batch, m, n, k),
            dtype=dtype,
            copies=copies,
        )

    def work(self) -> Work:
        """All of it."""
        table = np.array(self.rows, np.float64)
        columns = dict(zip(COLUMNS, table.T, strict=True))
        whole = {
            f"{name}_W": columns[name].astype(np.int64) for name in COLUMNS if name != "repeats"
        }
        index = {name: number for number, name in enumerate(dict.fromkeys(self.names))}
        operators_W = np.array([index[name] for name in self.names], np.int64)
        return Work(
            **whole,
            layers_W=np.zeros(len(table), np.int64),
            operators_W=operators_W,
            repeats_W=columns["repeats"],
            operators=tuple(index),
        )


def work_of(stack: TimedStack) -> Work:
    """Operators of one micro-batch ("micro-batch") and of the update ("optimizer") on the busiest
    GPU.
    """
    made = Operators(stack)
    layers = stack.shape.layers / stack.spread.pipeline
    made.at("forward", layers)
    _block(made)
    made.at("recomputation", layers * stack.recompute)
    _block(made)
    made.at("backward", layers)
    _block_backward(made)
    _head(made)
    made.at("forward")
    if stack.casts:
        made.add("to 16 bits", "copy", moved=6 * gpu_weights(stack), launches=layers * 4)
    made.at("optimizer")
    _update(made)
    return made.work()


def _tokens(stack: TimedStack) -> float:
    return stack.tokens / stack.spread.context


def gpu_weights(stack: TimedStack) -> float:
    """Weights whose gradients a GPU holds, before any sharding over replicas."""
    shape = stack.shape
    return (
        shape.layers * shape.block_weights() / stack.spread.pipeline
        + shape.vocabulary * shape.hidden
    ) / stack.spread.tensor


def _pointwise(
    made: Operators,
    name: str,
    table: tuple[float, int, float, int],
    elements: float,
    *,
    fused: float,
    copies: float = 1.0,
) -> None:
    """A chain of element-wise operators: its row of bytes and kernels, and the bytes per element
    when it is one kernel.
    """
    size, kernels = (table[2], table[3]) if made.is_backward else (table[0], table[1])
    wider = made.stack.hidden_bytes / 2
    class_name = "reduction" if "norm" in name else "pointwise"
    moved, joined = (
        size * wider * elements / kernels,
        fused * (1.4 if made.is_backward else 1) * elements / kernels,
    )
    made.add(
        name,
        class_name,
        moved=moved,
        fused=joined,
        fused_launches=1 / kernels,
        copies=copies * kernels,
    )


def _chains(made: Operators) -> None:
    """Norms, positions, activation and residual sums of a block."""
    stack, shape = made.stack, made.stack.shape
    tokens, split = _tokens(stack), stack.spread.tensor
    whole = tokens / split if stack.spread.sequence else tokens
    norm = (
        LAYER_NORM
        if shape.norm == "layer"
        else FUSED_RMS_NORM
        if "norm" in stack.kernels
        else RMS_NORM
    )
    _pointwise(
        made,
        "norm",
        norm,
        whole * shape.hidden,
        fused=3 * stack.hidden_bytes,
        copies=2,
    )
    if shape.rope:
        rotated = tokens * (shape.attention_width + shape.group_width) / split
        _pointwise(
            made,
            "rope",
            FUSED_ROPE if "rope" in stack.kernels else ROPE,
            rotated,
            fused=4,
        )
    activation = (FUSED_GATED if "mlp" in stack.kernels else GATED) if shape.gated else GELU
    _pointwise(
        made,
        "activation",
        activation,
        tokens * shape.active * shape.mlp / split,
        fused=6 if shape.gated else 4,
    )
    _pointwise(made, "residual", RESIDUAL, whole * shape.hidden, fused=0, copies=2)


def _attention(made: Operators) -> None:
    stack, shape = made.stack, made.stack.shape
    heads = shape.heads / stack.spread.tensor
    queries, keys = stack.positions / stack.spread.context, stack.positions
    batch = stack.micro_batch * heads
    backward = made.is_backward
    if stack.attention != "scores":
        flop = (
            4
            * batch
            * queries
            * keys
            * shape.head_size
            * (0.5 if shape.causal else 1.0)
            * (2.5 if backward else 1.0)
        )
        moved = (
            2
            * stack.micro_batch
            * queries
            * shape.head_size
            * (2 * heads + 2 * shape.groups / stack.spread.tensor)
            * (2.5 if backward else 1)
        )
        made.add(
            "attention",
            "attention backward" if backward else "attention",
            flop=flop,
            moved=moved,
            shape=(batch, queries, keys, shape.head_size),
            launches=3 if backward else 1,
        )
        return
    for name in ("scores", "values"):
        made.product(
            name,
            queries,
            keys,
            shape.head_size,
            batch=batch,
            copies=2 if backward else 1,
        )
    size = 4 if made.dtype == "fp32" else 2
    passes = stack.score_passes * (1.15 if backward else 1)
    made.add(
        "softmax",
        "reduction",
        moved=2 * size * batch * queries * keys,
        copies=passes / 2,
    )


def _block(made: Operators) -> None:
    """A forward pass of a block."""
    stack, shape = made.stack, made.stack.shape
    tokens, split = _tokens(stack), stack.spread.tensor
    for name, (width_in, width_out) in _joined(stack).items():
        rows, columns = _split(name, width_in, width_out, split)
        copies = shape.copies(name)
        made.product(name, _met(stack, name), columns, rows, copies=copies)
        _dequantise(made, rows * columns, copies)
    _attention(made)
    _routes(made)
    _chains(made)
    if stack.adapter is not None:
        _adapters(made, stack.adapter)
    if stack.quantize != "no" and stack.hidden_bytes == 4:
        made.add(
            "to 16 bits",
            "copy",
            moved=6 * tokens * (3 * shape.hidden + shape.mlp),
            launches=7,
        )


def _joined(stack: TimedStack) -> Mapping[str, tuple[int, int]]:
    """Linear layers of a block as they run: q, k and v are one product outside transformers'
    Llama-like classes.
    """
    linears = stack.shape.linears()
    if stack.family in ("eager", "torchtitan") and stack.shape.gated:
        return linears
    outputs = sum(linears[name][1] for name in ("q", "k", "v"))
    rest = {name: widths for name, widths in linears.items() if name not in ("q", "k", "v")}
    if stack.family == "transformer engine" and "gate" in rest:
        rest["up"] = (stack.shape.hidden, 2 * stack.shape.mlp)
        del rest["gate"]
    return {"qkv": (stack.shape.hidden, outputs), **rest}


def _met(stack: TimedStack, name: str) -> float:
    """Tokens that a linear layer sees: experts share them evenly."""
    return (
        _tokens(stack) * stack.shape.active / stack.shape.experts
        if stack.shape.copies(name) > 1
        else _tokens(stack)
    )


def _routes(made: Operators) -> None:
    """Tokens are gathered for every expert, weighed, and added where they belong; a loop over
    experts issues some ten kernels for each.
    """
    stack, shape = made.stack, made.stack.shape
    if shape.experts > 1:
        moved = ROUTING_BYTES * _tokens(stack) * shape.active * shape.hidden / shape.experts
        made.add(
            "routing",
            "gather",
            moved=moved,
            launches=ROUTING_KERNELS,
            copies=shape.experts,
        )


def _split(name: str, width_in: int, width_out: int, split: int) -> tuple[float, float]:
    """Tensor parallelism divides the outputs of what goes into attention and MLP and the inputs of
    what comes out.
    """
    return (width_in / split, width_out) if name in ("o", "down") else (width_in, width_out / split)


def _dequantise(made: Operators, weights: float, copies: float) -> None:
    if made.stack.quantize != "no":
        made.add(
            "dequantise",
            "dequantise",
            moved=(2 + NF4_BYTES) * weights,
            launches=DEQUANTISE_KERNELS,
            copies=copies,
        )


def _block_backward(made: Operators) -> None:
    stack, shape = made.stack, made.stack.shape
    tokens, split = _tokens(stack), stack.spread.tensor
    for name, (width_in, width_out) in _joined(stack).items():
        rows, columns = _split(name, width_in, width_out, split)
        copies, met = shape.copies(name), _met(stack, name)
        made.product(
            f"{name} inputs",
            met,
            rows,
            columns,
            copies=copies,
        )
        if shape.norm == "layer" and stack.adapter is None:
            made.add(
                "bias gradients",
                "reduction",
                moved=2 * tokens * columns,
            )
        _dequantise(made, rows * columns, copies)
        if stack.adapter is None:
            made.product(
                f"{name} weights",
                rows,
                columns,
                met,
                copies=copies,
            )
            if stack.accumulation > 1:
                size = 3 * stack.weight_bytes
                made.add(
                    "add to gradients",
                    "pointwise",
                    moved=size * rows * columns,
                    copies=copies,
                )
    if stack.adapter is None and stack.accumulation > 1:
        small = 8 if shape.norm == "layer" else 2
        made.add(
            "add to small gradients",
            "pointwise",
            moved=3 * stack.weight_bytes * shape.hidden,
            copies=small,
        )
    _attention(made)
    _routes(made)
    _chains(made)
    if stack.adapter is not None:
        _adapters(made, stack.adapter)


def _adapters(made: Operators, adapter: Adapter) -> None:
    """Low-rank products, and what peft does around them: input converted and dropped out, the
    product scaled and added.
    """
    stack = made.stack
    tokens, dtype, size = (
        _tokens(stack),
        "fp32" if adapter.fp32 else "16-bit",
        4 if adapter.fp32 else 2,
    )
    backward = made.is_backward
    for name, (width_in, width_out) in stack.shape.linears().items():
        if name not in adapter.targets:
            continue
        for label, m, n, k in (
            ("down", tokens, adapter.rank, width_in),
            ("up", tokens, width_out, adapter.rank),
        ):
            made.product(
                f"adapter {label}",
                m,
                n,
                k,
                dtype=dtype,
                copies=2 if backward else 1,
            )
        converted = 6 if adapter.fp32 else 0
        dropped = (2 * size + 1) if adapter.dropout else 0
        around_in = (converted + dropped) * width_in * (1.5 if backward else 1) + (
            3 * size * width_in if backward else 0
        )
        around_out = (
            ((2 * size) + (2 * size + 2) + converted) * width_out
            if not backward
            else (2 * size + converted) * width_out
        )
        if adapter.fused:
            around_in, around_out = dropped * width_in, 3 * size * width_out
        kernels = (2 if adapter.fused else 7) * (1.5 if backward else 1)
        made.add(
            "around adapters",
            "pointwise",
            moved=tokens * (around_in + around_out) / kernels,
            copies=kernels,
        )


def _head(made: Operators) -> None:
    """Embedding, final norm, logits and loss."""
    stack, shape = made.stack, made.stack.shape
    scored = 1.0 if shape.causal else 0.15
    tokens, vocabulary = _tokens(stack) * scored, shape.vocabulary / stack.spread.tensor
    if stack.method == "full" and not shape.causal:
        return
    made.at("forward")
    made.product("head", tokens, vocabulary, shape.hidden)
    made.at("backward")
    made.product("head inputs", tokens, shape.hidden, vocabulary)
    if stack.adapter is None:
        made.product("head weights", shape.hidden, vocabulary, tokens)
        made.add(
            "embedding backward",
            "gather",
            moved=4 * vocabulary * shape.hidden + 6 * tokens * shape.hidden,
            launches=3,
        )
    made.at("forward")
    loss_bytes = FUSED_LOSS_BYTES if "loss" in stack.kernels else LOSS_BYTES
    made.add(
        "loss",
        "reduction",
        moved=(loss_bytes + METRIC_BYTES * stack.metrics) * tokens * vocabulary,
        fused=8 * tokens * vocabulary,
        launches=10,
        fused_launches=3,
    )


def _update(made: Operators) -> None:
    stack = made.stack
    shards = stack.spread.data if stack.spread.sharded != "no" else 1
    weights = gpu_weights(stack) / shards
    if stack.adapter is not None:
        chosen = [
            widths
            for name, widths in stack.shape.linears().items()
            if name in stack.adapter.targets
        ]
        weights = (
            stack.adapter.rank * sum(sum(widths) for widths in chosen) * stack.shape.layers / shards
        )
    tensors = 8 * stack.shape.layers / stack.spread.pipeline
    made.add(
        "update",
        "optimizer",
        part="optimizer",
        moved=stack.optimizer_bytes * weights,
        launches=max(4.0, stack.optimizer_kernels * tensors),
    )
