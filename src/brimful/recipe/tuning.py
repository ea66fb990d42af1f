"""Sections for published models: adapters, and studies that compare several ways to tune one."""

import re
from typing import Annotated

import pydantic
from pydantic import Field

from brimful.recipe.base import PositiveInt, Section, Share


class AdapterRecipe(Section):
    """LoRA adapters on a frozen published model (Hu et al. 2021)."""

    rank: PositiveInt = Field(16, description="Rank r of the adapters.")
    alpha: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None, description="Scale of the adapters is alpha / rank. Default: 2 x rank."
    )
    dropout: Share = Field(0.0, description="Dropout before the adapters; above 0 it costs memory.")
    targets: str | list[str] = Field(
        "all-linear", description="all-linear, or names of linear layers such as [q_proj, v_proj]."
    )
    rslora: bool = Field(
        False, description="Scale alpha / sqrt(rank) instead (Kalajdzievski 2023)."
    )
    dora: bool = Field(False, description="Weight-decomposed adapters (Liu et al. 2024).")
    start: str | None = Field(
        None,
        description=(
            "Folder of trained adapters (PEFT layout) to go on with; model=FOLDER also takes the"
            " base that they name. Rank, alpha and targets are theirs."
        ),
    )

    @pydantic.model_validator(mode="after")
    def _leaves_the_head_alone(self) -> "AdapterRecipe":
        if {"lm_head", "embed_out"} & set(self.target_names):
            raise ValueError(
                "targets: the output head cannot carry an adapter, because the loss computes its"
                " product in pieces; leave it out"
            )
        return self

    @property
    def resolved_alpha(self) -> float:
        return 2.0 * self.rank if self.alpha is None else self.alpha

    @property
    def target_names(self) -> list[str]:
        """Names of linear layers, or `all-linear`."""
        if isinstance(self.targets, str):
            return [name.strip() for name in self.targets.split(",")]
        return list(self.targets)


BASE = "base"
"""Name of the untuned model among the variants of a study, and of its folder."""


class StudyRecipe(Section):
    """Several variants of the recipe, trained and scored alike, and one table at the end."""

    variants: dict[str, list[str]] = Field(
        description="By name, the changes to the recipe as dotted.key=value."
    )
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(
        [1234], description="Every variant is trained once with each."
    )
    baseline: bool = Field(True, description="Score the untuned model, too.")

    @pydantic.model_validator(mode="after")
    def _names_are_folder_names(self) -> "StudyRecipe":
        if not self.variants or not self.seeds:
            raise ValueError("a study needs at least one variant and one seed")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("a seed stands twice")
        for name in self.variants:
            if not re.fullmatch(r"\w[\w\-]*", name) or name == BASE:
                raise ValueError(
                    f"variant {name!r}: use letters, digits, '_' and '-'; base is the untuned"
                    " model's name"
                )
        return self
