"""What one run reached and cost: its scores with their examples, and its figures. Read leniently
from the run folder; what is missing is said.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from brimful.base.dotted import flatten
from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_journal, read_json
from brimful.evaluation.nats import read_nats, summary_files
from brimful.evaluation.stats import perplexity_of
from brimful.report.labels import SHARES, WATCHED, label_scores, main_split, names_of, quantity
from brimful.report.tables import main_score
from brimful.runs.measurements import counted_parameters
from brimful.runs.runfiles import (
    LAYERS,
    Json,
    RunFiles,
    is_tuned,
    kind_of,
    losses_by_training_time,
    measured,
    number,
    pair,
    read_run,
    section,
    total_time_s,
)

LOSS = "validation loss"
LABEL_LOSS, MASKED_LOSS = "loss per text", "validation loss per masked token"
"""Of a classifier, after the name of the split, and of a model of masked tokens; neither is a loss
per token of text.
"""
LOSSES = (LOSS, LABEL_LOSS, MASKED_LOSS)
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
OF_LAYERS = {
    GRADIENT_COSINE: ("alignment", "mean_cosine"),
    ATTENTION_COSINE: ("attention", "mean_cosine"),
    VIOLATION: ("attention", "mean_violation"),
}
"""Means over layers, where the record of layers in scores.json has them."""
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
NOT_OF_THE_VARIANT = ("seed", "name", "description", "run", "study")
"""Keys of a recipe by which repetitions of one variant differ."""


@dataclass(frozen=True)
class Figure:
    """One number of a run.

    Attributes:
        value: In the unit.
        unit: "nats/token", "nats/text", "nats/masked token", "share", "area", "BLEU", "tokens",
            "perplexity", "bits/byte", "cosine", or "" for COSTS, whose names end with their unit,
            and for VIOLATION.
        interval: 95 % over examples; None where it was not made.
        n: Examples, windows for a loss; None for COSTS.
    """

    value: float
    unit: str = ""
    interval: tuple[float, float] | None = None
    n: int | None = None

    @property
    def bounds(self) -> tuple[float, float]:
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
    sums_N: NDArray[np.float64]
    weights_N: NDArray[np.float64]

    def in_order(self, ids: Sequence[str]) -> "Examples":
        """These of them, in this order."""
        place_of = {number: place for place, number in enumerate(self.ids)}
        places = [place_of[number] for number in ids]
        return Examples(tuple(ids), self.version, self.sums_N[places], self.weights_N[places])


@dataclass(frozen=True)
class ComparedRun:
    """One run.

    Attributes:
        name: Of the run.
        variant: Equal for repetitions with another seed; None where the run has no recipe.
        seed: None without a recipe, and for an untuned model.
        figures: By metric, such as "humaneval pass@1", and COSTS.
        examples: By metric, where they were kept.
        prompts: By task, how it was asked.
        device: What it was trained on.
        notes: What is missing.
        is_untuned: Whether it is a published model as it was before tuning.
        kind: What it was trained for: "text", "masked" or "labels".
        curve: (seconds of training, validation loss) of each evaluation while training, of a
            language model that was trained from nothing.
    """

    name: str
    variant: str | None
    seed: int | None
    figures: Mapping[str, Figure]
    examples: Mapping[str, Examples]
    prompts: Mapping[str, str]
    device: str
    notes: tuple[str, ...]
    is_untuned: bool = False
    kind: str = "text"
    curve: tuple[tuple[float, float], ...] = ()


def read_compared_run(run_folder: Path) -> ComparedRun:
    """Everything about a run that can be compared.

    Raises:
        RunFolderError: not a run folder, or a file of its evaluations is damaged.
    """
    run = read_run(run_folder)
    figures, examples, notes = _labels(run) if kind_of(run) == "labels" else _loss(run)
    is_fresh = kind_of(run) == "text" and not is_tuned(run)
    figures |= _of_text(run) if is_fresh else {}
    prompts = {}
    for path in summary_files(run_folder):
        summary = read_json(path)
        if not isinstance(summary, dict):
            raise RunFolderError(
                f"{path} does not hold the summary of a task; evaluate the run on it again."
            )
        task = str(summary.get("task", path.stem))
        prompts[task] = str(summary.get("prompt", ""))
        figures |= _of_task(task, summary)
        examples |= _examples_of_task(task, summary, path.with_suffix(".jsonl"))
    seed = number(run.recipe.get("seed"))
    return ComparedRun(
        run.name,
        _variant(run.recipe),
        None if seed is None else int(seed),
        figures | _costs(run),
        examples,
        prompts,
        str(section(run.plan, "device").get("name", "")),
        tuple(notes),
        is_untuned=run.recipe.get("untuned") is True,
        kind=kind_of(run),
        curve=losses_by_training_time(run) if is_fresh else (),
    )


def _variant(recipe: Json) -> str | None:
    """What a run trains, apart from its seed and its name."""
    keys = {
        key: value for key, value in flatten(recipe).items() if not _is_in(key, NOT_OF_THE_VARIANT)
    }
    return json.dumps(keys, sort_keys=True, default=str) if keys else None


def _is_in(key: str, groups: tuple[str, ...]) -> bool:
    return any(key == group or key.startswith(f"{group}.") for group in groups)


def _evaluating(run: RunFiles) -> str:
    """The command that scores a run, or the model that a run tuned."""
    return (
        f"brimful evaluate {run.folder.parent.name} --untuned"
        if run.recipe.get("untuned") is True
        else f"brimful evaluate {run.name}"
    )


def _loss(run: RunFiles) -> tuple[dict[str, Figure], dict[str, Examples], list[str]]:
    """The validation loss and the nats of its windows, and what is missing of them."""
    score = main_score(run)
    if score is None or score.loss is None or not score.name.startswith("validation"):
        return {}, {}, [f"{run.name} has no validation loss: `{_evaluating(run)}` makes one"]
    record = section(run.scores, "validation")
    windows = number(record.get("windows"))
    name, unit = (
        (MASKED_LOSS, "nats/masked token") if kind_of(run) == "masked" else (LOSS, "nats/token")
    )
    figures = {
        name: Figure(
            score.loss, unit, score.loss_interval, None if windows is None else int(windows)
        )
    }
    nats = read_nats(run.folder, "validation")
    if score.name != "validation":
        return (
            figures,
            {},
            [
                f"the validation loss of {run.name} is the best while training;"
                f" `{_evaluating(run)}` scores the whole split"
            ],
        )
    if nats is None:
        return (
            figures,
            {},
            [
                f"{run.name} has a validation loss but not that of each window:"
                f" `{_evaluating(run)}` makes them"
            ],
        )
    fingerprints = section(run.data, "fingerprints")
    made_from = {
        **{name: fingerprints.get(name) for name in ("data", "tokenizer")},
        **{name: record.get(name) for name in _CONDITIONS_OF_LOSS if name in record},
    }
    version = ", ".join(f"{key} {value}" for key, value in made_from.items())
    ids = tuple(
        f"{place} of {tokens} tokens" for place, tokens in enumerate(nats.tokens_N.tolist())
    )
    return (
        figures,
        {name: Examples(ids, version, nats.nats_N, nats.tokens_N.astype(np.float64))},
        [],
    )


def _of_text(run: RunFiles) -> dict[str, Figure]:
    """The loss on the whole validation split in other units, and means over layers."""
    record = section(run.scores, "validation")
    values = {
        name: number(record.get(name))
        for name in ("loss", "bits_per_byte", "tokens", "words", "windows")
    }
    n = None if values["windows"] is None else int(values["windows"])
    interval = pair(record.get("loss_interval"))
    found = {}
    if values["bits_per_byte"] is not None:
        found[BITS] = Figure(
            values["bits_per_byte"], "bits/byte", pair(record.get("bits_per_byte_interval")), n
        )
    per_word = values["tokens"] / values["words"] if values["tokens"] and values["words"] else None
    for name, factor in ((PERPLEXITY, 1.0), (WORD_PERPLEXITY, per_word)):
        if values["loss"] is not None and factor is not None:
            ends = (
                None
                if interval is None
                else (perplexity_of(interval[0] * factor), perplexity_of(interval[1] * factor))
            )
            found[name] = Figure(perplexity_of(values["loss"] * factor), "perplexity", ends, n)
    for name, (group, key) in OF_LAYERS.items():
        if (value := number(section(section(run.scores, LAYERS), group).get(key))) is not None:
            found[name] = Figure(value, "" if name == VIOLATION else "cosine")
    order = (PERPLEXITY, WORD_PERPLEXITY, BITS, *OF_LAYERS)
    return {
        name: found[name] for name in order if name in found and math.isfinite(found[name].value)
    }


def _labels(run: RunFiles) -> tuple[dict[str, Figure], dict[str, Examples], list[str]]:
    """A classifier's metrics and the nats of its texts, on test where there is one; what is missing
    of them.
    """
    split = main_split(run.scores)
    if split is None:
        return {}, {}, [f"{run.name} has no scores of its labels: `{_evaluating(run)}` makes them"]
    score = label_scores(run.scores)[split]
    examples = number(score.get("examples"))
    n = None if examples is None else int(examples)
    loss, interval = quantity(score, "loss")
    figures = (
        {} if loss is None else {f"{split} {LABEL_LOSS}": Figure(loss, "nats/text", interval, n)}
    )
    for key, name in WATCHED.items():
        value, interval = quantity(score, key)
        if value is not None:
            figures[f"{split} {name}"] = Figure(
                value, "share" if key in SHARES else "area", interval, n
            )
    nats = read_nats(run.folder, split)
    if nats is None:
        return (
            figures,
            {},
            [
                f"{run.name} has scores but not the loss of each text: `{_evaluating(run)}` makes"
                " them"
            ],
        )
    version = (
        f"data {section(run.data, 'fingerprints').get('data')}, labels {', '.join(names_of(score))}"
    )
    ids = tuple(f"{place}" for place in range(len(nats.nats_N)))
    return (
        figures,
        {
            f"{split} {LABEL_LOSS}": Examples(
                ids, version, nats.nats_N, nats.tokens_N.astype(np.float64)
            )
        },
        [],
    )


def title(task: str, metric: str) -> str:
    """`humaneval pass@1`; `bleu` where the metric is all that the task is about."""
    return metric if metric == task else f"{task} {metric}"


def _of_task(task: str, summary: Json) -> dict[str, Figure]:
    found = {}
    for metric, values in section(summary, "metrics").items():
        value, n = (
            number(values.get(key)) if isinstance(values, dict) else None for key in ("value", "n")
        )
        if value is not None:
            found[title(task, metric)] = Figure(
                value,
                str(values.get("unit", "")),
                pair(values.get("interval")),
                None if n is None else int(n),
            )
    return found


def _examples_of_task(task: str, summary: Json, path: Path) -> dict[str, Examples]:
    """By metric; an example with several samples counts with their mean."""
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in read_journal(path):
        for metric, value in section(record, "scores").items():
            if (score := number(value)) is not None:
                scores[metric][str(record.get("id"))].append(score)
    version = ", ".join(f"{name} {summary[name]}" for name in CONDITIONS if name in summary)
    return {
        title(task, metric): Examples(
            tuple(by_id),
            version,
            np.array([np.mean(values) for values in by_id.values()]),
            np.ones(len(by_id)),
        )
        for metric, by_id in scores.items()
    }


def _costs(run: RunFiles) -> dict[str, Figure]:
    found = measured(run)
    model, adapter = run.folder / "model", run.folder / "model" / ADAPTER_FILE
    values: dict[str, float | None] = {
        "trainable_parameters": counted_parameters(model),
        "adapter_bytes": adapter.stat().st_size if adapter.is_file() else None,
        "tokens_per_s": found.get("tokens_per_s"),
        "peak_memory_bytes": found.get("peak_memory_bytes"),
        "total_time_s": total_time_s(run),
    }
    return {name: Figure(value) for name, value in values.items() if value is not None}
