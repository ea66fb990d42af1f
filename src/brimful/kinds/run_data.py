"""What a run trains on and is scored on: the base class of all kinds of run.

A kind of run is a row of `brimful.recipe.kinds` and a module here that defines `RUN_DATA`, a
subclass of `RunData`. Everything that depends on what a method reads is a method of that class; the
chains call them without knowing which kind it is.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import torch
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.discover import module_in
from brimful.base.errors import PlanError
from brimful.base.types import Json, JsonDict, Numbers, Progress, Texts
from brimful.base.warning_codes import as_note
from brimful.data.batches import MicroBatch
from brimful.data.tokenizer import refuse_unknown_ids
from brimful.evaluation.likelihood import Likelihood, Scoring
from brimful.generation.requests import ShownPrompt
from brimful.model.adapters import ids_of_tokens, make_room
from brimful.model.build import build
from brimful.model.catalog import config_of_model
from brimful.model.fingerprint import folder_fingerprint
from brimful.model.published import (
    Loading,
    attach_adapters,
    copy_mapped_weights,
    fingerprint_of,
    hold_weights,
    load_model,
)
from brimful.planning.longest_pass import LongestPassAt, longest_pass_of
from brimful.planning.plan import Plan, plan_from_json
from brimful.planning.rows import fill_of_rows
from brimful.planning.spacing import most_scored
from brimful.planning.step import StepSpec
from brimful.recipe import Kind, Recipe
from brimful.runs.deciding import read_deciding
from brimful.runs.files import PLAN_FILE
from brimful.training.loop import Sequences
from brimful.training.precision import Precision
from brimful.training.world import ALONE, World

if TYPE_CHECKING:
    from brimful.data.example_batches import ExampleSequences
    from brimful.data.formats import Example
    from brimful.data.labelled_batches import LabelledSequences
    from brimful.evaluation.asking import Ask
    from brimful.evaluation.task_prompts import Subject
    from brimful.generation.load import LoadedRun
    from brimful.kinds.finished import TrainedRun

BASE = "base model"
"""Name of the published model's fingerprint."""
START = "adapters at the start"
"""Name of the fingerprint of adapters that a run goes on with."""
Split = TypeVar("Split")
"""What a split of the data is."""
_RECORDED_IN_TRAINING = (
    "loss",
    "perplexity",
    "bits_per_byte",
    "tokens",
    "windows",
    "named",
    "seconds",
)


