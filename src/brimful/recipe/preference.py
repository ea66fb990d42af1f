"""The section for learning from preferences: which loss compares a chosen answer with a rejected
one, and what the model is compared with.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import pydantic
from pydantic import Field

from brimful.recipe.base import Section

if TYPE_CHECKING:
    from brimful.recipe.sections import Recipe

WITHOUT_REFERENCE = ("simpo", "orpo", "cpo")
"""Losses of a pair that compare the model with no other."""
_AS_DEFINED: dict[str, dict[str, Any]] = {
    "ipo": {"per_token": True},
    "simpo": {"per_token": True, "beta": 2.0, "margin": 1.0},
    "orpo": {"per_token": True, "sft_weight": 1.0},
    "cpo": {"sft_weight": 1.0},
}
"""What a loss has where the recipe says nothing, beside `_USUAL`."""
_USUAL = {"per_token": False, "beta": 0.1, "sft_weight": 0.0}


class PreferenceRecipe(Section):
    """How a model learns from pairs of a chosen and a rejected answer (method dpo)."""

    loss: Literal["sigmoid", "hinge", "ipo", "robust", "simpo", "orpo", "cpo"] = Field(
        "sigmoid",
        description=(
            "sigmoid: DPO (Rafailov 2023, arXiv 2305.18290); hinge: SLiC (2305.10425); ipo"
            " (2310.12036); robust: some labels are flipped (2403.00409). Without a reference:"
            " simpo (2405.14734), orpo (2403.07691), cpo (2401.08417)."
        ),
    )
    beta: Annotated[float, Field(gt=0, le=1e3)] | None = Field(
        None,
        description=(
            "How closely the model is held to the reference: a reward is beta times the log-ratio;"
            " ipo: tau; orpo: weight of the odds ratio. Default: 0.1; simpo 2."
        ),
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        0.0,
        description="Share of pairs whose labels may be flipped (sigmoid, robust, simpo, cpo).",
    )
    per_token: bool | None = Field(
        None,
        description=(
            "Divide the log-probability of an answer by its tokens. Default: true for ipo, simpo"
            " and orpo, which are defined so."
        ),
    )
    margin: Annotated[float, Field(ge=0)] | None = Field(
        None,
        description=(
            "simpo: gamma, by which the reward of the chosen answer is to be higher. Default: 1."
        ),
    )
    sft_weight: Annotated[float, Field(ge=0)] | None = Field(
        None,
        description=(
            "Weight of the loss of method sft on the chosen answers, nats per token, which is added"
            " (2404.19733). Default: 1 for orpo and cpo, else 0."
        ),
    )
    reference: Literal["auto", "in_passes", "kept"] = Field(
        "auto",
        description=(
            "in_passes: the model with its adapters off, in every pass; kept: log-probabilities"
            " computed once before training. auto: in_passes where adapters are trained from"
            " nothing."
        ),
    )
    metric: Literal["loss", "accuracy", "margin"] = Field(
        "loss",
        description=(
            "What the best model is chosen by on held-out pairs: the loss, the share whose chosen"
            " answer has the higher reward, or by how much."
        ),
    )

    @pydantic.model_validator(mode="after")
    def _agree(self) -> Self:
        if self.label_smoothing and self.loss in {"hinge", "ipo", "orpo"}:
            raise ValueError(f"label_smoothing has no meaning for loss {self.loss}; leave it out")
        if self.loss == "robust" and not self.label_smoothing:
            raise ValueError(
                "loss robust needs label_smoothing, the share of flipped labels, for example 0.1"
            )
        if self.per_token is False and self.loss in {"simpo", "orpo"}:
            raise ValueError(f"loss {self.loss} is defined per token; leave per_token out")
        if self.margin is not None and self.loss != "simpo":
            raise ValueError(f"margin belongs to loss simpo, not to {self.loss}; leave it out")
        if self.reference != "auto" and self.loss in WITHOUT_REFERENCE:
            raise ValueError(f"loss {self.loss} has no reference; leave reference out")
        return self

    @property
    def resolved(self) -> Self:
        """The same with what the loss has where the recipe says nothing."""
        usual = _USUAL | _AS_DEFINED.get(self.loss, {})
        unsaid = {name: value for name, value in usual.items() if getattr(self, name) is None}
        return self.model_copy(update=unsaid)


def rules_of(recipe: "Recipe") -> PreferenceRecipe:
    """Return the section of a recipe, with its defaults where it is left out."""
    return recipe.preference or PreferenceRecipe()


def options_of_preference(recipe: "Recipe") -> dict[str, Any]:
    """Return what decides the loss of a step on preferences."""
    rules = rules_of(recipe).resolved
    options = rules.model_dump(exclude={"metric"}) | {"reference": reference_of(recipe)}
    return {"preference": options}


def check_preference(recipe: "Recipe") -> None:
    """Raise ValueError if the section preference does not suit the recipe."""
    if "preference" not in recipe.kind.step_options(recipe):
        if recipe.preference is not None:
            raise ValueError(
                f"the section preference is for method dpo, and this recipe has {recipe.method};"
                " remove it with preference=null"
            )
        return
    if recipe.data.loss_on == "all":
        raise ValueError(
            "data.loss_on=all would learn prompts, which both answers of a pair share; leave it out"
        )
    adapter = recipe.adapter
    if rules_of(recipe).reference == "in_passes" and (adapter is None or adapter.start):
        why = "it goes on with trained adapters" if adapter else "all weights are trained"
        raise ValueError(
            f"preference.reference=in_passes: {why}, so switching adapters off does not give the"
            " model from before; use preference.reference=kept"
        )


def reference_of(recipe: "Recipe") -> Literal["none", "in_passes", "kept"]:
    """Return where the reference's log-probabilities come from."""
    rules, adapter = rules_of(recipe), recipe.adapter
    if rules.loss in WITHOUT_REFERENCE:
        return "none"
    if rules.reference != "auto":
        return rules.reference
    # Adapters that were trained before are the reference, too.
    return "in_passes" if adapter is not None and not adapter.start else "kept"


def reads_pairs(recipe: "Recipe") -> bool:
    """Return whether its data are pairs of answers, not demonstrations with which rounds begin."""
    return recipe.kind.compares_answers and recipe.rft is None
