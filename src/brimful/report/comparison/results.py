"""What one run reached and cost: its scores with their examples, and its costs. Read leniently from
the run folder; notes say what is missing.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from brimful.base.arrays import Floats
from brimful.base.dotted import flatten
from brimful.base.errors import RunFolderError
from brimful.base.types import Bounds, Json, Texts
from brimful.evaluation.nats import Nats, read_nats
from brimful.evaluation.stats import perplexity_of
from brimful.recipe.kinds import KINDS, Kind
from brimful.report.labels import SHARES
from brimful.report.quantities import WATCHED
from brimful.report.scores import best_evaluation
from brimful.runs.files import DATA_FILE, JOURNAL_FILE, PLAN_FILE, RECIPE_FILE, SCORES_FILE
from brimful.runs.folder import RunFolder, read_run
from brimful.runs.measurements import (
    counted_parameters,
    losses_by_training_time,
    measured,
    total_time_s,
)
from brimful.runs.scores import LikelihoodScore, MetricValue
from brimful.runs.tasks import RecordedAnswer, TaskSummary

LOSS = "validation loss"
LABEL_LOSS, MASKED_LOSS = "loss per text", "validation loss per masked token"
PAIR_LOSS, ANSWER_LOSS = "validation loss per pair", "validation loss per judged answer"
"""The losses of a classifier, after the name of the split, and of a model of masked tokens; neither
is a loss per token of text.
"""
LOSSES = (LOSS, LABEL_LOSS, MASKED_LOSS, PAIR_LOSS, ANSWER_LOSS)
ADAPTER_FILE = "adapter_model.safetensors"
"""Of PEFT's layout."""
EQUAL_TIME = "validation loss at equal time"
PERPLEXITY, WORD_PERPLEXITY, BITS = "perplexity per token", "perplexity per word", "bits per byte"
SAME_AS_LOSS = (PERPLEXITY, WORD_PERPLEXITY, BITS)
"""The validation loss in other units."""
GRADIENT_COSINE, ATTENTION_COSINE, VIOLATION = (
    "gradient cosine with backprop",
    "attention cosine with softmax",
    "orthogonality violation",
)
OF_LAYERS = (GRADIENT_COSINE, ATTENTION_COSINE, VIOLATION)
"""Means over layers, of runs that measured them."""
_CONDITIONS_OF_LOSS = ("context", "stride", "masked_share")
COSTS = (
    "trainable_parameters",
    "adapter_bytes",
    "tokens_per_s",
    "peak_memory_bytes",
    "total_time_s",
)
CONDITIONS = ("version", "temperature", "top_k", "top_p", "max_new_tokens")
"""Of a task: what must be the same for scores to be compared."""
_NEEDED = (RECIPE_FILE, DATA_FILE, JOURNAL_FILE, PLAN_FILE)
"""Files of a trained run that a comparison reads; one that is missing is told."""
NOT_OF_THE_VARIANT = ("seed", "name", "description", "run", "study")
"""Keys of a recipe by which repetitions of one variant differ."""


@dataclass(frozen=True)
class Figure:
    """One number of a run.

    Attributes:
        value: Value in the unit.
        unit: "nats/token", "nats/text", "nats/masked token", "share", "area", "BLEU", "chrF",
            "tokens", "perplexity", "bits/byte", "cosine", or "" for COSTS, whose names end
            with their unit, and for VIOLATION.
        interval: 95 % over examples; None where it was not made.
        n: Examples, windows for a loss; None for COSTS.
    """

    value: float
    unit: str = ""
    interval: Bounds | None = None
    n: int | None = None

    @property
    def bounds(self) -> Bounds:
        """The ends of the interval; the value itself where there is none."""
        return self.interval or (self.value, self.value)


@dataclass(frozen=True)
class Examples:
    """What a score is the mean of.

    Attributes:
        ids: One per example, in order; the same for runs that were scored on the same examples.
        version: What else must be the same, such as the version of the task.
        sums_N, weights_N: The score is the ratio of their sums.
    """

    ids: tuple[str, ...]
    version: str
    sums_N: Floats
    weights_N: Floats

    def in_order(self, ids: Sequence[str]) -> "Examples":
        """Return the examples with these ids, in this order."""
        place_of = {number: place for place, number in enumerate(self.ids)}
        places = [place_of[number] for number in ids]
        return Examples(tuple(ids), self.version, self.sums_N[places], self.weights_N[places])


@dataclass(frozen=True)
class ComparedRun:
    """One run.

    Attributes:
        name: Name of the run.
        variant: Equal for repetitions with another seed; None where the run has no recipe.
        seed: None without a recipe, and for an untuned model.
        figures: Figures by metric, such as "humaneval pass@1", and COSTS.
        examples: Examples by metric, where they were kept.
        prompts: Way in which a task was asked, by task.
        device: What it was trained on.
        notes: What is missing.
        is_untuned: Whether it is a published model as it was before tuning.
        kind: What the model is for.
        curve: (seconds of training, validation loss) of each evaluation while training, of a
            language model that was trained from nothing.
    """

    name: str
    variant: str | None
    seed: int | None
    figures: Mapping[str, Figure]
    examples: Mapping[str, Examples]
    prompts: Texts
    device: str
    notes: tuple[str, ...]
    is_untuned: bool = False
    kind: Kind = KINDS["documents"]
    curve: tuple[tuple[float, float], ...] = ()


