"""The roofline's parameters, fitted to measured operators: least squares on the logarithm of time.

Suffixes: N measured operators, P parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from brimful.base.arrays import Floats, Ints
from brimful.base.types import Numbers
from brimful.hardware.rates import MATRIX_CLASSES, SIXTEEN_BIT, THIN, THIN_BELOW, Rates

Name = tuple[str, str, str]
"""Kind of a rate ("flop", "bytes", "cached bytes"), class, dtype."""

NORMS = (1.0, 1.5, 2.0, 3.0, 6.0)
"""Exponents that are tried for how arithmetic and bytes overlap; without overlap they add up."""
CACHE_BYTES = (1 << 20, 4 << 20, 16 << 20, 32 << 20)
"""Cache sizes that are tried."""
PULL, ARITHMETIC_PULL = 0.02, 0.2
"""Weight of a parameter's first guess relative to one measured operator. It decides parameters that
no operator constrains. The rate of arithmetic is pulled harder: the fastest product is already
close to it.
"""
THIN_WEIGHT = 0.3
"""Weight of a thin product. Its time depends on its layout most, so other products decide the
parameters that they share.
"""


@dataclass(frozen=True)
class TimedOperator:
    """One measured operator; fields as in operators.Case, and its time."""

    operator: str
    class_name: str
    dtype: str
    flop: int
    num_bytes: int
    smallest: int
    time_s: float


def fit(
    points: Sequence[TimedOperator], *, host_s: float, overlaps: bool, cached: bool, source: str
) -> Rates:
    """Return the rates that fit the points best.

    Args:
        points: Timed operators, at least one of class "matrix".
        host_s: Seconds that the program needs to issue an operator, measured separately and not
            included in the points.
        overlaps: Whether arithmetic and bytes overlap, as in Rates; without it their times add up.
        cached: Fit separate rates for operands in the cache (CPU).
        source: Where the points come from.
    """
    tried = (
        _fit(points, norm, cache_bytes, host_s, overlaps, source)
        for norm in (NORMS if overlaps else (1.0,))
        for cache_bytes in (CACHE_BYTES if cached else (0,))
    )
    return min(tried, key=itemgetter(0))[1]


def sped_up(rates: Rates, *, products: float, cached: float, large: float) -> Rates:
    """Return the rates multiplied by the speed-ups of products, of operators on cached operands and
    of operators on large ones.
    """
    moved = {
        name: rate * (products if name.removesuffix(SIXTEEN_BIT) in MATRIX_CLASSES else large)
        for name, rate in rates.bytes_per_s.items()
    }
    return replace(
        rates,
        bytes_per_s=moved,
        cached_bytes_per_s={name: rate * cached for name, rate in rates.cached_bytes_per_s.items()},
        flop_per_s={
            name: {dtype: rate * products for dtype, rate in per_dtype.items()}
            for name, per_dtype in rates.flop_per_s.items()
        },
    )


def _fit(
    points: Sequence[TimedOperator],
    norm: float,
    cache_bytes: int,
    host_s: float,
    overlaps: bool,
    source: str,
) -> tuple[float, Rates]:
    """Return the squared error of the fit and its rates."""
    names, arithmetic_N, bytes_N, start_P = _parameters(points, cache_bytes)
    flop_N, moved_N = (
        np.array([getattr(point, field) for point in points], float)
        for field in ("flop", "num_bytes")
    )
    log_measured_N = np.log([point.time_s for point in points])

    def log_time(values_P: Floats) -> Floats:
        rates_P = np.exp(np.append(values_P, 0.0))
        arithmetic_s = flop_N / rates_P[arithmetic_N]
        bytes_s = moved_N / rates_P[bytes_N]
        combined: Floats = (arithmetic_s**norm + bytes_s**norm) ** (1 / norm) + rates_P[len(names)]
        return np.log(combined)

    weights_N = np.array([THIN_WEIGHT if _is_thin(point) else 1.0 for point in points])

    pulls_P = np.array(
        [ARITHMETIC_PULL if kind == "flop" else PULL for kind, _, _ in names] + [PULL]
    )

    def residuals(values_P: Floats) -> Floats:
        return np.concatenate(
            [weights_N * (log_time(values_P) - log_measured_N), pulls_P * (values_P - start_P)]
        )

    from scipy.optimize import least_squares  # noqa: PLC0415 - half a second that only fitting needs

    values_P: Floats = least_squares(residuals, start_P, method="lm").x
    rates_P = np.exp(values_P)
    by_name = dict(zip(names, rates_P.tolist(), strict=False))
    ratios_N = np.exp(log_measured_N - log_time(values_P))
    share = float(np.quantile(ratios_N, 0.05)), float(np.quantile(ratios_N, 0.95))
    flop_per_s: dict[str, dict[str, float]] = {}
    for kind, class_name, dtype in (name for name in names if name[0] == "flop"):
        flop_per_s.setdefault(class_name, {})[dtype] = by_name[kind, class_name, dtype]
    cached = _with_classes(_named(by_name, "cached bytes"), points)
    rates = Rates(
        flop_per_s,
        _complete(_with_classes(_named(by_name, "bytes"), points), cached, points),
        cached,
        cache_bytes,
        norm,
        float(rates_P[len(names)]),
        host_s,
        overlaps=overlaps,
        share=share,
        source=source,
    )
    return float(np.square(np.log(ratios_N)).sum()), rates


def _named(by_name: Mapping[Name, float], kind: str) -> dict[str, float]:
    return {name: value for (its_kind, name, _), value in by_name.items() if its_kind == kind}


def _is_thin(point: TimedOperator) -> bool:
    return point.class_name == "matrix" and point.smallest < THIN_BELOW


def _keys(point: TimedOperator, cache_bytes: int) -> tuple[Name | None, Name]:
    """Return the rates of arithmetic and of bytes that a point uses."""
    suffix = SIXTEEN_BIT if point.dtype in ("bf16", "fp16") else ""
    if point.class_name not in MATRIX_CLASSES:
        kind = "cached bytes" if point.num_bytes <= cache_bytes else "bytes"
        return None, (kind, point.operator + suffix, "")
    name = THIN if _is_thin(point) else point.class_name
    return ("flop", name, point.dtype), ("bytes", point.class_name + suffix, "")


def _with_classes(per_name: Numbers, points: Sequence[TimedOperator]) -> dict[str, float]:
    """Return the rates by operator, and for each class the median of its operators' rates."""
    members: dict[str, dict[str, float]] = {}
    for point in points:
        for suffix in ("", SIXTEEN_BIT):
            rate = per_name.get(point.operator + suffix)
            if rate is not None:
                members.setdefault(point.class_name + suffix, {})[point.operator] = rate
    medians = {name: float(np.median(list(rates.values()))) for name, rates in members.items()}
    return {**per_name, **medians}


