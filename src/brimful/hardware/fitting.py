"""The roofline's parameters from measured operators: least squares on the logarithm of time. numpy
only.

Suffixes: N measured operators, P parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from brimful.hardware.rates import MATRIX_CLASSES, SIXTEEN_BIT, THIN, THIN_BELOW, Rates

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
Name = tuple[str, str, str]
"""Kind of a rate ("flop", "bytes", "cached bytes"), class, dtype."""

NORMS = (1.0, 1.5, 2.0, 3.0, 6.0)
"""Exponents that are tried for how arithmetic and bytes overlap; without overlap they add up."""
CACHE_BYTES = (1 << 20, 4 << 20, 16 << 20, 32 << 20)
"""Cache sizes that are tried."""
PULL, ARITHMETIC_PULL = 0.02, 0.2
"""Weight of a parameter's first guess beside one measured operator: decides what no operator shows.
The fastest product is close to the rate of arithmetic, so that noise does not make it any higher.
"""
THIN_WEIGHT = 0.3
"""Thin products differ by layout as nothing else does; what they share with other products is for
those to say.
"""
ROUNDS = 40
STEP = 1e-4


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


@dataclass(frozen=True)
class Fitted:
    """Rates and how they describe the points they come from: measured over predicted time."""

    rates: Rates
    ratios_N: Array


def fit(
    points: Sequence[TimedOperator], *, host_s: float, overlaps: bool, cached: bool, source: str
) -> Fitted:
    """The Rates that describe the points best.

    Args:
        points: At least one of class "matrix".
        host_s: What the program needs to issue an operator, measured apart; the points are without
            it.
        overlaps: See Rates; without it, arithmetic and bytes add up too.
        cached: Whether operands in the cache move at rates of their own (CPU).
        source: Where the points come from.
    """
    best: tuple[float, Fitted] | None = None
    for norm in NORMS if overlaps else (1.0,):
        for cache_bytes in CACHE_BYTES if cached else (0,):
            cost, fitted = _fit(points, norm, cache_bytes, host_s, overlaps, source)
            if best is None or cost < best[0]:
                best = cost, fitted
    if best is None:
        raise ValueError("nothing was tried")
    return best[1]


def sped_up(rates: Rates, *, products: float, cached: float, large: float) -> Rates:
    """The rates of more threads: products of all kinds, operators on cached and on large operands
    as many times faster.
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
) -> tuple[float, Fitted]:
    names, arithmetic_N, bytes_N, start_P = _parameters(points, cache_bytes)
    flop_N, moved_N = (
        np.array([getattr(point, field) for point in points], float)
        for field in ("flop", "num_bytes")
    )
    log_measured_N = np.log([point.time_s for point in points])

    def log_time(values_P: Array) -> Array:
        rates_P = np.exp(np.append(values_P, 0.0))
        arithmetic_s = flop_N / rates_P[arithmetic_N]
        bytes_s = moved_N / rates_P[bytes_N]
        combined: Array = (arithmetic_s**norm + bytes_s**norm) ** (1 / norm) + rates_P[len(names)]
        return np.log(combined)

    weights_N = np.array([THIN_WEIGHT if _is_thin(point) else 1.0 for point in points])

    pulls_P = np.array(
        [ARITHMETIC_PULL if kind == "flop" else PULL for kind, _, _ in names] + [PULL]
    )

    def residuals(values_P: Array) -> Array:
        return np.concatenate(
            [weights_N * (log_time(values_P) - log_measured_N), pulls_P * (values_P - start_P)]
        )

    values_P = _least_squares(residuals, start_P)
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
    return float(np.square(np.log(ratios_N)).sum()), Fitted(rates, ratios_N)


def _named(by_name: Mapping[Name, float], kind: str) -> dict[str, float]:
    return {name: value for (its_kind, name, _), value in by_name.items() if its_kind == kind}


def _is_thin(point: TimedOperator) -> bool:
    return point.class_name == "matrix" and point.smallest < THIN_BELOW


def _keys(point: TimedOperator, cache_bytes: int) -> tuple[Name | None, Name]:
    """The rates of arithmetic and of bytes that a point uses."""
    suffix = SIXTEEN_BIT if point.dtype in ("bf16", "fp16") else ""
    if point.class_name not in MATRIX_CLASSES:
        return None, (
            "cached bytes" if point.num_bytes <= cache_bytes else "bytes",
            point.operator + suffix,
            "",
        )
    return ("flop", THIN if _is_thin(point) else point.class_name, point.dtype), (
        "bytes",
        point.class_name + suffix,
        "",
    )


def _with_classes(
    per_name: Mapping[str, float], points: Sequence[TimedOperator]
) -> dict[str, float]:
    """Rates by operator, and beside them each class's: the median of its operators'."""
    members: dict[str, dict[str, float]] = {}
    for point in points:
        for suffix in ("", SIXTEEN_BIT):
            if point.operator + suffix in per_name:
                members.setdefault(point.class_name + suffix, {})[point.operator] = per_name[
                    point.operator + suffix
                ]
    return {
        **per_name,
        **{name: float(np.median(list(rates.values()))) for name, rates in members.items()},
    }


def _complete(
    bytes_per_s: dict[str, float],
    cached_bytes_per_s: Mapping[str, float],
    points: Sequence[TimedOperator],
) -> dict[str, float]:
    """With a rate for every class that was measured at all: where large operands were not, that of
    16-bit or of cached ones.
    """
    known = {**cached_bytes_per_s, **bytes_per_s}
    for name in {point.class_name for point in points}:
        found = [known[each] for each in (name, name + SIXTEEN_BIT) if each in known]
        bytes_per_s.setdefault(name, found[0])
    return bytes_per_s


def _parameters(
    points: Sequence[TimedOperator], cache_bytes: int
) -> tuple[list[Name], IntArray, IntArray, Array]:
    """Names of rates; which of them each point uses for arithmetic and for bytes; first guesses of
    their logarithms, the launch time's last.

    First guess of a rate is the fastest point's. A point without arithmetic uses the parameter
    after the last, which is 1.
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


def _least_squares(residuals: Callable[[Array], Array], start_P: Array) -> Array:
    """Levenberg's and Marquardt's method with a numeric Jacobian (Marquardt 1963); residuals are
    smooth and there are few parameters.
    """
    values_P, damping = start_P.copy(), 1e-2
    now_N = residuals(values_P)
    for _ in range(ROUNDS):
        jacobian_NP = np.stack(
            [
                (residuals(values_P + STEP * unit_P) - now_N) / STEP
                for unit_P in np.eye(len(values_P))
            ],
            axis=1,
        )
        normal_PP = jacobian_NP.T @ jacobian_NP
        step_P = np.linalg.solve(
            normal_PP + damping * np.diag(np.diag(normal_PP) + 1e-9), -jacobian_NP.T @ now_N
        )
        tried_N = residuals(values_P + step_P)
        gain = float(now_N @ now_N - tried_N @ tried_N)
        if gain > 0:
            values_P, now_N, damping = values_P + step_P, tried_N, damping / 3
            if gain < 1e-9 * float(now_N @ now_N):
                break
        else:
            damping *= 4
    return values_P
