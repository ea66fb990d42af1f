"""The doctor: this machine's hardware, its abilities, and warnings about it. `examine` measures;
all other functions depend on its result only.
"""

import dataclasses
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from brimful.base import env, libraries
from brimful.base.errors import DeviceError
from brimful.base.libraries import version_of
from brimful.base.text import reason_of
from brimful.base.types import JsonDict, Texts
from brimful.base.units import GIB, format_bytes, format_count
from brimful.base.warning_codes import coded
from brimful.hardware import host, probe
from brimful.hardware.device import Device

PACKAGES: Texts = {
    "torch": "needed",
    "transformers": "needed",
    "tokenizers": "needed",
    "datasets": "needed",
    "peft": "for adapters (LoRA)",
    "bitsandbytes": "for 4-bit weights and 8-bit optimizers",
    "triton": "for torch.compile on GPUs",
}
LITTLE_DISK_BYTES = 5 * GIB
"""Warn below this: two checkpoints and the best one of a 124M model with AdamW states in fp32 take
4.5 GB.
"""
LITTLE_MEMORY_BYTES = 2 * GIB
"""Warn below this: Python with torch, transformers and datasets takes 0.4 GiB before the first
tensor (measured, CPU build), in addition to data, weights and the page cache of checkpoints.
"""
BUSY_SHARE = 0.2
"""Share of a GPU's memory above which another program than the desktop uses it."""
FIRST_CAPABILITY_OF_CUDA_13 = (7, 5)
"""torch's CUDA 12.8 wheels dropped older GPUs in 2.11, and the cu126 wheels, which have them, end
with torch 2.14 (pytorch/pytorch#172352, #190385; pytorch/test-infra#8739).
"""


@dataclasses.dataclass(frozen=True)
class Consequence:
    """An ability of a device, whether it has it, and what that means for training."""

    ability: str
    has: bool
    meaning: str


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """Everything that the doctor looked at, as plain values.

    Attributes:
        system: Operating system and processor architecture.
        devices: All devices of the machine, the CPU last.
        selected: The one a run would use; None when it cannot be used.
        selection_problem: Why it cannot.
        cores: CPU cores this process may use.
        memory_bytes: Main memory this process may use.
        free_memory_bytes: The part of it that is free now.
        folder: Where runs would be written.
        disk_free_bytes: Room there.
        versions: Package to version, None where it is not installed; "python" too.
        torch_backend: What torch was built with, "CUDA 12.6" or "ROCm 6.4"; None for a CPU or MPS
            build.
        built_for: GPU generations this torch has code for.
        driver_gpu_count: NVIDIA GPUs the driver shows; None without a driver.
        driver_problem: Why torch cannot use the driver, in torch's words.
        visible_devices: The value of CUDA_VISIBLE_DEVICES, None when not set.
        untried: Libraries in versions that brimful was not tried with, a sentence each.
        misfits: Libraries that do not fit each other, a sentence each.
        compiler: Path of the C++ compiler torch.compile would use on the CPU.
        quick_replays: Whether what plans replay in C was built when brimful was installed.
    """

    system: str
    devices: tuple[Device, ...]
    selected: Device | None
    selection_problem: str | None
    cores: int
    memory_bytes: int
    free_memory_bytes: int
    folder: str
    disk_free_bytes: int
    versions: Mapping[str, str | None] = dataclasses.field(hash=False)
    torch_backend: str | None
    built_for: tuple[str, ...]
    driver_gpu_count: int | None
    driver_problem: str | None
    visible_devices: str | None
    compiler: str | None
    quick_replays: bool
    untried: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()

    @property
    def consequences(self) -> tuple[Consequence, ...]:
        return () if self.selected is None else consequences_of(self.selected)

    @property
    def warnings(self) -> tuple[str, ...]:
        return warnings_of(self)

    def to_json(self) -> JsonDict:
        """Plain values for JSON, consequences and warnings included."""
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "devices": [device.to_json() for device in self.devices],
            "selected": self.selected.to_json() if self.selected else None,
            "versions": dict(self.versions),
            "built_for": list(self.built_for),
            "consequences": [dataclasses.asdict(consequence) for consequence in self.consequences],
            "warnings": list(self.warnings),
        }


