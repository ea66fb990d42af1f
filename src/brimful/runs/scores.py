"""The final scores of a run, from scores.json: the likelihood of text or of masked tokens, the
metrics of a classifier, and what was measured layer by layer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from brimful.base.rundir import finite
from brimful.base.types import Bounds, Json, Numbers
from brimful.runs.parsing import WHOLE, mapping, parse, parse_value

LAYERS = "layers"
"""Key in scores.json of what was measured inside the model, not a split."""
BASELINES = "baselines"
LABELS, MASKED = "labels", "masked"
"""Kinds of score beside the likelihood of text."""
SPLIT_ORDER = ("train", "validation", "test")


def ordered_splits(splits: Iterable[str]) -> list[str]:
    """Return train, validation and test first, other names behind them."""
    names = list(splits)
    known = [name for name in SPLIT_ORDER if name in names]
    return known + [name for name in names if name not in SPLIT_ORDER]


@dataclass(frozen=True, kw_only=True)
class MetricValue:
    """A metric: its value, its 95 % interval, the examples it is over, and its unit."""

    value: float | None = None
    interval: Bounds | None = None
    n: float | None = None
    unit: str = ""

    @classmethod
    def from_json(cls, value: object) -> "MetricValue | None":
        """Read a mapping with `interval` or with `low` and `high`, or a plain number."""
        if isinstance(value, dict):
            ends = parse_value(Bounds, value.get("interval", value))
            return parse(cls, value, interval=ends)
        number = finite(value)
        return None if number is None else cls(value=number)


@dataclass(frozen=True, kw_only=True)
class BaselineScore:
    """What counting alone reaches on the same tokens."""

    loss: float | None = None
    bits_per_byte: float | None = None


@dataclass(frozen=True, kw_only=True)
class LikelihoodScore:
    """The score of a split of text.

    Attributes:
        is_masked: Whether only masked tokens were predicted, from both sides.
        masked_share: Which share of all tokens was masked.
        loss: Mean nats per token.
        tokens: Predicted.
        context, stride: Tokens of a window, and how many of them are new.
        named: Further values of the method, by name.
        accuracy_interval: 95 % interval of `accuracy` among them.
        values: The record as it was written, for tables that show every field.
    """

    is_masked: bool = False
    masked_share: float | None = None
    loss: float | None = None
    loss_interval: Bounds | None = None
    perplexity: float | None = None
    perplexity_per_word: float | None = None
    bits_per_byte: float | None = None
    bits_per_byte_interval: Bounds | None = None
    tokens: float | None = None
    bytes: float | None = None
    words: float | None = None
    documents: float | None = None
    windows: int | None = None
    context: int | None = None
    stride: int | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    baselines: Mapping[str, BaselineScore] = field(default_factory=dict)
    named: Numbers = field(default_factory=dict)
    accuracy_interval: Bounds | None = None
    values: Json = field(default_factory=dict, repr=False, metadata=WHOLE)


@dataclass(frozen=True, kw_only=True)
class ChosenThreshold:
    """The probability from which on a label is given.

    Attributes:
        value: Threshold of the positive label, or one for each label.
        policy: How it was chosen; a number where it was given.
        chosen_on: The split.
        notes: What could not be reached.
    """

    value: float | tuple[float | None, ...] | None = None
    policy: str = ""
    chosen_on: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LabelMetrics:
    """How well texts with one label are found."""

    precision: MetricValue = MetricValue()
    recall: MetricValue = MetricValue()
    f1: MetricValue = MetricValue()
    support: float | None = None


Row = tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class RankingCurves:
    """Points of two curves: (false positive rate, recall) and (recall, precision)."""

    roc: tuple[Row, ...] = ()
    pr: tuple[Row, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """Texts of about one probability: its range and mean, how often it came true, how many."""

    low: float | None = None
    high: float | None = None
    probability: float | None = None
    share: float | None = None
    count: float | None = None


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts of probabilities between `edges`, by the label that texts have."""

    edges: Row = ()
    by_label: Mapping[str, Row] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LabelCurves(RankingCurves):
    """What pages draw of a classifier; `sweep` has threshold, precision, recall and F1."""

    sweep: tuple[Row, ...] = ()
    by_label: Mapping[str, RankingCurves] = field(default_factory=dict)
    reliability: tuple[ReliabilityBin, ...] = ()
    histogram: Histogram = Histogram()


@dataclass(frozen=True, kw_only=True)
class FloorScore:
    """A simple model beside the classifier, trained on the same texts.

    Attributes:
        difference: The classifier's metrics minus these, on the same texts.
    """

    name: str = ""
    settings: Json = field(default_factory=dict)
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    difference: Mapping[str, MetricValue] = field(default_factory=dict)
    curves: RankingCurves = RankingCurves()


