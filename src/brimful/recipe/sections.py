"""The recipe: what to train. It never names a GPU, a micro-batch, a precision or a kernel; those are the plan's.

`load` reads YAML (a file or a shipped name), applies `key=value` overrides and reports every problem in one error.
Importing this module imports neither torch nor transformers.
"""

import re
from functools import cached_property
from typing import Annotated, Literal, Self

import pydantic
from pydantic import Field

from brimful.base.discover import did_you_mean, names_in
from brimful.base.dotted import format_yaml
from brimful.base.errors import RecipeError
from brimful.recipe.base import Auto, PositiveInt, Section, Share, folder_name
from brimful.recipe.choices import PlanChoices, RunChoices
from brimful.recipe.rft import RftRecipe
from brimful.recipe.tuning import AdapterRecipe, StudyRecipe

METHODS_PACKAGE = "brimful.training.methods"
"""A method is a file in there; only the names of the files are read here."""


class ModelRecipe(Section):
    """The network, built from a transformers config with fresh weights."""

    architecture: Literal["llama", "gpt2"] = Field(
        "llama", description="Block style: llama (RMSNorm, rotary, SwiGLU) or gpt2 (LayerNorm, learned positions, GELU)."
    )
    layers: PositiveInt = Field(description="Number of transformer blocks.")
    heads: PositiveInt = Field(description="Attention heads per block; must divide width.")
    kv_heads: PositiveInt | None = Field(None, description="Key/value heads (llama only); must divide heads. Default: heads.")
    width: PositiveInt = Field(description="Hidden size.")
    mlp_width: PositiveInt | None = Field(None, description="Inner size of the MLP. Default: 4 x width (gpt2), 8/3 x width rounded up to 32 (llama).")
    context: PositiveInt | None = Field(None, description="Longest sequence the model can read. Default: sequence_length.")
    dropout: Share = Field(0.0, description="Dropout probability (gpt2 only).")
    tie_embeddings: bool = Field(True, description="Share the input embedding with the output head.")

    @pydantic.model_validator(mode="after")
    def _shapes_agree(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} must be a multiple of heads {self.heads}")
        if self.architecture == "llama" and self.width // self.heads % 2:
            raise ValueError(f"width / heads = {self.width // self.heads} must be even for rotary positions")
        if self.kv_heads is not None and self.architecture == "gpt2" and self.kv_heads != self.heads:
            raise ValueError("kv_heads belongs to architecture llama; gpt2 has as many as heads")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if self.dropout and self.architecture == "llama":
            raise ValueError("dropout belongs to architecture gpt2; llama has none outside attention")
        return self

    @cached_property
    def resolved_mlp_width(self) -> int:
        if self.mlp_width is not None:
            return self.mlp_width
        return 4 * self.width if self.architecture == "gpt2" else -(-8 * self.width // 3 // 32) * 32


class TokenizerRecipe(Section):
    """How text becomes tokens. Trained on training documents only."""

    kind: Literal["bpe", "character"] = Field("bpe", description="bpe: byte-level BPE trained here; character: one token per distinct character.")
    vocabulary: Annotated[int, Field(ge=257)] | None = Field(
        None, description="Entries in total, end-of-text and the 256 bytes included (bpe: required)."
    )
    min_frequency: PositiveInt = Field(2, description="A pair merges only when seen this often (bpe).")
    split_digits: bool = Field(False, description="Every digit is a token of its own, which makes arithmetic easier to learn (bpe).")

    @pydantic.model_validator(mode="after")
    def _bpe_has_a_size(self) -> Self:
        if self.kind == "bpe" and self.vocabulary is None:
            raise ValueError("vocabulary is required for kind bpe, for example tokenizer.vocabulary=4096")
        if self.kind == "character" and self.vocabulary is not None:
            raise ValueError("vocabulary belongs to kind bpe; a character tokenizer has one entry per character of the text")
        if self.kind == "character" and self.split_digits:
            raise ValueError("split_digits belongs to kind bpe; a character tokenizer splits everything")
        return self


class DataRecipe(Section):
    """Where the text comes from and how it is split and laid out."""

    path: str | list[str] = Field(
        description="Hub id, local file or folder (txt, jsonl, json, csv, tsv, parquet; .gz too) or builtin:NAME; several as a list."
    )
    format: Literal["auto", "prompt", "messages", "question", "mbpp", "alpaca", "conversations", "text"] = Field(
        "auto", description="method sft: how a row holds an example; auto: by its columns."
    )
    columns: dict[str, str] = Field(
        {}, description="method sft: other names of the format's columns, such as {instruction: question, output: solution}."
    )
    template: Literal["auto", "chat", "plain"] = Field(
        "auto", description="method sft: chat: the tokenizer's chat template; plain: headings of plain text; auto: chat where there is one."
    )
    loss_on: Literal["completion", "all"] = Field("completion", description="method sft: which tokens are targets.")
    config_name: str | None = Field(None, description="Configuration of a hub data set, such as wikitext-103-raw-v1.")
    revision: str | None = Field(None, description="Commit of a hub data set, to pin it.")
    text_column: str = Field("text", description="Column that holds the text, where rows have columns.")
    document_start: str | None = Field(None, description="Regular expression: in plain text, a line that matches starts a new document.")
    validation: Annotated[float, Field(gt=0, lt=1)] = Field(0.05, description="Share held out for validation where the source has no such split.")
    test: Share = Field(0.0, description="Share held out for test where the source has no such split.")
    split_by: Literal["document", "position"] = Field(
        "document", description="document: by hash of each document's text; position: the last shares of the text, for one-document sources."
    )
    duplicates: Literal["report", "drop"] = Field(
        "report", description="Validation and test documents that also stand in training: report only, or drop them from validation and test."
    )
    layout: Literal["stream", "document"] = Field(
        "stream", description="stream: documents end to end, cut into full sequences; document: one document per sequence, padded."
    )
    long_documents: Literal["error", "truncate", "split", "drop"] = Field(
        "error",
        description="layout document, and examples of method sft (which cannot be split): what to do with one longer than sequence_length.",
    )
    max_documents: PositiveInt | None = Field(None, description="Read at most this many documents.")

    @pydantic.field_validator("document_start")
    @classmethod
    def _is_a_pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return value

    @pydantic.model_validator(mode="after")
    def _training_has_text_left(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation} + test {self.test} leave no text to train on")
        return self

    @cached_property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else tuple(self.path)


class BatchRecipe(Section):
    """The effective batch: what one optimizer step sees, whatever the device. Exactly one of the two."""

    sequences: PositiveInt | None = Field(None, description="Sequences per optimizer step.")
    tokens: PositiveInt | None = Field(None, description="Tokens per optimizer step; must be a multiple of sequence_length.")

    @pydantic.model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.sequences is None) == (self.tokens is None):
            raise ValueError("give exactly one of batch.sequences and batch.tokens")
        return self


