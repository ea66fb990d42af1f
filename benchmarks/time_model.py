"""From declared stacks to seconds, for many rows at once, and the fit of its few parameters.

The formula of one GPU is brimful's own (`brimful.planning.timing`): per operator (a^p + b^p)^(1/p)
+ launch, with a = flop x tile loss / rate and b = bytes / bandwidth, and (device^4 +
program^4)^(1/4). Around it stand the things that brimful's loop does not do: several GPUs, FP8,
other programs. A parameter has a guess from outside the table (`PRIORS`, with its source) and a
width; the fit minimises robust errors of log(predicted / measured), every source weighing at most
as much as any other, plus the distance of each parameter from its guess.

Suffixes: R rows, O operators of all rows, P parameters.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.base.env import cache_folder
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.hardware.fitted import (
    CACHE_SHARE,
    CACHED_CLASSES,
    attention_name,
    capability_of,
    limited,
    rates_with,
)
from brimful.hardware.rates import CLASSES, MATRIX_CLASSES, Rates
from brimful.planning.step import StepSpec
from brimful.planning.timing import operator_seconds
from brimful.planning.work import DTYPES as WORK_DTYPES
from brimful.planning.work import PARTS, Work
from brimful.rehearsal.store import StoredTraces
from time_priors import PRIORS
from time_stack import TimedStack
from time_work import gpu_weights, work_of

Array = NDArray[np.float64]
NORM = 1.5
"""p of the roofline: of 1, 1.25 and 1.5 the best on sources left out, by little; at 1 the fitted
bandwidth exceeds the data sheet's.
"""
KERNELS = {"flash1": "attention flash1", "flash3": "attention cudnn"}
"""Attention that has a share of its own beside those of a board."""
DTYPES = ("bf16", "fp16", "tf32", "fp32")
NODE_GPUS = 8
NODE_BYTES_PER_S = {8: 200e9, 9: 400e9, 10: 400e9}
"""A node's network in one direction, by generation: eight cards of 200 or 400 Gbit/s (llm-foundry's
table; NVIDIA DGX data sheets).
"""
NVLINK_BYTES_PER_S = {8: 300e9, 9: 450e9, 10: 900e9}
"""One direction, by generation (NVIDIA data sheets: 600, 900 and 1800 GB/s both ways)."""


NAMES = tuple(PRIORS)
GUESS_P = np.array([prior.guess for prior in PRIORS.values()])
WIDTH_P = np.array([prior.width for prior in PRIORS.values()])

CHANGED_BOARDS: Mapping[str, tuple[str, float, float]] = {
    "NVIDIA H100 96GB HBM2e": ("NVIDIA H100 80GB HBM3", 2400e9, 500.0)
}
"""Boards without a row of their own in the catalog: the row they are like, bytes per second, watts
(torchtitan, docs/performance.md).
"""


@dataclass(frozen=True)
class Board:
    """A device with what the catalog knows beside it."""

    device: Device
    power_w: float
    cache_bytes: int


@functools.cache
def board(name: str) -> Board:
    """The board of this name.

    Raises:
        DeviceError: there is none.
    """
    like, bandwidth_bytes_per_s, power_w = CHANGED_BOARDS.get(name, (name, None, None))
    device = catalog.get(like)
    if bandwidth_bytes_per_s is not None:
        device = replace(device, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    return Board(
        device, power_w or catalog.power_of(like) or float("inf"), catalog.cache_bytes_of(like)
    )


@functools.cache
def _work(stack: TimedStack) -> tuple[Work, Array]:
    """Operators, and their arithmetic with what tiles lose, in operations."""
    work = work_of(stack) if stack.spec is None else _recorded(stack.spec, round(stack.micro_batch))
    neutral = Rates(
        {name: dict.fromkeys(("fp32", "bf16"), 1.0) for name in MATRIX_CLASSES},
        dict.fromkeys(CLASSES, np.inf),
        norm=1.0,
        multiprocessors=board(stack.device).device.multiprocessors,
    )
    return work, operator_seconds(work, neutral, precision="bf16", compiled=False)


def work_of_one_gpu(stack: TimedStack) -> Work:
    """Operators of one micro-batch and update."""
    return _work(stack)[0]


def _recorded(spec: StepSpec, micro_batch: int) -> Work:
    """What the rehearsal of this step recorded; products of types that no unit knows (complex ones)
    are counted as fp32.
    """
    work = StoredTraces(spec, cache_folder() / "traces").work_at(micro_batch)
    work = work.only(np.isin(work.parts_W, [PARTS.index("micro-batch"), PARTS.index("optimizer")]))
    known_W = np.where(
        work.dtypes_W == WORK_DTYPES.index("other"), WORK_DTYPES.index("fp32"), work.dtypes_W
    )
    work = work.replaced({"dtypes_W": known_W, "layers_W": np.zeros_like(work.layers_W)})
    names = [each.name for each in fields(work) if each.name not in ("operators", "repeats_W")]
    _, first, group_W = np.unique(
        np.stack([getattr(work, name) for name in names]),
        axis=1,
        return_index=True,
        return_inverse=True,
    )
    once = work.replaced({name: getattr(work, name)[first] for name in names})
    return once.replaced({"repeats_W": np.bincount(group_W.ravel(), weights=work.repeats_W)})


def _alike(stack: TimedStack) -> TimedStack:
    """Equal for rows whose GPUs run the same operators per micro-batch and update."""
    spread = replace(
        stack.spread, data=stack.spread.data if stack.spread.sharded != "no" else 1, interleaved=1
    )
    return replace(
        stack,
        source="",
        configuration="",
        measured_s=1.0,
        accumulation=min(2, stack.accumulation),
        spread=spread,
    )


class Table:
    """Many declared stacks, the operators of different ones in long arrays. Suffix J: different
    works.
    """

    def __init__(self, stacks: Sequence[TimedStack]) -> None:
        self.stacks = stacks
        jobs = {each: index for index, each in enumerate(dict.fromkeys(map(_alike, stacks)))}
        self.job_R = np.array([jobs[_alike(stack)] for stack in stacks])
        made = [_work(each) for each in jobs]
        names = list(dict.fromkeys(stack.device for stack in stacks))
        self.boards = [board(name) for name in names]
        self.measured_R = np.array([stack.measured_s for stack in stacks])
        self.job_O = np.repeat(np.arange(len(made)), [len(work) for work, _ in made])
        self.starts_J = np.searchsorted(self.job_O, np.arange(len(made)))
        self.board_R = np.array([names.index(stack.device) for stack in stacks])
        self.board_O = np.array([names.index(stack.device) for stack in jobs])[self.job_O]
        self._operators(list(jobs), made)
        self._spreads(stacks)

    def _operators(self, stacks: Sequence[TimedStack], made: Sequence[tuple[Work, Array]]) -> None:
        def every(pick: Callable[[Work, TimedStack], Any]) -> Array:
            return np.concatenate(
                [
                    np.broadcast_to(pick(work, stack), len(work))
                    for (work, _), stack in zip(made, stacks, strict=True)
                ]
            )

        def fused(stack: TimedStack) -> bool:
            return stack.family in ("compiled", "torchtitan", "cuda c")

        self.flop_O = np.concatenate([flop for _, flop in made])
        self.bytes_O = every(
            lambda work, stack: work.fused_bytes_W if fused(stack) else work.bytes_W
        ).astype(float)
        self.launches_O = every(
            lambda work, stack: work.fused_launches_W if fused(stack) else work.launches_W
        ).astype(float)
        self.class_O = every(lambda work, stack: work.classes_W).astype(int)
        self.repeats_O = every(lambda work, stack: work.repeats_W)
        self.update_O = every(lambda work, stack: work.parts_W == PARTS.index("optimizer"))
        self.dtype_O = every(_dtypes).astype(int)
        self.fp8_O = every(
            lambda work, stack: (stack.products == "fp8") & (work.classes_W == 0) & _in_block(work)
        )
        attention_O = np.isin(
            self.class_O, [CLASSES.index("attention"), CLASSES.index("attention backward")]
        )
        kernel_J = np.array([stack.attention for stack in stacks])
        self.kernel_O = {
            name: attention_O & (kernel_J[self.job_O] == kernel) for kernel, name in KERNELS.items()
        }
        cache_O = np.array([CACHE_SHARE * each.cache_bytes for each in self.boards])[self.board_O]
        self.cached_O = (self.bytes_O <= cache_O) & np.isin(
            self.class_O, [CLASSES.index(name) for name in CACHED_CLASSES]
        )

    def _spreads(self, stacks: Sequence[TimedStack]) -> None:
        def every(pick: Callable[[TimedStack], float]) -> Array:
            return np.array([float(pick(stack)) for stack in stacks])

        self.family_R = np.array([stack.family for stack in stacks])
        self.accumulation_R = every(lambda stack: stack.accumulation)
        self.data_R, self.tensor_R = (
            every(lambda stack: stack.spread.data),
            every(lambda stack: stack.spread.tensor),
        )
        self.bubble_R = every(lambda stack: (stack.spread.pipeline - 1) / stack.spread.interleaved)
        self.gpus_R = every(lambda stack: stack.spread.gpus)
        self.pcie_R = every(lambda stack: stack.spread.link == "pcie") > 0
        self.gathered_R = every(lambda stack: stack.spread.sharded == "full") > 0
        self.gather_bytes_R = every(_gather_bytes)
        self.gradient_bytes_R = every(
            lambda stack: 0 if stack.adapter is not None else 2 * gpu_weights(stack)
        )
        self.reduced_bytes_R = every(_reduced_bytes)
        self.units_R = every(_units)
        generations = [(each.device.compute_capability or (0, 0))[0] for each in self.boards]
        self.nvlink_R = np.array([NVLINK_BYTES_PER_S.get(each, 150e9) for each in generations])[
            self.board_R
        ]
        self.node_R = np.array([NODE_BYTES_PER_S.get(each, 50e9) for each in generations])[
            self.board_R
        ]


def _dtypes(work: Work, stack: TimedStack) -> NDArray[np.int_]:
    low = "fp16" if stack.products == "fp16" else "bf16"
    return np.where(
        work.dtypes_W == 0,
        DTYPES.index("tf32" if stack.products == "tf32" else "fp32"),
        DTYPES.index(low),
    )


def _in_block(work: Work) -> NDArray[np.bool_]:
    inside = np.array([not name.startswith(("head", "adapter")) for name in work.operators])
    chosen: NDArray[np.bool_] = inside[work.operators_W]
    return chosen


def _gather_bytes(stack: TimedStack) -> float:
    """Weights that FSDP gathers for one pass over them."""
    return gpu_weights(stack) * (2.0 if stack.quantize == "no" else 0.55)


def _reduced_bytes(stack: TimedStack) -> float:
    """Activations that tensor parallelism sums per micro-batch: twice in a block's forward and
    backward pass, and when it runs again.
    """
    if stack.spread.tensor == 1:
        return 0.0
    passes = stack.shape.layers / stack.spread.pipeline * (4 + 2 * stack.recompute)
    return (
        passes
        * stack.tokens
        / stack.spread.context
        * stack.shape.hidden
        * 2
        * (0.3 if stack.spread.overlapped else 1.0)
    )


def _units(stack: TimedStack) -> float:
    """Units that FSDP gathers per micro-batch: blocks, and every adapter matrix (peft wraps each),
    in each pass.
    """
    if stack.spread.sharded != "full":
        return 0.0
    small = (
        0
        if stack.adapter is None
        else len(stack.adapter.targets) * (1 if stack.adapter.fused else 2)
    )
    return stack.shape.layers / stack.spread.pipeline * (1 + small) * (2 + (stack.recompute > 0))


def values_of(x_P: Array) -> dict[str, float]:
    """Parameters by name from the logarithms of their ratios to the guesses."""
    return dict(zip(NAMES, (GUESS_P * np.exp(x_P)).tolist(), strict=True))


def predict(table: Table, x_P: Array) -> Array:
    """Seconds per step of every row; `x_P` are logarithms of parameters over their guesses."""
    values = values_of(x_P)

    def value(name: str) -> float:
        return values[name]

    stack_R = np.array([values.get(f"stack {name}", 1.0) for name in table.family_R])
    seconds_O = _operator_seconds(table, values) * table.repeats_O
    device_R = (
        np.add.reduceat(np.where(table.update_O, 0.0, seconds_O), table.starts_J)[table.job_R]
        * stack_R
    )
    update_R = np.add.reduceat(np.where(table.update_O, seconds_O, 0.0), table.starts_J)[
        table.job_R
    ]
    launches_R = np.add.reduceat(
        np.where(table.update_O, 0.0, table.launches_O * table.repeats_O), table.starts_J
    )[table.job_R]
    issue_R = np.array([_issue_s(family, value) for family in table.family_R])
    host_R = launches_R * issue_R + table.units_R * value("host unit")
    link_R = np.where(table.pcie_R, value("pcie"), table.nvlink_R * value("nvlink"))
    far_R = table.node_R * value("node")
    group_R = np.where(table.tensor_R > NODE_GPUS, value("node ring"), link_R)
    tensor_R = 2 * table.reduced_bytes_R * (1 - 1 / table.tensor_R) / group_R
    near_R = np.minimum(NODE_GPUS / table.tensor_R, table.data_R)
    leaves_R = table.gpus_R > NODE_GPUS
    once_R = np.maximum(
        (1 - 1 / np.maximum(near_R, 1)) / link_R, np.where(leaves_R, table.tensor_R / far_R, 0.0)
    )
    gather_R = np.where(
        table.gathered_R, (2 * table.gather_bytes_R + table.gradient_bytes_R) * once_R, 0.0
    )
    reduce_R = np.where(
        ~table.gathered_R & (table.data_R > 1), 2 * table.gradient_bytes_R * once_R, 0.0
    )
    together_R = (np.stack([device_R + tensor_R, host_R, gather_R]) ** 4).sum(0) ** 0.25
    micro_R = (
        together_R + np.array([exposed(family, values) for family in table.family_R]) * gather_R
    )
    step_R: Array = (table.accumulation_R + table.bubble_R) * micro_R + update_R + reduce_R
    return step_R + value("step")


def exposed(family: str, values: Mapping[str, float]) -> float:
    """Share of what FSDP exchanges that computing does not hide."""
    if family == "eager":  # transformers' Trainer does not gather ahead
        return values["exposed eager"]
    if family == "foundry":  # nor does Composer for the backward pass: one of three exchanges
        return 1 / 3 + 2 / 3 * values["exposed"]
    return values["exposed"]


def _issue_s(family: str, value: Any) -> float:
    kind = {
        "megatron": "megatron",
        "compiled": "compiled",
        "torchtitan": "compiled",
        "cuda c": "compiled",
    }.get(family, "eager")
    return float(value(f"host {kind}"))


def _operator_seconds(table: Table, values: Mapping[str, float]) -> Array:
    """Seconds of one run of each operator, by brimful's own rates of each board."""
    rates = [
        rates_with(each.device, values, NORM, power_w=each.power_w, cudnn=False)
        for each in table.boards
    ]
    flop_rates = np.array(
        [[[_rate(each, name, dtype) for dtype in DTYPES] for name in CLASSES] for each in rates]
    )
    byte_rates = np.array([[each.bytes_per_s[name] for name in CLASSES] for each in rates])
    rate_O = flop_rates[table.board_O, table.class_O, table.dtype_O]
    for name, chosen_O in table.kernel_O.items():
        known_O = np.array([values[attention_name(each.device)] for each in table.boards])[
            table.board_O
        ]
        rate_O = np.where(chosen_O, rate_O * values[name] / known_O, rate_O)
    rate_O = np.where(table.fp8_O, _fp8_rates(table, values)[table.board_O], rate_O)
    bandwidth_O = byte_rates[table.board_O, table.class_O] * np.where(
        table.cached_O, values["cached"], 1.0
    )
    combined_O: Array = (
        (table.flop_O / rate_O) ** NORM + (table.bytes_O / bandwidth_O) ** NORM
    ) ** (1 / NORM)
    return combined_O + table.launches_O * values["launch"]


