"""What a run folder says about the run besides what it measured: recipe, environment, data,
samples of text and the copy in a mirror.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from brimful.base.types import Json, Numbers, Texts
from brimful.runs.parsing import WHOLE, parse


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """The section `adapter` of a recipe; `targets` is a list of names or "all-linear"."""

    rank: float | None = None
    alpha: float | None = None
    dropout: float | None = None
    targets: str | tuple[str, ...] | None = None
    rslora: bool = False
    dora: bool = False


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """The section `data` of a recipe."""

    path: str | tuple[str, ...] | None = None
    loss_on: str = ""
    template: str = ""
    added_tokens: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LabelsSection:
    """The section `labels` of a recipe; `class_weights` is a rule's name or weights by label."""

    class_weights: str | Numbers | None = None
    loss: str = ""
    label_smoothing: float | None = None


@dataclass(frozen=True, kw_only=True)
class OptimizerSection:
    """The section `optimizer` of a recipe."""

    kind: str = ""
    learning_rate: str | None = None


@dataclass(frozen=True, kw_only=True)
class BatchSection:
    """The section `batch` of a recipe."""

    sequences: float | None = None
    tokens: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """The section `model` of a recipe for a fresh model."""

    architecture: str = ""
    layers: int | None = None
    width: int | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationSection:
    """The section `evaluation` of a recipe."""

    tasks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckpointSection:
    """The section `checkpoint` of a recipe."""

    every: str = ""


@dataclass(frozen=True, kw_only=True)
class PlanSection:
    """The section `plan` of a recipe."""

    margin: str = ""


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """The section `run` of a recipe."""

    name: str = ""
    folder: str | None = None
    mirror: str | None = None
    session: str | None = None
    loggers: tuple[str, ...] = ("tensorboard",)


@dataclass(frozen=True, kw_only=True)
class StudySection:
    """The section `study` of a recipe: variants by name, each trained with every seed."""

    variants: Json = field(default_factory=dict)
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RoundsSection:
    """The section `rft` of a recipe: rounds of sampling and tuning, with every seed."""

    rounds: int | None = None
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecipeFacts:
    """What reports read of recipe.yaml, also of a recipe that this version would not accept.

    Attributes:
        model: A published model, or the sections of a fresh one.
        untuned: Whether the folder holds scores of a published model and no run.
        text: The file as it is, "" where it cannot be read.
        values: Every value of the file.
    """

    name: str = ""
    description: str = ""
    method: str = ""
    seed: float | None = None
    sequence_length: float | None = None
    model: str | ModelSection | None = None
    adapter: Adapter | None = None
    quantize: str = ""
    data: DataSection = DataSection()
    optimizer: OptimizerSection = OptimizerSection()
    batch: BatchSection = BatchSection()
    labels: LabelsSection = LabelsSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    plan: PlanSection = PlanSection()
    run: RunSection = RunSection()
    study: StudySection | None = None
    rft: RoundsSection | None = None
    untuned: bool = False
    text: str = ""
    values: Json = field(default_factory=dict, repr=False, metadata=WHOLE)

    @property
    def published_model(self) -> str:
        """The published model that the recipe names, "" for a fresh one."""
        return self.model if isinstance(self.model, str) else ""


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """A device as plan.json and environment.json describe it."""

    name: str = ""
    kind: str = ""
    threads: int | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class EnvironmentFacts:
    """The machine, the versions and the command of the last session.

    Attributes:
        values: Every value of environment.json.
    """

    brimful: str = ""
    python: str = ""
    platform: str = ""
    command: str = ""
    started: str = ""
    packages: Texts = field(default_factory=dict)
    device: DeviceFacts = DeviceFacts()
    values: Json = field(default_factory=dict, repr=False, metadata=WHOLE)