class TrainingRecipe(Section):
    """Length of training. Exactly one of the three."""

    steps: PositiveInt | None = Field(None, description="Optimizer updates.")
    epochs: Annotated[float, Field(gt=0)] | None = Field(None, description="Passes over the training sequences.")
    tokens: PositiveInt | None = Field(None, description="Tokens seen in all.")

    @pydantic.model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if [self.steps, self.epochs, self.tokens].count(None) != 2:
            raise ValueError("give exactly one of training.steps, training.epochs and training.tokens")
        return self


class OptimizerRecipe(Section):
    """AdamW (Loshchilov and Hutter 2019); weight decay on matrices only."""

    kind: Literal["adamw", "adamw_8bit", "paged_adamw_8bit"] = Field(
        "adamw", description="adamw: states in fp32; adamw_8bit: in 8 bits (bitsandbytes); paged_adamw_8bit: these in memory that the driver moves."
    )
    scale_learning_rate: Literal["none", "linear", "sqrt"] = Field(
        "none", description="When you change the effective batch of a recipe: leave its learning rate, or scale it with the batch or its square root."
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(description="Peak learning rate.")
    min_learning_rate: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Learning rate at the end of the schedule. Default: a tenth of the peak."
    )
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", description="Shape after the warm-up.")
    warmup: Annotated[float, Field(ge=0)] = Field(
        0.02, description="Below 1: share of all steps; from 1 on: steps. The first step's rate is never 0."
    )
    beta1: Share = Field(0.9, description="Decay of the gradient average.")
    beta2: Share = Field(0.95, description="Decay of the squared gradient average.")
    eps: Annotated[float, Field(gt=0)] = Field(1e-8, description="Added to the denominator.")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.1, description="Decoupled weight decay, on parameters with two or more dimensions.")
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(1.0, description="Largest global gradient norm; null turns clipping off.")

    @pydantic.model_validator(mode="after")
    def _schedule_falls(self) -> Self:
        if self.min_learning_rate is not None and self.min_learning_rate > self.learning_rate:
            raise ValueError(f"min_learning_rate {self.min_learning_rate} is above learning_rate {self.learning_rate}")
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            raise ValueError(f"warmup {self.warmup} must be a share below 1 or a whole number of steps")
        return self

    @cached_property
    def resolved_min_learning_rate(self) -> float:
        return self.learning_rate / 10 if self.min_learning_rate is None else self.min_learning_rate