def read_compared_run(run_folder: Path) -> ComparedRun:
    """Return everything about a run that can be compared.

    Raises:
        RunFolderError: not a run folder, or a file of its evaluations is damaged.
    """
    run = read_run(run_folder)
    if run.tasks.problems:
        raise RunFolderError(
            f"{run_folder}: {run.tasks.problems[0]} Evaluate the run on the task again."
        )
    likelihood = _of_labels(run) if run.kind.gives_labels else _of_loss(run)
    figures, examples = dict(likelihood.figures), dict(likelihood.examples)
    is_fresh = run.kind.writes_text and not run.is_tuned
    if is_fresh:
        figures |= _in_other_units(run.scores.likelihood.get("validation")) | _of_layers(run)
    for name, summary in run.tasks.summaries.items():
        figures |= _of_task(summary)
        examples |= _examples_of_task(summary, run.tasks.answers.get(name, ()))
    return ComparedRun(
        name=run.name,
        variant=_variant(run.recipe.values),
        seed=None if run.recipe.seed is None else int(run.recipe.seed),
        figures=figures | _costs(run),
        examples=examples,
        prompts={name: summary.prompt for name, summary in run.tasks.summaries.items()},
        device=run.planned_device.name,
        notes=(*likelihood.notes, *_damage(run)),
        is_untuned=run.recipe.untuned,
        kind=run.kind,
        curve=losses_by_training_time(run) if is_fresh else (),
    )


def _damage(run: RunFolder) -> list[str]:
    """Return what is damaged in the files that figures come from, or missing in a trained run."""
    problems = [
        problem
        for name, problem in run.problems.items()
        if (run.folder / name).exists()
        or (name in _NEEDED and not run.recipe.untuned)
        or (name == SCORES_FILE and run.lost_scores)
    ]
    return [
        f"{run.name}: {problem.removesuffix('.')}"
        for problem in (*problems, run.model_problem)
        if problem
    ]


@dataclass(frozen=True)
class _Likelihood:
    """The loss of a run with its examples, other scores of the same examples, and what is
    missing.
    """

    figures: Mapping[str, Figure]
    examples: Mapping[str, Examples]
    notes: tuple[str, ...] = ()


def _variant(recipe: Json) -> str | None:
    """Return what a run trains, apart from its seed and its name."""
    keys = {
        key: value
        for key, value in flatten(recipe).items()
        if key.partition(".")[0] not in NOT_OF_THE_VARIANT
    }
    return json.dumps(keys, sort_keys=True, default=str) if keys else None


def _scoring_command(run: RunFolder) -> str:
    """Return the command that scores a run, or the model that a run tuned."""
    if run.recipe.untuned:
        return f"`brimful evaluate {run.folder.parent.name} --untuned`"
    return f"`brimful evaluate {run.name}`"


def _of_loss(run: RunFolder) -> _Likelihood:
    """Return the validation loss and the nats of its windows."""
    of_others = {"masked token": MASKED_LOSS, "pair": PAIR_LOSS, "answer": ANSWER_LOSS}
    name, unit = of_others.get(run.kind.loss_is_per, LOSS), run.kind.loss_unit
    command, score = _scoring_command(run), run.scores.likelihood.get("validation")
    best = None if run.scores.likelihood else _best_while_training(run)
    if best is not None:
        note = (
            f"the validation loss of {run.name} is the best while training; {command} scores the"
            " whole split"
        )
        return _Likelihood({name: replace(best, unit=unit)}, {}, (note,))
    if score is None or score.loss is None:
        return _Likelihood({}, {}, (f"{run.name} has no validation loss: {command} makes one",))
    figures = {name: Figure(score.loss, unit, score.loss_interval, score.windows)}
    nats, problem = _nats_of(run, "validation")
    if nats is None:
        note = f"the losses of the single windows of {run.name} are missing{problem}"
        return _Likelihood(figures, {}, (note,))
    conditions: dict[str, object] = {
        key: run.data.fingerprints.get(key) for key in ("data", "tokenizer")
    }
    conditions |= {key: score.values[key] for key in _CONDITIONS_OF_LOSS if key in score.values}
    version = ", ".join(f"{key} {value}" for key, value in conditions.items())
    ids = (f"{place} of {tokens} tokens" for place, tokens in enumerate(nats.tokens_N.tolist()))
    return _Likelihood(figures, {name: _examples(nats, ids, version)})


def _best_while_training(run: RunFolder) -> Figure | None:
    """Return the loss of the best evaluation while training, if it was on validation."""
    best = best_evaluation(run)
    if best is None or best.loss is None or best.split != "validation":
        return None
    return Figure(best.loss, interval=best.loss_interval)


def _examples(nats: Nats, ids: Iterable[str], version: str) -> Examples:
    return Examples(tuple(ids), version, nats.nats_N, nats.tokens_N.astype(np.float64))


