"""Show in a notebook which device this is, and what a recipe needs on it and on others. Plans are
made by `brimful plan` in a process of its own.
"""

import functools
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import psutil
import pynvml

from brimful.base.env import notebook_is_small
from brimful.base.units import format_bytes
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.notebook.cell import require_notebook, show
from brimful.notebook.pages import Page, framed, pages_of
from brimful.notebook.panel import BOX
from brimful.recipe import load

COMPARED = (
    "Tesla T4",
    "NVIDIA L4",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H200",
)
"""What Colab, Kaggle and rented machines offer, from small to large."""
HEIGHT_PX = 560
"""Height of the frame that a plan is shown in."""
NO_GPU = (
    "no GPU here. In Colab: Runtime > Change runtime type; on Kaggle: Settings > Accelerator."
    " Planning needs none."
)


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver names it. Asking for it does not use it.

    Attributes:
        known: Its row of the catalog; None where there is none.
    """

    name: str
    memory_bytes: int
    used_bytes: int
    known: Device | None

    def describe(self) -> str:
        """Return the GPU, its memory and its abilities in a sentence."""
        free = format_bytes(self.memory_bytes - self.used_bytes)
        memory = f"{self.name}, {format_bytes(self.memory_bytes)}, {free} of it free"
        if self.known is None:
            return (
                f"{memory}; the catalog has no such GPU, so times are not predicted until"
                " `brimful calibrate` measured it"
            )
        if self.known.abilities.bf16:
            return f"{memory}; computes in bf16"
        return f"{memory}; has no bf16: brimful computes in fp16 with loss scaling, or in fp32"


def gpu(recipe: str | Path | None = None, *overrides: str, on: Sequence[str] | None = None) -> None:
    """Show which device this is; with a recipe, also what that needs here and on other devices, so
    that you know which one to choose.

    Args:
        recipe: A shipped recipe's name or a .yaml file.
        overrides: `key=value` changes.
        on: Exact names of the devices to compare with; `brimful plan RECIPE --on all` lists them.
            Default: `COMPARED`, none of them with BRIMFUL_NOTEBOOK=small.

    Raises:
        RecipeError, CommandFailed: the recipe breaks a rule, or no plan can be made; with the
            reason.
    """
    require_notebook()
    lines = [each.describe() for each in gpus()] or [f"{_machine()}; {NO_GPU}"]
    html = "".join(f"<div><b>This machine</b> · {escape(line)}</div>" for line in lines)
    if recipe is not None:
        _pages.cache_clear()
        page = plan_pages(recipe, overrides, on)[0]
        html += framed(page.html, "plans", HEIGHT_PX)
        lines.append(page.text)
    show(f'<div style="{BOX};max-width:none">{html}</div>', "\n".join(lines))


def plan(recipe: str | Path, *overrides: str, on: Sequence[str] | None = None) -> None:
    """Show how a recipe would run on this device: memory term by term, every choice with its
    reason, time, energy and cost.

    Args:
        recipe, overrides, on: See `gpu`; plans that it made are not made again.

    Raises:
        RecipeError, CommandFailed: see `gpu`.
    """
    require_notebook()
    page = plan_pages(recipe, overrides, on)[1]
    show(framed(page.html, "plan", HEIGHT_PX), page.text)


def gpus() -> list[Gpu]:
    """NVIDIA's GPUs by the driver's count; none without a driver. Makes no CUDA context, which
    would take memory from the training.
    """
    try:
        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return [_gpu(handle) for handle in handles]
    except pynvml.NVMLError:
        return []


def _gpu(handle: Any) -> Gpu:
    name, memory = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetMemoryInfo(handle)
    name = name.decode() if isinstance(name, bytes) else str(name)
    return Gpu(name, int(memory.total), int(memory.used), catalog.find(name))


def _machine() -> str:
    return (
        f"{platform.system()} {platform.machine()}, {psutil.cpu_count()} CPU threads,"
        f" {format_bytes(psutil.virtual_memory().total)} of memory"
    )


def plan_pages(
    recipe: str | Path, overrides: Sequence[str], on: Sequence[str] | None = None
) -> list[Page]:
    """Return the pages of `device_plans` for this device, which comes first, and for the others.

    Raises:
        RecipeError, CommandFailed: see `gpu`.
    """
    # A recipe that breaks a rule is refused at once.
    load(str(recipe), list(overrides))
    if on is None:
        on = () if notebook_is_small() else COMPARED
    return _pages(",".join(["here", *on]), str(recipe), *overrides)


@functools.lru_cache(maxsize=4)
def _pages(*arguments: str) -> list[Page]:
    return pages_of("brimful.notebook.device_plans", arguments)
