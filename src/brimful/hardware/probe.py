"""The devices of this machine: torch's facts, the free memory now, and the catalog's rates for a
known name.
"""

import dataclasses
import multiprocessing
import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import Tensor

from brimful.base.errors import DeviceError
from brimful.base.text import reason_of
from brimful.base.units import format_bytes
from brimful.hardware import catalog, host
from brimful.hardware.device import Device, abilities_of

SAME_CARD_TOLERANCE = 0.1
"""Largest difference in memory from the catalog row of the same name. Some names stand for cards
with several memory sizes and bandwidths (RTX 3080 with 10 and 12 GB); error correction takes 7 %.
"""


def probe(choice: str = "auto") -> Device:
    """Return the device to use, measured now.

    Args:
        choice: "auto" (the CUDA device with the most memory that this torch can use, else MPS, else
            the CPU), "cuda" (the current CUDA device), "cuda:N", "mps" or "cpu".

    Raises:
        DeviceError: not one of these, not on this machine, or not usable by this build of torch.
    """
    if choice == "auto":
        return _best()
    if choice == "cpu":
        return cpu_device()
    if choice == "mps":
        if not torch.backends.mps.is_available():
            raise DeviceError(f"device mps is not on this machine. {_what_there_is()}")
        return _mps_device()
    match = re.fullmatch(r"cuda(?::(\d+))?", choice)
    if not match:
        raise DeviceError(
            f"unknown device {choice!r}: write auto, cpu, cuda, cuda:N or mps. {_what_there_is()}"
        )
    count = cuda_count()
    if not count:
        raise DeviceError(f"device {choice} is not on this machine. {_what_there_is()}")
    index = torch.cuda.current_device() if match[1] is None else int(match[1])
    if index >= count:
        raise DeviceError(
            f"device {choice} is not on this machine: CUDA devices are numbered 0 to {count - 1}."
            f" {_what_there_is()}"
        )
    device = cuda_device(index)
    if not is_built_for(device, build_architectures()):
        raise DeviceError(
            f"this build of torch ({torch.__version__}) has no code for {device.name}"
            f" ({architecture_name(device)}); it was built for {', '.join(build_architectures())}."
            " Install a build that has: `brimful doctor` says which."
        )
    return device