def _in_other_units(score: LikelihoodScore | None) -> dict[str, Figure]:
    """Return the loss on the whole validation split as perplexities and bits per byte."""
    if score is None:
        return {}
    figures = {}
    if score.loss is not None:
        figures[PERPLEXITY] = _perplexity(score, score.loss, 1.0)
        if score.tokens and score.words:
            tokens_per_word = score.tokens / score.words
            figures[WORD_PERPLEXITY] = _perplexity(score, score.loss, tokens_per_word)
    if score.bits_per_byte is not None:
        interval = score.bits_per_byte_interval
        figures[BITS] = Figure(score.bits_per_byte, "bits/byte", interval, score.windows)
    return {name: figure for name, figure in figures.items() if math.isfinite(figure.value)}


def _perplexity(score: LikelihoodScore, loss: float, factor: float) -> Figure:
    """Return the perplexity of a loss times a factor, with its interval."""
    ends = None
    if score.loss_interval is not None:
        low, high = score.loss_interval
        ends = (perplexity_of(low * factor), perplexity_of(high * factor))
    return Figure(perplexity_of(loss * factor), "perplexity", ends, score.windows)


def _of_layers(run: RunFolder) -> dict[str, Figure]:
    """Return means over layers."""
    layers = run.scores.layers
    means = {
        GRADIENT_COSINE: (layers.alignment.mean_cosine, "cosine"),
        ATTENTION_COSINE: (layers.attention.mean_cosine, "cosine"),
        VIOLATION: (layers.attention.mean_violation, ""),
    }
    return {
        name: Figure(mean, unit)
        for name, (mean, unit) in means.items()
        if mean is not None and math.isfinite(mean)
    }


def _of_labels(run: RunFolder) -> _Likelihood:
    """Return a classifier's metrics and the nats of its texts, on test where there is one."""
    command = _scoring_command(run)
    if not run.scores.labels:
        note = f"{run.name} has no scores of its labels: {command} makes them"
        return _Likelihood({}, {}, (note,))
    split, score = [*run.scores.labels.items()][-1]
    n = None if score.examples is None else int(score.examples)
    figures = {}
    if score.loss is not None:
        figures[f"{split} {LABEL_LOSS}"] = Figure(score.loss, "nats/text", score.loss_interval, n)
    for key, name in WATCHED.items():
        metric = score.metrics.get(key, MetricValue())
        if metric.value is not None:
            unit = "share" if key in SHARES else "area"
            figures[f"{split} {name}"] = Figure(metric.value, unit, metric.interval, n)
    nats, problem = _nats_of(run, split)
    if nats is None:
        note = f"the losses of the single texts of {run.name} are missing{problem}"
        return _Likelihood(figures, {}, (note,))
    version = f"data {run.data.fingerprints.get('data')}, labels {', '.join(score.labels)}"
    ids = map(str, range(len(nats.nats_N)))
    return _Likelihood(figures, {f"{split} {LABEL_LOSS}": _examples(nats, ids, version)})


def _nats_of(run: RunFolder, split: str) -> tuple[Nats | None, str]:
    """Return the nats of a split; or None, and as the end of a sentence why, and what helps."""
    problem = ""
    try:
        nats = read_nats(run.folder, split)
    except RunFolderError as error:
        nats, problem = None, f" ({error})"
    return nats, f"{problem}: {_scoring_command(run)} makes them"


def title(task: str, metric: str) -> str:
    """`humaneval pass@1`; `bleu` where the metric is all that the task is about."""
    return metric if metric == task else f"{task} {metric}"


def _of_task(summary: TaskSummary) -> dict[str, Figure]:
    return {
        title(summary.task, name): Figure(
            metric.value, metric.unit, metric.interval, None if metric.n is None else int(metric.n)
        )
        for name, metric in summary.metrics.items()
        if metric.value is not None
    }


def _examples_of_task(
    summary: TaskSummary, answers: Sequence[RecordedAnswer]
) -> dict[str, Examples]:
    """Return the scores of single examples by metric; an example with several samples counts with
    their mean.
    """
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        for metric, score in answer.scores.items():
            scores[metric][answer.id].append(score)
    values = summary.values
    version = ", ".join(f"{name} {values[name]}" for name in CONDITIONS if name in values)
    return {
        title(summary.task, metric): Examples(
            ids=tuple(by_id),
            version=version,
            sums_N=np.array([np.mean(each) for each in by_id.values()]),
            weights_N=np.ones(len(by_id)),
        )
        for metric, by_id in scores.items()
    }


def _costs(run: RunFolder) -> dict[str, Figure]:
    values = measured(run)
    model = run.folder / "model"
    adapter = model / ADAPTER_FILE
    costs: dict[str, float | None] = {
        "trainable_parameters": counted_parameters(model),
        "adapter_bytes": adapter.stat().st_size if adapter.is_file() else None,
        "tokens_per_s": values.get("tokens_per_s"),
        "peak_memory_bytes": values.get("peak_memory_bytes"),
        "total_time_s": total_time_s(run),
    }
    return {name: Figure(value) for name, value in costs.items() if value is not None}
