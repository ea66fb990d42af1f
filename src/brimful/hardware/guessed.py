"""Rates of a device that was not measured: its matrix rate and bandwidth times assumed shares.

The shares stand in assumptions.toml. No torch.
"""

import functools

from brimful.base.kept_values import shipped_table
from brimful.base.types import JsonDict
from brimful.hardware.device import Device
from brimful.hardware.rates import CLASSES, HOST_SLOWEST, MATRIX_CLASSES, Rates


@functools.cache
def _assumptions() -> JsonDict:
    return shipped_table("brimful.hardware", "assumptions.toml")


def guessed_rates(device: Device) -> Rates | None:
    """Return assumed rates of a device; None where even its matrix rates are unknown.

    A 16-bit type without a rate of its own is computed in fp32, as libraries do on devices without
    units for it. `brimful calibrate` replaces these rates by measured ones.
    """
    if not device.dense_flop_per_s:
        return None
    shares = _assumptions()
    of_kind = shares["kinds"][device.kind]
    bandwidth = shares["host_bytes_per_s"] * (device.threads or 1)
    if device.bandwidth_bytes_per_s:
        bandwidth = shares["bandwidth"] * device.bandwidth_bytes_per_s
    dense = {dtype: of_kind["matrix"] * rate for dtype, rate in device.emulated_flop_per_s.items()}
    low, high = shares["interval"]
    return Rates(
        flop_per_s={
            name: {dtype: shares["flop"][name] * rate for dtype, rate in dense.items()}
            for name in MATRIX_CLASSES
        },
        bytes_per_s={name: shares["bytes"].get(name, 1.0) * bandwidth for name in CLASSES},
        norm=1.0,
        launch_s=of_kind["launch_s"],
        host_s=of_kind["host_s"],
        host_slowest=1.0 if device.kind == "cpu" else HOST_SLOWEST,
        overlaps=device.kind != "cpu",
        share=(low, high),
        source=(
            "assumed shares of its matrix rate and bandwidth: not measured, `brimful calibrate` on"
            " the machine does that"
        ),
    )