def _complete(
    bytes_per_s: dict[str, float],
    cached_bytes_per_s: Numbers,
    points: Sequence[TimedOperator],
) -> dict[str, float]:
    """Add a rate for every measured class: where large operands were not measured, the rate of
    16-bit or of cached ones.
    """
    known = {**cached_bytes_per_s, **bytes_per_s}
    for name in {point.class_name for point in points}:
        rates = [known[each] for each in (name, name + SIXTEEN_BIT) if each in known]
        bytes_per_s.setdefault(name, rates[0])
    return bytes_per_s


def _parameters(
    points: Sequence[TimedOperator], cache_bytes: int
) -> tuple[list[Name], Ints, Ints, Floats]:
    """Return the names of the rates, the index of each point's rates of arithmetic and of bytes,
    and first guesses of the logarithms of all parameters, the launch time last.

    The first guess of a rate is that of the fastest point. A point without arithmetic uses the
    parameter after the last one, which is 1.
    """
    keys = [_keys(point, cache_bytes) for point in points]
    fastest: dict[Name, float] = {}
    for point, (arithmetic, moved) in zip(points, keys, strict=True):
        if arithmetic is not None:
            fastest[arithmetic] = max(fastest.get(arithmetic, 0.0), point.flop / point.time_s)
        fastest[moved] = max(fastest.get(moved, 0.0), point.num_bytes / point.time_s)
    names = list(fastest)
    none = len(names) + 1
    arithmetic_N = np.array(
        [none if arithmetic is None else names.index(arithmetic) for arithmetic, _ in keys]
    )
    bytes_N = np.array([names.index(moved) for _, moved in keys])
    launch_s = min(point.time_s for point in points) / 2
    return names, arithmetic_N, bytes_N, np.log([*fastest.values(), launch_s])