class EvaluationRecipe(Section):
    """When and on what the model is scored during training. The whole validation split each time."""

    every: PositiveInt | Auto = Field("auto", description="Optimizer steps between evaluations; auto: ten over the run.")
    max_sequences: PositiveInt | None = Field(
        None, description="Score at most this many validation sequences while training (the final evaluation scores all)."
    )
    tasks: list[str] = Field([], description="Tasks the finished model is evaluated on, such as [code-syntax, bleu, humaneval].")
    max_examples: PositiveInt | None = Field(None, description="Examples per task at most, spread evenly; null: all.")
    data: dict[str, str] = Field({}, description="Where a task's data lie, such as {humaneval: FOLDER/HumanEval.jsonl.gz}; by default on the hub.")


class CheckpointRecipe(Section):
    """How much work a kill can cost."""

    every: PositiveInt | Auto = Field(
        "auto",
        description="Optimizer steps between checkpoints; auto: about one a minute (at most a twentieth of the time), and one at every evaluation.",
    )
    keep: Annotated[int, Field(ge=2)] = Field(2, description="Newest checkpoints kept, beside the best one.")


class SampleRecipe(Section):
    """Text written at the end of training, to look at."""

    prompt: str = Field("", description="Text to continue; empty starts a fresh document.")
    tokens: PositiveInt = Field(200, description="New tokens at most.")
    temperature: Annotated[float, Field(ge=0)] = Field(0.8, description="0 is greedy.")
    top_k: PositiveInt | None = Field(50, description="Sample among the k likeliest tokens.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Sample among the likeliest tokens that hold this much probability.")
    stop: list[str] = Field([], description="Further tokens that end a text, beside end-of-text and those of the chat template.")


OF_RECIPE = "recipe:"
"""Before the name of a shipped recipe or file: the model that it trains."""
_NOT_FRESH = "{name} names the published model {model}; this needs a recipe that describes a fresh model. To tune a published one: method=sft"


def _which_model(value: object) -> str:
    return "published" if isinstance(value, str) else "described"


MODEL_TAGS = ("published", "described")
Model = Annotated[Annotated[str, pydantic.Tag("published")] | Annotated[ModelRecipe, pydantic.Tag("described")], pydantic.Discriminator(_which_model)]


