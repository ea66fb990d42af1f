"""The section for rejection-sampling fine-tuning: questions, sampling, verification, selection and
rounds.
"""

from typing import Annotated, Literal, Self

import pydantic
from pydantic import Field

from brimful.base.discover import names_in
from brimful.recipe.base import Positive, PositiveInt, PositiveShare, Section, Share, known_name
from brimful.recipe.data import DataRecipe

VERIFIERS_PACKAGE = "brimful.verify.kinds"
"""A verifier is a file in there; only the names of the files are read here."""
PROGRAM_VERIFIERS = frozenset({"humaneval", "mbpp"})
"""Verifiers that run answers as programs."""


class QuestionsRecipe(Section):
    """Where the questions lie and what their answers are."""

    path: str | list[str] = Field(description="As data.path: hub id, local file, or builtin:NAME.")
    config_name: str | None = Field(None, description="Configuration of a hub data set.")
    split: Literal["train", "validation", "test"] = Field(
        "train", description="Which split of the source is asked. Never one that is scored."
    )
    format: Literal["auto", "question", "prompt", "messages", "mbpp", "alpaca", "conversations"] = (
        Field(
            "auto",
            description=(
                "As data.format. What an answer is held against is the column answer, or else the"
                " row's own answer."
            ),
        )
    )
    columns: dict[str, str] = Field({}, description="As data.columns.")
    max_questions: PositiveInt | None = Field(
        None, description="Ask at most so many, evenly spread."
    )

    @property
    def as_data(self) -> DataRecipe:
        """The same source as the `data` section names it."""
        place = {"path", "config_name", "format", "columns"}
        return DataRecipe(**self.model_dump(include=place))


class RftRecipe(Section):
    """Rejection-sampling fine-tuning (Yuan et al. 2023): sample, verify, fine-tune, in rounds."""

    questions: QuestionsRecipe
    verifier: str = Field(
        "number", description="How an answer is judged: a file of brimful/verify/kinds."
    )
    teacher: str | None = Field(
        None,
        description=(
            "Who writes the samples: hub id, folder, or recipe:NAME; null: the student itself, as"
            " tuned in the round before."
        ),
    )
    system: str | None = Field(
        None, description="System message for a teacher that was not tuned to these questions."
    )
    shots: Annotated[int, Field(ge=0)] = Field(
        3,
        description=(
            "Solved examples (of data) before a question to a teacher that was not tuned to it."
        ),
    )
    samples_per_prompt: PositiveInt = Field(16, description="Answers drawn per question.")
    keep_per_prompt: PositiveInt = Field(
        4, description="Distinct correct answers kept per question at most."
    )
    pairs_per_prompt: PositiveInt = Field(
        4,
        description=(
            "Pairs of a right and a wrong answer per question at most, from which method dpo"
            " learns."
        ),
    )
    tuned_first: list[str] = Field(
        [],
        description=(
            "method dpo: what the tuning on demonstrations (method sft) has otherwise than this"
            " recipe, such as [optimizer.learning_rate=1e-3, training.tokens=64000]."
        ),
    )
    stop_early: bool = Field(
        False,
        description=(
            "Draw no more answers to a question once keep_per_prompt distinct correct ones are"
            " there."
        ),
    )
    temperature: Positive = Field(0.7, description="Of the samples.")
    top_k: PositiveInt | None = Field(None, description="Sample among the k likeliest tokens.")
    top_p: PositiveShare = Field(
        1.0, description="Sample among the likeliest tokens that hold this much probability."
    )
    min_p: Share = Field(
        0.0,
        description=(
            "Sample among tokens at least this share as likely as the likeliest (Nguyen et al."
            " 2024)."
        ),
    )
    repetition_penalty: Positive = Field(
        1.0,
        description="Above 1, tokens that were there before get less likely (Keskar et al. 2019).",
    )
    max_new_tokens: PositiveInt = Field(256, description="Tokens of an answer at most.")
    min_answer_tokens: Annotated[int, Field(ge=0)] = Field(
        0, description="Shorter answers are not kept."
    )
    distinct_by: Literal["equations", "text", "code"] = Field(
        "equations",
        description=(
            "Answers take the same path when their equations are equal, in order; or their words;"
            " or their programs."
        ),
    )
    rounds: PositiveInt = Field(
        1,
        description=(
            "How often the student samples, is trained again from the base on what was kept so far,"
            " and is scored."
        ),
    )
    with_demonstrations: bool = Field(
        True, description="Train on the examples of data, too, not on samples alone."
    )
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(
        [1234], description="The whole chain is run once with each."
    )

    @pydantic.field_validator("verifier")
    @classmethod
    def _verifier_exists(cls, value: str) -> str:
        return known_name(value, names_in(VERIFIERS_PACKAGE, ".py"), "unknown verifier")

    @pydantic.model_validator(mode="after")
    def _numbers_agree(self) -> Self:
        if self.keep_per_prompt > self.samples_per_prompt:
            raise ValueError(
                f"keep_per_prompt {self.keep_per_prompt} is above samples_per_prompt"
                f" {self.samples_per_prompt}"
            )
        if self.min_answer_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_answer_tokens {self.min_answer_tokens} is above max_new_tokens"
                f" {self.max_new_tokens}"
            )
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError("seeds: give at least one, and none twice")
        return self