def probe_elsewhere(choice: str = "auto") -> Device:
    """Probe in a process that ends: a CUDA context of this one would take half a gigabyte of the
    device, as long as it lives. Arguments and errors as of `probe`.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        return other.submit(probe, choice).result()


def devices_here() -> tuple[Device, ...]:
    """Return all devices of this machine: CUDA devices by number, MPS, and the CPU last. The free
    memory of a device that cannot be used is None.
    """
    accelerators = [_cuda_if_it_answers(index) for index in range(cuda_count())]
    if torch.backends.mps.is_available():
        accelerators.append(_mps_device())
    return (*accelerators, cpu_device())


def torch_device(device: Device) -> torch.device:
    """Return the torch.device for tensors.

    Raises:
        DeviceError: `device` is a catalog row, not a device of this machine.
    """
    if device.kind == "cpu":
        return torch.device("cpu")
    if not device.is_present:
        raise DeviceError(
            f"{device.name!r} is a row of the catalog, to plan with; nothing can run on it here."
            f" {_what_there_is()}"
        )
    return torch.device(device.kind if device.index is None else f"{device.kind}:{device.index}")


def cuda_count() -> int:
    """Return the number of CUDA devices that torch can see, without warnings: the doctor reports
    those of the driver.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def build_architectures() -> tuple[str, ...]:
    """Return the GPU generations that this build of torch has code for, such as "sm_80" or
    "gfx942"; none in CPU builds.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(torch.cuda.get_arch_list())


def architecture_name(device: Device) -> str:
    """Return the generation of a CUDA device in compilers' notation, such as "sm_75" or "gfx942";
    empty for other devices.
    """
    if device.compute_capability is not None:
        return "sm_{}{}".format(*device.compute_capability)
    return device.architecture or ""


def is_built_for(device: Device, built: Sequence[str]) -> bool:
    """Return whether code for `built` runs on `device`; True for builds that do not say, and for
    devices without a generation.

    Binary code runs on its own major version from its minor version on; PTX ("compute_90") on
    anything newer; code with a letter ("sm_90a") on exactly its version ("f": its family). Source:
    CUDA programming guide, application compatibility.
    """
    if device.kind != "cuda" or not built:
        return True
    if device.compute_capability is None:
        return device.architecture is None or device.architecture in {
            name.split(":")[0] for name in built
        }
    return any(_runs_on(name, device.compute_capability) for name in built)


def _runs_on(built: str, capability: tuple[int, int]) -> bool:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", built)
    if not match:
        return False
    version = int(match[2]), int(match[3])
    if match[4] == "a":
        return capability == version
    if match[1] == "compute" and not match[4]:
        return capability >= version
    return capability[0] == version[0] and capability >= version


def _best() -> Device:
    built = build_architectures()
    usable = [
        device
        for device in map(_cuda_without_free_memory, range(cuda_count()))
        if is_built_for(device, built)
    ]
    if usable:
        best = max(usable, key=_rank)
        return cuda_device(best.index or 0)
    return _mps_device() if torch.backends.mps.is_available() else cpu_device()


def _rank(device: Device) -> tuple[int, tuple[int, int], int]:
    """Return a key that is larger for better devices: memory, generation, then the lower number."""
    return device.memory_bytes, device.compute_capability or (0, 0), -(device.index or 0)


def cuda_device(index: int) -> Device:
    """Return CUDA device number `index` with its free memory now. This makes a CUDA context on it.

    Raises:
        DeviceError: the driver refuses, for example because another process holds the device
            exclusively.
    """
    device = _cuda_without_free_memory(index)
    try:
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        reason = reason_of(error)
        raise DeviceError(
            f"cuda:{index} ({device.name}) cannot be used: {reason}. Another process may hold it;"
            " see nvidia-smi, or choose another device."
        ) from error
    if device.shares_memory:  # the driver counts page cache as taken
        free_bytes = host.memory_free_bytes(host.control_group_limits())
    return dataclasses.replace(device, free_memory_bytes=free_bytes, memory_bytes=total_bytes)


def _cuda_if_it_answers(index: int) -> Device:
    try:
        return cuda_device(index)
    except DeviceError:
        return _cuda_without_free_memory(index)


def _cuda_without_free_memory(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    architecture = str(properties.gcnArchName).split(":")[0] if torch.version.hip else None
    capability = None if architecture else (int(properties.major), int(properties.minor))
    device = Device(
        name=properties.name,
        kind="cuda",
        index=index,
        memory_bytes=properties.total_memory,
        compute_capability=capability,
        abilities=abilities_of("cuda", capability, architecture),
        source="measured on this machine",
        architecture=architecture,
        multiprocessors=properties.multi_processor_count,
        shares_memory=bool(properties.is_integrated),
    )
    return _with_catalog_rates(device)


def _with_catalog_rates(device: Device) -> Device:
    row, reason = catalog.find(device.name), ""
    if row is None:
        reason = f"the catalog has no {device.name!r}"
    elif (
        device.kind == "cuda"
        and abs(row.memory_bytes / device.memory_bytes - 1) > SAME_CARD_TOLERANCE
    ):
        reason = (
            f"the catalog's {row.name!r} has {format_bytes(row.memory_bytes)}, this one"
            f" {format_bytes(device.memory_bytes)}"
        )
    if row is None or reason:
        return dataclasses.replace(
            device, source=f"{device.source}; {reason}, so its rates are unknown until measured"
        )
    return dataclasses.replace(
        device,
        bandwidth_bytes_per_s=row.bandwidth_bytes_per_s,
        dense_flop_per_s=row.dense_flop_per_s,
        source=f"{device.source}; rates and bandwidth: {row.source}",
        uncertain=tuple(doubt for doubt in row.uncertain if not doubt.startswith("memory")),
    )


def _mps_device() -> Device:
    memory_bytes = torch.mps.recommended_max_memory()
    device = Device(
        name=torch.backends.mps.get_name(),
        kind="mps",
        memory_bytes=memory_bytes,
        free_memory_bytes=min(
            max(0, memory_bytes - torch.mps.driver_allocated_memory()),
            host.memory_free_bytes(host.ControlGroupLimits()),
        ),
        abilities=abilities_of("mps", None),
        source="measured on this machine",
        shares_memory=True,
    )
    return _with_catalog_rates(device)


def cpu_device() -> Device:
    """Return the CPU with the cores and memory that this process may use. Its rates are unknown
    until measured.
    """
    limits = host.control_group_limits()
    abilities = dataclasses.replace(
        abilities_of("cpu", None), bf16=host.cpu_has_bf16(), compile=host.cpp_compiler() is not None
    )
    return Device(
        name=host.cpu_name(),
        kind="cpu",
        memory_bytes=host.memory_total_bytes(limits),
        free_memory_bytes=host.memory_free_bytes(limits),
        abilities=abilities,
        threads=host.compute_threads(limits),
        source="measured on this machine",
    )


def _what_there_is() -> str:
    here = [
        f"cuda:{index} ({torch.cuda.get_device_properties(index).name})"
        for index in range(cuda_count())
    ]
    if torch.backends.mps.is_available():
        here.append("mps")
    hint = ""
    if not (torch.version.cuda or torch.version.hip or here):
        hint = f" torch {torch.__version__} is built without CUDA."
    return f"Here: {', '.join([*here, 'cpu'])}.{hint}"


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the CPU on a device; pinned and asynchronous where that is CUDA."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