@dataclass(frozen=True, kw_only=True)
class LabelMistake:
    """A text whose label the model got wrong: its label or labels, and those given."""

    text: str = ""
    label: str | tuple[str, ...] | None = None
    predicted: str | tuple[str, ...] | None = None
    probability: float | None = None
    where: str = ""
    values: Json = field(default_factory=dict, repr=False, metadata=WHOLE)


Counts = tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class LabelScore:
    """The score of a classifier on a split.

    Attributes:
        positive: The label that two-label metrics are about.
        multiple: Whether a text may have several labels.
        examples, repeated: Texts that count, and those that repeat training texts and do not.
        loss: Mean nats per text.
        metrics: Metrics at the chosen thresholds; `metrics_at_half` from probability 0.5 on,
            `metrics_with_repeated` where repeated texts count.
        confusion: Counts, a row per true label; with several labels per text, by label
            ((neither, given), (missed, right)).
    """

    labels: tuple[str, ...] = ()
    positive: str | None = None
    multiple: bool = False
    examples: float | None = None
    repeated: float | None = None
    seconds: float | None = None
    loss: float | None = None
    loss_interval: Bounds | None = None
    temperature: float | None = None
    threshold: ChosenThreshold = ChosenThreshold()
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    metrics_at_half: Mapping[str, MetricValue] = field(default_factory=dict)
    metrics_with_repeated: Mapping[str, MetricValue] = field(default_factory=dict)
    floor: FloorScore = FloorScore()
    by_label: Mapping[str, LabelMetrics] = field(default_factory=dict)
    confusion: Counts | Mapping[str, Counts] = ()
    curves: LabelCurves = LabelCurves()
    mistakes: tuple[LabelMistake, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AlignedSegment:
    """How well feedback replaces the gradient of a part of the model."""

    name: str = ""
    cosine: float | None = None
    norm_ratio: float | None = None
    relative_error: float | None = None
    values: Json = field(default_factory=dict, repr=False, metadata=WHOLE)


@dataclass(frozen=True, kw_only=True)
class FeedbackAlignment:
    """The gradient by feedback beside that by backpropagation."""

    mean_cosine: float | None = None
    segments: tuple[AlignedSegment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerAttention:
    """What the attention of one layer adds, and how near kernel attention is to softmax."""

    name: str = ""
    cosine: float | None = None
    norm_ratio: float | None = None
    output_norm: float | None = None
    violation: float | None = None
    worst_violation: float | None = None
    temperatures: tuple[float, ...] = ()
    values: Json = field(default_factory=dict, repr=False, metadata=WHOLE)


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Attention layer by layer; `dead` names those that add nothing."""

    mean_cosine: float | None = None
    mean_violation: float | None = None
    dead: tuple[str, ...] = ()
    layers: tuple[LayerAttention, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """What was measured inside the model, on `tokens` held-out tokens."""

    tokens: float | None = None
    alignment: FeedbackAlignment = FeedbackAlignment()
    attention: Attention = Attention()


@dataclass(frozen=True, kw_only=True)
class RunScores:
    """The final scores of a run.

    Attributes:
        likelihood: Likelihood by split that text was scored on, in the order of `ordered_splits`.
        labels: Label scores by split that a classifier was scored on, in the same order.
        baselines: Baselines of the validation split, in a run from before they stood with each
            score.
        layers: Empty where nothing was measured inside the model.
    """

    likelihood: Mapping[str, LikelihoodScore] = field(default_factory=dict)
    labels: Mapping[str, LabelScore] = field(default_factory=dict)
    baselines: Mapping[str, BaselineScore] = field(default_factory=dict)
    layers: LayerFacts = LayerFacts()


def read_scores(values: Json) -> RunScores:
    """Return the scores that scores.json holds."""
    splits = {name: values[name] for name in ordered_splits(values) if name != BASELINES}
    records = {name: each for name, each in splits.items() if isinstance(each, dict)}
    return RunScores(
        likelihood={
            name: read_likelihood(each)
            for name, each in records.items()
            if "loss" in each and each.get("kind") != LABELS
        },
        labels={
            name: parse(LabelScore, each)
            for name, each in records.items()
            if each.get("kind") == LABELS
        },
        baselines=parse_value(Mapping[str, BaselineScore], values.get(BASELINES)) or {},
        layers=parse(LayerFacts, mapping(values.get(LAYERS))),
    )


def read_likelihood(record: Json) -> LikelihoodScore:
    """Return the score of one split of text."""
    is_masked = record.get("kind") == MASKED
    return parse(LikelihoodScore, record, is_masked=is_masked)
