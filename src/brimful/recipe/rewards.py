"""The section for learning from rewards: how answers are drawn and judged, and which loss learns
from them.
"""

from typing import TYPE_CHECKING, Annotated, Literal, Self

import pydantic
from pydantic import Field

from brimful.base.discover import names_in
from brimful.base.types import JsonDict, Numbers
from brimful.recipe.base import (
    NotNegative,
    Positive,
    PositiveInt,
    PositiveShare,
    Section,
    Share,
    known_name,
)
from brimful.recipe.preference import check_preference
from brimful.recipe.rft import PROGRAM_VERIFIERS, VERIFIERS_PACKAGE

if TYPE_CHECKING:
    from brimful.recipe.sections import Recipe

_USUAL: JsonDict = {
    "scale": "group",
    "average": "answer",
    "clip": 0.2,
    "leave_out_equal": False,
}
_AS_DEFINED: dict[str, JsonDict] = {
    "dr_grpo": {"scale": "none", "average": "constant"},
    "dapo": {"average": "token", "clip_high": 0.28, "leave_out_equal": True},
    "gspo": {"clip": 3e-4, "clip_high": 4e-4},
}
"""What a loss has where the recipe says nothing, beside `_USUAL`, as its authors have it."""
_OF_STEPS = ("loss", "clip", "clip_high", "kl", "temperature", "weight_cap", "max_new_tokens")
"""Keys that decide the loss of a step."""

_ENVIRONMENT = "environment:"
_LEARNED_SHARE = (0.1, 0.5, 1.0)
"""Low, expected and high share of a batch's answers that take a pass: a group of equal rewards does
not (of twelve rounds of SmolLM2 12 to 56 % did; the rest is assumption).
"""