@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """How a split is scored.

    Attributes:
        plan: Gives the precision and the pieces of the loss.
        device: Where the model is.
        rows: Rows of the sequence length in one pass, to begin with; fewer where memory is short.
        max_sequences: Score at most this many sequences or examples, spread evenly; None: all.
        stride: New tokens per window of documents; None: windows do not overlap.
        exact: Whether the model's own arithmetic is used, not the plan's autocast.
        progress: Called as scoring goes on.
        world: Ranks that share the work; each holds the whole model.
    """

    plan: Plan
    device: torch.device
    rows: int
    max_sequences: int | None = None
    stride: int | None = None
    exact: bool = False
    progress: Progress | None = None
    world: World = ALONE

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The type of the matrix products under autocast; None: no autocast."""
        return None if self.exact else Precision(self.plan.precision).autocast_dtype

    @property
    def scoring(self) -> Scoring:
        """The same as scores of likelihood take it."""
        return Scoring(
            chunk_tokens=self.plan.loss_chunk,
            device=self.device,
            batch_size=self.rows,
            autocast_dtype=self.autocast_dtype,
            max_windows=self.max_sequences,
            progress=self.progress,
            world=self.world,
        )


def plan_of(run_folder: Path) -> Plan:
    """The plan of a run's last session.

    Raises:
        RunFolderError: plan.json is missing or damaged; PlanError: it holds no plan that this
            version reads.
    """
    values = read_deciding(run_folder, PLAN_FILE)
    try:
        return plan_from_json(values)
    except PlanError as error:
        raise PlanError(f"{run_folder / PLAN_FILE}: {error}") from error


class RunData(ABC, Generic[Split]):
    """The data of a run and what is done with them; one subclass per kind of run.

    A subclass says how data are read (`gather`), how the plan counts them (`planned`, `train_rows`,
    `validation_rows`), how they are fed to the training loop (`sequences`), how a model is scored
    on them (`score`) and which settings a resumed run must share (`objective`). The other methods
    have defaults that suit a language model.

    Attributes:
        recipe: Recipe as written.
        tokenizer: Tokenizer of the model.
        splits: `train`, `validation`, and `test` where there is one.
        fingerprints: Fingerprints of data and tokenizer: what a resumed run must share.
        report: Facts about the data for data.json.
        source: Hub id or folder of the published model; empty for a fresh one.
    """

    has_likelihood: ClassVar[bool] = True
    """Whether evaluations during training compute the loss of held-out rows."""

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: PreTrainedTokenizerBase,
        splits: Mapping[str, Split],
        *,
        fingerprints: Texts,
        report: Json,
        source: str = "",
    ) -> None:
        self.recipe = recipe
        self.tokenizer = tokenizer
        self.splits = splits
        self.fingerprints = fingerprints
        self.report = report
        self.source = source

    @classmethod
    @abstractmethod
    def gather(cls, recipe: Recipe, source: str, progress: Progress | None = None) -> Self:
        """Read the data of a recipe.

        Args:
            recipe: Says where the data lie.
            source: Hub id or folder of the published model; empty for a fresh one.
            progress: Called as reading goes on.

        Raises:
            DataError: the data cannot be read or do not support what the recipe asks.
            PlanError: the model's tokenizer cannot be read.
        """

    @classmethod
    def blank(cls, step: StepSpec, samples: int) -> MicroBatch:
        """Return a micro-batch of full samples without padding, zeros where a real one has numbers.

        Args:
            step: Says the length of a row and what the loss depends on.
            samples: Number of samples, as the sizes that `StepBatch.micro_batches` takes count
                them.
        """
        shape = (step.kind.rows_per_sample * samples, step.sequence_length)
        inputs_BT = torch.zeros(shape, dtype=torch.int64)
        return MicroBatch(inputs_BT, torch.zeros_like(inputs_BT))

    @classmethod
    def base_recipe(cls, base: Recipe, recipe: Recipe, progress: Progress | None = None) -> Recipe:
        """Return the recipe of the training that comes first, where this run starts from
        `recipe:NAME`; a kind changes it where that training has to fit this run.

        Args:
            base: The recipe of that name.
            recipe: The recipe of this run.
            progress: Called as data are read.
        """
        return base

    @classmethod
    def source_of_finished(cls, run_folder: Path) -> str:
        """Return the `source` to gather a finished run's data with.

        Raises:
            RunFolderError: the run is not finished.
        """
        from brimful.generation.load import base_of  # noqa: PLC0415 - as above

        return base_of(run_folder)

    @classmethod
    def refuse_evaluation(cls, run_folder: Path, *, untuned: bool, only_splits: bool) -> None:
        """Raise RequestError if a finished run of this kind cannot be scored as requested.

        Args:
            run_folder: Folder of the run.
            untuned: Score the published model as it was before this run.
            only_splits: Score nothing but whole splits: no tasks, no stride.
        """

    @cached_property
    def embedding_rows(self) -> int:
        """Rows of the published model's embedding, with those of added tokens."""
        published = int(config_of_model(self.source).get_text_config().vocab_size)
        return max(published, *(token + 1 for token in self.added_ids), 0)

    @property
    def added_ids(self) -> list[int]:
        """Ids of `data.added_tokens`, whose rows are trained."""
        return ids_of_tokens(self.tokenizer, self.recipe.data.added_tokens)

    @property
    def weights(self) -> Numbers:
        """How much an example counts by its label; empty: all alike."""
        return {}

    @property
    def planned(self) -> Recipe:
        """The recipe as planning counts: an optimizer step in rows of the sequence length."""
        return self.recipe

    @property
    def fill(self) -> float:
        """Share of the positions of those rows that a step computes on average."""
        return 1.0

    @property
    def has_many_lengths(self) -> bool:
        """Whether examples have more than a few lengths among them."""
        return True

    def computed_share(self, device_kind: str) -> float:
        """Return the share of a step's tokens that the device computes: a prompt that several
        answers share may be computed once.
        """
        del device_kind
        return 1.0

    def tokens_computed(self, device_kind: str) -> int | None:
        """Return what `tokens_per_step` comes to on a device."""
        tokens = self.tokens_per_step
        return None if tokens is None else round(self.computed_share(device_kind) * tokens)

    @property
    def scored(self) -> float:
        """Share of a step's positions that have a loss; prompts have none."""
        return 1.0

    @property
    @abstractmethod
    def train_rows(self) -> int:
        """Rows of the sequence length in one epoch, as planning counts."""

    @property
    @abstractmethod
    def validation_rows(self) -> int:
        """Rows of the sequence length in the validation split, as planning counts."""

    def longest_pass_of(
        self, device_kind: str, devices: int = 1
    ) -> Callable[[str], LongestPassAt] | None:
        """Return what the passes of this run hold on a kind of device, of several that share a
        step, by the plan's packing and its micro-batch; None: all rows are full.
        """
        return None

    @property
    def validation_count(self) -> int:
        """Sequences or examples of the validation split, as `ScoringOptions.max_sequences` counts
        them.
        """
        return self.validation_rows

    @property
    def tokens_per_step(self) -> int | None:
        """Mean number of tokens of an optimizer step; None where the plan knows it."""
        return None

    @property
    @abstractmethod
    def objective(self) -> Json:
        """Settings that define what is learned; a resumed run must share them."""

    @property
    def tuned_parts(self) -> Json:
        """Settings of a published model that define what is learned."""
        recipe = self.recipe
        # Which adapters a run goes on with is part of its identity by their weights, not by a path.
        adapter = recipe.adapter.model_dump(exclude={"start"}) if recipe.adapter else None
        return {"model": recipe.model, "quantize": recipe.quantize, "adapter": adapter}

    def build(self, plan: Plan, device: torch.device) -> PreTrainedModel:
        """Return the model to train, on its device: fresh, or published with its adapters.

        Raises:
            PlanError: a published model cannot be loaded.
            RecipeError: its adapters match nothing.
        """
        recipe = self.recipe
        if not self.source:
            fresh = build(
                recipe,
                vocabulary=len(self.tokenizer),
                end_of_text_id=int(self.tokenizer.eos_token_id),
                attention=plan.attention,
                device=device,
            )
            return hold_weights(fresh, recipe.optimizer.weights)
        weights = recipe.optimizer.weights if recipe.adapter is None else plan.precision
        loading = Loading(
            weights, plan.attention, device, recipe.quantize, packs_experts=plan.packs_experts
        )
        model = load_model(self.source, loading)
        copy_mapped_weights(model)
        make_room(model, self.added_ids)
        if recipe.adapter is not None:
            attach_adapters(model, recipe.adapter, seed=recipe.seed, tokens=self.added_ids)
        return model

    def keep_reference(
        self,
        model: PreTrainedModel,
        folder: Path,
        identity: Texts,
        options: ScoringOptions,
    ) -> list[JsonDict]:
        """Compute, once in a run, what its steps need to know of the model as it is before the
        first one, and return the journal's records of that; by default nothing.

        Args:
            model: Model as `build` made it.
            folder: Folder of the run.
            identity: Identity as returned by `identity`.
            options: How the model is scored.

        Raises:
            RequestError: memory does not hold one example; PlanError: the plan divides the model.
        """
        return []

    def draw(self, first_sample: int, is_stopped: Callable[[], bool]) -> Json | None:
        """Draw what the next batches are made of, of a kind that learns from what its own model
        writes; what is there already is not drawn again.

        Args:
            first_sample: First sample of the next batch.
            is_stopped: Whether the run was asked to stop meanwhile.

        Returns:
            Fields of a record of the journal, and `messages` to tell; None: stopped before
            everything was drawn. What was drawn is kept.

        Raises:
            BrimfulError: it cannot be drawn, or judged.
        """
        return {}

    @abstractmethod
    def sequences(self, plan: Plan) -> Sequences:
        """Return the training split as the loop takes it."""

    @abstractmethod
    def score(self, model: PreTrainedModel, split: str, options: ScoringOptions) -> Likelihood:
        """Return the likelihood of a split.

        Raises:
            RequestError: there is nothing to score, or memory does not hold it.
        """

    def validate(
        self, model: PreTrainedModel, plan: Plan, device: torch.device, *, rows: int
    ) -> JsonDict:
        """Return the record of an evaluation during training, on at most `most_scored` sequences
        of the validation split.

        Raises:
            RequestError: as `score`.
        """
        return self.validate_share(model, plan, device, rows=rows)

    def validate_share(
        self,
        model: PreTrainedModel,
        plan: Plan,
        device: torch.device,
        *,
        rows: int,
        share: float = 1.0,
    ) -> JsonDict:
        """Return the record of a likelihood on a share of the sequences that `validate` scores,
        spread evenly.

        Raises:
            RequestError: as `score`.
        """
        count = self.validation_count
        most = most_scored(self.recipe, plan.total_steps, count)
        if share < 1:
            most = max(1, round(share * (count if most is None else min(most, count))))
        options = ScoringOptions(plan=plan, device=device, rows=rows, max_sequences=most)
        likelihood = self.score(model, "validation", options)
        values = likelihood.to_json()
        record = {key: values[key] for key in _RECORDED_IN_TRAINING if key in values}
        return {**record, "batch_sizes": list(likelihood.batch_sizes)}

    def identity(self, model: PreTrainedModel) -> Texts:
        """Return the fingerprints that a resumed checkpoint must share, by name."""
        settings = json.dumps(self.objective, sort_keys=True)
        digest = hashlib.sha256(settings.encode()).hexdigest()[:16]
        base = {BASE: fingerprint_of(self.source, model)} if self.source else {}
        if self.recipe.adapter is not None and self.recipe.adapter.start:
            base[START] = folder_fingerprint(Path(self.recipe.adapter.start))
        return {**self.fingerprints, "objective": digest, **base}

    def baselines(self, split: str) -> JsonDict:
        """Return simple models' scores on a split, for the record of a score; empty: none."""
        return {}

    @property
    def examples(self) -> Mapping[str, Sequence["Example"]]:
        """The run's own examples with a prompt and an answer, by split, which tasks may ask."""
        return {}

    def subject(self, loaded: "LoadedRun", ask: "Ask | None" = None) -> "Subject":
        """Return the model of a finished run as tasks prompt it; `ask` says how a model before
        tuning is asked, in place of the recipe.
        """
        from brimful.kinds.finished import subject_of  # noqa: PLC0415 - no training needs it

        del ask
        return subject_of(self, loaded)

    def score_finished(
        self,
        run: "TrainedRun",
        folder: Path,
        names: Sequence[str],
        stride: int | None,
        progress: Progress,
    ) -> JsonDict:
        """Score whole splits of a finished run.

        Args:
            run: A run with these data.
            folder: Gets the nats of every window or text.
            names: Names of the splits.
            stride: Stride, as `ScoringOptions.stride`.
            progress: Called as scoring goes on.

        Returns:
            Records for scores.json, by split.

        Raises:
            RequestError: as `score`.
        """
        from brimful.kinds.finished import score_splits  # noqa: PLC0415 - as above

        return score_splits(run, folder, names, stride, progress)

    def look_into_layers(self, run: "TrainedRun") -> JsonDict:
        """Return a record for scores.json of what goes on inside special layers; empty: none."""
        return {}

    def describe(self) -> list[str]:
        """Return what a user should know of the data before training starts."""
        return []

    def lines(self) -> list[str]:
        """Return the description and the notes of the report."""
        notes = self.report.get("notes", ())
        return [*self.describe(), *map(as_note, notes)]

    @property
    def sample_prompt(self) -> ShownPrompt:
        """What the finished model continues, to look at."""
        return ShownPrompt(self.recipe.sample.prompt, self.recipe.sample.prompt)

    @property
    def shown_prompts(self) -> Sequence[ShownPrompt]:
        """What the finished model and its base both continue."""
        return [self.sample_prompt]

    def finish(self, run_folder: Path, plan: Plan, console: Console) -> None:
        """Use the trained model for what it is for, once; by default it writes a sample, and the
        answers of both models to the same prompts if the plan says so.
        """
        from brimful.kinds.finished import use_once  # noqa: PLC0415 - as above

        use_once(self, run_folder, plan, console)