def examine(folder: Path, quick_replays: bool) -> Diagnosis:
    """Look at this machine. Nothing is changed; on CUDA devices a context is made to read the free
    memory.

    Args:
        folder: Where runs would be written; need not exist.
        quick_replays: As in `Diagnosis`.
    """
    driver_problem = _driver_problem()
    selected, selection_problem = _select()
    limits = host.control_group_limits()
    return Diagnosis(
        system=platform.platform(),
        devices=probe.devices_here(),
        selected=selected,
        selection_problem=selection_problem,
        cores=host.usable_cores(limits),
        memory_bytes=host.memory_total_bytes(limits),
        free_memory_bytes=host.memory_free_bytes(limits),
        folder=str(folder.absolute()),
        disk_free_bytes=host.disk_free_bytes(folder),
        versions={
            "python": platform.python_version(),
            **{name: version_of(name) for name in PACKAGES},
        },
        torch_backend=_torch_backend(),
        built_for=probe.build_architectures(),
        driver_gpu_count=host.nvidia_gpu_count(),
        driver_problem=driver_problem,
        visible_devices=env.visible_cuda_devices(),
        compiler=host.cpp_compiler(),
        quick_replays=quick_replays,
        untried=tuple(libraries.untried()),
        misfits=tuple(sentence for _, sentence in libraries.misfits()),
    )


def _select() -> tuple[Device | None, str | None]:
    """Return the device that a run would be given; where it cannot be used, why."""
    try:
        return probe.probe(), None
    except DeviceError as error:
        return None, str(error)


def _torch_backend() -> str | None:
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else None


def _driver_problem() -> str | None:
    """Return torch's message if it cannot start CUDA; None if it can, and for builds without
    CUDA.
    """
    if _torch_backend() is None or probe.cuda_count():
        return None
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return reason_of(error)
    return None


_TF32_MEANING = {
    True: "fp32 matrix products may run in TF32: faster, with 10 bits of mantissa",
    False: "fp32 products run in full fp32",
}
_FP8_MEANING = {
    True: "8-bit units are there; no recipe uses them by itself",
    False: "no 8-bit floating-point units",
}


def consequences_of(device: Device) -> tuple[Consequence, ...]:
    """Return what the abilities of `device` mean for training on it."""
    abilities = device.abilities
    meanings = {
        "bf16": _bf16_meaning(device),
        "fp16": _fp16_meaning(device),
        "tf32": _TF32_MEANING[abilities.tf32],
        "flash_attention": _attention_meaning(device),
        "fp8": _FP8_MEANING[abilities.fp8],
        "compile": _compile_meaning(device),
    }
    return tuple(
        Consequence(name, getattr(abilities, name), meaning) for name, meaning in meanings.items()
    )


def _bf16_meaning(device: Device) -> str:
    if device.abilities.bf16:
        return "matrix products run in bf16 natively; no loss scaling needed"
    if device.kind == "cpu":
        return "no bf16 instructions found: fp32, unless bf16 is measured to be faster"
    if device.abilities.fp16:
        return "no bf16 units, only emulation; fp16 takes its place"
    return "no bf16 units, only emulation"


def _fp16_meaning(device: Device) -> str:
    abilities = device.abilities
    if abilities.fp16 and abilities.bf16:
        return "works with loss scaling; bf16 is the safer choice"
    if abilities.fp16:
        return "train in fp16 with loss scaling; master weights stay fp32"
    if device.kind == "cpu":
        return "unusably slow without fp16 instructions"
    return "no fp16 matrix units: train in fp32"


def _attention_meaning(device: Device) -> str:
    if device.abilities.flash_attention:
        kernel = "fused CPU kernel" if device.kind == "cpu" else "flash kernel"
        return (
            f"scaled-dot-product attention has a {kernel}: memory grows linearly with the sequence"
        )
    if device.kind == "cuda" and device.compute_capability is not None:
        return (
            "no flash kernel; the memory-efficient one takes its place: memory grows linearly too,"
            " at less speed"
        )
    return "no flash kernel: attention memory may grow with the square of the sequence"


def _compile_meaning(device: Device) -> str:
    match device.kind, device.abilities.compile:
        case "cpu", True:
            return "torch.compile has a C++ compiler"
        case "cpu", False:
            return "torch.compile needs a C++ compiler, and none was found"
        case _, True:
            return "torch.compile can generate Triton kernels"
        case "mps", False:
            return "torch.compile for MPS is a prototype: not used"
    return "Triton does not generate code for this GPU: runs eagerly"


