"""A plan's arithmetic against the plainest: one real optimizer step of each, compared within stated
tolerances.

Where the tolerances come from. u is the largest relative error of rounding to a type's significand:
2^-24 (fp32), 2^-11 (fp16), 2^-8 (bf16). A gradient passes through one or two dozen independent
roundings of about 0.4 u each; those of other blocks hardly count, because the residual stream stays
fp32. So it is off by about 2 u of its length, whatever the depth; measured 1.4 to 2.3 u over 1 to
32 blocks. In fp32 both steps round alike and differ by the order of their sums: measured 4 to 12 u.
`ERROR_IN_UNITS` allows about three to five times that. Such an error e, in no direction of its own,
turns a vector by a cosine of 1 - e^2 / 2 and hardly changes its length; the loss's one factor is a
power of two, which no type rounds; so e / 12 is allowed there. A loss averages over tokens:
measured 0.006 u. docs/verify.md has the largest differences found.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch

from brimful.base.errors import PlanError
from brimful.base.types import JsonDict
from brimful.hardware.device import Device
from brimful.hardware.probe import probe, torch_device
from brimful.planning.choices import MUON, ROUNDED
from brimful.planning.equivalence import Equivalence, statement
from brimful.planning.plan import Plan
from brimful.planning.specs import model_facts
from brimful.recipe import Recipe
from brimful.rehearsal.one_step import StepOptions, StepResult, mean_squares, take_step
from brimful.rehearsal.optimizers import FP32_VARIANTS
from brimful.rehearsal.reduced import Reduced, reduced_step
from brimful.training.memory_errors import OutOfMemory, attempt
from brimful.training.tensorfile import Tensors

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
ERROR_IN_UNITS = {"fp32": 64, "fp16": 6, "bf16": 6}
"""Largest error of a gradient over its length, in units of roundoff of the products' type."""
LOSS_SUM_ERROR = 32 * UNIT_ROUNDOFF["fp32"]
"""Tolerance of the loss, which is summed in fp32 for all types of products."""
MOST_FLOP = {"cpu": 1e11, "mps": 2e12, "cuda": 2e13}
"""Most floating-point operations of one step, so that two take seconds (assumption; 2 idle CPU
cores take about 5 s).
"""
SLOW_SHARE = 0.1
"""Share of MOST_FLOP on a CPU without instructions for the type (measured in fp16: a tenth of
fp32's rate).
"""


@dataclass(frozen=True)
class Check:
    """One comparison of the planned step with the plainest.

    Attributes:
        name: What is compared.
        difference: |a / b - 1|, or 1 - cosine; not a number where one is not finite.
        tolerance: The largest difference that rounding explains.
    """

    name: str
    difference: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.difference <= self.tolerance


@dataclass(frozen=True)
class Verification:
    """The result of comparing the two steps.

    Attributes:
        equivalence: What was claimed.
        precision: The precision of the plan.
        ran_on: Name of the device the steps ran on.
        reduced: What differs from the plan, such as smaller sizes.
        untested: Parts of the plan that could not run here.
        told: Notes on what happened, such as overflows.
        shown: Which weights moved in the planned step, and which positions see which.
        losses: The losses of the plainest step and the planned one, nats per target token.
        checks: The comparisons.
    """

    equivalence: Equivalence
    precision: str
    ran_on: str
    reduced: tuple[str, ...]
    untested: tuple[str, ...]
    told: tuple[str, ...]
    shown: tuple[str, ...]
    losses: tuple[float, float]
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def to_json(self) -> JsonDict:
        """Plain values for JSON; a difference that is no number is null."""
        checks = [
            {
                "name": check.name,
                "difference": _finite(check.difference),
                "tolerance": check.tolerance,
                "passed": check.passed,
            }
            for check in self.checks
        ]
        return {
            **asdict(self),
            "losses": [_finite(loss) for loss in self.losses],
            "checks": checks,
            "passed": self.passed,
        }


def verify(recipe: Recipe, plan: Plan, device: Device) -> Verification:
    """Run one optimizer step as planned and one in the plainest way, and compare them.

    Args:
        recipe: A fresh model's.
        plan: How it runs on `device`.
        device: Device on which both steps run, where it is on this machine, reduced only where they
            would take long; else the CPU, with the plan's choices, reduced.

    Raises:
        RecipeError: the recipe fine-tunes a published model.
        PlanError: memory does not hold one of the steps.
    """
    where = torch_device(device) if device.is_present else torch.device("cpu")
    reduced = reduced_step(
        recipe, plan, model_facts(recipe).vocabulary, _most_flop(where, plan.precision)
    )
    reference = _stepped("plainest", partial(take_step, reduced, _plainest(reduced), where))
    options = _as_planned(plan, reduced, compiles=device.is_present)
    moments = mean_squares(reference.gradients)
    planned = _stepped("planned", partial(take_step, reduced, options, where, moments))
    notes = list(planned.messages)
    if planned.skipped:
        notes.append(
            f"{planned.skipped} attempts overflowed in fp16 and were done again with half the loss"
            " scale, as in training"
        )
    return Verification(
        equivalence=statement(plan, recipe),
        precision=plan.precision,
        ran_on=device.name if device.is_present else "this machine's CPU",
        reduced=reduced.differences,
        untested=tuple(_untested(plan, device)),
        told=tuple(notes),
        shown=planned.shown,
        losses=(reference.loss, planned.loss),
        checks=compare(reference, planned, plan.precision),
    )


