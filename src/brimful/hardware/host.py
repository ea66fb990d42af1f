"""The machine around the accelerator: cores, memory and compiler that this process may use,
container limits respected.
"""

import ctypes
import dataclasses
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from brimful.base import env
from brimful.base.units import GIB, MIB
from brimful.hardware.process_memory import give_back_free_memory

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags of native bf16 products in /proc/cpuinfo: x86 (Cooper Lake, Zen 4, AMX) and ARM (v8.6)."""

_MEMORY_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_MEMORY_V2 = ("memory.max", "memory.current", "")
"""Files of the limit and of the usage, and what keys of memory.stat begin with."""
_BRIM_SHARE, _LEAST_BRIM_BYTES, _MOST_BRIM_BYTES = 0.02, 32 * MIB, 2 * GIB
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
"""Parameters of mallopt(3)."""
_AS_ADJUSTED = {
    _M_TRIM_THRESHOLD: 64 * 1024**2,
    _M_MMAP_THRESHOLD: 32 * 1024**2,
    _M_MMAP_MAX: 65_536,
}
"""What glibc comes to by itself in a process that frees large blocks (mallopt(3), M_MMAP_THRESHOLD:
at most 32 MiB on 64 bits, and twice that to trim). Setting any of them ends that adjustment, and at
its first values, 128 KiB, an evaluation took 1.7 times as long (docs/log).
"""


@dataclasses.dataclass(frozen=True)
class ControlGroupLimits:
    """Limits that the control groups of this process set; None for no limit.

    Attributes:
        cores: CPU seconds per second.
        memory_bytes: The tightest memory limit on the way to the root group.
        memory_left_bytes: Memory left under it, reclaimable page cache included.
    """

    cores: float | None = None
    memory_bytes: int | None = None
    memory_left_bytes: int | None = None


def control_group_limits(
    own_groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> ControlGroupLimits:
    """Return the limits of this process and all groups above it, cgroup v1 and v2; no limits
    without control groups.

    Inside a container the group's path may belong to the host; then the mount's root is the
    container's own group.
    """
    try:
        lines = own_groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ControlGroupLimits()
    cores: list[float] = []
    memory: list[tuple[int, int]] = []
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        names = controllers.split(",")
        if not controllers:
            groups = _groups(mount, path)
            cores += filter(None, map(_cores_v2, groups))
            memory += filter(None, (_memory(group, *_MEMORY_V2) for group in groups))
        if "cpu" in names:
            cores += filter(None, map(_cores_v1, _groups(mount / "cpu", path)))
        if "memory" in names:
            groups = _groups(mount / "memory", path)
            memory += filter(None, (_memory(group, *_MEMORY_V1) for group in groups))
    return ControlGroupLimits(
        cores=min(cores, default=None),
        memory_bytes=min((limit for limit, _ in memory), default=None),
        memory_left_bytes=min((left for _, left in memory), default=None),
    )


def _groups(mount: Path, path: str) -> list[Path]:
    own = Path(path.lstrip("/"))
    return [mount / own, *(mount / parent for parent in own.parents if parent != own)]


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []


def _cores_v2(group: Path) -> float | None:
    match _read_words(group / "cpu.max"):
        case [quota, period] if quota != "max":
            return int(quota) / int(period)
    return None


def _cores_v1(group: Path) -> float | None:
    match _read_words(group / "cpu.cfs_quota_us"), _read_words(group / "cpu.cfs_period_us"):
        case [quota], [period] if int(quota) > 0:
            return int(quota) / int(period)
    return None


def _memory(group: Path, limit_file: str, usage_file: str, prefix: str) -> tuple[int, int] | None:
    match _read_words(group / limit_file), _read_words(group / usage_file):
        case [limit], [usage] if limit != "max":
            statistics = _read_words(group / "memory.stat")
            counted = dict(zip(statistics[::2], statistics[1::2], strict=False))
            of_files = (f"{prefix}{state}_file" for state in ("inactive", "active"))
            cached_bytes = sum(int(counted.get(key, 0)) for key in of_files)
            return int(limit), max(0, int(limit) - int(usage) + cached_bytes)
    return None


def usable_cores(limits: ControlGroupLimits) -> int:
    """Return the cores that this process may use at the same time: affinity and quota, at least
    1.
    """
    allowed = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    if limits.cores is None:
        return allowed
    return max(1, min(allowed, int(limits.cores)))


def compute_threads(limits: ControlGroupLimits) -> int:
    """Return the threads to compute with: `usable_cores`, or fewer where `OMP_NUM_THREADS` says
    so.
    """
    cores = usable_cores(limits)
    return min(cores, env.wanted_threads() or cores)


def memory_total_bytes(limits: ControlGroupLimits) -> int:
    """Return the main memory, or the control group's limit where that is lower (in an unlimited v1
    group it is a huge number).
    """
    total = psutil.virtual_memory().total
    if limits.memory_bytes is None:
        return total
    return min(total, limits.memory_bytes)


def memory_free_bytes(limits: ControlGroupLimits) -> int:
    """Return the main memory that is free without swapping, within the control group's limit."""
    available = psutil.virtual_memory().available
    if limits.memory_left_bytes is None:
        return available
    return min(available, limits.memory_left_bytes)


