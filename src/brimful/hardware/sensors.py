"""Readers of this machine during a run: device, process, memory, disk. docs/monitor.md names the
readings.

A reader is called about once a second with the seconds since its last call, 0 the first time. It
returns readings, or raises an error.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from brimful.base.types import JsonDict, Numbers
from brimful.hardware import host, nvml
from brimful.hardware.device import Device
from brimful.hardware.process_memory import swapped_bytes, unmapped_bytes

Reader = Callable[[float], JsonDict]
POWER_FOLDER = Path("/sys/class/powercap")
CPU_CHIPS = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz"})
"""Drivers of temperature sensors on or beside a CPU, Linux's names."""


@dataclass
class Sensors:
    """The sensors of this machine.

    Attributes:
        readers: Name -> reader. One reader may return several readings.
        device: Facts about the device that trains.
        limits: Limits of the readings.
        absent: Reading -> why it is not available.
    """

    readers: dict[str, Reader] = field(default_factory=dict)
    device: JsonDict = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def sensors_of(device: Device, folder: Path) -> Sensors:
    """Return all sensors of the device that trains and of the machine around it.

    Args:
        folder: The run folder; free space of its disk is monitored.
    """
    sensors = Sensors(device={"kind": device.kind, "name": device.name})
    if device.kind == "cuda":
        with _noting_failure(sensors, "device"):
            _add_cuda(sensors, device.index or 0)
    elif device.kind == "mps":
        sensors.readers["torch memory"] = _mps_memory
        sensors.limits["device_memory_bytes"] = device.memory_bytes
    else:
        _add_cpu(sensors)
    with _noting_failure(sensors, "process"):
        sensors.readers["process"] = Process()
    with _noting_failure(sensors, "machine"):
        limits = host.control_group_limits()
        sensors.limits |= {
            "cores": host.usable_cores(limits),
            "memory_bytes": host.memory_total_bytes(limits),
        }
        sensors.readers["machine"] = Machine(limits)
    sensors.readers["disk space"] = lambda _: {"disk_free_bytes": host.disk_free_bytes(folder)}
    return sensors


@contextmanager
def _noting_failure(sensors: Sensors, name: str) -> Iterator[None]:
    """Record any error of a driver or system while its sensors are set up, and go on without it."""
    try:
        yield
    except Exception as error:
        sensors.absent[name] = f"{type(error).__name__}: {error}"


def _add_cuda(sensors: Sensors, index: int) -> None:
    properties = torch.cuda.get_device_properties(index)
    sensors.limits["device_memory_bytes"] = properties.total_memory
    sensors.readers["torch memory"] = lambda _: _cuda_memory(index)
    try:
        seen = nvml.find_device(str(properties.uuid), pci_address(properties))
    # No NVIDIA driver, an AMD device, or a driver with undocumented answers.
    except Exception as error:
        sensors.absent["NVML"] = str(error) or type(error).__name__
        sensors.readers["device memory"] = lambda _: _cuda_used(index)
        return
    sensors.device |= seen.facts
    sensors.limits |= seen.limits
    sensors.absent |= seen.absent
    for name, query in seen.queries.items():
        reader: Reader = _without_seconds(query)
        if name == "energy_j":
            reader = Counter(query, name)
        sensors.readers[name] = reader


def pci_address(properties: Any) -> str | None:
    """Return an address such as `0000:3B:00.0`; None where this torch does not have it."""
    if not hasattr(properties, "pci_bus_id"):
        return None
    domain, bus = f"{properties.pci_domain_id:04X}", f"{properties.pci_bus_id:02X}"
    return f"{domain}:{bus}:{properties.pci_device_id:02X}.0"


def _without_seconds(query: Callable[[], JsonDict]) -> Reader:
    return lambda _: query()


def _cuda_memory(index: int) -> JsonDict:
    statistics = torch.cuda.memory_stats_as_nested_dict(index)
    if not statistics:  # nothing was allocated yet
        return {}
    return {
        f"torch_{kind}_bytes": statistics[f"{kind}_bytes"]["all"]["current"]
        for kind in ("allocated", "reserved")
    }


def _cuda_used(index: int) -> JsonDict:
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    return {"device_memory_bytes": total_bytes - free_bytes}


def _mps_memory(_: float) -> JsonDict:
    held_bytes = torch.mps.driver_allocated_memory()
    return {
        "torch_allocated_bytes": torch.mps.current_allocated_memory(),
        "torch_reserved_bytes": held_bytes,
        "device_memory_bytes": held_bytes,
    }


def _add_cpu(sensors: Sensors) -> None:
    with _noting_failure(sensors, "energy_j"):
        packages = rapl_packages()
        if packages:
            sensors.readers["energy"] = PackageEnergy(packages)
        else:
            sensors.absent["energy_j"] = "no readable energy counter (RAPL) of a CPU package"
    optional: dict[str, Reader] = {"cpu_clock_mhz": _cpu_clock, "temperature_c": _cpu_temperature}
    for name, reader in optional.items():
        with _noting_failure(sensors, name):
            if name in reader(0.0):
                sensors.readers[name] = reader
            else:
                sensors.absent[name] = "psutil finds no such sensor"


