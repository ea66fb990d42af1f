"""Readings of one GPU from NVIDIA's driver, through NVML. A query that this GPU or driver does not
answer is left out.

Source: NVML API reference; bits of clock event reasons: nvmlClocksEventReasons. Where a newer name
of a function is missing in an older driver, the older one is asked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from brimful.base.types import JsonDict, Numbers, Texts

Query = Callable[[], JsonDict]
THROTTLE_REASONS: Mapping[int, str] = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "thermal (software)",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "thermal (hardware)",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync boost",
}
"""Reasons that count as throttling; clocks that are low on an idle device or set by a user do
not.
"""
_HARDWARE_DETAILS = (
    pynvml.nvmlClocksEventReasonHwThermalSlowdown | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
)


@dataclass(frozen=True)
class NvmlDevice:
    """One GPU of the driver.

    Attributes:
        queries: Name of the first reading -> query that returns readings by the names of
            docs/monitor.md. "throttle_reasons" is a tuple of names.
        facts: `uuid` and `driver`.
        limits: `power_limit_w`, `device_memory_bytes`, `temperature_limit_c`, as far as known.
        absent: Reading -> why it is not available.
    """

    queries: Mapping[str, Query]
    facts: Texts
    limits: Numbers
    absent: Texts


def find_device(uuid: str, pci_bus_id: str | None = None) -> NvmlDevice:
    """Find the GPU with this UUID (with or without "GPU-"), or else at this PCI address. Its
    number, which CUDA_VISIBLE_DEVICES changes, is not used.

    Raises:
        pynvml.NVMLError: no driver, or it does not know the device.
    """
    pynvml.nvmlInit()
    handle = _handle(uuid, pci_bus_id)
    asked = {name: _first_that_answers(ways) for name, ways in _queries(handle).items()}
    limits = {name: _first_that_answers(ways) for name, ways in _limits(handle).items()}
    return NvmlDevice(
        queries={name: query for name, query in asked.items() if not isinstance(query, str)},
        facts={
            "uuid": pynvml.nvmlDeviceGetUUID(handle),
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
        },
        limits={name: way()[name] for name, way in limits.items() if not isinstance(way, str)},
        absent={name: reason for name, reason in asked.items() if isinstance(reason, str)},
    )


def _handle(uuid: str, pci_bus_id: str | None) -> Any:
    names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    for name in names:
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(name)
        except pynvml.NVMLError as error:
            refused = error
    if pci_bus_id is None:
        raise refused
    return pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)


def _first_that_answers(ways: Sequence[Query]) -> Query | str:
    """Return the first query that works now, or else the message of the last one's error."""
    reason = ""
    for way in ways:
        try:
            way()
        # Beside NVMLError: a function that this binding lacks, an answer that it cannot read.
        except Exception as error:
            reason = str(error) or type(error).__name__
        else:
            return way
    return reason


def _queries(handle: Any) -> dict[str, Sequence[Query]]:
    def utilization() -> JsonDict:
        rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
        return {
            "device_utilization": rates.gpu / 100,
            "memory_access_utilization": rates.memory / 100,
        }

    def clock(name: str, kind: int) -> Query:
        return lambda: {name: pynvml.nvmlDeviceGetClockInfo(handle, kind)}

    def temperature() -> JsonDict:
        return {
            "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        }

    return {
        "device_utilization": (utilization,),
        "device_memory_bytes": (
            lambda: {
                "device_memory_bytes": (
                    pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used
                )
            },
            lambda: {"device_memory_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).used},
        ),
        "power_w": (lambda: {"power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3},),
        "energy_j": (
            lambda: {"energy_j": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3},
        ),
        "temperature_c": (
            temperature,
            lambda: {
                "temperature_c": pynvml.nvmlDeviceGetTemperatureV(
                    handle, pynvml.NVML_TEMPERATURE_GPU
                )
            },
        ),
        "sm_clock_mhz": (clock("sm_clock_mhz", pynvml.NVML_CLOCK_SM),),
        "memory_clock_mhz": (clock("memory_clock_mhz", pynvml.NVML_CLOCK_MEM),),
        "throttled_s": (
            lambda: {
                "throttle_reasons": reasons_in_words(
                    pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
                )
            },
            lambda: {
                "throttle_reasons": reasons_in_words(
                    pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
                )
            },
        ),
    }


def _limits(handle: Any) -> dict[str, Sequence[Query]]:
    slowdown = pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    return {
        "power_limit_w": (
            lambda: {"power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3},
        ),
        "device_memory_bytes": (
            lambda: {"device_memory_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).total},
        ),
        "temperature_limit_c": (
            lambda: {
                "temperature_limit_c": pynvml.nvmlDeviceGetTemperatureThreshold(handle, slowdown)
            },
        ),
    }


def reasons_in_words(bits: int) -> tuple[str, ...]:
    """Return the reasons why clocks are throttled. The general hardware reason is named only
    without a more specific one.
    """
    reasons = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    if bits & pynvml.nvmlClocksEventReasonHwSlowdown and not bits & _HARDWARE_DETAILS:
        reasons.append("hardware slowdown")
    return tuple(reasons)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
