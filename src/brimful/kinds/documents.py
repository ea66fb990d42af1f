"""Runs on documents of plain text, read from left to right."""

from functools import cached_property
from typing import TYPE_CHECKING, Self

from transformers import PreTrainedModel

from brimful.base.env import cache_folder
from brimful.base.text import plural
from brimful.base.types import Json, JsonDict, Progress
from brimful.base.units import format_bytes
from brimful.data.masking import MaskedSequences
from brimful.data.prepare import PreparedData, prepare
from brimful.data.prepared_ahead import wait_for_prepared
from brimful.data.sequences import TokenSequences
from brimful.data.shard_sequences import ShardSequences
from brimful.data.tokens import TokenSplit
from brimful.evaluation.likelihood import Likelihood, score_split
from brimful.generation.requests import ShownPrompt
from brimful.kinds.run_data import RunData, ScoringOptions
from brimful.model.tokenizer import load_tokenizer
from brimful.planning.plan import Plan
from brimful.recipe import Recipe
from brimful.training.loop import Sequences as TrainingSequences

if TYPE_CHECKING:
    from brimful.kinds.finished import TrainedRun

PROMPT_TOKENS, PROMPT_CHARACTERS = 64, 60
"""Tokens and characters of held-out text that the finished model continues."""


class DocumentRunData(RunData[TokenSplit]):
    """Documents that a model learns to continue, a fresh or a published one."""

    def __init__(self, recipe: Recipe, data: PreparedData, source: str = "") -> None:
        self._shards = data.shards
        super().__init__(
            recipe,
            data.tokenizer,
            data.splits,
            fingerprints={"data": data.data_fingerprint, "tokenizer": data.tokenizer_fingerprint},
            report=data.report,
            source=source,
        )
        self._tokenizer_report = data.tokenizer_report

    @classmethod
    def gather(cls, recipe: Recipe, source: str, progress: Progress | None = None) -> Self:
        wait_for_prepared(progress)
        published = load_tokenizer(source) if source else None
        return cls(recipe, prepare(recipe, cache_folder(), progress, published), source)

    @cached_property
    def train_sequences(self) -> TokenSequences | MaskedSequences | ShardSequences:
        """The training split as the loop takes it; the same for every plan."""
        data = self.recipe.data
        train, length = self.splits["train"], self.recipe.sequence_length
        if self._shards is not None:
            return ShardSequences(self._shards, length, data.shuffled_files, self.recipe.seed)
        return TokenSequences(train, length, data.layout, data.long_documents, self.recipe.seed)

    def sequences(self, plan: Plan) -> TrainingSequences:
        return self.train_sequences

    @property
    def train_rows(self) -> int:
        return len(self.train_sequences)

    @property
    def validation_rows(self) -> int:
        return -(-self.splits["validation"].num_tokens // self.recipe.sequence_length)

    @property
    def objective(self) -> Json:
        recipe = self.recipe
        return {
            "method": recipe.method,
            "sequence_length": recipe.sequence_length,
            "layout": recipe.data.layout,
            **(self.tuned_parts if self.source else {"model": recipe.fresh_model.identity}),
        }

    def score(self, model: PreTrainedModel, split: str, options: ScoringOptions) -> Likelihood:
        return score_split(
            model,
            self.splits[split],
            options.scoring,
            context=self.recipe.sequence_length,
            stride=options.stride,
        )

    def baselines(self, split: str) -> JsonDict:
        """Return the scores of models that count tokens."""
        from brimful.evaluation.baselines import ngram_baselines  # noqa: PLC0415 - no training needs it

        train, scored = self.splits["train"], self.splits[split]
        return {"baselines": ngram_baselines(train, scored, len(self.tokenizer)).to_json()}

    def look_into_layers(self, run: "TrainedRun") -> JsonDict:
        """Return what kernel attention and feedback alignment do, if the run has them."""
        from brimful.evaluation.layers import (  # noqa: PLC0415 - no training needs it
            has_layers_to_look_at,
            measure_layers,
        )
        from brimful.runs.scores import LAYERS  # noqa: PLC0415

        if not has_layers_to_look_at(self.recipe):
            return {}
        chunk, validation = run.plan.loss_chunk, self.splits["validation"]
        measured = measure_layers(run.loaded.model, self.recipe, validation, loss_chunk=chunk)
        return {LAYERS: measured.to_json()}

    @property
    def sample_prompt(self) -> ShownPrompt:
        """The recipe's own prompt, else how the first held-out document begins."""
        prompt = self.recipe.sample.prompt or self._held_out_beginning()
        return ShownPrompt(prompt, prompt)

    def _held_out_beginning(self) -> str:
        """Return whole words of at most half of a document, "" if it is too short for one."""
        validation = self.splits["validation"]
        length = min(int(validation.document_offsets[1]), self.recipe.sequence_length)
        ids_T = validation.tokens_N[: min(PROMPT_TOKENS, length // 2)]
        text = str(self.tokenizer.decode(ids_T.tolist()))[:PROMPT_CHARACTERS]
        return text.rsplit(maxsplit=1)[0].rstrip("\ufffd") if text.strip() else ""

    def describe(self) -> list[str]:
        lines = [
            f"{name}: {plural(counts['documents'], 'document')}, {format_bytes(counts['bytes'])},"
            f" {counts['tokens']:,} tokens"
            for name, counts in self.report["splits"].items()
        ]
        tokenizer = self._tokenizer_report
        lines.append(
            f"tokenizer: {tokenizer.kind}, {tokenizer.vocabulary:,} entries,"
            f" {tokenizer.characters_per_token:.2f} characters,"
            f" {tokenizer.bytes_per_token:.2f} bytes per token ({tokenizer.verdict})"
        )
        return lines


RUN_DATA = DocumentRunData
