"""Devices are plain values whose abilities follow from their generation."""

import dataclasses
import subprocess
import sys

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DeviceError
from brimful.hardware.device import Abilities, Device, abilities_of


def make_device(**changes: object) -> Device:
    device = Device(
        name="Test GPU",
        kind="cuda",
        memory_bytes=8 * 2**30,
        bandwidth_bytes_per_s=1e12,
        dense_flop_per_s={"fp32": 1e13, "bf16": 1e14},
        compute_capability=(8, 6),
        abilities=abilities_of("cuda", (8, 6)),
        source="made for a test",
    )
    return dataclasses.replace(device, **changes)


@pytest.mark.parametrize(
    ("capability", "able"),
    [
        ((6, 1), set()),
        ((7, 0), {"fp16", "compile"}),
        ((7, 5), {"fp16", "compile"}),
        ((8, 0), {"fp16", "compile", "bf16", "tf32", "flash_attention"}),
        ((8, 6), {"fp16", "compile", "bf16", "tf32", "flash_attention"}),
        ((8, 9), {"fp16", "compile", "bf16", "tf32", "flash_attention", "fp8"}),
        ((9, 0), {"fp16", "compile", "bf16", "tf32", "flash_attention", "fp8"}),
        ((10, 0), {"fp16", "compile", "bf16", "tf32", "flash_attention", "fp8"}),
        ((12, 0), {"fp16", "compile", "bf16", "tf32", "flash_attention", "fp8"}),
    ],
)
def test_abilities_follow_from_the_compute_capability(
    capability: tuple[int, int], able: set[str]
) -> None:
    abilities = dataclasses.asdict(abilities_of("cuda", capability))
    assert {name for name, has in abilities.items() if has} == able


def test_an_unknown_gpu_generation_is_promised_nothing() -> None:
    assert abilities_of("cuda", None) == Abilities()
    assert abilities_of("cuda", None, "gfx9999") == Abilities()


def test_an_amd_architecture_is_not_read_as_a_compute_capability() -> None:
    assert abilities_of("cuda", None, "gfx90a").flash_attention
    assert not abilities_of("cuda", None, "gfx90a").fp8
    assert abilities_of("cuda", None, "gfx942").fp8


def test_mps_has_no_tf32_and_no_flash_attention() -> None:
    abilities = abilities_of("mps", None)
    assert (abilities.bf16, abilities.tf32, abilities.flash_attention) == (True, False, False)


def test_a_rate_is_given_for_its_own_dtype_only(refuses: Refuses) -> None:
    device = make_device()
    assert device.flop_per_s("bf16") == 1e14
    with refuses(DeviceError):
        device.flop_per_s("fp16")
    with refuses(DeviceError):
        device.flop_per_s("bf61")


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_bytes": 0},
        {"bandwidth_bytes_per_s": float("inf")},
        {"dense_flop_per_s": {"fp32": float("nan")}},
        {"dense_flop_per_s": {"int4": 1e12}},
        {"kind": "tpu"},
    ],
)
def test_impossible_values_are_refused(changes: dict[str, object], refuses: Refuses) -> None:
    with refuses(DeviceError):
        make_device(**changes)


def test_a_device_keeps_its_rates_when_the_mapping_it_was_made_from_changes() -> None:
    rates = {"fp32": 1e13}
    device = make_device(dense_flop_per_s=rates)
    rates["fp32"] = 1.0
    assert device.flop_per_s("fp32") == 1e13


def test_measured_rates_replace_the_known_ones_and_say_so(snapshot: SnapshotAssertion) -> None:
    device = make_device().with_rates({"fp32": 2e13}, "measured with matrices")
    assert dict(device.dense_flop_per_s) == {"fp32": 2e13}
    assert device.source == snapshot


def test_devices_and_catalog_are_read_without_torch() -> None:
    code = (
        "import sys; from brimful.hardware import device, catalog; catalog.get('NVIDIA H200');"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
