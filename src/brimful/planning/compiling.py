"""What compiling is expected to cost: much where Inductor has to make the kernels of a step, little
where an earlier run left them in its cache. No torch.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

from brimful.base.env import cache_folder, compiler_cache_folder
from brimful.base.version import version_of
from brimful.recipe import Recipe

COLD_S = (7.0, 30.0, 60.0)
"""Low, expected and high seconds of compiling where nothing was compiled before. All blocks share
one graph, so the number of blocks does not matter. Measured on a CPU: 39 s of CPU time, 29 of them
in compilers that run side by side (docs/log); high is an assumption for GPUs that tune their
kernels.
"""
WARM_S = (4.0, 8.0, 20.0)
"""The same where a run compiled these blocks before: 8 s measured on a CPU (docs/log); low and high
are assumptions.
"""


def compile_s(recipe: Recipe, device: str, precision: str) -> tuple[float, float, float]:
    """Return the low, expected and high seconds that compiling a recipe's step takes on a device of
    this name.
    """
    is_kept = _mark(recipe, device, precision).exists() and compiler_cache_folder().exists()
    return WARM_S if is_kept else COLD_S


def note_compiled(recipe: Recipe, device: str, precision: str) -> None:
    """Remember that a run compiled its step."""
    mark = _mark(recipe, device, precision)
    with suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def _mark(recipe: Recipe, device: str, precision: str) -> Path:
    """Return the file that is there once a run compiled this step."""
    step = recipe.model_dump_json(
        include={"method", "sequence_length", "batch", "model", "adapter", "quantize"}
    )
    made_of = f"{step} {device} {precision} {version_of('torch')} {version_of('transformers')}"
    return cache_folder() / "compiled" / hashlib.sha256(made_of.encode()).hexdigest()[:24]
