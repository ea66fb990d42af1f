"""Sections of settings beside data, optimizer and model: fixed parts of the plan, the place of the
run, adapters and studies of published models, feedback alignment and the penalty of OKADFA.
"""

import math
import re
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from brimful.base.discover import names_in
from brimful.base.units import parse_duration
from brimful.recipe.base import (
    LARGEST_BATCH,
    Auto,
    NotNegative,
    Positive,
    PositiveInt,
    Section,
    Share,
    folder_name,
    known_name,
)

LOGGERS_PACKAGE = "brimful.report.live.loggers"


class PlanChoices(Section):
    """Parts of the plan: `auto` unless the user fixes them; shipped recipes leave them out."""

    device: str = Field("auto", description="auto, cpu, cuda, cuda:N or mps.")
    micro_batch: Annotated[int, Field(gt=0, le=LARGEST_BATCH)] | Auto = Field(
        "auto", description="Sequences per forward and backward pass."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="Arithmetic of the matrix products; weights and optimizer states stay fp32.",
    )
    attention: Literal[
        "auto", "sdpa", "eager", "brimful_blocks", "brimful_expanded", "brimful_packed"
    ] = Field(
        "auto",
        description=(
            "Attention implementation; brimful_blocks is for CPUs, brimful_expanded for GPUs"
            " without a flash kernel, brimful_packed for packed rows."
        ),
    )
    recompute: bool | Literal["selective"] | Auto = Field(
        "auto",
        description=(
            "Recompute activations in the backward pass (activation checkpointing); selective:"
            " matrix products and attention kernels are not computed again, their outputs are kept."
        ),
    )
    offload: Literal["none", "activations"] = Field(
        "none",
        description=(
            "activations: what blocks keep for the backward pass lies in the host's memory until"
            " then; the rest is recomputed."
        ),
    )
    compile: bool | Auto = Field("auto", description="torch.compile the model.")
    loss_chunk: PositiveInt | Auto = Field(
        "auto", description="Tokens per chunk of the linear cross-entropy."
    )
    optimizer: Literal["auto", "fused", "foreach", "for_loop"] = Field(
        "auto", description="Variant of the update: the same arithmetic, other kernels."
    )
    loader_workers: Annotated[int, Field(ge=0, le=64)] | Auto = Field(
        "auto", description="Threads that make batches ahead of time; 0 makes them when needed."
    )
    margin: Literal["conservative", "balanced", "tight"] = Field(
        "balanced",
        description=(
            "How close to the brim: the prediction's upper end fits; the run surely gets through"
            " and leaves 3 % or 0.5 GiB of a GPU free; it is not sure to fail (out of memory is"
            " survived)."
        ),
    )
    leave_gib: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0,
        description=(
            "Memory of the device, in GiB, to leave to other programs, such as 1 where the same"
            " GPU draws the desktop."
        ),
    )
    earlier_runs: bool = Field(
        True,
        description=(
            "Correct predicted memory and time by what earlier runs on this machine measured, where"
            " they agree."
        ),
    )
    packing: Literal["auto", "packed", "padded"] = Field(
        "auto",
        description=(
            "methods sft and classify: examples of a micro-batch end to end, attention within each;"
            " or one per row, similar lengths together."
        ),
    )
    threads: Annotated[int, Field(gt=0, le=1024)] | Auto = Field("auto", description="CPU threads.")
    spread: Literal["auto", "replicated", "sharded", "hybrid"] = Field(
        "auto",
        description=(
            "On several devices: each holds the whole model, or a part of its weights, gradients"
            " and optimizer states; hybrid: a part, and each machine all parts."
        ),
    )
    sampling: Literal["auto", "brimful", "transformers", "vllm"] = Field(
        "auto",
        description=(
            "What writes the samples of rft and the answers of rewards: brimful's engine (auto),"
            " vLLM (an extra), or, for rft alone, transformers' continuous batching."
        ),
    )
    sampling_rows: PositiveInt | Auto = Field(
        "auto",
        description=(
            "Samples written at the same time; auto: as many as memory holds, within reason."
        ),
    )

    @pydantic.model_validator(mode="after")
    def _compiles_no_selection(self) -> "PlanChoices":
        if self.recompute == "selective" and self.compile is True:
            raise ValueError(
                "plan.recompute=selective chooses among operators, which compiled blocks join; they"
                " choose by themselves what they keep: leave one of the two out, it or"
                " plan.compile=true"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _offloads_what_is_recomputed(self) -> "PlanChoices":
        if self.offload == "none":
            return self
        if self.recompute == "selective":
            raise ValueError(
                "plan.offload=activations keeps the inputs of blocks alone, and"
                " plan.recompute=selective more than that: leave one of them out"
            )
        if self.recompute is False:
            raise ValueError(
                "plan.offload=activations keeps the inputs of blocks and computes the rest again:"
                " leave plan.recompute=false out"
            )
        if self.compile is True:
            raise ValueError(
                "plan.offload=activations moves tensors between blocks, which compiled ones do not"
                " let it: leave plan.compile=true out"
            )
        return self


class RunChoices(Section):
    """Where the run is kept."""

    name: str | None = Field(
        None, description="Name of the run folder. Default: the recipe's name."
    )
    folder: str | None = Field(
        None, description="Folder that holds run folders. Default: BRIMFUL_RUNS or ./runs."
    )
    mirror: str | None = Field(
        None,
        description=(
            "Folder on another disk, such as a mounted drive, that gets a verified copy; a new"
            " machine continues from it."
        ),
    )
    session: str | None = Field(
        None,
        description=(
            "Time from now after which this machine is taken away, such as 12h; the last recovery"
            " point comes before it."
        ),
    )

    loggers: list[str] = Field(
        ["tensorboard"],
        description=(
            "Where the numbers of training are shown, too: tensorboard, trackio, wandb, mlflow"
            " (the last three are extras); []: nowhere else."
        ),
    )
    project: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None,
        description=(
            "Project (MLflow: experiment) that loggers file the run under. Default: what the"
            " logger's own settings say, else brimful."
        ),
    )

    patience: str | None = Field(
        "auto",
        description=(
            "Longest time without progress, such as 30m; then the process ends, to be started"
            " again. auto: 20 times as long as planned, at least 10m; null: never."
        ),
    )
    long: bool = Field(
        False, description="Begin although the plan predicts more than a year (as --yes)."
    )

    replay_check: PositiveInt | None = Field(
        None,
        description=(
            "Compute every so many steps twice and compare all bits, to find a machine that"
            " computes wrongly; 200 costs half a per cent; null: never."
        ),
    )

    @pydantic.field_validator("name")
    @classmethod
    def _is_a_folder_name(cls, value: str | None) -> str | None:
        if value is None:
            return None
        return folder_name(value)

    @pydantic.field_validator("loggers")
    @classmethod
    def _loggers_exist(cls, value: list[str]) -> list[str]:
        known = names_in(LOGGERS_PACKAGE, ".py")
        names = [known_name(each, known, "unknown logger") for each in value]
        if len(set(names)) < len(names):
            raise ValueError("name each logger once")
        return names

    @pydantic.field_validator("session", "patience", mode="before")
    @classmethod
    def _is_a_time(cls, value: object, info: pydantic.ValidationInfo) -> object:
        is_auto = value == "auto" and info.field_name == "patience"
        if value is not None and not is_auto:
            parse_duration(str(value))
        return value

    @property
    def session_s(self) -> float | None:
        """Seconds from the start of the process to the end of the session; None: no end."""
        return None if self.session is None else parse_duration(self.session)

    @property
    def patience_s(self) -> float | None:
        """Seconds without progress after which the process ends; None: by the plan."""
        if self.patience is None:
            return math.inf
        return None if self.patience == "auto" else parse_duration(self.patience)

    def member(self, name: str, folder: Path) -> "RunChoices":
        """Return where a run that belongs to this one is kept: in its folder, mirrored into the
        same folder's mirror, with the same end of the session.
        """
        mirror = None if self.mirror is None else str(Path(self.mirror) / folder.name)
        return self.model_copy(update={"name": name, "folder": str(folder), "mirror": mirror})

    def beside(self, name: str | None) -> "RunChoices":
        """Return where a run that is trained before this one is kept: beside it."""
        return self.model_copy(update={"name": name})


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
        """Return the weight of the penalty at update `step` (0-based): it grows during warm-up."""
        warmup_steps = int(self.warmup)
        if self.warmup < 1:
            warmup_steps = round(self.warmup * total_steps)
        return self.weight * min(1.0, (step + 1) / max(1, warmup_steps))


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