class LaidOutRunData(RunData[Split]):
    """Data whose samples have lengths of their own and are laid into rows, packed or padded."""

    @property
    @abstractmethod
    def mean_positions(self) -> float:
        """Mean number of positions that a training example takes in a row."""

    @abstractmethod
    def _sequences(self, packing: str, device_kind: str) -> "ExampleSequences | LabelledSequences":
        """Return the training split as it is laid out on a kind of device."""

    @property
    def fill(self) -> float:
        return fill_of_rows(self.recipe, self.mean_positions)

    def sequences(self, plan: Plan) -> Any:
        return self._sequences(plan.packing, str(plan.device["kind"]))

    def longest_pass_of(
        self, device_kind: str, devices: int = 1
    ) -> Callable[[str], LongestPassAt] | None:
        steps = self.planned.training.steps

        def with_packing(packing: str) -> LongestPassAt:
            lay_out = self._sequences(packing, device_kind).positions_of_passes
            return lambda room: longest_pass_of(lay_out, self.recipe, steps, room, devices=devices)

        return with_packing


AnyRunData = RunData[Any]
"""The data of a run of any kind."""


def run_data_class(kind: Kind) -> type[AnyRunData]:
    """Return `RUN_DATA` of `brimful/kinds/NAME.py`.

    Raises:
        BrimfulError: no such file.
    """
    found: type[AnyRunData] = module_in("brimful.kinds", kind.name, "kind of run").RUN_DATA
    return found


def gather(recipe: Recipe, source: str, progress: Progress | None = None) -> AnyRunData:
    """Read what the recipe's method trains on; see `RunData.gather`.

    Raises:
        DataError, PlanError: as `RunData.gather`; DataError: a published model has no row for a
            token of the data.
    """
    data = run_data_class(recipe.kind).gather(recipe, source, progress)
    for name, split in data.splits.items() if source else ():
        refuse_unknown_ids(f"the {name} split", split.tokens_N, data.tokenizer, data.embedding_rows)
    return data