class RewardsRecipe(Section):
    """How a model learns from the rewards of its own answers (method grpo): it answers questions of
    data several times each, verifiers judge the answers, and those better than the others to the
    same question become likelier.
    """

    verifiers: dict[str, float] = Field(
        {"number": 1.0},
        description=(
            "Files of brimful/verify/kinds, or Python files of your own with a function"
            " reward(answer, row), or environment:NAME of the package verifiers"
            " (docs/verifiers.md), each with the reward of an answer that it finds right; rewards"
            " of several are added."
        ),
    )
    arguments: JsonDict = Field(
        {}, description="Arguments of load_environment() of the environment among the verifiers."
    )
    samples_per_prompt: Annotated[int, Field(ge=2)] = Field(
        8, description="Answers to each question: a group, whose rewards are compared."
    )
    max_new_tokens: PositiveInt = Field(256, description="Tokens of an answer at most.")
    temperature: Positive = Field(
        1.0, description="Of the answers; log-probabilities are those at this temperature."
    )
    batches: PositiveInt = Field(
        1, description="Batches (of batch.sequences answers) that are drawn at once: a round."
    )
    passes: PositiveInt = Field(1, description="How often the answers of a round are learned from.")
    loss: Literal["grpo", "dr_grpo", "dapo", "gspo"] = Field(
        "grpo",
        description=(
            "grpo (Shao 2024, arXiv 2402.03300); dr_grpo: no division by lengths and deviations"
            " (2503.20783); dapo: per token, asymmetric clip, groups of equal rewards left out"
            " (2503.14476); gspo: the ratio of whole answers (2507.18071)."
        ),
    )
    clip: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description=(
            "How far below 1 the ratio of new to old probability still counts. Default: 0.2; gspo"
            " 3e-4."
        ),
    )
    clip_high: Positive | None = Field(
        None, description="The same above 1. Default: as clip; dapo 0.28; gspo 4e-4."
    )
    scale: Literal["group", "batch", "none"] | None = Field(
        None,
        description=(
            "Advantages are divided by the deviation of rewards in their group, in the whole round,"
            " or not at all. Default: group; dr_grpo none."
        ),
    )
    average: Literal["answer", "token", "constant"] | None = Field(
        None,
        description=(
            "answer: mean over an answer's tokens, then over answers; token: mean over all tokens;"
            " constant: sum over an answer's tokens, divided by max_new_tokens. Default: answer;"
            " dapo token; dr_grpo constant."
        ),
    )
    overlong: PositiveInt | None = Field(
        None,
        description=(
            "Within so many tokens of max_new_tokens the reward falls, by 1 at the end (DAPO's soft"
            " overlong punishment, 2503.14476 equation 13); null: length does not count."
        ),
    )
    negative_weight: NotNegative = Field(
        1.0,
        description=(
            "Weight of answers that are worse than the others to their question, which become less"
            " likely; 0: only better ones are learned from (compare Arnal 2025, arXiv 2506.20520)."
        ),
    )
    kl: NotNegative = Field(
        0.0,
        description=(
            "Weight of the distance from the model before training, its adapters off (the k3"
            " estimate); 0: none."
        ),
    )
    weight_cap: Positive | None = Field(
        None,
        description=(
            "Weigh each token by its probability by the trainer over that by the sampler, at most"
            " this (truncated importance sampling); null: no weights."
        ),
    )
    leave_out_equal: bool | None = Field(
        None,
        description=(
            "Learn nothing from groups whose rewards are all equal. Default: false; dapo true."
        ),
    )
    stop: bool = Field(
        False,
        description="Stop the run where one of the following limits is passed, not only tell.",
    )
    least_entropy: NotNegative = Field(
        0.02, description="Nats per token, below which answers count as collapsed to one."
    )
    most_cut: Share = Field(
        0.9, description="Share of a round's answers that may reach max_new_tokens."
    )
    most_empty: Share = Field(0.5, description="Share of a round's answers that may have no text.")
    most_failed: Share = Field(
        0.1,
        description=(
            "Share of a round's answers for which a verifier of your own may fail, run out of time"
            " or give no number; these get no reward from it."
        ),
    )
    most_gamed: Share = Field(
        0.1,
        description=(
            "Share of a round's answers that may be programs which try to pass their tests without"
            " being right (docs/sandbox.md)."
        ),
    )
    most_equal: PositiveShare = Field(
        1.0, description="Share of a round's groups whose rewards may all be equal."
    )
    patience: PositiveInt = Field(
        3, description="Rounds in a row that have to pass a limit before it counts."
    )

    @pydantic.field_validator("verifiers")
    @classmethod
    def _verifiers_exist(cls, value: Numbers) -> Numbers:
        if not value:
            raise ValueError("verifiers: name at least one")
        for name in value:
            if not is_own(name) and not environment_of(name):
                known_name(name, names_in(VERIFIERS_PACKAGE, ".py"), "unknown verifier")
        return value

    @pydantic.model_validator(mode="after")
    def _weights_are_comparable(self) -> Self:
        environments = [*filter(environment_of, self.verifiers)]
        if len(environments) > 1 or (self.arguments and not environments):
            raise ValueError(
                "verifiers may name one environment, whose arguments the key arguments has; there"
                f" {'are' if environments else 'is'} {', '.join(environments) or 'none'}"
            )
        if self.weight_cap is not None and self.temperature != 1:
            raise ValueError(
                "weight_cap compares log-probabilities at temperature 1; leave it or temperature"
                f" {self.temperature} out"
            )
        if self.overlong is not None and self.overlong > self.max_new_tokens:
            raise ValueError(
                f"overlong {self.overlong} is more than max_new_tokens {self.max_new_tokens}"
            )
        return self

    @property
    def resolved(self) -> Self:
        """Return the section with the loss's own values where the recipe says nothing."""
        usual = _USUAL | _AS_DEFINED.get(self.loss, {})
        unsaid = {name: value for name, value in usual.items() if getattr(self, name) is None}
        found = self.model_copy(update=unsaid)
        if found.clip_high is None:
            found = found.model_copy(update={"clip_high": found.clip})
        return found

    @property
    def runs_programs(self) -> bool:
        """Whether an answer is judged by running a program."""
        return any(
            name in PROGRAM_VERIFIERS or is_own(name) or environment_of(name)
            for name in self.verifiers
        )

    @property
    def updates(self) -> int:
        """Optimizer updates of a round."""
        return self.batches * self.passes


class CountedRewards(RewardsRecipe):
    """The section of a recipe whose batch is counted in full rows.

    Attributes:
        answers: Answers of a batch.
        positions: Mean positions of an answer of expected length with its question.
    """

    answers: int
    positions: float


def is_own(verifier: str) -> bool:
    """Whether a verifier is a file of the user's own."""
    return verifier.endswith(".py") and not environment_of(verifier)


def environment_of(verifier: str) -> str:
    """Return the name or path of the environment that a verifier is; empty: it is none."""
    return verifier.removeprefix(_ENVIRONMENT) if verifier.startswith(_ENVIRONMENT) else ""


def rewards_of(recipe: "Recipe") -> RewardsRecipe:
    """Return the section of a recipe, resolved, with its defaults where it is left out."""
    return (recipe.rewards or RewardsRecipe()).resolved


