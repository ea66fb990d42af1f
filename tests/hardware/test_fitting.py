"""Fitting finds the rates that made the points."""

import pytest

from brimful.hardware.fitting import TimedOperator, fit, sped_up
from brimful.hardware.rates import SIXTEEN_BIT, THIN, Rates

MATRIX, THIN_RATE, COPY, CACHED_COPY, MATRIX_BYTES, LAUNCH_S = 1e11, 3e10, 2e10, 8e10, 4e10, 2e-6


def _product(m: int, n: int, k: int, dtype: str = "fp32", rate: float = MATRIX) -> TimedOperator:
    flop, moved = 2 * m * n * k, 4 * (m * k + k * n + m * n)
    return TimedOperator(
        "", "matrix", dtype, flop, moved, min(m, n), flop / rate + moved / MATRIX_BYTES + LAUNCH_S
    )


def _copy(num_bytes: int, rate: float, operator: str = "clone") -> TimedOperator:
    return TimedOperator(operator, "copy", "fp32", 0, num_bytes, 0, num_bytes / rate + LAUNCH_S)


POINTS = [
    *(_product(size, size, size) for size in (64, 128, 256, 512, 1024)),
    _product(1024, 64, 64),
    _product(64, 64, 4096),
    *(_product(1024, 8, size, rate=THIN_RATE) for size in (128, 512, 2048)),
    *(_copy(size, CACHED_COPY) for size in (1 << 10, 1 << 14, 1 << 18)),
    *(_copy(size, COPY) for size in (1 << 26, 1 << 27)),
]


def _fitted(points: list[TimedOperator] = POINTS) -> Rates:
    return fit(points, host_s=3e-6, overlaps=False, cached=True, source="test")


def test_rates_that_made_the_points_are_found() -> None:
    rates = _fitted()

    assert rates.norm == 1.0
    assert rates.flop_per_s["matrix"]["fp32"] == pytest.approx(MATRIX, rel=0.03)
    assert rates.flop_per_s[THIN]["fp32"] == pytest.approx(THIN_RATE, rel=0.05)
    assert rates.bytes_per_s["clone"] == pytest.approx(COPY, rel=0.03)
    assert rates.cached_bytes_per_s["clone"] == pytest.approx(CACHED_COPY, rel=0.05)
    assert rates.launch_s == pytest.approx(LAUNCH_S, rel=0.05)
    assert rates.host_s == 3e-6
    low, high = rates.share
    assert 0.97 < low < high < 1.03


def test_the_share_holds_nine_of_ten_points() -> None:
    slowed = [
        TimedOperator(**{**vars(point), "time_s": point.time_s * factor})
        for point, factor in zip(POINTS, [0.8, 1.25] * 8, strict=False)
    ]
    low, high = _fitted(slowed).share

    assert low < 0.95
    assert high > 1.05


def test_a_class_has_the_median_rate_of_its_operators() -> None:
    rates = _fitted([*POINTS, _copy(1 << 26, COPY / 4, "cat"), _copy(1 << 26, COPY / 2, "stack")])

    assert rates.bytes_per_s["copy"] == pytest.approx(rates.bytes_per_s["stack"])


def test_a_class_that_was_seen_in_16_bit_only_still_has_a_rate() -> None:
    unpacked = TimedOperator("dequantise_nf4", "dequantise", "bf16", 0, 1 << 20, 0, 1e-4)
    rates = _fitted([*POINTS, unpacked])

    assert rates.moving(
        "dequantise", "dequantise_nf4", sixteen_bit=False, num_bytes=1 << 30
    ) == pytest.approx((1 << 20) / 1e-4, rel=0.1)
    assert "dequantise" + SIXTEEN_BIT in {**rates.bytes_per_s, **rates.cached_bytes_per_s}


def test_fitting_twice_gives_the_same() -> None:
    assert _fitted().to_json() == _fitted().to_json()


def test_more_threads_speed_up_every_kind_by_its_own_factor() -> None:
    one = _fitted()
    two = sped_up(one, products=2.0, cached=1.5, large=1.2)

    assert two.flop_per_s["matrix"]["fp32"] == 2 * one.flop_per_s["matrix"]["fp32"]
    assert two.bytes_per_s["matrix"] == 2 * one.bytes_per_s["matrix"]
    assert two.bytes_per_s["clone"] == 1.2 * one.bytes_per_s["clone"]
    assert two.cached_bytes_per_s["clone"] == 1.5 * one.cached_bytes_per_s["clone"]
    assert two.launch_s == one.launch_s


def test_noise_does_not_make_a_rate_much_higher_than_the_fastest_product() -> None:
    wild = [
        TimedOperator("", "batched matrix", "fp32", 10**8, 10**6, 64, 1e-3 * factor)
        for factor in (1.0, 1.01, 1.02)
    ]

    assert _fitted([*POINTS, *wild]).flop_per_s["batched matrix"]["fp32"] < 2e11