def warnings_of(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return warnings about present and coming problems, each with what to do."""
    return tuple(coded(code, text) for code, check in _CHECKS.items() for text in check(diagnosis))


def _selection(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.selection_problem is not None:
        yield diagnosis.selection_problem


def _gpus(diagnosis: Diagnosis) -> list[Device]:
    return [device for device in diagnosis.devices if device.kind == "cuda"]


def _label(device: Device) -> str:
    return f"{device.name} (cuda:{device.index})" if device.index is not None else device.name


def _torch_build(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.driver_gpu_count is None or _gpus(diagnosis):
        return
    torch_version = diagnosis.versions.get("torch")
    if diagnosis.torch_backend is None:
        yield (
            f"An NVIDIA driver is installed, but torch {torch_version} is built without CUDA:"
            " training would run on the CPU. Install a CUDA build, see"
            " https://pytorch.org/get-started/locally/."
        )
    elif diagnosis.driver_problem and diagnosis.visible_devices is None:
        yield (
            f"An NVIDIA driver is installed, but torch {torch_version} ({diagnosis.torch_backend})"
            f" cannot use it: {diagnosis.driver_problem} Update the driver, or install a torch"
            " built with an older CUDA."
        )


def _hidden_gpus(diagnosis: Diagnosis) -> Iterator[str]:
    if (
        diagnosis.torch_backend is None
        or diagnosis.visible_devices is None
        or diagnosis.driver_gpu_count is None
    ):
        return
    seen, there = len(_gpus(diagnosis)), diagnosis.driver_gpu_count
    if seen < max(there, 1):
        number = f"{there - seen} of {there} GPUs" if there else "all GPUs"
        yield (
            f"CUDA_VISIBLE_DEVICES={diagnosis.visible_devices!r} hides {number}. Unset it, or set"
            " it to the numbers you mean, to use them."
        )


def _older_gpu(diagnosis: Diagnosis) -> Iterator[str]:
    selected = diagnosis.selected
    if selected is None:
        return
    for other in _gpus(diagnosis):
        if not probe.is_built_for(other, diagnosis.built_for):
            continue
        if (other.compute_capability or (0, 0)) > (selected.compute_capability or (0, 0)):
            yield (
                f"{_label(selected)} is selected, not {_label(other)}:"
                f" {probe.architecture_name(selected)} instead of {probe.architecture_name(other)}."
                f" Choose with plan.device=cuda:{other.index}."
            )


def _generations(diagnosis: Diagnosis) -> Iterator[str]:
    built = ", ".join(diagnosis.built_for)
    for device in _gpus(diagnosis):
        capability = device.compute_capability
        is_old = capability is not None and capability < FIRST_CAPABILITY_OF_CUDA_13
        install = 'pip install "torch<2.15" --index-url https://download.pytorch.org/whl/cu126'
        if not probe.is_built_for(device, diagnosis.built_for):
            remedy = (
                "It needs a newer CUDA or ROCm build, see https://pytorch.org/get-started/locally/."
            )
            if is_old:
                remedy = f"It needs: {install}."
            name = f"{_label(device)} ({probe.architecture_name(device)})"
            yield (
                f"torch {diagnosis.versions.get('torch')} has no code for {name}; it was built for"
                f" {built}. {remedy}"
            )
        elif is_old:
            yield (
                f"{_label(device)} ({probe.architecture_name(device)}) loses its torch wheels after"
                " torch 2.14: only the CUDA 12.6 ones carry it, and they end there. Pin it:"
                f" {install}."
            )


def _precision(diagnosis: Diagnosis) -> Iterator[str]:
    selected = diagnosis.selected
    if selected is None or selected.kind != "cuda" or selected.abilities.bf16:
        return
    instead = "training runs in fp32"
    if selected.abilities.fp16:
        instead = "training runs in fp16 with loss scaling"
    yield (
        f"{_label(selected)} has no bf16: {instead}. Code that asks torch.cuda.is_bf16_supported()"
        " is told yes, because it emulates."
    )


def _busy_gpu(diagnosis: Diagnosis) -> Iterator[str]:
    device = diagnosis.selected
    if device is None or device.kind != "cuda" or device.free_memory_bytes is None:
        return
    used_bytes = device.memory_bytes - device.free_memory_bytes
    if used_bytes > BUSY_SHARE * device.memory_bytes:
        yield (
            f"{format_bytes(used_bytes)} of the {format_bytes(device.memory_bytes)} of"
            f" {_label(device)} are taken, mostly by other programs. See nvidia-smi; stop them, or"
            " choose another device."
        )


def _room(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.disk_free_bytes < LITTLE_DISK_BYTES:
        yield (
            f"Only {format_bytes(diagnosis.disk_free_bytes)} of disk are free at"
            f" {diagnosis.folder}: checkpoints may not fit. Free some, or write elsewhere with"
            " run.folder=FOLDER."
        )
    if diagnosis.free_memory_bytes < LITTLE_MEMORY_BYTES:
        yield (
            f"Only {format_bytes(diagnosis.free_memory_bytes)} of main memory are free: loading"
            " libraries and data is tight. Close other programs."
        )


def _software(diagnosis: Diagnosis) -> Iterator[str]:
    missing = [
        name
        for name, purpose in PACKAGES.items()
        if purpose == "needed" and diagnosis.versions.get(name) is None
    ]
    if missing:
        yield (
            f"Not installed, but needed: {', '.join(missing)}. Install with pip install"
            f" {' '.join(missing)}."
        )
    if (
        diagnosis.selected is not None
        and diagnosis.selected.kind == "cpu"
        and diagnosis.compiler is None
    ):
        yield (
            "No C++ compiler was found, so torch.compile cannot be used on the CPU. Install g++"
            " (Debian, Ubuntu: apt install g++)."
        )
    if not diagnosis.quick_replays:
        yield (
            "The part of brimful that is written in C was not built when it was installed: plans"
            " are the same, but take longer. Install a C compiler (Debian, Ubuntu: apt install gcc"
            " python3-dev), then brimful again, as before, with --force-reinstall --no-deps."
        )


_CHECKS: Mapping[str, Callable[[Diagnosis], Iterator[str]]] = {
    "B401": _selection,
    "B402": _torch_build,
    "B403": _hidden_gpus,
    "B404": _older_gpu,
    "B405": _generations,
    "B406": _precision,
    "B407": _busy_gpu,
    "B408": _room,
    "B409": _software,
    "B410": lambda diagnosis: iter(diagnosis.misfits),
    "B411": lambda diagnosis: iter(diagnosis.untried),
}
"""Checks by the code of what they warn about."""


def render(diagnosis: Diagnosis) -> RenderableType:
    """Return the diagnosis for a terminal, with the warnings last."""
    parts: list[RenderableType] = [
        Text(f"{diagnosis.system}, {diagnosis.cores} cores"),
        Text(
            f"Memory  {format_bytes(diagnosis.memory_bytes)},"
            f" {format_bytes(diagnosis.free_memory_bytes)} free"
        ),
        Text(f"Disk    {format_bytes(diagnosis.disk_free_bytes)} free at {diagnosis.folder}"),
        Text(""),
        _device_table(diagnosis),
    ]
    if diagnosis.selected is not None:
        parts += [
            Text(""),
            _consequence_table(diagnosis.selected),
            Text(f"  {diagnosis.selected.source}", style="dim"),
        ]
    parts += [Text(""), _version_table(diagnosis), Text("")]
    parts += [Text(f"! {warning}", style="yellow") for warning in diagnosis.warnings] or [
        Text("Nothing to warn about.", style="green")
    ]
    return Group(*parts)


def _device_table(diagnosis: Diagnosis) -> Table:
    table = Table(
        "",
        "device",
        "memory",
        "free",
        "generation",
        "peak rates (FLOP/s)",
        box=None,
        pad_edge=False,
    )
    for device in diagnosis.devices:
        is_selected = diagnosis.selected is not None and (device.kind, device.index) == (
            diagnosis.selected.kind,
            diagnosis.selected.index,
        )
        free = "unknown"
        if device.free_memory_bytes is not None:
            free = format_bytes(device.free_memory_bytes)
        rates = "  ".join(
            f"{dtype} {format_count(rate)}" for dtype, rate in device.dense_flop_per_s.items()
        )
        generation = probe.architecture_name(device) or device.kind
        table.add_row(
            "→" if is_selected else "",
            _label(device),
            format_bytes(device.memory_bytes),
            free,
            generation,
            rates or "not measured",
        )
    return table


def _consequence_table(device: Device) -> Table:
    table = Table(
        title=f"What {_label(device)} can do",
        title_justify="left",
        box=None,
        show_header=False,
        pad_edge=False,
    )
    for consequence in consequences_of(device):
        table.add_row(
            consequence.ability.replace("_", " "),
            "yes" if consequence.has else "no",
            consequence.meaning,
        )
    return table


def _version_table(diagnosis: Diagnosis) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, version in diagnosis.versions.items():
        note = ""
        if name == "torch" and diagnosis.torch_backend:
            note = f"built with {diagnosis.torch_backend}"
        elif name == "torch":
            note = "built without CUDA"
        elif version is None:
            note = PACKAGES.get(name, "")
        table.add_row(name, version or "not installed", note)
    return table
