"""What is assumed of a device that nobody measured: slower than its data sheet, of its kind, and
said to be an assumption.
"""

import dataclasses

import pytest

from brimful.hardware import catalog
from brimful.hardware.device import Abilities, Device
from brimful.hardware.guessed import guessed_rates
from brimful.hardware.rates import CLASSES, MATRIX_CLASSES, Rates

CPU = Device(
    name="a CPU",
    kind="cpu",
    memory_bytes=2**34,
    dense_flop_per_s={"fp32": 1e11, "bf16": 2e11},
    abilities=Abilities(),
    threads=2,
    source="made by hand",
)


def _guessed(device: Device) -> Rates:
    rates = guessed_rates(device)
    assert rates is not None
    return rates


def test_every_device_of_the_catalog_with_matrix_rates_has_rates_below_its_data_sheet() -> None:
    for device in map(catalog.get, catalog.names()):
        rates = guessed_rates(device)
        assert (rates is not None) == bool(device.dense_flop_per_s), device.name
        if rates is None:
            continue
        for name in MATRIX_CLASSES:
            for dtype, peak in device.dense_flop_per_s.items():
                assert 0 < rates.flop_per_s[name][dtype] < peak, (device.name, name, dtype)
        for name in CLASSES:
            assert 0 < rates.bytes_per_s[name] < (device.bandwidth_bytes_per_s or float("inf")), (
                device.name,
                name,
            )


def test_nothing_is_assumed_of_a_device_without_matrix_rates() -> None:
    assert guessed_rates(dataclasses.replace(CPU, dense_flop_per_s={})) is None


def test_every_type_that_a_plan_can_choose_has_a_rate_where_fp32_has_one() -> None:
    """A T4 has no bf16 units: such products run in fp32."""
    card = catalog.get("Tesla T4")
    rates = _guessed(card)

    assert "bf16" not in card.dense_flop_per_s
    assert (
        rates.flop_per_s["matrix"]["bf16"]
        == rates.flop_per_s["matrix"]["fp32"]
        < rates.flop_per_s["matrix"]["fp16"]
    )
    assert set(_guessed(CPU).flop_per_s["matrix"]) == {"fp32", "bf16", "fp16"}
    assert set(
        _guessed(dataclasses.replace(CPU, dense_flop_per_s={"bf16": 1e11})).flop_per_s["matrix"]
    ) == {"bf16"}


@pytest.mark.parametrize(("threads", "count"), [(1, 1), (2, 2), (None, 1)])
def test_a_host_of_unknown_bandwidth_has_so_much_for_every_thread(
    threads: int | None, count: int
) -> None:
    assert (
        _guessed(dataclasses.replace(CPU, threads=threads)).bytes_per_s["pointwise"] == count * 9e9
    )


def test_a_known_bandwidth_is_used_in_part() -> None:
    rates = _guessed(dataclasses.replace(CPU, bandwidth_bytes_per_s=1e11))

    assert 0.5e11 < rates.bytes_per_s["pointwise"] < 1e11


def test_only_a_gpus_program_runs_ahead_of_it() -> None:
    apple = dataclasses.replace(CPU, kind="mps", threads=None)

    assert [_guessed(device).overlaps for device in (CPU, apple, catalog.get("NVIDIA H200"))] == [
        False,
        True,
        True,
    ]


def test_a_guess_says_that_it_is_one_and_is_believed_widely() -> None:
    rates = _guessed(CPU)

    assert "not measured" in rates.source
    assert "brimful calibrate" in rates.source
    assert rates.share == (0.4, 2.5)


def test_guesses_survive_their_file() -> None:
    rates = _guessed(catalog.get("NVIDIA H200"))

    assert Rates.from_json(rates.to_json()) == rates