def brim_bytes(total_bytes: int) -> int:
    """Return how much of so much main memory a run leaves free: beyond it the system ends a
    process, or freezes where a GPU shares the memory. It is what others may take, and the run
    itself, until a checkpoint is written (assumption).
    """
    return int(min(max(_BRIM_SHARE * total_bytes, _LEAST_BRIM_BYTES), _MOST_BRIM_BYTES))


def memory_left() -> tuple[int, int]:
    """Return the bytes of main memory that are free without swapping, and all of it, both within
    the control groups of this process.
    """
    limits = control_group_limits()
    return memory_free_bytes(limits), memory_total_bytes(limits)


def cpu_name(cpu_info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name as the system gives it."""
    return _cpu_field(cpu_info, "model name") or platform.processor() or platform.machine() or "CPU"


def cpu_flags(cpu_info: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the names of the processor's instruction sets; none on other systems than Linux, which
    do not say.
    """
    flags = _cpu_field(cpu_info, "flags") or _cpu_field(cpu_info, "Features")
    return frozenset(flags.split())


def cpu_has_bf16(cpu_info: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the processor is known to have instructions for bf16 products."""
    return not BF16_FLAGS.isdisjoint(cpu_flags(cpu_info))


def _cpu_field(cpu_info: Path, key: str) -> str:
    try:
        lines = cpu_info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def cpp_compiler() -> str | None:
    """Return the path of the C++ compiler that torch.compile uses on the CPU (`CXX` first), None if
    it is not installed.
    """
    return shutil.which(
        env.cpp_compiler() or {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    )


def disk_free_bytes(folder: Path) -> int:
    """Return the free space for this user at `folder`, or at its nearest parent that exists."""
    existing = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    return shutil.disk_usage(existing).free


def nvidia_gpu_count(root: Path = Path("/")) -> int | None:
    """Return the number of NVIDIA GPUs of the driver, also of those that torch cannot see; 0 for a
    driver without a list, None without a driver.
    """
    by_driver = list((root / "proc/driver/nvidia/gpus").glob("*"))
    if by_driver:
        return len(by_driver)
    device_files = [
        path
        for path in (root / "dev").glob("nvidia*")
        if path.name.removeprefix("nvidia").isdigit()
    ]
    if device_files:
        return len(device_files)
    return 0 if (root / "proc/driver/nvidia").exists() or shutil.which("nvidia-smi") else None


def keep_freed_memory() -> None:
    """Ask glibc to keep freed memory in the process instead of giving it back to the system and
    fetching it again every step.

    Training allocates the same large tensors step after step; giving them back costs a page fault
    per 4 KiB when they return. Measured 7 to 20 % of a step's time on a CPU (docs/log). Does
    nothing where the C library is not glibc.
    """
    _set_malloc({_M_TRIM_THRESHOLD: 2**31 - 1, _M_MMAP_MAX: 0})


def stop_keeping_freed_memory() -> None:
    """End what `keep_freed_memory` began, and give the freed memory back to the system.

    Loading a model with kept memory holds far more than the model: objects settle behind freed
    tensors, whose places are then too small for the next ones (`planning.host_heap`). QLoRA of 490M
    parameters held 4.8 GiB in a process that had trained before (docs/log).
    """
    _set_malloc(_AS_ADJUSTED)
    give_back_free_memory()


def _set_malloc(parameters: Mapping[int, int]) -> None:
    """Set parameters of the C library's allocator; nothing where that is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for parameter, value in parameters.items():
            mallopt(parameter, value)
