"""How fast a device does each class of operator: the parameters of the roofline, measured here or
fitted on published runs. No torch.

An operator takes `combined(flop / flop_per_s, bytes / bytes_per_s) + launch_s` of the device and
`host_s` of the program that issues it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Self

from brimful.base.types import Bounds, Json, JsonDict, Numbers

CLASSES = (
    "matrix",
    "batched matrix",
    "attention",
    "attention backward",
    "pointwise",
    "transcendental",
    "reduction",
    "gather",
    "copy",
    "optimizer",
    "dequantise",
)
"""Classes of operators that differ in speed. "matrix" is a product of two matrices, "batched
matrix" many products of a batch, "attention" a fused kernel's forward pass; "pointwise" adds,
multiplies and compares, "transcendental" takes exp, tanh, erf and the like, "reduction" sums, norms
and softmax, "gather" indexing, "copy" moves and converts, "dequantise" unpacks 4-bit weights.
"""
MATRIX_CLASSES = ("matrix", "batched matrix", "attention", "attention backward")
"""Classes with a rate of arithmetic; the others are bounded by bytes alone."""
BACKWARD_OVER_FORWARD = 2.5
"""Products in a flash backward pass (five) over those of the forward pass (two); Dao 2023,
FlashAttention-2, section 3.1.
"""
NEEDED_BACKWARD = 4 / 5
"""Share of the products of the backward pass that are needed; the fifth computes the scores again.
"""
THIN = "thin matrix"
THIN_BELOW = 32
"""A product with fewer rows or columns leaves most of a vector or tile unit idle (adapters); it has
an arithmetic rate of its own.
"""
SIXTEEN_BIT = " 16-bit"
"""Suffix of a name: the rate in bytes for 16-bit operands, where it was measured separately (a CPU
converts them element by element).
"""


HOST_SLOWEST = 4.0
"""`Rates.host_slowest` where a host was not measured: old or shared processors, and models whose
code does more between operators (assumption).
"""


@dataclass(frozen=True)
class Rates:
    """The roofline's parameters for one device.

    Attributes:
        flop_per_s: Rates by class of MATRIX_CLASSES and dtype ("fp32", "tf32", "bf16", "fp16"): the
            rate of large operators. also of THIN where such products were measured separately.
        bytes_per_s: Rates by class, for operands in memory; where measured separately also by
            torch's name of an operator, and by either with the suffix SIXTEEN_BIT; see `moving`.
        cached_bytes_per_s: The same for operands in the cache; empty where not measured
            separately.
        cache_bytes: Operators that touch at most this much find their operands in the cache.
        norm: p of (a^p + b^p)^(1/p), by which time for arithmetic and time for bytes combine: 1
            adds them, large p takes the longer.
        launch_s: What the device needs for the smallest operator.
        host_s: What the program needs to issue one operator.
        host_compiled_s: The same for a compiled step's kernels; None where not measured separately.
        host_slowest: So many times as long the program may need, on another host than the rates
            are of; 1 where it was measured.
        step_s: What every optimizer step takes beside its operators.
        new_product_s: What a product takes longer whose shape none before it had, where a kernel is
            made for each.
        examples_s: What each block of a step takes longer whose attention goes example by example.
        overlaps: The program runs ahead of the device, so mostly the slower of the two decides
            (CUDA); else both add up (CPU).
        multiprocessors: Products come in tiles that are dealt out to these; None where that is not
            modelled.
        share: Measured over predicted time, 5th and 95th percentile where the parameters come from.
        share_unpacking: The same for steps that unpack weights of 4 bits; None where these were not
            looked at apart.
        source: Where they come from.
    """

    flop_per_s: Mapping[str, Numbers] = field(hash=False)
    bytes_per_s: Numbers = field(hash=False)
    cached_bytes_per_s: Numbers = field(hash=False, default_factory=dict)
    cache_bytes: int = 0
    norm: float = 1.0
    launch_s: float = 0.0
    host_s: float = 0.0
    host_compiled_s: float | None = None
    host_slowest: float = 1.0
    step_s: float = 0.0
    new_product_s: float = 0.0
    examples_s: float = 0.0
    overlaps: bool = True
    multiprocessors: int | None = None
    share: Bounds = (0.7, 1.5)
    share_unpacking: Bounds | None = None
    source: str = ""

    def moving(self, class_name: str, operator: str, *, sixteen_bit: bool, num_bytes: int) -> float:
        """Return the bytes per second of an operator that moves `num_bytes`: the most specific rate
        that is known, by operator or class and by width.

        Raises:
            KeyError: its class has no rate.
        """
        key = (class_name, operator, sixteen_bit, num_bytes <= self.cache_bytes)
        if key not in self._moving:
            self._moving[key] = self._moving_of(*key)
        return self._moving[key]

    @cached_property
    def _moving(self) -> dict[tuple[str, str, bool, bool], float]:
        return {}

    def _moving_of(
        self, class_name: str, operator: str, sixteen_bit: bool, is_cached: bool
    ) -> float:
        names = [operator, class_name]
        if sixteen_bit:
            names = [operator + SIXTEEN_BIT, class_name + SIXTEEN_BIT, *names]
        if is_cached:
            for name in names:
                if name in self.cached_bytes_per_s:
                    return self.cached_bytes_per_s[name]
        known = next((name for name in names if name in self.bytes_per_s), class_name)
        return self.bytes_per_s[known]

    def computing(self, class_name: str, dtype: str, *, smallest: int) -> float:
        """Return the FLOP per second of a product with `smallest` rows or columns, whichever are
        fewer.

        Raises:
            KeyError: no rate is known for this class and dtype.
        """
        if class_name == "matrix" and smallest < THIN_BELOW:
            thin = self.flop_per_s.get(THIN, {}).get(dtype)
            if thin:
                return thin
        return self.flop_per_s[class_name][dtype]

    def to_json(self) -> JsonDict:
        """Plain values for JSON; `from_json` gives equal Rates."""
        values = {**asdict(self), "share": list(self.share)}
        if self.share_unpacking is None:  # which earlier versions do not know
            del values["share_unpacking"]
        return values

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """The Rates that `to_json` described.

        Raises:
            KeyError, TypeError: a key is missing or unknown.
        """
        shares = {
            name: tuple(map(float, value[name]))
            for name in ("share", "share_unpacking")
            if value.get(name) is not None or name == "share"
        }
        return cls(**{**value, **shares})
