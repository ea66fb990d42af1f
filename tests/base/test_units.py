"""Numbers as people read them."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.base.units import (
    format_between,
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_money,
    format_named,
)

quick = settings(max_examples=200, derandomize=True, database=None, deadline=None)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (20 * 1024**2, "20.0 MiB"),
        (14.56 * 1024**3, "14.6 GiB"),
        (3 * 1024**5, "3072.0 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_bytes_are_told_in_binary_units(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00k"),
        (23_240_000, "23.24M"),
        (124_439_808, "124.4M"),
        (7e9, "7.00B"),
        (1.5e12, "1.50T"),
    ],
)
def test_counts_keep_three_or_four_digits(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0426, "43 ms"),
        (3.14, "3.1 s"),
        (59.4, "59.4 s"),
        (61, "1m 01s"),
        (3725, "1h 02m"),
        (172_800, "2d 0h"),
        (300_000, "3d 11h"),
        (1e308, "1e+308 s"),
    ],
)
def test_durations_take_two_units_at_most(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@quick
@given(st.integers(0, 10**15))
def test_a_printed_size_is_the_size_within_half_a_percent(num_bytes: int) -> None:
    number, unit = format_bytes(num_bytes).split()

    assert float(number) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit) == pytest.approx(
        num_bytes, rel=0.005
    )


@quick
@given(st.integers(0, 10**15))
def test_a_printed_count_is_the_count_within_half_a_percent_and_below_a_thousand_of_its_unit(
    count: int,
) -> None:
    number, unit = re.fullmatch(r"([\d.]+)([kMBT]?)", format_count(count)).groups()

    assert float(number) * 1000 ** " kMBT".index(unit or " ") == pytest.approx(count, rel=0.005)
    assert float(number) < 1000 or unit == "T"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9996, "1.0 s"), (59.96, "1m 00s"), (3599.6, "1h 00m")]
)
def test_a_duration_that_rounds_up_to_the_next_unit_is_told_in_it(
    seconds: float, text: str
) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(999_949, "999.9k"), (999_950, "1.00M"), (999_999_999, "1.00B")]
)
def test_a_count_that_rounds_up_to_the_next_unit_is_told_in_it(count: int, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0, "$0.00"),
        (0.0049, "< $0.01"),
        (0.006, "$0.01"),
        (5, "$5.00"),
        (999.99, "$999.99"),
        (1234.5, "$1,234"),
        (-2.5, "$-2.50"),
    ],
)
def test_money_has_cents_below_a_thousand(usd: float, text: str) -> None:
    assert format_money(usd) == text


@pytest.mark.parametrize(
    ("energy_wh", "text"),
    [
        (0, "0 Wh"),
        (0.0812, "0.0812 Wh"),
        (571.4, "571 Wh"),
        (999.6, "1 kWh"),
        (1234, "1.23 kWh"),
        (2.5e6, "2.5 MWh"),
        (3e9, "3 GWh"),
    ],
)
def test_energy_has_three_digits(energy_wh: float, text: str) -> None:
    assert format_energy(energy_wh) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("peak_memory_bytes", 1536, "1.50 KiB"),
        ("step_time_s", 3.14, "3.1 s"),
        ("tokens_per_s", 12_300, "12.30k"),
        ("energy_wh", 1234, "1.23 kWh"),
        ("cost_usd", 5, "$5.00"),
        ("mfu", 0.234, "23.4%"),
    ],
)
def test_a_value_is_told_in_the_unit_of_its_name(name: str, value: float, text: str) -> None:
    assert format_named(name, value) == text


def test_an_interval_has_its_unit_once_and_none_is_a_point() -> None:
    assert format_between(format_duration, 0.133, 0.828) == "133 to 828 ms"
    assert format_between(format_duration, 0.3, 10) == "300 ms to 10.0 s"
    assert format_between(format_duration, 3720, 7320) == "1h 02m to 2h 02m"
    assert format_between(format_money, 0.001, 5) == "< $0.01 to $5.00"
    assert format_between(format_duration, 2.999, 3.001) == ""
