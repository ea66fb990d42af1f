"""Readings and limits are read leniently."""

from brimful.report.live.readings import SensorLimits, SensorReadings
from brimful.runs.parsing import parse


def test_the_clock_is_that_of_the_device_where_it_has_one() -> None:
    processor = parse(SensorReadings, {"cpu_clock_mhz": 2800})

    assert processor.clock_mhz == 2800
    assert parse(SensorReadings, {"cpu_clock_mhz": 2800, "sm_clock_mhz": 1410}).clock_mhz == 1410
    assert parse(SensorReadings, {}).clock_mhz is None


def test_a_limit_that_is_no_number_is_not_known() -> None:
    limits = parse(SensorLimits, {"cores": "four", "power_limit_w": float("inf")})

    assert limits == SensorLimits()
