"""Time of a step from its operators and a device's rates, term by term: a roofline per operator.

An operator takes (a^p + b^p)^(1/p) + launch, with a = flop / rate and b = bytes / bandwidth
(Williams et al. 2009, "Roofline"; p is fitted, where the roofline itself has p without bound). On
devices that run behind the program, a forward and backward pass takes about the longer of device
and program.

Suffixes: W operators.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from brimful.base.arrays import Array, Floats, Ints
from brimful.base.types import Bounds, Numbers, Texts
from brimful.hardware.rates import CLASSES, MATRIX_CLASSES, NEEDED_BACKWARD, THIN_BELOW, Rates
from brimful.planning.work import DTYPES, PARTS, PHASES, Work

TILE = 128
"""Rows and columns of the piece of a product that one multiprocessor makes (cuBLAS's common tile;
CUTLASS documentation, "Efficient GEMM").
"""
SPLIT_K = 512
"""Products with few tiles are split along k into pieces of at least this."""
RUN_AHEAD_NORM = 4.0
"""How device and program combine where one runs behind the other: (device^4 + program^4)^(1/4), as
in the fit (benchmarks/time_model.py).
"""
EVEN_SHARE = 2 ** (-1 / RUN_AHEAD_NORM)
"""Time of the device over that of the step, where device and program take as long."""
ISSUING, ELEMENT_WISE = "issuing operators", "element-wise and norms"
UNPACKING = "unpacking 4-bit weights"
NEW_LENGTHS = "kernels of new lengths"
BY_EXAMPLES = "attention example by example"
PRODUCTS_WITHIN = 2
"""Products of new shapes in a pass over those of its linear layers: attention within examples has
about as many (46 in all, 20 of layers, in passes of eight short examples; docs/log).
"""
WAITS = "the program that issues operators takes longer than the device"
TERMS: Texts = {
    "matrix": "matrix products",
    "batched matrix": "matrix products",
    "attention": "attention",
    "attention backward": "attention",
    "pointwise": ELEMENT_WISE,
    "transcendental": ELEMENT_WISE,
    "reduction": ELEMENT_WISE,
    "gather": ELEMENT_WISE,
    "copy": ELEMENT_WISE,
    "optimizer": "optimizer update",
    "dequantise": UNPACKING,
}
"""Terms of a step's time, by class of operator. What is computed twice is a term of its own,
whatever its class.
"""

WorkAt = Callable[[int], Work]
"""Returns the operators of a micro-batch."""


class UnknownRate(Exception):
    """A rate that a step needs is not known for the device."""


@dataclass(frozen=True)
class StepTime:
    """Predicted time of one optimizer step.

    Attributes:
        seconds: The seconds of the step.
        terms: Seconds by term; they add up to it.
        model_flop: Floating-point operations that the method needs: forward and backward, causal
            attention counted by half, nothing computed twice.
        evaluation_s: One evaluation batch (EVALUATION_FACTOR micro-batches' sequences); 0 where the
            step has none.
        slowest_host_s: Time of the step where the program issues operators as slowly as it may.
        waits_for_program: Issuing operators takes longer than the device computes, where one runs
            behind the other.
    """

    seconds: float
    terms: Numbers
    model_flop: float
    evaluation_s: float = 0.0
    slowest_host_s: float = 0.0
    waits_for_program: bool = False

    def scaled(self, factor: float) -> "StepTime":
        """Return the time with all seconds multiplied by a factor."""
        return replace(
            self,
            seconds=factor * self.seconds,
            terms={name: factor * seconds for name, seconds in self.terms.items()},
            evaluation_s=factor * self.evaluation_s,
            slowest_host_s=factor * self.slowest_host_s,
        )


@dataclass(frozen=True)
class Scale:
    """What is known of a device's times beside its rates.

    Attributes:
        factor_at: Factor of the times of a micro-batch, as earlier runs or timed passes say.
        fusible: Share of an eager pass that compiling makes few kernels of; None where no passes
            were timed.
        fill: Share of the rows' positions that is computed on average.
        scored: Share of those positions that the loss is computed of.
    """

    factor_at: Callable[[int], float] = lambda micro_batch: 1.0
    fusible: float | None = None
    fill: float = 1.0
    scored: float = 1.0

    def compiled_s(self, compiled: StepTime, eager: StepTime | None, most: float) -> float:
        """Return the seconds of a compiled step: where its eager passes were timed, as much less
        as their fusible part shrinks by the bytes that it moves; else as predicted, but gaining at
        most so much.
        """
        if eager is None:
            return compiled.seconds
        if self.fusible is None:
            return max(compiled.seconds, eager.seconds / most)
        kept = compiled.terms[ELEMENT_WISE] / eager.terms[ELEMENT_WISE]
        passes_s = eager.seconds - eager.terms.get(TERMS["optimizer"], 0.0)
        return eager.seconds - passes_s * self.fusible * (1 - kept)


UNSCALED = Scale()


def share_of(rates: Rates, time: StepTime) -> Bounds:
    """Return measured over predicted time, 5th and 95th percentile, of steps like this one."""
    if time.terms.get(UNPACKING) and rates.share_unpacking is not None:
        return rates.share_unpacking
    return rates.share


@dataclass(frozen=True)
class StepParts:
    """Predicted seconds of the first micro-batch of a step and of a further one."""

    first_s: float
    further_s: float


def parts_of(work: Work, rates: Rates, *, precision: str) -> StepParts:
    """Return the seconds of both kinds of micro-batch.

    Raises:
        UnknownRate: as in `step_time`.
    """
    first_s, further_s = (
        sum(part_terms(_part(work, name), rates, precision=precision, compiled=False).values())
        for name in ("micro-batch", "further micro-batch")
    )
    return StepParts(first_s, further_s)


def step_time(
    work_at: WorkAt,
    micro_batches: Sequence[int],
    rates: Rates,
    *,
    precision: str,
    compiled: bool = False,
    fill: float = 1.0,
    scored: float = 1.0,
) -> StepTime:
    """Predict the time of an optimizer step over these micro-batches.

    Args:
        work_at: Gives the operators of a micro-batch.
        micro_batches: Sequences of each forward and backward pass.
        precision: The precision of the matrix products; says which 16-bit type is meant.
        compiled: Chains of element-wise operators are one kernel.
        fill: Share of the sequences' positions that is computed: what is packed into a row seldom
            fills it. A pass takes as much less as it would take with fewer sequences, between one
            more and this many on a straight line.
        scored: Share of those positions that the loss is computed of, as the answers behind
            prompts: head and loss, which the operators have of all, take as much less.

    Raises:
        UnknownRate: the device has no rate for something that the step does.
    """
    first, *rest = micro_batches
    runs = [
        (first, "micro-batch", 1),
        *((size, "further micro-batch", count) for size, count in Counter(rest).items()),
    ]
    terms: dict[str, float] = defaultdict(float)
    model_flop = more_s = 0.0

    def add(work: Work, share: float) -> None:
        nonlocal model_flop, more_s
        of_part = part_terms(work, rates, precision=precision, compiled=compiled)
        for term, seconds in of_part.items():
            terms[term] += share * seconds
        more_s += share * _more_on_slowest_host(work, rates, of_part, compiled=compiled)
        model_flop += share * _model_flop(work)

    add(_part(work_at(first), "optimizer"), 1)
    for size, part, count in runs:
        empty = (1 - fill) * size
        add(_part(work_at(size), part), count * (1 + empty))
        if empty:
            add(_part(work_at(size + 1), part), -count * empty)
        if unscored := (1 - scored) * fill * size:
            add(_part(work_at(size), part).of_head(), count * unscored)
            add(_part(work_at(size + 1), part).of_head(), -count * unscored)
    terms["once a step"] += rates.step_s
    terms[BY_EXAMPLES] += rates.examples_s * (1 + int(work_at(first).layers_W.max()))
    if rates.new_product_s:
        terms[NEW_LENGTHS] = rates.new_product_s * sum(
            PRODUCTS_WITHIN * count * _distinct_products(_part(work_at(size), part))
            for size, part, count in runs
        )
    evaluation = work_at(first).part("evaluation")
    evaluation_s = sum(part_terms(evaluation, rates, precision=precision, compiled=False).values())
    seconds = sum(terms.values())
    return StepTime(
        seconds,
        {name: value for name, value in terms.items() if value},
        model_flop,
        evaluation_s,
        seconds + more_s,
        rates.overlaps and terms[ISSUING] > (1 - EVEN_SHARE) * seconds,
    )


def _part(work: Work, name: str) -> Work:
    """Return a part of the step. A trace without a further micro-batch repeats its first one."""
    part = work.part(name)
    if name == "further micro-batch" and not len(part):
        return work.part("micro-batch")
    return part


def part_terms(work: Work, rates: Rates, *, precision: str, compiled: bool) -> Numbers:
    """Return the seconds of a part of the step by term. The term ISSUING is the time by which the
    program takes longer than the device.
    """
    seconds_W = (
        operator_seconds(work, rates, precision=precision, compiled=compiled) * work.repeats_W
    )
    known = _known_of(work)
    terms: dict[str, float] = dict.fromkeys((*TERMS.values(), "recomputation"), 0.0)
    for name, rows in known.rows_by_term:
        terms[name] += float(seconds_W[rows].sum())
    host_s = _host_s(work, rates, compiled=compiled)
    return {**terms, ISSUING: _waiting_s(sum(terms.values()), host_s, rates)}


def _distinct_products(work: Work) -> int:
    """Return the number of products of different shapes, without those of attention."""
    is_product_W = work.classes_W == CLASSES.index("matrix")
    return len(np.unique(np.stack([work.m_W, work.n_W, work.k_W], 1)[is_product_W], axis=0))


def _waiting_s(device_s: float, host_s: float, rates: Rates) -> float:
    """Return the time by which a part takes longer than the device computes."""
    if not rates.overlaps:
        return host_s
    norm = RUN_AHEAD_NORM
    return float((device_s**norm + host_s**norm) ** (1 / norm) - device_s)


def _more_on_slowest_host(work: Work, rates: Rates, terms: Numbers, *, compiled: bool) -> float:
    """Return the time by which a part takes longer where the program is as slow as it may be."""
    if rates.host_slowest <= 1:
        return 0.0
    device_s = sum(terms.values()) - terms[ISSUING]
    host_s = rates.host_slowest * _host_s(work, rates, compiled=compiled)
    return _waiting_s(device_s, host_s, rates) - terms[ISSUING]


def _host_s(work: Work, rates: Rates, *, compiled: bool) -> float:
    """Return the seconds that the program takes to issue a part's operators. Those of an update are
    few and large, so a program that runs ahead of the device takes no time for them.
    """
    waits_W = np.ones(len(work), np.bool_)
    if rates.overlaps:
        waits_W = work.parts_W != PARTS.index("optimizer")
    launches_W, each_s = work.launches_W, rates.host_s
    if compiled:
        launches_W = work.fused_launches_W
        if rates.host_compiled_s is not None:
            each_s = rates.host_compiled_s
    return each_s * float(np.dot(launches_W * waits_W, work.repeats_W))


def operator_seconds(work: Work, rates: Rates, *, precision: str, compiled: bool) -> Floats:
    """Return the seconds of the device for one run of each operator.

    Raises:
        UnknownRate: as in `step_time`.
    """
    bytes_W, launches_W = work.bytes_W, work.launches_W
    if compiled:
        bytes_W, launches_W = work.fused_bytes_W, work.fused_launches_W
    known = _known_of(work)
    flop_rate_W = _flop_rates(known, rates, precision)
    arithmetic_W = np.where(
        np.isfinite(flop_rate_W),
        work.flop_W * known.tiles.loss(rates.multiprocessors) / flop_rate_W,
        0.0,
    )
    movement_W = bytes_W / _byte_rates(known, work, rates, bytes_W)
    combined_W: Floats = (arithmetic_W**rates.norm + movement_W**rates.norm) ** (1 / rates.norm)
    return combined_W + launches_W * rates.launch_s


def _flop_rates(known: "_Known", rates: Rates, precision: str) -> Floats:
    names = {
        DTYPES.index("fp32"): "fp32",
        DTYPES.index("16-bit"): precision if precision != "fp32" else "bf16",
    }

    def rate(kind: int, dtype: int, thin: int, computes: int) -> float:
        if not computes or kind not in _ARITHMETIC:
            return float("inf")
        try:
            return rates.computing(CLASSES[kind], names[dtype], smallest=0 if thin else THIN_BELOW)
        except KeyError as error:
            raise UnknownRate(
                f"no rate of {CLASSES[kind]} operators is known in {names.get(dtype, 'this type')}"
                f" ({rates.source})"
            ) from error

    kinds = known.of_arithmetic
    return np.array([rate(*each) for each in kinds.each], float)[kinds.number_W]


def _byte_rates(known: "_Known", work: Work, rates: Rates, bytes_W: Ints) -> Floats:
    def rate(kind: int, operator: int, low: int, cached: int) -> float:
        num_bytes = 0 if cached else rates.cache_bytes + 1
        try:
            return rates.moving(
                CLASSES[kind], work.operators[operator], sixteen_bit=bool(low), num_bytes=num_bytes
            )
        except KeyError as error:
            raise UnknownRate(
                f"no bandwidth of {CLASSES[kind]} operators is known ({rates.source})"
            ) from error

    kinds = known.of_movement
    code_W = 2 * kinds.number_W + (bytes_W <= rates.cache_bytes)
    rate_by_code = np.zeros(2 * len(kinds.each))
    for code in np.flatnonzero(np.bincount(code_W)).tolist():
        kind, operator, low = kinds.each[code // 2]
        rate_by_code[code] = rate(kind, operator, low, code % 2)
    rate_W: Floats = rate_by_code[code_W]
    return rate_W


_ARITHMETIC = frozenset(CLASSES.index(name) for name in MATRIX_CLASSES)


@dataclass(frozen=True)
class _Kinds:
    """Operators by a few of their columns.

    Attributes:
        each: The values that occur together.
        number_W: Which of them an operator has.
    """

    each: list[list[int]]
    number_W: Ints

    @classmethod
    def of(cls, *columns_W: Array) -> "_Kinds":
        """Return the kinds of these columns."""
        if not len(columns_W[0]):
            return cls([], np.zeros(0, np.int64))
        sizes = [int(column_W.max()) + 1 for column_W in columns_W]
        code_W = np.ravel_multi_index([column_W.astype(np.int64) for column_W in columns_W], sizes)
        codes = np.flatnonzero(np.bincount(code_W))
        number = np.zeros(codes[-1] + 1, np.int64)
        number[codes] = np.arange(len(codes))
        return cls(np.stack(np.unravel_index(codes, sizes), axis=1).tolist(), number[code_W])


class _Tiles:
    """The tiles of products, by which they take longer where the last ones are not full and the
    last round of tiles does not fill the device.
    """

    def __init__(self, work: Work) -> None:
        self._operators = len(work)
        of_class_W = (work.classes_W == CLASSES.index("matrix")) | (
            work.classes_W == CLASSES.index("batched matrix")
        )
        self._products = np.flatnonzero(of_class_W & (work.flop_W > 0))
        m, n, k, batch = (
            getattr(work, name)[self._products].astype(float)
            for name in ("m_W", "n_W", "k_W", "batch_W")
        )
        self._elements, self._splits = m * n, np.ceil(k / SPLIT_K)
        self._of_one = np.ceil(m / TILE) * np.ceil(n / TILE)
        self._tiles = self._of_one * batch

    def loss(self, multiprocessors: int | None) -> Floats:
        """Return the factor by which each operator takes longer."""
        loss_W = np.ones(self._operators)
        if multiprocessors is None or not len(self._products):
            return loss_W
        pieces = self._tiles * np.minimum(
            np.maximum(1.0, multiprocessors // self._tiles), self._splits
        )
        rounds = pieces / multiprocessors
        unfilled = self._of_one * TILE * TILE / self._elements
        loss_W[self._products] = unfilled * np.ceil(rounds) / rounds
        return loss_W


@dataclass(frozen=True)
class _Known:
    """What is known of a part's operators whatever the device.

    Attributes:
        rows_by_term: Operators of each class, with the term that they belong to; what is computed
            again comes last.
        of_arithmetic: Factors by class, type, whether a product is thin, and whether there is any
            arithmetic.
        of_movement: Factors by class, operator, and whether it is in 16 bits.
        tiles: Those of products.
    """

    rows_by_term: list[tuple[str, Ints]]
    of_arithmetic: _Kinds
    of_movement: _Kinds
    tiles: _Tiles

    @classmethod
    def of(cls, work: Work) -> "_Known":
        """Return what is known of these operators."""
        recomputed_W = work.phases_W == PHASES.index("recomputation")
        groups = [
            (TERMS[name], np.flatnonzero((work.classes_W == index) & ~recomputed_W))
            for index, name in enumerate(CLASSES)
        ]
        groups.append(("recomputation", np.flatnonzero(recomputed_W)))
        is_thin_W = np.minimum(work.m_W, work.n_W) < THIN_BELOW
        is_low_W = work.dtypes_W == DTYPES.index("16-bit")
        return cls(
            [(name, rows) for name, rows in groups if len(rows)],
            _Kinds.of(work.classes_W, work.dtypes_W, is_thin_W, work.flop_W > 0),
            _Kinds.of(work.classes_W, work.operators_W, is_low_W),
            _Tiles(work),
        )


_KNOWN: WeakKeyDictionary[Work, _Known] = WeakKeyDictionary()


def _known_of(work: Work) -> _Known:
    known = _KNOWN.get(work)
    if known is None:
        known = _KNOWN[work] = _Known.of(work)
    return known


def _model_flop(work: Work) -> float:
    """Return the operations with nothing computed twice: without recomputation, and with four
    products in a backward pass of attention, where the kernel computes five.
    """
    needed_W = work.phases_W != PHASES.index("recomputation")
    backward_W = needed_W & (work.classes_W == CLASSES.index("attention backward"))
    needed, backward = (
        float(np.dot(work.flop_W[chosen_W], work.repeats_W[chosen_W]))
        for chosen_W in (needed_W, backward_W)
    )
    return needed - backward * (1 - NEEDED_BACKWARD)
