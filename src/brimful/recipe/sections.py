"""The recipe: what to train. It never names a GPU, a micro-batch, a precision or a kernel; the
plan chooses those.

Importing this module imports neither torch nor transformers.
"""

from typing import Annotated, Literal, Self

import pydantic
from pydantic import Field

from brimful.base.dotted import format_yaml
from brimful.base.errors import RecipeError
from brimful.base.types import JsonDict
from brimful.recipe.base import (
    LARGEST_BATCH,
    LONGEST,
    Auto,
    NotNegative,
    Positive,
    PositiveInt,
    PositiveShare,
    Section,
    Share,
    folder_name,
    known_name,
)
from brimful.recipe.choices import (
    AdapterRecipe,
    FeedbackRecipe,
    OrthogonalityRecipe,
    PlanChoices,
    RunChoices,
    StudyRecipe,
)
from brimful.recipe.data import DataRecipe, TokenizerRecipe
from brimful.recipe.kinds import Kind, kind_of_method, training_methods
from brimful.recipe.labels import LabelsRecipe
from brimful.recipe.preference import PreferenceRecipe
from brimful.recipe.presets import PresetName, Presets
from brimful.recipe.rewards import RewardsRecipe, check_sections_of_methods
from brimful.recipe.rft import RftRecipe


