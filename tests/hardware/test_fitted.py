"""Rates of GPUs from their data sheets and the fitted shares."""

import dataclasses
import math

import pytest

from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.hardware.fitted import KNOWN, capability_of, efficiencies, limited, rates_of
from brimful.hardware.rates import CLASSES, MATRIX_CLASSES, Rates

NVIDIA = [
    name for name in catalog.names() if (catalog.get(name).compute_capability or (0, 0)) >= (7, 0)
]


def _rates(name: str, power_w: float | None = None) -> Rates:
    rates = rates_of(catalog.get(name), power_w=power_w)
    assert rates is not None
    return rates


@pytest.mark.parametrize("name", NVIDIA)
def test_every_gpu_of_the_catalog_has_rates_below_its_data_sheet(name: str) -> None:
    device, rates = catalog.get(name), _rates(name)

    assert set(rates.flop_per_s) == set(MATRIX_CLASSES)
    assert set(rates.bytes_per_s) == set(CLASSES)
    for dtype, peak in device.dense_flop_per_s.items():
        assert 0 < rates.flop_per_s["matrix"][dtype] < 1.25 * peak
    assert 0 < rates.bytes_per_s["pointwise"] < (device.bandwidth_bytes_per_s or 0)
    assert rates.share[0] < 1 < rates.share[1]


def test_a_lower_power_limit_makes_products_slower_and_leaves_memory_alone() -> None:
    full, half = _rates("NVIDIA L4"), _rates("NVIDIA L4", power_w=36)

    assert half.flop_per_s["matrix"]["bf16"] < 0.7 * full.flop_per_s["matrix"]["bf16"]
    assert half.bytes_per_s == full.bytes_per_s


def test_without_a_known_power_limit_there_is_none() -> None:
    known = catalog.get("NVIDIA L4")
    unnamed = rates_of(dataclasses.replace(known, name="an L4 with another name"))

    assert unnamed is not None
    assert unnamed.flop_per_s["matrix"]["bf16"] == pytest.approx(
        known.flop_per_s("bf16") * efficiencies().values["matrix 8.9"]
    )


@pytest.mark.parametrize("name", ["Apple M4", "AMD Instinct MI300X", "Tesla P100-PCIE-16GB"])
def test_devices_without_fitted_shares_have_no_rates_here(name: str) -> None:
    assert rates_of(catalog.get(name)) is None


def test_a_gpu_without_16_bit_or_memory_rates_has_none_either() -> None:
    known = catalog.get("NVIDIA L4")

    assert rates_of(dataclasses.replace(known, dense_flop_per_s={"fp32": 3e13})) is None
    assert rates_of(dataclasses.replace(known, bandwidth_bytes_per_s=None)) is None


def test_a_gpu_without_bf16_computes_it_in_fp32() -> None:
    rates = _rates("Tesla T4")

    assert (
        rates.flop_per_s["matrix"]["bf16"]
        == rates.flop_per_s["matrix"]["fp32"]
        < rates.flop_per_s["matrix"]["fp16"]
    )


def test_a_generation_without_runs_takes_a_wider_interval() -> None:
    seen, unseen = _rates("NVIDIA H100 80GB HBM3"), _rates("NVIDIA B200")

    assert unseen.share[0] < seen.share[0] < seen.share[1] < unseen.share[1]
    assert unseen.share_unpacking is None


def test_steps_that_unpack_weights_may_take_longer_than_others() -> None:
    rates = _rates("NVIDIA H100 80GB HBM3")

    assert rates.share_unpacking is not None
    assert rates.share[1] < rates.share_unpacking[1]
    assert rates.share[1] / rates.share[0] <= 1.6


@pytest.mark.parametrize(
    ("capability", "known"),
    [((7, 5), "7.5"), ((8, 7), "8.6"), ((9, 0), "9.0"), ((10, 3), "10.0"), ((13, 0), "12.0")],
)
def test_a_compute_capability_takes_the_shares_of_the_next_lower_one(
    capability: tuple[int, int], known: str
) -> None:
    device: Device = dataclasses.replace(catalog.get("NVIDIA L4"), compute_capability=capability)

    assert capability_of(device) == known


def test_a_limit_that_is_far_away_is_not_felt_and_one_that_is_equal_costs_a_sixth() -> None:
    assert limited(1e12, math.inf) == pytest.approx(1e12)
    assert limited(1e12, 1e15) == pytest.approx(1e12)
    assert limited(1e12, 1e12) == pytest.approx(1e12 * 2**-0.25)


def test_every_share_has_a_value_within_reason_and_the_runs_behind_it_are_named() -> None:
    found = efficiencies()

    assert "runs" in found.source
    assert {f"matrix {name}" for name in KNOWN} <= found.values.keys()
    assert all(
        0.2 < value < 1.3
        for name, value in found.values.items()
        if name.startswith(("matrix", "attention", "bandwidth"))
    )
    assert 1 <= found.norm <= 3