def draws_by_vllm(recipe: "Recipe") -> bool:
    """Return whether vLLM draws the answers that are rewarded."""
    return recipe.kind.draws_answers and recipe.plan.sampling == "vllm"


def compared_rounds(recipe: "Recipe") -> int:
    """Return how many rounds of a session compare sampler and trainer: with vLLM also the one after
    the first update, whose weights were handed over.
    """
    return 1 + draws_by_vllm(recipe)


def answers_of_round(recipe: "Recipe") -> int:
    """Return the number of answers that are drawn at once."""
    rules, batch = rewards_of(recipe), recipe.effective_batch
    if isinstance(rules, CountedRewards):
        batch = rules.answers
    return rules.batches * batch


def learned_share(recipe: "Recipe") -> tuple[float, float, float]:
    """Return the low, expected and high share of a batch's answers that an update computes; at
    least one answer, and all of them where the loss has a distance from the reference.
    """
    if not recipe.kind.draws_answers or rewards_of(recipe).kl:
        return 1.0, 1.0, 1.0
    rules = recipe.rewards
    batch = rules.answers if isinstance(rules, CountedRewards) else recipe.effective_batch
    low, value, high = (max(1 / batch, each) for each in _LEARNED_SHARE)
    return low, value, high


def options_of_rewards(recipe: "Recipe") -> JsonDict:
    """Return what decides the loss of a step on rewarded answers."""
    rules = rewards_of(recipe)
    is_old = rules.updates > 1 or rules.weight_cap is not None
    return {"rewards": rules.model_dump(include=set(_OF_STEPS)) | {"old": is_old}}


def check_sections_of_methods(recipe: "Recipe") -> None:
    """Raise ValueError if a section that belongs to a method does not suit the recipe."""
    check_preference(recipe)
    _check_rewards(recipe)


def _check_rewards(recipe: "Recipe") -> None:
    """Raise ValueError if the section rewards does not suit the recipe."""
    if not recipe.kind.draws_answers:
        if recipe.rewards is not None:
            raise ValueError(
                f"the section rewards is for method grpo, and this recipe has {recipe.method};"
                " remove it with rewards=null"
            )
        return
    rules, batch = rewards_of(recipe), recipe.effective_batch
    if recipe.rft is not None:
        raise ValueError("method grpo draws its answers itself; leave rft out")
    if rules.max_new_tokens >= recipe.sequence_length:
        raise ValueError(
            f"rewards.max_new_tokens {rules.max_new_tokens} leaves no room for a question in"
            f" sequence_length {recipe.sequence_length}"
        )
    if rules.batches * batch % rules.samples_per_prompt:
        raise ValueError(
            f"a round of {rules.batches * batch} answers (batch.sequences x rewards.batches) must"
            f" be a multiple of rewards.samples_per_prompt {rules.samples_per_prompt}"
        )
    if rules.kl and (recipe.adapter is None or recipe.adapter.start):
        why = "go on from trained ones" if recipe.adapter else "are not there"
        raise ValueError(
            "rewards.kl compares with the model with its adapters off, and here adapters"
            f" {why}: leave rewards.kl out, or set adapter.rank=16 alone, on a model with trained"
            " ones merged into it (brimful export RUN --merge)"
        )
    if recipe.plan.loader_workers not in {"auto", 0}:
        raise ValueError(
            "method grpo draws what it learns from between its steps: leave plan.loader_workers out"
        )
    if recipe.plan.sampling == "transformers":
        raise ValueError(
            "plan.sampling=transformers gives no log-probabilities, which method grpo needs; leave"
            " it out"
        )
    if draws_by_vllm(recipe):
        _check_what_vllm_draws_with(recipe)


def _check_what_vllm_draws_with(recipe: "Recipe") -> None:
    reason = ""
    if recipe.quantize != "none":
        reason = (
            f"would draw answers with other weights than those that are trained: it does not read"
            f" {recipe.quantize} as brimful rounds it. Set plan.sampling=brimful, or quantize=none"
        )
    elif not isinstance(recipe.model, str):
        reason = "loads published models; set plan.sampling=brimful"
    elif recipe.adapter is not None and recipe.adapter.dora:
        reason = "does not read adapter.dora; set plan.sampling=brimful, or leave it out"
    elif recipe.data.added_tokens:
        reason = "does not read the rows of data.added_tokens; set plan.sampling=brimful"
    if reason:
        raise ValueError(f"with plan.sampling=vllm, vLLM {reason}")