def _cpu_clock(_: float) -> JsonDict:
    try:
        clock = psutil.cpu_freq()
    except (OSError, RuntimeError, AttributeError):  # also where psutil has no answer for a system
        return {}
    return {"cpu_clock_mhz": clock.current} if clock and clock.current else {}


def _cpu_temperature(_: float) -> JsonDict:
    read = getattr(psutil, "sensors_temperatures", None)  # Linux and FreeBSD have it
    chips = read() if read else {}
    degrees = [
        entry.current
        for name, entries in chips.items()
        if name in CPU_CHIPS
        for entry in entries
        if entry.current
    ]
    return {"temperature_c": max(degrees)} if degrees else {}


class Counter:
    """A counter of the driver, from the beginning of the session."""

    def __init__(self, query: Callable[[], JsonDict], name: str) -> None:
        self._query, self._name = query, name
        self._first: float | None = None

    def __call__(self, _: float) -> JsonDict:
        now = self._query()[self._name]
        # A driver that was loaded again counts from 0.
        if self._first is None or now < self._first:
            self._first = now
        return {self._name: now - self._first}


def rapl_packages(root: Path = POWER_FOLDER) -> tuple[Path, ...]:
    """Return the folders of readable energy counters of CPU packages, each package once (two
    drivers may have it).
    """
    folders: dict[str, Path] = {}
    for folder in sorted(root.glob("*")):
        try:
            name = (folder / "name").read_text().strip()
            int((folder / "energy_uj").read_text())
        except (OSError, ValueError):
            continue
        if name.startswith("package"):
            folders.setdefault(name, folder)
    return tuple(folders.values())


class PackageEnergy:
    """Energy of the CPU packages since the session began, and their mean power. Counters may
    overflow.
    """

    def __init__(self, packages: tuple[Path, ...]) -> None:
        self._packages = packages
        self._last: dict[Path, int] = {}
        self._energy_j = 0.0

    def __call__(self, seconds: float) -> JsonDict:
        spent_j = 0.0
        for folder in self._packages:
            now = int((folder / "energy_uj").read_text())
            before = self._last.get(folder, now)
            range_uj = int((folder / "max_energy_range_uj").read_text()) if now < before else 0
            spent_j += (now - before + range_uj) / 1e6
            self._last[folder] = now
        self._energy_j += spent_j
        readings = {"energy_j": self._energy_j}
        if seconds > 0:
            readings["power_w"] = spent_j / seconds
        return readings


class Process:
    """CPU time, memory and disk traffic of this process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cpu_s: float | None = None
        self._disk: tuple[int, int] | None = None

    def __call__(self, seconds: float) -> JsonDict:
        cpu_s, before_s = time.process_time(), self._cpu_s
        self._cpu_s = cpu_s
        readings: JsonDict = {
            "rss_bytes": self._process.memory_info().rss,
            "unmapped_bytes": unmapped_bytes(),
        }
        if before_s is not None and seconds > 0:
            readings["process_cpu_cores"] = (cpu_s - before_s) / seconds
        if (swapped := swapped_bytes()) is not None:
            readings["process_swap_bytes"] = swapped
        return readings | self._disk_rates(seconds)

    def _disk_rates(self, seconds: float) -> JsonDict:
        if not hasattr(self._process, "io_counters"):  # macOS
            return {}
        try:
            counted = self._process.io_counters()
        except (psutil.Error, OSError):
            return {}
        now, before = (counted.read_bytes, counted.write_bytes), self._disk
        self._disk = now
        if before is None or seconds <= 0:
            return {}
        rates = [(after - earlier) / seconds for earlier, after in zip(before, now, strict=True)]
        return dict(zip(("disk_read_bytes_per_s", "disk_write_bytes_per_s"), rates, strict=True))


class Machine:
    """All cores and the main memory, with the limits of the process's control groups.

    Args:
        limits: Limits at the beginning. If they allow all of the memory they are not read again,
            which halves the cost of a sample.
    """

    def __init__(self, limits: host.ControlGroupLimits) -> None:
        self._is_bounded = (
            limits.memory_bytes is not None and limits.memory_bytes < psutil.virtual_memory().total
        )
        self._times: tuple[float, float] | None = None

    def __call__(self, seconds: float) -> JsonDict:
        del seconds  # the cores' own clock is used
        now, before = _busy_and_all(psutil.cpu_times()), self._times
        self._times = now
        limits = host.ControlGroupLimits()
        if self._is_bounded:
            limits = host.control_group_limits()
        readings: JsonDict = {"memory_available_bytes": host.memory_free_bytes(limits)}
        if before is not None and now[1] > before[1]:
            share = (now[0] - before[0]) / (now[1] - before[1])
            readings["machine_cpu_share"] = min(1.0, max(0.0, share))
        return readings | _swap()


def _busy_and_all(times: Any) -> tuple[float, float]:
    """Return the busy CPU seconds of all cores, and all CPU seconds. The time of guests is part of
    user time; waiting for disks is not busy.
    """
    values: Numbers = times._asdict()
    everything = sum(value for name, value in values.items() if name not in ("guest", "guest_nice"))
    return everything - values["idle"] - values.get("iowait", 0.0), everything


def _swap() -> JsonDict:
    if os.name == "posix" and Path("/proc").is_dir() and not Path("/proc/vmstat").exists():
        return {}  # psutil would warn
    return {"swap_used_bytes": psutil.swap_memory().used}
