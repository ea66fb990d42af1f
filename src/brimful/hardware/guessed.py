"""Rates of a device that nobody measured: data-sheet or quickly measured matrix rates, times shares
that are assumptions. No torch.
"""

from brimful.hardware.device import Device
from brimful.hardware.rates import CLASSES, MATRIX_CLASSES, Rates

MATRIX_SHARE = {"cpu": 0.7, "mps": 0.6, "cuda": 0.6}
"""Of the dense rate that products of a step reach."""
SLOWER = {"matrix": 1.0, "batched matrix": 0.6, "attention": 0.5, "attention backward": 0.4}
BYTES_SHARE = {
    "pointwise": 1.0,
    "transcendental": 0.7,
    "reduction": 0.7,
    "gather": 0.5,
    "copy": 0.9,
    "optimizer": 0.9,
    "dequantise": 0.3,
}
BANDWIDTH_SHARE = 0.7
HOST_BYTES_PER_S = 6e9
"""A CPU thread's own, where no bandwidth is known (2-core AMD EPYC, one process beside others)."""
LAUNCH_S = {"cpu": 0.0, "mps": 5e-6, "cuda": 3e-6}
HOST_S = {"cpu": 6e-6, "mps": 15e-6, "cuda": 6e-6}
SHARE = (0.4, 2.5)


def guessed_rates(device: Device) -> Rates | None:
    """Assumptions about a device whose matrix rates are known; None where not even those are.

    A 16-bit type without a rate of its own is taken to be computed in fp32, as libraries do where
    there are no units for it.

    `brimful calibrate` replaces them on the machine itself.
    """
    if not device.dense_flop_per_s:
        return None
    bandwidth = (
        BANDWIDTH_SHARE * device.bandwidth_bytes_per_s
        if device.bandwidth_bytes_per_s
        else HOST_BYTES_PER_S * (device.threads or 1)
    )
    dense = {
        dtype: MATRIX_SHARE[device.kind] * rate
        for dtype, rate in device.emulated_flop_per_s.items()
    }
    return Rates(
        flop_per_s={
            name: {dtype: SLOWER[name] * rate for dtype, rate in dense.items()}
            for name in MATRIX_CLASSES
        },
        bytes_per_s={name: BYTES_SHARE.get(name, 1.0) * bandwidth for name in CLASSES},
        norm=1.0,
        launch_s=LAUNCH_S[device.kind],
        host_s=HOST_S[device.kind],
        overlaps=device.kind != "cpu",
        share=SHARE,
        source=(
            "assumed shares of its matrix rate and bandwidth: not measured, `brimful calibrate` on"
            " the machine does that"
        ),
    )
