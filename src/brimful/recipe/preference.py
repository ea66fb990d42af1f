"""The section for learning from preferences: which loss compares a chosen answer with a rejected
one, or judged answers with others, and what the model is compared with.
"""

from typing import TYPE_CHECKING, Annotated, Literal, Self

import pydantic
from pydantic import Field

from brimful.base.types import JsonDict
from brimful.recipe.base import NotNegative, Section

if TYPE_CHECKING:
    from brimful.recipe.sections import Recipe

WITHOUT_REFERENCE = ("simpo", "orpo", "cpo")
"""Losses of a pair that compare the model with no other."""
OF_JUDGED = ("kto", "apo_zero_unpaired")
"""Losses of single answers that are desired or not."""
_AS_DEFINED: dict[str, JsonDict] = {
    "ipo": {"per_token": True},
    "simpo": {"per_token": True, "beta": 2.0, "margin": 1.0},
    "orpo": {"per_token": True, "sft_weight": 1.0},
    "cpo": {"sft_weight": 1.0},
}
"""What a loss has where the recipe says nothing, beside `_USUAL`."""
_USUAL = {"loss": "sigmoid", "per_token": False, "beta": 0.1, "sft_weight": 0.0}
_KEYS_OF_PAIRS = ("label_smoothing", "per_token", "margin", "sft_weight")
_KEYS_OF_JUDGED = ("desirable_weight", "undesirable_weight")

Loss = Literal[
    "sigmoid", "hinge", "ipo", "robust", "simpo", "orpo", "cpo", "kto", "apo_zero_unpaired"
]


class PreferenceRecipe(Section):
    """How a model learns from pairs of a chosen and a rejected answer (method dpo), or from answers
    that are desired or not (method kto).
    """

    loss: Loss | None = Field(
        None,
        description=(
            "sigmoid: DPO (Rafailov 2023, arXiv 2305.18290); hinge: SLiC (2305.10425); ipo"
            " (2310.12036); robust: some labels are flipped (2403.00409). Without a reference:"
            " simpo (2405.14734), orpo (2403.07691), cpo (2401.08417). Of judged answers: kto"
            " (2402.01306), apo_zero_unpaired (2408.06266). Default: sigmoid, of method kto kto."
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
    margin: NotNegative | None = Field(
        None,
        description=(
            "simpo: gamma, by which the reward of the chosen answer is to be higher. Default: 1."
        ),
    )
    sft_weight: NotNegative | None = Field(
        None,
        description=(
            "Weight of the loss of method sft on the chosen answers, nats per token, which is added"
            " (2404.19733). Default: 1 for orpo and cpo, else 0."
        ),
    )
    desirable_weight: Annotated[float, Field(gt=0, le=1e3)] = Field(
        1.0,
        description=(
            "Weight of desired answers (method kto). Between 1 and 4/3 of the undesired ones'"
            " total, as its authors advise: where there are three undesired for each desired"
            " answer, 3 to 4."
        ),
    )
    undesirable_weight: Annotated[float, Field(gt=0, le=1e3)] = Field(
        1.0, description="Weight of undesired answers (method kto)."
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
            " answer has the higher reward, or by how much. Of judged answers: the share on their"
            " side of the reference point, or by how much rewards of desired ones are higher."
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
            named = self.resolved.loss
            raise ValueError(f"margin belongs to loss simpo, not to {named}; leave it out")
        if self.reference != "auto" and self.loss in WITHOUT_REFERENCE:
            raise ValueError(f"loss {self.loss} has no reference; leave reference out")
        return self

    @property
    def resolved(self) -> Self:
        """Return the section with the loss's own values where the recipe says nothing."""
        usual = _USUAL | _AS_DEFINED.get(self.loss or "", {})
        unsaid = {name: value for name, value in usual.items() if getattr(self, name) is None}
        return self.model_copy(update=unsaid)


def rules_of(recipe: "Recipe") -> PreferenceRecipe:
    """Return the section of a recipe, with its defaults where it is left out."""
    rules = recipe.preference or PreferenceRecipe()
    if rules.loss is None and recipe.kind.first_rows == "judged":
        return rules.model_copy(update={"loss": "kto"})
    return rules


def options_of_preference(recipe: "Recipe") -> JsonDict:
    """Return what decides the loss of a step on preferences."""
    rules = rules_of(recipe).resolved
    foreign = _KEYS_OF_PAIRS if rules.loss in OF_JUDGED else _KEYS_OF_JUDGED
    options = rules.model_dump(exclude={"metric", *foreign}) | {"reference": reference_of(recipe)}
    return {"preference": options}


def check_preference(recipe: "Recipe") -> None:
    """Raise ValueError if the section preference does not suit the recipe."""
    if "preference" not in recipe.kind.step_options(recipe):
        if recipe.preference is not None:
            raise ValueError(
                "the section preference is for methods dpo and kto, and this recipe has"
                f" {recipe.method}; remove it with preference=null"
            )
        return
    _check_keys(recipe)
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


def _check_keys(recipe: "Recipe") -> None:
    """Raise ValueError for keys of the other method of preferences."""
    loss, usual = rules_of(recipe).resolved.loss, PreferenceRecipe()
    given = recipe.preference or usual
    is_judged = recipe.kind.first_rows == "judged"
    if (loss in OF_JUDGED) != is_judged:
        other = "dpo" if is_judged else "kto"
        raise ValueError(
            f"preference.loss={loss} belongs to method {other}, and this recipe has"
            f" {recipe.method}: set method={other}, or leave the loss out"
        )
    foreign = _KEYS_OF_PAIRS if is_judged else _KEYS_OF_JUDGED
    if said := [key for key in foreign if getattr(given, key) != getattr(usual, key)]:
        raise ValueError(
            f"preference.{said[0]} has no meaning for method {recipe.method}; leave it out"
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


def reference_passes(recipe: "Recipe") -> tuple[int, int]:
    """Return how often a reference scores each sample to train on, and each held-out one, before
    the first step. The reference point of kto is of as many mismatched answers.
    """
    if "preference" not in recipe.kind.step_options(recipe):
        return 0, 0
    source, passes = reference_of(recipe), scores_per_sample(recipe)
    return passes * (source == "kept"), passes


def scores_per_sample(recipe: "Recipe") -> int:
    """Return how many times an evaluation scores each sample."""
    return 1 + (recipe.kind.compares_answers and rules_of(recipe).loss == "kto")


def reads_preferences(recipe: "Recipe") -> bool:
    """Return whether its data are pairs of answers or judged ones, not demonstrations with which
    rounds begin.
    """
    return recipe.kind.compares_answers and recipe.rft is None