class Recipe(Section):
    """A whole recipe. See docs/recipes.md, `brimful recipes keys` or `brimful recipes schema`."""

    name: str = Field(description="Short name; also the default name of the run.")
    description: str = Field("", description="One line for `brimful recipes`.")
    method: str = Field("pretrain", description="Training method, a file of brimful/training/methods.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(1234, description="Seed of everything random.")
    sequence_length: Annotated[int, Field(ge=2)] = Field(description="Tokens per sequence.")
    batch: BatchRecipe
    training: TrainingRecipe
    model: Model = Field(
        description="A section that describes a fresh model; or the hub id or folder of a published one; or recipe:NAME, what that recipe trains."
    )
    adapter: AdapterRecipe | None = None
    quantize: Literal["none", "nf4"] = Field(
        "none", description="How a published model's frozen linear layers are stored: as published, or in 4 bits."
    )
    tokenizer: TokenizerRecipe | None = None
    data: DataRecipe
    optimizer: OptimizerRecipe
    evaluation: EvaluationRecipe = EvaluationRecipe()
    checkpoint: CheckpointRecipe = CheckpointRecipe()
    sample: SampleRecipe = SampleRecipe()
    plan: PlanChoices = PlanChoices()
    run: RunChoices = RunChoices()
    study: StudyRecipe | None = None
    rft: RftRecipe | None = None

    @pydantic.field_validator("method")
    @classmethod
    def _method_exists(cls, value: str) -> str:
        known = names_in(METHODS_PACKAGE, ".py")
        if value not in known:
            raise ValueError(f"unknown training method{did_you_mean(value, known)} Known: {', '.join(known)}")
        return value

    @pydantic.field_validator("name")
    @classmethod
    def _name_is_a_folder_name(cls, value: str) -> str:
        return folder_name(value)

    @pydantic.model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        context = None if isinstance(self.model, str) else self.model.context
        if context is not None and self.sequence_length > context:
            raise ValueError(f"sequence_length {self.sequence_length} is above the model's context {context}; shorten it or raise model.context")
        if self.batch.tokens is not None and self.batch.tokens % self.sequence_length:
            raise ValueError(f"batch.tokens {self.batch.tokens} must be a multiple of sequence_length {self.sequence_length}")
        return self

    @pydantic.model_validator(mode="after")
    def _parts_belong_to_the_model(self) -> Self:
        if isinstance(self.model, ModelRecipe):
            if self.tokenizer is None:
                raise ValueError("tokenizer is required for a fresh model, for example tokenizer.vocabulary=4096")
            if self.adapter is not None or self.quantize != "none":
                raise ValueError("adapter and quantize belong to a published model: model=HUB_ID or a folder")
            if self.method == "sft":
                raise ValueError("method sft tunes a published model: model=HUB_ID, a folder, or recipe:NAME")
        elif self.tokenizer is not None:
            raise ValueError("a published model comes with its own tokenizer; leave the tokenizer section out")
        elif self.quantize != "none" and self.adapter is None:
            raise ValueError("a quantised model is frozen, so something else has to train: add the adapter section, for example adapter.rank=16")
        return self

    @pydantic.model_validator(mode="after")
    def _rounds_tune(self) -> Self:
        if self.rft is not None and self.method != "sft":
            raise ValueError("rft samples from a model that is tuned to questions: it needs method sft")
        if self.rft is not None and self.study is not None:
            raise ValueError("a recipe has either rft or a study, not both")
        if self.rft is not None and self.rft.max_new_tokens >= self.sequence_length:
            raise ValueError(f"rft.max_new_tokens {self.rft.max_new_tokens} leaves no room for a question in sequence_length {self.sequence_length}")
        return self

    @property
    def fresh_model(self) -> ModelRecipe:
        """The described model.

        Raises:
            RecipeError: the recipe names a published one.
        """
        if isinstance(self.model, str):
            raise RecipeError(_NOT_FRESH.format(name=self.name, model=self.model))
        return self.model

    @property
    def own_tokenizer(self) -> TokenizerRecipe:
        """How the fresh model's tokenizer is trained.

        Raises:
            RecipeError: the recipe names a published model.
        """
        if self.tokenizer is None:
            raise RecipeError(_NOT_FRESH.format(name=self.name, model=self.model))
        return self.tokenizer

    @property
    def effective_batch(self) -> int:
        """Sequences per optimizer step: the recipe's promise."""
        return self.batch.sequences or (self.batch.tokens or 0) // self.sequence_length

    @property
    def context(self) -> int:
        """Positions the fresh model is built for."""
        return self.fresh_model.context or self.sequence_length

    @property
    def run_name(self) -> str:
        return self.run.name or self.name

    def to_yaml(self) -> str:
        """The resolved recipe, every default written out; loads back to an equal value."""
        return format_yaml(self.model_dump(mode="json"))
