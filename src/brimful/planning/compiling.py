"""What compiling is expected to cost, much where Inductor has to make the kernels of a step and
little where an earlier run left them in its cache, and whether it pays. No torch.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from brimful.base.env import cache_folder, compiler_cache_folder
from brimful.base.errors import PlanError
from brimful.base.libraries import version_of
from brimful.base.units import format_duration
from brimful.hardware.device import Device
from brimful.planning.choices import FIXED
from brimful.planning.plan import Choice
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

COMPILE_WORTH = 1.5
"""How many times what it costs compiling has to save over the run, because neither its cost nor its
gain is known well (assumption).
"""


def compile_choice(
    recipe: Recipe,
    device: Device,
    choices: Mapping[str, Choice],
    eager_s: float | None,
    compiled_s: Callable[[], float],
    total_steps: int | None,
) -> Choice:
    """Choose whether blocks are compiled by torch.compile: only where that saves more time over the
    run than compiling takes.

    Args:
        recipe: The recipe.
        device: The device.
        choices: What was chosen before by name, precision and packing among it.
        eager_s: Predicted seconds of a step that is not compiled; None where they are not known.
        compiled_s: Returns the predicted seconds of a compiled step.
        total_steps: Optimizer steps of the run; None while they are not known.

    Raises:
        PlanError: the recipe asks for it where it cannot be.
    """
    has_texts = recipe.kind.rows == "texts"
    if recipe.plan.compile is True and has_texts:
        raise PlanError(
            "plan.compile=true: a classifier's passes have many shapes, and compiled blocks serve"
            " one. Leave it out."
        )
    if recipe.plan.compile != "auto":
        return Choice("compile", recipe.plan.compile, FIXED)
    if excluded := _no_compiling(recipe, device):
        return Choice("compile", False, excluded)
    if has_texts or choices["packing"].value in {"padded", "document"}:
        return Choice(
            "compile",
            False,
            "texts of many lengths give passes of many shapes, and compiled blocks serve one",
        )
    if eager_s is None:
        return Choice(
            "compile",
            False,
            "no time is predicted here, so whether compiling pays is not known",
            True,
        )
    _, costs_s, _ = compile_s(recipe, device.name, str(choices["precision"].value))
    worth_s = COMPILE_WORTH * costs_s
    saved_s = max(0.0, eager_s - compiled_s())
    if total_steps is None:
        reason = "compiling would save nothing"
        if saved_s:
            pays_from = math.ceil(worth_s / saved_s)
            reason = (
                "decided once the data are read and the length of the run is known: compiling"
                f" pays from {pays_from:,} steps on"
            )
        return Choice("compile", False, reason, True)
    pays = saved_s * total_steps > worth_s
    reason = (
        f"compiling costs about {format_duration(costs_s)} and would save about"
        f" {format_duration(saved_s * total_steps)}"
    )
    if not pays and saved_s * total_steps > costs_s:
        reason += ", not surely more"
    return Choice("compile", pays, reason, not pays)


def _no_compiling(recipe: Recipe, device: Device) -> str:
    """Return why blocks cannot be compiled, or an empty text."""
    if recipe.plan.offload != "none":
        return "tensors move between blocks (plan.offload)"
    if recipe.plan.recompute == "selective":
        return "compiled blocks choose by themselves what they keep (plan.recompute=selective)"
    return "" if device.abilities.compile else "torch.compile has no compiler to use here"


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
