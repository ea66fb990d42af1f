"""Rates of NVIDIA GPUs from their data sheets, times shares fitted on published training runs. No
torch.

The shares, their sources and the runs they come from stand in efficiencies.toml, which `python
benchmarks/time_truth.py CSV --fit` writes.
"""

import functools
import math
from dataclasses import dataclass, field, replace

from brimful.base.kept_values import shipped_table
from brimful.base.types import Bounds, Numbers
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.hardware.rates import CLASSES, HOST_SLOWEST, MATRIX_CLASSES, Rates

CACHED_CLASSES = ("pointwise", "transcendental", "reduction", "copy", "gather")
"""Classes whose operands were just written by the operator before, so that they may be cached."""
CACHE_SHARE = 0.6
"""Share of the L2 cache below which an operator's operands are still cached."""
POWER_SHARPNESS = 4.0
"""A rate is (peak^-q + limit^-q)^(-1/q) of what the units and what the power limit allow."""
KNOWN = ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
"""Compute capabilities with a share of their own; others take that of the next lower one."""
CUDNN_FROM, CUDNN_BELOW = (9, 0), (12, 0)
"""Where torch prefers cuDNN's attention to FlashAttention-2
(aten/native/transformers/cuda/sdp_utils.cpp, torch 2.13).
"""


@dataclass(frozen=True)
class Efficiencies:
    """Fitted shares and how well they describe the runs they come from.

    Attributes:
        values: Share or time by name, see efficiencies.toml.
        norm: p of the roofline.
        interval: Measured over predicted time, 5th and 95th percentile, on sources that the fit had
            not seen, of steps that unpack no weights.
        unpacking_interval: The same of all steps: those on a base in 4 bits all come from one
            source, and took up to 1.7 times as long as predicted.
        unseen_interval: The same for compute capabilities that no run was on; assumption.
        seen: Compute capabilities of the runs.
        source: Which runs.
    """

    values: Numbers = field(hash=False)
    norm: float
    interval: Bounds
    unpacking_interval: Bounds
    unseen_interval: Bounds
    seen: tuple[str, ...]
    source: str


@functools.cache
def efficiencies() -> Efficiencies:
    """Return the content of efficiencies.toml."""
    table = shipped_table("brimful.hardware", "efficiencies.toml")
    fit = table["fit"]
    interval, unpacking, unseen = (
        (float(low), float(high))
        for low, high in (
            fit[name] for name in ("interval", "unpacking_interval", "unseen_interval")
        )
    )
    values = {name: float(row["value"]) for name, row in table["efficiency"].items()}
    return Efficiencies(
        values,
        fit["norm"],
        interval,
        unpacking,
        unseen,
        tuple(fit["compute_capabilities"]),
        fit["source"],
    )


def rates_of(device: Device, *, power_w: float | None = None) -> Rates | None:
    """Return the rates of a GPU from its data sheet and the fitted shares; None where they do not
    apply.

    Args:
        device: A catalog row or a GPU of this machine.
        power_w: Power limit of the board; without it the catalog's, and without that none.
    """
    if (
        device.kind != "cuda"
        or device.compute_capability is None
        or device.compute_capability < (7, 0)
        or not device.bandwidth_bytes_per_s
    ):
        return None
    if not {"fp16", "bf16"} & device.dense_flop_per_s.keys():
        return None
    fitted = efficiencies()
    rates = rates_with(
        device,
        fitted.values,
        fitted.norm,
        power_w=power_w or catalog.power_of(device.name),
        cudnn=CUDNN_FROM <= device.compute_capability < CUDNN_BELOW,
    )
    seen = capability_of(device) in fitted.seen
    return replace(
        rates,
        share=fitted.interval if seen else fitted.unseen_interval,
        share_unpacking=fitted.unpacking_interval if seen else None,
        source=f"data sheet ({device.source}) times shares fitted on {fitted.source}",
    )


def capability_of(device: Device) -> str:
    """Return the compute capability in KNOWN whose shares apply to a GPU, such as "8.6" for 8.7."""
    own = device.compute_capability or (0, 0)
    below = [name for name in KNOWN if tuple(int(part) for part in name.split(".")) <= own]
    return below[-1] if below else KNOWN[0]


def rates_with(
    device: Device, values: Numbers, norm: float, *, power_w: float | None, cudnn: bool
) -> Rates:
    """Return the rates of a GPU with bandwidth and 16-bit rate, for these shares.

    Args:
        values: Shares and times by name.
        norm: p of the roofline.
        cudnn: Attention is cuDNN's; else FlashAttention-2's, or below 8.0 the memory-efficient one.
    """
    capability = capability_of(device)
    limit = math.inf
    if power_w:
        limit = power_w / (values[f"picojoule {capability}"] * 1e-12)
    matrix = values[f"matrix {capability}"]
    if "GeForce" in device.name:
        matrix *= values["geforce"]
    attention = values["attention cudnn" if cudnn else attention_name(device)] / matrix
    shares = {
        "matrix": 1.0,
        "batched matrix": values["batched"],
        "attention": attention,
        "attention backward": attention * values["attention backward"],
    }
    dense = {}
    for dtype, rate in device.emulated_flop_per_s.items():
        full = rate == device.dense_flop_per_s.get("fp32")
        dense[dtype] = rate * values["fp32"] if full else limited(rate * matrix, limit)
    bandwidth = (device.bandwidth_bytes_per_s or 0.0) * values["bandwidth"]
    moved = dict.fromkeys(CLASSES, bandwidth)
    for name in ("optimizer", "dequantise"):
        moved[name] *= values.get(name, 1.0)
    return Rates(
        flop_per_s={
            name: {dtype: rate * shares[name] for dtype, rate in dense.items()}
            for name in MATRIX_CLASSES
        },
        bytes_per_s=moved,
        cached_bytes_per_s={name: moved[name] * values["cached"] for name in CACHED_CLASSES},
        cache_bytes=round(CACHE_SHARE * catalog.cache_bytes_of(device.name)),
        norm=norm,
        launch_s=values["launch"],
        host_s=values["host eager"],
        host_compiled_s=values["host compiled"],
        host_slowest=HOST_SLOWEST,
        step_s=values["step"],
        multiprocessors=device.multiprocessors,
    )


def limited(rate: float, limit: float) -> float:
    """Return the rate under a power limit that lowers it smoothly, already before it is reached."""
    return float((rate**-POWER_SHARPNESS + limit**-POWER_SHARPNESS) ** (-1 / POWER_SHARPNESS))


def attention_name(device: Device) -> str:
    """Return the name of the share for attention that does not run in cuDNN."""
    return {"7.0": "attention 7", "7.5": "attention 7", "9.0": "attention 9.0"}.get(
        capability_of(device), "attention"
    )