class ModelRecipe(Section):
    """The network, built from a transformers config with fresh weights."""

    architecture: Literal["llama", "gpt2", "modernbert", "okadfa"] = Field(
        "llama",
        description=(
            "Block style: llama (RMSNorm, rotary, SwiGLU), gpt2 (LayerNorm, learned positions,"
            " GELU), the encoder modernbert (method mlm), or okadfa (LayerNorm, sinusoidal"
            " positions, GELU, normalised queries and keys)."
        ),
    )
    layers: Annotated[int, Field(gt=0, le=1024)] = Field(
        description="Number of transformer blocks."
    )
    heads: Annotated[int, Field(gt=0, le=1 << 14)] = Field(
        description="Attention heads per block; must divide width."
    )
    kv_heads: PositiveInt | None = Field(
        None, description="Key/value heads (llama only); must divide heads. Default: heads."
    )
    width: Annotated[int, Field(gt=0, le=1 << 20)] = Field(description="Hidden size.")
    mlp_width: Annotated[int, Field(gt=0, le=1 << 22)] | None = Field(
        None,
        description=(
            "Inner size of the MLP. Default: 4 x width (gpt2, okadfa), 8/3 x width rounded up to 32"
            " (llama, modernbert)."
        ),
    )
    context: Annotated[int, Field(gt=0, le=LONGEST)] | None = Field(
        None, description="Longest sequence the model can read. Default: sequence_length."
    )
    dropout: Share = Field(0.0, description="Dropout probability (not llama).")
    tie_embeddings: bool = Field(
        True, description="Share the input embedding with the output head."
    )
    attention: Literal["softmax", "kernel"] | None = Field(
        None,
        description=(
            "okadfa only: softmax, or kernel: its estimate from random features, in time linear in"
            " the length. Default: kernel."
        ),
    )
    features: Annotated[int, Field(gt=0, le=1 << 20)] | None = Field(
        None, description="Kernel attention: random features per head. Default: 4 x width / heads."
    )
    redraw: PositiveInt | None = Field(
        None,
        description=(
            "Kernel attention: optimizer updates after which the features are drawn anew; null:"
            " never."
        ),
    )
    activation: Literal["gelu", "gelu_erf", "relu", "swish"] = Field(
        "gelu",
        description=(
            "Activation of the MLPs (not llama, modernbert): gelu is GPT-2's approximation by tanh,"
            " gelu_erf the exact one, several times as quick on a CPU; relu and swish are for"
            " okadfa."
        ),
    )
    temperature: Annotated[float, Field(gt=0, le=64)] = Field(
        1.0,
        description=(
            "okadfa only: factor on the cosine of a query and a key at the start; learned per head"
            " from there."
        ),
    )

    @pydantic.model_validator(mode="after")
    def _shapes_agree(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} must be a multiple of heads {self.heads}")
        if self.architecture not in {"gpt2", "okadfa"} and self.width // self.heads % 2:
            raise ValueError(
                f"width / heads = {self.width // self.heads} must be even for rotary positions"
            )
        if self.kv_heads not in {None, self.heads} and self.architecture != "llama":
            raise ValueError(
                f"kv_heads belongs to architecture llama; {self.architecture} has as many as heads"
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if self.dropout and self.architecture == "llama":
            raise ValueError(
                "dropout belongs to the other architectures; llama has none outside attention"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _attention_is_okadfas(self) -> Self:
        if self.architecture != "okadfa" and (
            self.attention is not None or self.temperature != 1.0
        ):
            raise ValueError(
                "attention and temperature are for architecture okadfa, and this model has"
                f" {self.architecture}; leave them out"
            )
        if not self.is_kernel and (self.features is not None or self.redraw is not None):
            raise ValueError(
                "features and redraw are for kernel attention (architecture=okadfa"
                " attention=kernel); remove them with features=null redraw=null"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _activation_exists(self) -> Self:
        others = {"gpt2": {"gelu_erf"}, "okadfa": {"gelu_erf", "relu", "swish"}}
        if self.activation not in {"gelu", *others.get(self.architecture, ())}:
            raise ValueError(
                f"activation {self.activation} is for architecture"
                f" {'okadfa or gpt2' if self.activation == 'gelu_erf' else 'okadfa'}, and this"
                f" model has {self.architecture}; leave it out"
            )
        return self

    @property
    def identity(self) -> JsonDict:
        """The values by which a run is recognised; keys that came later are left out at their
        defaults, so that older runs go on.
        """
        return self.model_dump(exclude={"activation"} if self.activation == "gelu" else None)

    @property
    def is_kernel(self) -> bool:
        """Whether attention is estimated from random features."""
        return self.architecture == "okadfa" and self.attention != "softmax"

    @property
    def is_bidirectional(self) -> bool:
        """Whether every position attends to both sides (an encoder), not only to the left."""
        return self.architecture == "modernbert"

    @property
    def resolved_mlp_width(self) -> int:
        if self.mlp_width is not None:
            return self.mlp_width
        if self.architecture in {"gpt2", "okadfa"}:
            return 4 * self.width
        return -(-8 * self.width // 3 // 32) * 32


class BatchRecipe(Section):
    """Effective batch: what one optimizer step sees on any device. Give exactly one of the two."""

    sequences: PositiveInt | None = Field(None, description="Sequences per optimizer step.")
    tokens: PositiveInt | None = Field(
        None, description="Tokens per optimizer step; must be a multiple of sequence_length."
    )

    @pydantic.model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.sequences is None) == (self.tokens is None):
            raise ValueError("give exactly one of batch.sequences and batch.tokens")
        return self


class TrainingRecipe(Section):
    """Length of training. Exactly one of the three."""

    steps: PositiveInt | None = Field(None, description="Optimizer updates.")
    epochs: Positive | None = Field(None, description="Passes over the training sequences.")
    tokens: PositiveInt | None = Field(None, description="Tokens seen in all.")

    @pydantic.model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if [self.steps, self.epochs, self.tokens].count(None) != 2:
            raise ValueError(
                "give exactly one of training.steps, training.epochs and training.tokens"
            )
        return self


class OptimizerRecipe(Section):
    """AdamW (Loshchilov and Hutter 2019), or Muon with it; weight decay on matrices only."""

    kind: Literal["adamw", "adamw_8bit", "paged_adamw_8bit", "muon"] = Field(
        "adamw",
        description=(
            "adamw: states in fp32; adamw_8bit: in 8 bits (bitsandbytes); paged_adamw_8bit: these"
            " in memory that the driver moves; muon: Muon (Jordan et al. 2024) for matrices inside"
            " blocks, AdamW for the rest, both at AdamW's learning rate (Liu et al. 2025)."
        ),
    )
    weights: Literal["fp32", "bf16"] = Field(
        "fp32",
        description=(
            "Type of the weights that train, where all train. bf16: half the memory for weights and"
            " gradients; updates are computed in fp32 and rounded at random, so that small ones"
            " count."
        ),
    )
    scale_learning_rate: Literal["none", "linear", "sqrt"] = Field(
        "none",
        description=(
            "When you change the effective batch of a recipe: leave its learning rate, or scale it"
            " with the batch or its square root."
        ),
    )
    learning_rate: Positive = Field(description="Peak learning rate.")
    layer_decay: PositiveShare = Field(
        1.0,
        description=(
            "Factor on the learning rate for each block further from the output (Howard and Ruder"
            " 2018); 1: none."
        ),
    )
    min_learning_rate: NotNegative | None = Field(
        None, description="Learning rate at the end of the schedule. Default: a tenth of the peak."
    )
    tuned_at_width: Annotated[int, Field(gt=0)] | None = Field(
        None,
        description=(
            "Hidden size at which learning_rate was chosen: AdamW's rate for matrices inside blocks"
            " is multiplied by it over the model's own hidden size (Yang et al. 2022)."
        ),
    )
    schedule: Literal["cosine", "linear", "constant", "wsd"] = Field(
        "cosine",
        description=(
            "Shape after the warm-up; wsd: constant, then falling in a straight line (Hu et al."
            " 2024)."
        ),
    )
    decay: PositiveShare = Field(
        0.2, description="Of schedule wsd: share of all steps, at the end, in which the rate falls."
    )
    warmup: NotNegative = Field(
        0.02,
        description=(
            "Below 1: share of all steps; from 1 on: steps. The first step's rate is never 0."
        ),
    )
    beta1: Share = Field(0.9, description="Decay of the gradient average.")
    beta2: Share = Field(0.95, description="Decay of the squared gradient average.")
    eps: Positive = Field(1e-8, description="Added to the denominator.")
    weight_decay: NotNegative = Field(
        0.1, description="Decoupled weight decay, on parameters with two or more dimensions."
    )
    clip_norm: Positive | None = Field(
        1.0, description="Largest global gradient norm; null turns clipping off."
    )

    spikes: Literal["note", "skip", "rollback", "ignore"] = Field(
        "note",
        description=(
            "A step whose loss or gradient norm is far above those of the 64 steps before: tell it;"
            " skip its update; go back to the last checkpoint, behind it; or do not look (ignore)."
        ),
    )

    @pydantic.model_validator(mode="after")
    def _schedule_falls(self) -> Self:
        if self.min_learning_rate is not None and self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"min_learning_rate {self.min_learning_rate} is above learning_rate"
                f" {self.learning_rate}"
            )
        if self.kind == "muon" and self.weights == "bf16":
            raise ValueError("kind muon updates weights in fp32: leave weights=bf16 out")
        if self.kind == "muon" and self.tuned_at_width is not None:
            raise ValueError(
                "tuned_at_width is for AdamW: Muon's updates have the same size at any width"
            )
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            raise ValueError(
                f"warmup {self.warmup} must be a share below 1 or a whole number of steps"
            )
        return self

    @property
    def resolved_min_learning_rate(self) -> float:
        return self.learning_rate / 10 if self.min_learning_rate is None else self.min_learning_rate


class EvaluationRecipe(Section):
    """When the model is scored during training, each time on the whole validation split."""

    every: PositiveInt | Auto = Field(
        "auto",
        description=(
            "Optimizer steps between evaluations; auto: ten over the run, or fewer if evaluations"
            " and checkpoints would take more than a tenth of its time."
        ),
    )
    max_sequences: PositiveInt | None = Field(
        None,
        description=(
            "Score at most this many validation sequences while training (the final evaluation"
            " scores all); from fresh weights no more than the run trains on."
        ),
    )
    patience: PositiveInt | None = Field(
        None,
        description=(
            "Stop after this many evaluations in a row without a better score; null: never."
        ),
    )
    base: Literal["auto", "always", "never"] = Field(
        "auto",
        description=(
            "Of a published model that writes text: score it as it was before tuning, too:"
            " held-out loss, samples and tasks; auto: what takes at most a tenth of the run."
        ),
    )
    tasks: list[str] = Field(
        [],
        description=(
            "Tasks the finished model is evaluated on, such as [code-syntax, humaneval, bleu]."
        ),
    )
    max_examples: PositiveInt | None = Field(
        None, description="Examples per task at most, spread evenly; null: all."
    )
    ask: Literal["auto", "chat", "plain"] = Field(
        "auto",
        description=(
            "How tasks ask a model before tuning: chat template, or text to continue; auto: chat"
            " where its name says so, both if in doubt (the better one counts)."
        ),
    )
    max_new_tokens: PositiveInt | None = Field(
        None, description="Tokens of a task's answer at most; null: as the task has it."
    )
    samples: PositiveInt | None = Field(
        None, description="Answers per example of a task; null: as the task has it."
    )
    temperature: NotNegative | None = Field(
        None, description="Of tasks' answers, 0 is greedy; null: as the task has it."
    )
    shots: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description=(
            "Solved examples before a question that is asked as text to continue; null: as the task"
            " has it."
        ),
    )
    data: dict[str, str] = Field(
        {},
        description=(
            "Where a task's data lie, such as {humaneval: FOLDER/HumanEval.jsonl.gz}; by default on"
            " the hub."
        ),
    )


class CheckpointRecipe(Section):
    """How much work a kill can cost."""

    every: PositiveInt | Auto = Field(
        "auto",
        description=(
            "Optimizer steps between checkpoints; auto: about one a minute (at most a twentieth of"
            " the time), and one at every evaluation."
        ),
    )
    keep: Annotated[int, Field(ge=2)] = Field(
        2, description="Newest checkpoints kept, beside the best one."
    )


class SampleRecipe(Section):
    """Text written at the end of training, to look at."""

    prompt: str = Field(
        "",
        description="Text to continue; empty: the start of held-out data; sft: a held-out prompt.",
    )
    tokens: PositiveInt = Field(
        200, description="New tokens at most; from fresh weights no more than 32 for each step."
    )
    temperature: NotNegative = Field(0.8, description="0 is greedy.")
    top_k: PositiveInt | None = Field(50, description="Sample among the k likeliest tokens.")
    top_p: PositiveShare = Field(
        1.0, description="Sample among the likeliest tokens that hold this much probability."
    )
    stop: list[str] = Field(
        [],
        description=(
            "Further tokens that end a text, beside end-of-text and those of the chat template."
        ),
    )


OF_RECIPE = "recipe:"
"""What stands before the name of a shipped recipe or file: the model that it trains."""
_NOT_FRESH = (
    "{name} names the published model {model}; this needs a recipe that describes a fresh model. To"
    " tune a published one: method=pretrain on text, method=sft on examples"
)


def _which_model(value: object) -> str:
    return "published" if isinstance(value, str) else "described"


MODEL_TAGS = ("published", "described")
Model = Annotated[
    Annotated[str, pydantic.Tag("published")] | Annotated[ModelRecipe, pydantic.Tag("described")],
    pydantic.Discriminator(_which_model),
]


class Recipe(Section):
    """A whole recipe. See docs/recipes.md, `brimful recipes keys` or `brimful recipes schema`."""

    name: str = Field(description="Short name; also the default name of the run.")
    description: str = Field("", description="One line for `brimful recipes`.")
    method: str = Field(
        "pretrain", description="Training method, a file of brimful/training/methods."
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        1234, description="Seed of everything random."
    )
    sequence_length: Annotated[int, Field(ge=2, le=LONGEST)] = Field(
        description="Tokens per sequence."
    )
    batch: BatchRecipe
    training: TrainingRecipe
    model: Model = Field(
        description=(
            "A section that describes a fresh model; or a published one: hub id, folder, FILE.gguf,"
            " package:NAME==VERSION#FILE, or a short name such as smollm2-135m-instruct; or"
            " recipe:NAME, what that recipe trains."
        )
    )
    adapter: AdapterRecipe | None = None
    quantize: Literal["none", "nf4"] = Field(
        "none",
        description=(
            "How a published model's frozen linear layers are stored: as published, or in 4 bits."
        ),
    )
    tokenizer: TokenizerRecipe | None = None
    data: DataRecipe
    optimizer: OptimizerRecipe
    evaluation: EvaluationRecipe = EvaluationRecipe()
    checkpoint: CheckpointRecipe = CheckpointRecipe()
    sample: SampleRecipe = SampleRecipe()
    plan: PlanChoices = PlanChoices()
    run: RunChoices = RunChoices()
    labels: LabelsRecipe | None = None
    preference: PreferenceRecipe | None = None
    feedback: FeedbackRecipe | None = None
    orthogonality: OrthogonalityRecipe | None = None
    study: StudyRecipe | None = None
    rft: RftRecipe | None = None
    rewards: RewardsRecipe | None = None
    preset: PresetName = None
    presets: Presets = Field({})

    @pydantic.field_validator("method")
    @classmethod
    def _method_exists(cls, value: str) -> str:
        return known_name(value, training_methods(), "unknown training method")

    @pydantic.field_validator("name")
    @classmethod
    def _name_is_a_folder_name(cls, value: str) -> str:
        return folder_name(value)

    @pydantic.model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        context = None if isinstance(self.model, str) else self.model.context
        if context is not None and self.sequence_length > context:
            raise ValueError(
                f"sequence_length {self.sequence_length} is above the model's context {context};"
                " shorten it or raise model.context"
            )
        if self.batch.tokens is not None and self.batch.tokens % self.sequence_length:
            raise ValueError(
                f"batch.tokens {self.batch.tokens} must be a multiple of sequence_length"
                f" {self.sequence_length}"
            )
        if self.effective_batch > LARGEST_BATCH:
            raise ValueError(
                f"an optimizer step of {self.effective_batch:,} sequences is more than"
                f" {LARGEST_BATCH:,}; lower batch.{'tokens' if self.batch.tokens else 'sequences'}"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _parts_belong_to_the_model(self) -> Self:
        if isinstance(self.model, ModelRecipe):
            if self.tokenizer is None:
                raise ValueError(
                    "tokenizer is required for a fresh model, for example tokenizer.vocabulary=4096"
                )
            if self.adapter is not None or self.quantize != "none":
                raise ValueError(
                    "adapter and quantize belong to a published model: model=HUB_ID or a folder"
                )
            if self.kind.starts_from == "published":
                raise ValueError(
                    f"method {self.method} tunes a published model: model=HUB_ID, a folder, or"
                    " recipe:NAME"
                )
            if self.kind.fills_masks != self.model.is_bidirectional:
                raise ValueError(
                    "method mlm trains an encoder and an encoder is trained by method mlm:"
                    " model.architecture=modernbert"
                )
        elif self.tokenizer is not None:
            raise ValueError(
                "a published model comes with its own tokenizer; leave the tokenizer section out"
            )
        elif self.quantize != "none" and self.adapter is None:
            raise ValueError(
                "a quantised model is frozen, so something else has to train: add the adapter"
                " section, for example adapter.rank=16"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _bf16_weights_train(self) -> Self:
        if self.optimizer.weights == "fp32":
            return self
        if self.adapter is not None:
            raise ValueError(
                "optimizer.weights=bf16 is for training all weights; adapters train in fp32, on a"
                " frozen base that is held in 16 or 4 bits. Leave it out, or leave the adapter out"
            )
        if self.feedback_points:
            raise ValueError(
                "optimizer.weights=bf16 cannot be combined with method feedback, which makes its"
                " own gradients in fp32; leave it out"
            )
        if self.plan.precision not in {"auto", "bf16"}:
            raise ValueError(
                f"weights of type bf16 are multiplied in bf16: plan.precision={self.plan.precision}"
                " and optimizer.weights=bf16 exclude each other"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _cache_is_for_documents(self) -> Self:
        if self.data.cache_gib is not None and not (
            self.kind.continues_text and isinstance(self.model, ModelRecipe)
        ):
            raise ValueError(
                "data.cache_gib is for fresh models of the methods pretrain and feedback; leave it"
                " out"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _keys_of_examples_have_examples(self) -> Self:
        if not self.kind.answers_prompts:
            self.data.refuse_keys_of_examples(self.method)
        check_sections_of_methods(self)
        return self

    @pydantic.model_validator(mode="after")
    def _labels_belong_to_a_classifier(self) -> Self:
        if self.labels is not None and not self.kind.gives_labels:
            raise ValueError(f"labels belongs to method classify, not to {self.method}")
        if self.label_rules.pretrain != "as_written" and not (
            isinstance(self.model, str) and self.model.startswith(OF_RECIPE)
        ):
            raise ValueError(
                "labels.pretrain needs an encoder that is trained here first: set"
                " model=recipe:NAME or labels.pretrain=as_written"
            )
        if self.kind.gives_labels and (
            self.study is not None or self.quantize != "none" or self.adapter is not None
        ):
            raise ValueError(
                "method classify trains the whole model: leave out study, quantize and adapter"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _feedback_belongs_to_its_method(self) -> Self:
        if self.feedback is not None and not self.feedback_points:
            raise ValueError(
                f"the section feedback is for method feedback, and this recipe has {self.method};"
                " remove it with feedback=null"
            )
        is_okadfa = isinstance(self.model, ModelRecipe) and self.model.architecture == "okadfa"
        if self.feedback_rules.points == "sublayer" and not is_okadfa:
            raise ValueError(
                "feedback.points=sublayer needs the parts of architecture okadfa; block works for"
                " llama and gpt2, too"
            )
        if self.feedback_points and isinstance(self.model, str):
            raise ValueError(
                "method feedback trains a fresh model: describe one in the section model"
            )
        if self.orthogonality is not None and not is_okadfa:
            raise ValueError(
                "the section orthogonality is for architecture okadfa; remove it with"
                " orthogonality=null"
            )
        if self.orthogonality is not None and self.feedback_points == "none":
            raise ValueError(
                "feedback.points=none trains no query and key projections, orthogonality would;"
                " leave one of the two out"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _rounds_tune(self) -> Self:
        if self.rft is not None and not self.kind.answers_prompts:
            raise ValueError(
                "rft draws answers from a model that is fine-tuned to give them: set method=sft,"
                " or method=dpo to learn from right and wrong ones, or leave rft out"
            )
        if self.rft is not None and self.study is not None:
            raise ValueError("a recipe has either rft or a study, not both")
        if self.rft is not None and self.rft.max_new_tokens >= self.sequence_length:
            raise ValueError(
                f"rft.max_new_tokens {self.rft.max_new_tokens} leaves no room for a question in"
                f" sequence_length {self.sequence_length}"
            )
        return self

    @property
    def makes_several_runs(self) -> bool:
        """Whether it is a study, or rounds of sampling and training."""
        return self.study is not None or self.rft is not None

    @property
    def kind(self) -> Kind:
        """The kind of run that the method makes."""
        return kind_of_method(self.method)

    @property
    def loss_options(self) -> JsonDict:
        """What decides the method's loss: that of its steps, and the seed."""
        return {**self.kind.step_options(self), "seed": self.seed}

    @property
    def tunes_a_writer(self) -> bool:
        """Whether the model from before this run writes text, too: the two can be compared."""
        return self.kind.writes_text and isinstance(self.model, str)

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
    def label_rules(self) -> LabelsRecipe:
        """The section labels, with its defaults where it is left out."""
        return self.labels or LabelsRecipe()

    @property
    def feedback_rules(self) -> FeedbackRecipe:
        """The section feedback, with its defaults where it is left out."""
        return self.feedback or FeedbackRecipe()

    @property
    def feedback_points(self) -> str:
        """Where method feedback cuts the network; empty for other methods."""
        return self.feedback_rules.points if self.method == "feedback" else ""

    @property
    def effective_batch(self) -> int:
        """Samples per optimizer step, each a sequence, or several: the recipe's promise."""
        rows, positions = self.shape_of(1)
        return self.batch.sequences or (self.batch.tokens or 0) // (rows * positions)

    @property
    def tokens_per_step(self) -> int:
        """Positions of an optimizer step of full sequences."""
        rows, positions = self.shape_of(self.effective_batch)
        return rows * positions

    def shape_of(self, samples: int) -> tuple[int, int]:
        """Return rows and positions of a micro-batch of full samples."""
        return self.kind.rows_per_sample * samples, self.sequence_length

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
