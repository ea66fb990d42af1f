"""What a plan keeps of a recipe exactly, and what it changes by rounding. `brimful plan --verify`
tests it with a real step.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from brimful.planning.choices import MUON
from brimful.planning.plan import Plan
from brimful.recipe import Recipe

SIGNIFICANT_BITS = {"bf16": 8, "fp16": 11}
"""Significant bits of a product's operands, with the leading one; fp32 has 24."""
KERNELS = {
    "sdpa": "a fused kernel, which adds up the softmax and its products in another order",
    "brimful_blocks": "blocks of query rows, which add up gradients block by block",
    "brimful_expanded": (
        "a fused kernel, which adds up the softmax and its products in another order"
    ),
}
"""Descriptions by the name of the attention; eager attention is the reference."""


@dataclass(frozen=True)
class Equivalence:
    """A plan against the plainest way to run the same recipe: fp32, one sequence at a time, nothing
    fused, recomputed or compiled.

    Attributes:
        keeps: What is the same, whatever the device.
        changes: What differs in rounding, or more where that is said.
    """

    keeps: tuple[str, ...]
    changes: tuple[str, ...]


def statement(plan: Plan, recipe: Recipe) -> Equivalence:
    """Return what `plan` keeps and changes of `recipe`."""
    return Equivalence(tuple(_kept(plan, recipe)), tuple(_changed(plan, recipe)))


def _kept(plan: Plan, recipe: Recipe) -> Iterator[str]:
    yield (
        f"the {plan.effective_batch} sequences of every optimizer step and their order, which"
        " depend on the seed and the sample's number only"
    )
    if recipe.kind.fills_masks:
        yield (
            "the hidden tokens of every sequence, which depend on the seed and the sample's number"
            " only, too"
        )
    yield (
        "the weight of every target token: the loss is summed, then divided by the target tokens of"
        " the whole step"
    )
    clipping = ""
    if recipe.optimizer.clip_norm is not None:
        clipping = f", clipped at a norm of {recipe.optimizer.clip_norm:g}"
    trained = "weights" if recipe.adapter is None else "adapters"
    states = "with states of 8 bits (bitsandbytes)" if "8bit" in plan.optimizer else "in fp32"
    kept = recipe.optimizer.weights
    if kept == "bf16":
        states += ", computed in fp32 and rounded at random,"
    update = "Muon (matrices inside blocks) and AdamW" if plan.optimizer == MUON else "AdamW"
    yield f"the update: {update} {states} with the recipe's settings{clipping}, on {kept} {trained}"


def _changed(plan: Plan, recipe: Recipe) -> Iterator[str]:
    if plan.precision in SIGNIFICANT_BITS:
        scaling = ""
        if plan.precision == "fp16":
            scaling = "; the loss is scaled up, and a step that overflows is skipped"
        yield (
            f"precision: operands of matrix products have {SIGNIFICANT_BITS[plan.precision]}"
            f" significant bits ({plan.precision}) instead of 24{scaling}"
        )
    if recipe.adapter is not None and plan.precision in SIGNIFICANT_BITS:
        yield f"precision: the frozen base is held in {plan.precision}"
    if len(plan.micro_batches) > 1:
        yield (
            f"order of summation: gradients of {len(plan.micro_batches)} micro-batches are added"
            f" up, {plan.micro_batches[0]} sequences at a time"
        )
    if plan.loss_chunk < plan.micro_batches[0] * plan.sequence_length:
        yield (
            f"order of summation: the loss and the head's gradient are added up {plan.loss_chunk:,}"
            " tokens at a time"
        )
    if plan.attention in KERNELS:
        yield f"order of summation: attention runs as {KERNELS[plan.attention]}"
    if plan.recompute:
        dropout = ""
        if not isinstance(recipe.model, str) and recipe.model.dropout:
            dropout = "; dropout draws the same numbers again"
        what = "activations"
        if plan.recompute == "selective":
            what += " but for the outputs of matrix products and attention kernels"
        yield (
            f"recomputation: {what} are computed twice by the same kernels, which changes"
            f" nothing beyond rounding{dropout}"
        )
    if plan.compile:
        yield (
            "compilation: fused operators keep intermediate values in other types and orders than"
            " eager ones"
        )