@dataclass(frozen=True, kw_only=True)
class WordCounts:
    """Words in the texts of a split: the median, what 99 % stay within, and the longest text."""

    median: float | None = None
    p99: float | None = None
    most: float | None = None


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """What a split of the data holds. Documents, examples or texts, by what the run reads.

    Attributes:
        labels: Texts with each label.
        cut, dropped: Examples that were too long.
        values: Every value of the split.
    """

    documents: float | None = None
    bytes: float | None = None
    characters: float | None = None
    tokens: float | None = None
    examples: float | None = None
    target_tokens: float | None = None
    longest_tokens: float | None = None
    cut: float | None = None
    dropped: float | None = None
    texts: float | None = None
    words: WordCounts = WordCounts()
    labels: Numbers = field(default_factory=dict)
    values: Json = field(default_factory=dict, repr=False, metadata=WHOLE)


@dataclass(frozen=True, kw_only=True)
class RepeatCounts:
    """Texts of a split that repeat texts before them, by how exactly, and those whose labels
    contradict one another. For documents only `documents`, `exact` and `normalised`.
    """

    documents: float | None = None
    texts: float | None = None
    exact: float | None = None
    normalised: float | None = None
    near: float | None = None
    repeated: float | None = None
    conflicts: float | None = None


@dataclass(frozen=True, kw_only=True)
class TextPlace:
    """A text of the data: where it stands and what label it has."""

    text: str = ""
    label: str | tuple[str, ...] | None = None
    split: str = ""
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class RepeatedText(TextPlace):
    """A text that repeats an earlier one, and how exactly."""

    kind: str = ""
    of: TextPlace | None = None


@dataclass(frozen=True, kw_only=True)
class ConflictingText:
    """A text that stands in the data with different labels."""

    text: str = ""
    rows: tuple[TextPlace, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """Texts that the data hold more than once, with a few of them."""

    splits: Mapping[str, RepeatCounts] = field(default_factory=dict)
    examples: tuple[RepeatedText, ...] = ()
    conflict_examples: tuple[ConflictingText, ...] = ()

    @classmethod
    def from_json(cls, value: object) -> "Duplicates | None":
        return parse(cls, value | {"splits": value}) if isinstance(value, dict) else None


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """The published model that a run tunes."""

    source: str = ""
    fingerprint: str = ""


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """A source of texts, in words."""

    description: str = ""

    @classmethod
    def from_json(cls, value: object) -> "DataSource":
        if not isinstance(value, dict):
            return cls(description=str(value))
        every = ", ".join(f"{key}: {entry}" for key, entry in value.items())
        return cls(description=str(value.get("description") or value.get("name") or every))


@dataclass(frozen=True, kw_only=True)
class LabelNames:
    """The labels of a classifier's data."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """The data, the tokenizer and the published model of a run.

    Attributes:
        splits: Facts of the splits by name, in the order of the file.
        tokenizer: Facts about the tokenizer, as the file has them.
        leakage: Documents or prompts of a split that training holds already.
        prompts: "messages" where examples are conversations.
        values: Every value of data.json.
    """

    splits: Mapping[str, SplitFacts] = field(default_factory=dict)
    tokenizer: Json = field(default_factory=dict)
    fingerprints: Texts = field(default_factory=dict)
    base: PublishedModel | None = None
    leakage: Mapping[str, RepeatCounts] = field(default_factory=dict)
    labels: LabelNames = LabelNames()
    duplicates: Duplicates = Duplicates()
    notes: tuple[str, ...] = ()
    sources: tuple[DataSource, ...] = ()
    prompts: str = ""
    template: str = ""
    values: Json = field(default_factory=dict, repr=False, metadata=WHOLE)


@dataclass(frozen=True, kw_only=True)
class SampledText:
    """A text that the model wrote: the prompt, what followed, why it ended, and the settings of
    sampling.
    """

    prompt: str = ""
    completion: str = ""
    finish: str = ""
    tokens: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class MirrorFacts:
    """The copy of a run elsewhere, as mirror.json describes it.

    Attributes:
        state: What the copying does.
        durable_step: Step of the newest recovery point that was read back and found whole.
        durable_time: Time at which that was written, in Unix seconds.
        error: Why copying does not go on, "" where it does.
        finished: Whether the copy holds the finished run.
    """

    path: str = ""
    state: str = ""
    durable_step: float | None = None
    durable_time: float | None = None
    error: str = ""
    finished: bool = False