def _stepped(which: str, take: Callable[[], StepResult]) -> StepResult:
    """Run the step; raise PlanError where it does not fit into memory."""
    done = attempt(take)
    if isinstance(done, OutOfMemory):
        raise PlanError(
            f"out of memory{done} in the {which} step of --verify, so the plan is not verified."
            " Free memory that other programs hold, or verify with a smaller plan.loss_chunk, a"
            " smaller plan.micro_batch or a shorter sequence_length."
        )
    return done


def compare(reference: StepResult, planned: StepResult, precision: str) -> tuple[Check, ...]:
    """Compare loss, gradient and update of two steps from the same weights, with the tolerance of
    matrix products in `precision`.

    Adding an update to fp32 weights rounds it once more; the relative error grows as the update
    becomes small beside the weights.
    """
    error = ERROR_IN_UNITS[precision] * UNIT_ROUNDOFF[precision]
    update_error = error + UNIT_ROUNDOFF["fp32"] * _ratio(
        _norm(reference.weights), _norm(reference.updates)
    )
    return (
        Check("loss", abs(_ratio(planned.loss, reference.loss) - 1), error / 64 + LOSS_SUM_ERROR),
        *_direction_and_length("gradient", reference.gradients, planned.gradients, error),
        *_direction_and_length("update", reference.updates, planned.updates, update_error),
    )


def _direction_and_length(
    name: str, reference: Tensors, planned: Tensors, error: float
) -> tuple[Check, Check]:
    lengths = _norm(reference), _norm(planned)
    cosine = _ratio(_dot(reference, planned), lengths[0] * lengths[1])
    return Check(f"{name} direction", 1 - cosine, error**2 / 2), Check(
        f"{name} length", abs(_ratio(lengths[1], lengths[0]) - 1), error / 12
    )


def _dot(first: Tensors, second: Tensors) -> float:
    return math.fsum(
        float(torch.dot(first[name].double().flatten(), second[name].double().flatten()))
        for name in first
    )


def _norm(tensors: Tensors) -> float:
    return math.sqrt(_dot(tensors, tensors))


def _ratio(value: float, base: float) -> float:
    return value / base if base else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plainest(reduced: Reduced) -> StepOptions:
    recipe = reduced.recipe
    return StepOptions(
        precision="fp32",
        attention="eager",
        recompute=False,
        compile=False,
        optimizer="for_loop",
        loss_chunk=recipe.sequence_length,
        micro_batches=(1,) * recipe.effective_batch,
    )


def _as_planned(plan: Plan, reduced: Reduced, *, compiles: bool) -> StepOptions:
    return StepOptions(
        precision=plan.precision,
        attention=plan.attention,
        recompute=plan.recompute,
        compile=plan.compile and compiles,
        optimizer="fused" if _is_replaced(plan.optimizer) else plan.optimizer,
        loss_chunk=reduced.loss_chunk,
        micro_batches=reduced.micro_batches,
    )


def _is_replaced(optimizer: str) -> bool:
    """Return whether an update is not that of AdamW in fp32, to which it would be compared."""
    return optimizer not in FP32_VARIANTS


def _untested(plan: Plan, device: Device) -> list[str]:
    parts = []
    if _is_replaced(plan.optimizer):
        kept = {
            "optimizer states of 8 bits": "8bit" in plan.optimizer,
            "weights of 16 bits": plan.optimizer.startswith(ROUNDED),
            "Muon's update": plan.optimizer == MUON,
        }
        replaced = " and ".join(name for name, is_kept in kept.items() if is_kept)
        parts.append(f"{replaced}, whose place AdamW in fp32 took")
    if not device.is_present:
        parts.append(f"kernels of {device.name}: this CPU's own took their place")
        if plan.compile:
            parts.append("compiled blocks, which ran uncompiled")
    return parts


def _most_flop(where: torch.device, precision: str) -> float:
    most = MOST_FLOP[where.type]
    if where.type != "cpu" or precision == "fp32":
        return most
    is_native = precision == "bf16" and probe("cpu").abilities.bf16
    return most if is_native else SLOW_SHARE * most
