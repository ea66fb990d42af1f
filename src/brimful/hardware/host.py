"""The machine around the accelerator: cores, memory and compiler that this process may use,
container limits respected.
"""

import ctypes
import dataclasses
import os
import platform
import shutil
import sys
from pathlib import Path

import psutil

from brimful.base import env

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""What /proc/cpuinfo calls native bf16 products: x86 (Cooper Lake, Zen 4, AMX) and ARM (v8.6)."""

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3)."""


@dataclasses.dataclass(frozen=True)
class ControlGroupLimits:
    """What the control groups of this process allow; None where they set no limit.

    Attributes:
        cores: CPU seconds per second.
        memory_bytes: The tightest memory limit on the way to the root group.
        memory_left_bytes: What is left under it, page cache that can be dropped counted as left.
    """

    cores: float | None = None
    memory_bytes: int | None = None
    memory_left_bytes: int | None = None


def control_group_limits(
    own_groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> ControlGroupLimits:
    """Limits of this process and all groups above it, cgroup v1 and v2. No limits where there are
    no control groups.

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
            cores += [quota for group in groups if (quota := _cores_v2(group)) is not None]
            memory += [
                pair
                for group in groups
                if (pair := _memory(group, "memory.max", "memory.current", "inactive_file"))
                is not None
            ]
        if "cpu" in names:
            cores += [
                quota
                for group in _groups(mount / "cpu", path)
                if (quota := _cores_v1(group)) is not None
            ]
        if "memory" in names:
            v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            memory += [
                pair
                for group in _groups(mount / "memory", path)
                if (pair := _memory(group, *v1)) is not None
            ]
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


def _memory(
    group: Path, limit_file: str, usage_file: str, droppable_key: str
) -> tuple[int, int] | None:
    match _read_words(group / limit_file), _read_words(group / usage_file):
        case [limit], [usage] if limit != "max":
            statistics = _read_words(group / "memory.stat")
            droppable = dict(zip(statistics[::2], statistics[1::2], strict=False)).get(
                droppable_key, "0"
            )
            return int(limit), max(0, int(limit) - int(usage) + int(droppable))
    return None


def usable_cores(limits: ControlGroupLimits) -> int:
    """Cores this process may run on at the same time: affinity mask and quota, at least 1."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return allowed if limits.cores is None else max(1, min(allowed, int(limits.cores)))


def memory_total_bytes(limits: ControlGroupLimits) -> int:
    """Main memory, or the control group's limit where that is lower (an unlimited v1 group holds a
    huge number).
    """
    total = psutil.virtual_memory().total
    return total if limits.memory_bytes is None else min(total, limits.memory_bytes)


def memory_free_bytes(limits: ControlGroupLimits) -> int:
    """Main memory that can be had without swapping, within the control group's limit."""
    available = psutil.virtual_memory().available
    return (
        available if limits.memory_left_bytes is None else min(available, limits.memory_left_bytes)
    )


def cpu_name(cpu_info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as the system gives it."""
    return _cpu_field(cpu_info, "model name") or platform.processor() or platform.machine() or "CPU"


def cpu_has_bf16(cpu_info: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor lists bf16 products among its instructions. False where the system does
    not tell (not Linux).
    """
    flags = _cpu_field(cpu_info, "flags") or _cpu_field(cpu_info, "Features")
    return not BF16_FLAGS.isdisjoint(flags.split())


def _cpu_field(cpu_info: Path, key: str) -> str:
    try:
        lines = cpu_info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next(
        (
            value.strip()
            for name, _, value in (line.partition(":") for line in lines)
            if name.strip() == key
        ),
        "",
    )


def cpp_compiler() -> str | None:
    """Path of the C++ compiler that torch.compile looks for on the CPU (`CXX` first), None when it
    is not installed.
    """
    return shutil.which(
        env.cpp_compiler() or {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    )


def disk_free_bytes(folder: Path) -> int:
    """Room for this user's files at `folder`, or at its nearest parent that exists."""
    existing = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    return shutil.disk_usage(existing).free


def nvidia_gpu_count(root: Path = Path("/")) -> int | None:
    """NVIDIA GPUs the driver shows in this system, whatever torch can see; 0 where there is a
    driver but no list, None without a driver.
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
    per 4 KiB when they return. Measured 7 to 20 % of a step's time on a CPU (docs/log.md). Does
    nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_MMAP_MAX, 0)