def _rate(rates: Rates, class_name: str, dtype: str) -> float:
    """Infinite where nothing is computed."""
    return rates.flop_per_s.get(class_name, {}).get(dtype, np.inf)


def _fp8_rates(table: Table, values: Mapping[str, float]) -> Array:
    """Twice the 16-bit rate, at half the energy."""
    made = []
    for each in table.boards:
        dense = each.device.dense_flop_per_s
        limit = 2 * each.power_w / (values[f"picojoule {capability_of(each.device)}"] * 1e-12)
        made.append(limited(2 * dense.get("bf16", dense["fp16"]) * values["fp8"], limit))
    return np.array(made)


ROBUST = 0.12
"""Errors of log time beyond this count linearly."""
SPREAD = 0.08
"""Standard deviation of log time that a good row is thought to have; sets the weight of rows beside
that of guesses.
"""
ROWS_OF_A_SOURCE = 60
"""Rows that a source weighs at most."""


def weights(sources: Sequence[str]) -> Array:
    """Weight of each row."""
    counts = Counter(sources)
    return np.array([min(counts[source], ROWS_OF_A_SOURCE) / counts[source] for source in sources])


def fit(
    table: Table, chosen_R: NDArray[np.bool_], start_P: Array | None = None, rounds: int = 25
) -> Array:
    """Parameters that explain the chosen rows best: Levenberg and Marquardt's steps on robust
    squares.
    """
    x_P = np.zeros(len(NAMES)) if start_P is None else start_P.copy()
    chosen = np.flatnonzero(chosen_R)
    weight_R = weights([table.stacks[int(index)].source for index in chosen]) / SPREAD**2

    def errors(x_P: Array) -> Array:
        logarithms: Array = np.log(predict(table, x_P) / table.measured_R)[chosen]
        return logarithms

    def cost(error_R: Array, x_P: Array) -> float:
        size_R = np.abs(error_R)
        huber_R = np.where(size_R < ROBUST, 0.5 * error_R**2, ROBUST * (size_R - 0.5 * ROBUST))
        return float(weight_R @ huber_R + 0.5 * ((x_P / WIDTH_P) ** 2).sum())

    error_R, damping = errors(x_P), 1e-2
    now = cost(error_R, x_P)
    for _ in range(rounds):
        slopes = np.stack(
            [(errors(x_P + 1e-3 * unit_P) - error_R) / 1e-3 for unit_P in np.eye(len(NAMES))],
            axis=1,
        )
        robust_R = weight_R * np.minimum(1, ROBUST / np.maximum(np.abs(error_R), 1e-9))
        curvature = slopes.T @ (slopes * robust_R[:, None]) + np.diag(WIDTH_P**-2.0)
        gradient_P = slopes.T @ (robust_R * error_R) + x_P / WIDTH_P**2
        while damping < 1e6:
            step_P = np.clip(
                -np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient_P),
                -0.5,
                0.5,
            )
            tried_R = errors(x_P + step_P)
            if cost(tried_R, x_P + step_P) < now:
                break
            damping *= 5
        else:
            return x_P
        x_P, error_R, before = x_P + step_P, tried_R, now
        now, damping = cost(error_R, x_P), max(damping / 5, 1e-6)
        if before - now < 1e-4 * before:
            break
    return x_P
