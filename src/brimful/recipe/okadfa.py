"""Sections of method feedback and architecture okadfa: how the error is fed back, and the penalty
that keeps query and key projections orthogonal.
"""

from typing import Literal

import pydantic
from pydantic import Field

from brimful.recipe.base import NotNegative, Positive, Section


class FeedbackRecipe(Section):
    """Direct feedback alignment (Noekland 2016; of transformers: Launay et al. 2020)."""

    points: Literal["block", "sublayer", "none"] = Field(
        "block",
        description=(
            "Where the error is fed back instead of backpropagated: behind each block, behind"
            " attention and MLP each (architecture okadfa only), or nowhere: then only the final"
            " norm and the head learn, with the embedding where it is tied."
        ),
    )
    matrix: Literal["uniform", "identity"] = Field(
        "uniform",
        description=(
            "Fixed matrix that the error passes: uniform random, or the identity, as the residual"
            " stream would pass it up to the final norm."
        ),
    )


class OrthogonalityRecipe(Section):
    """Penalty on W W^T - I of each head's query and key projections W (squared Frobenius norm)."""

    weight: Positive = Field(1e-4, description="Largest factor on the penalty.")
    warmup: NotNegative = Field(
        0.1,
        description=(
            "Linear growth to the largest factor. Below 1: share of all steps; from 1 on: steps"
            " (optimizer updates)."
        ),
    )

    values: bool = Field(False, description="Penalise each head's value projection as well.")

    @pydantic.model_validator(mode="after")
    def _warmup_is_whole(self) -> "OrthogonalityRecipe":
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            raise ValueError(
                f"warmup {self.warmup} must be a share below 1 or a whole number of steps"
            )
        return self

    def weight_at(self, step: int, total_steps: int) -> float:
        """Return the factor at update `step` (0-based)."""
        warmup_steps = int(self.warmup)
        if self.warmup < 1:
            warmup_steps = round(self.warmup * total_steps)
        return self.weight * min(1.0, (step + 1) / max(1, warmup_steps))
