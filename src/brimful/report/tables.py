"""The tables of a report: pure functions from what a run folder holds to values and printable
rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from brimful.report.quantities import (
    UNITS,
    format_micro_batches,
    format_number,
    format_value,
    label,
    plural,
    with_interval,
    words_of,
)
from brimful.report.table import Table
from brimful.runs.runfiles import (
    Json,
    RunFiles,
    energy_way,
    items,
    measured,
    memory_way,
    number,
    pair,
    section,
    sessions,
    steady,
)

PREDICTED_NAMES = {
    "parameters": "Parameters",
    "peak_memory_bytes": "Peak memory",
    "allocated_memory_bytes": "Peak memory of tensors",
    "device_memory_bytes": "Peak memory of the device",
    "step_time_s": "Time per optimizer step",
    "tokens_per_s": "Tokens per second",
    "mfu": "Model FLOPs utilisation",
    "training_time_s": "Training time",
    "evaluation_time_s": "Evaluation time",
    "checkpoint_time_s": "Checkpoint time",
    "start_time_s": "Compiling and starting",
    "total_time_s": "Time in all",
    "energy_wh": "Energy",
    "cost_usd": "Cost",
}
BASELINE_NAMES = {"uniform": "Uniform guess", "unigram": "Unigram", "bigram": "Bigram"}
SPLIT_ORDER = ("train", "validation", "test")


@dataclass(frozen=True)
class Comparison:
    """One prediction of the plan beside its measurement, in the unit that ends `key`; `basis` and
    `way` say how each came about.
    """

    key: str
    name: str
    predicted: float
    interval: tuple[float, float] | None
    measured: float | None
    basis: str
    way: str = ""

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured: positive when the plan was too pessimistic."""
        return (self.predicted - self.measured) / self.measured if self.measured else None

    @property
    def came_true(self) -> bool | None:
        """Whether the measurement lies in the stated interval; None when one of the two is
        missing.
        """
        return (
            None
            if self.interval is None or self.measured is None
            else self.interval[0] <= self.measured <= self.interval[1]
        )


@dataclass(frozen=True)
class Score:
    """What a model reaches on a split: nats per token and bits per byte, with 95 % intervals where
    known.
    """

    name: str
    loss: float | None
    bits_per_byte: float | None
    loss_interval: tuple[float, float] | None = None
    bits_per_byte_interval: tuple[float, float] | None = None


def comparisons(run: RunFiles) -> list[Comparison]:
    """Every number the plan predicted, in a fixed order, with what was measured under the same
    name.

    Without the parameters of a model with adapters: the saved ones are only those that were
    trained.
    """
    predicted, intervals, basis = (
        section(run.plan, key) for key in ("predicted", "predicted_interval", "basis")
    )
    names = [*PREDICTED_NAMES, *(name for name in predicted if name not in PREDICTED_NAMES)]
    found, ways = measured(run), _ways(run)
    return [
        Comparison(
            name,
            PREDICTED_NAMES.get(name, label(name)),
            value,
            pair(intervals.get(name)),
            found.get(name),
            str(basis.get(name, "")),
            ways.get(name, "") if name in found else "",
        )
        for name in names
        if (value := number(predicted.get(name))) is not None
        and not (name == "parameters" and section(run.recipe, "adapter"))
    ]


def _ways(run: RunFiles) -> dict[str, str]:
    """How each measurement came about."""
    counted = steady(run)
    left_out = (
        f"; {counted.num_left_out} at the start left out (compiling, warming up)"
        if counted.num_left_out
        else ""
    )
    return {
        "parameters": "counted in the saved model",
        "peak_memory_bytes": memory_way(run),
        "step_time_s": f"median of {plural(len(counted.records), 'recorded step')}{left_out}",
        "tokens_per_s": "at the median step",
        "mfu": "at the median step; arithmetic and peak as planned",
        "training_time_s": "all steps, without compiling and warming up",
        "evaluation_time_s": plural(len(run.of_kind("evaluation")), "evaluation"),
        "checkpoint_time_s": plural(len(run.of_kind("checkpoint")), "checkpoint"),
        "start_time_s": "what the others leave of the time in all",
        "total_time_s": (
            f"{plural(len(sessions(run)), 'session')}; loading libraries, planning and reading"
            " data not counted"
        ),
        "energy_wh": energy_way(run),
        "cost_usd": "the planned price for the measured time in all",
    }


def memory_terms(run: RunFiles) -> list[tuple[str, float]]:
    """(what, bytes) of the predicted peak memory, the largest first."""
    terms = (
        (label(name), number(value)) for name, value in section(run.plan, "memory_terms").items()
    )
    return sorted(((name, size) for name, size in terms if size), key=lambda term: -term[1])


def time_terms(run: RunFiles) -> list[tuple[str, float]]:
    """(what, seconds) of the predicted step time, the longest first; empty where the plan does not
    say.
    """
    terms = (
        (label(name), number(value)) for name, value in section(run.plan, "time_terms").items()
    )
    return sorted(
        ((name, seconds) for name, seconds in terms if seconds and seconds > 0),
        key=lambda term: -term[1],
    )


def main_score(run: RunFiles) -> Score | None:
    """The final validation score (another split's where there is none); before the end, the best of
    the evaluations so far.
    """
    splits = scored_splits(run.scores)
    split = "validation" if "validation" in splits else next(iter(splits), None)
    if split is not None:
        return score_of(split, splits[split])
    best = best_evaluation(run)
    return (
        None
        if best is None
        else score_of(f"{best.get('split', 'validation')}, step {best.get('step')}", best)
    )


def best_evaluation(run: RunFiles) -> Json | None:
    """The record of the best evaluation while training: that of the least objective where there is
    one, else of the least loss; None before the first.
    """
    evaluations = [
        record for record in run.of_kind("evaluation") if number(record.get("loss")) is not None
    ]
    goals = [
        number(record.get("objective" if "objective" in record else "loss"))
        for record in evaluations
    ]
    known = [(goal, place) for place, goal in enumerate(goals) if goal is not None]
    return evaluations[min(known)[1]] if known else None


def scored_splits(scores: Mapping[str, Any]) -> dict[str, Json]:
    """The records of splits that have a loss, in order."""
    found = {
        name: value
        for name, value in scores.items()
        if isinstance(value, dict) and name != "baselines" and "loss" in value
    }
    return {name: found[name] for name in ordered_splits(found)}


def score_of(name: str, record: Json) -> Score:
    """A record of scores.json, or of an evaluation while training."""
    values = number(record.get("loss")), number(record.get("bits_per_byte"))
    return Score(
        name, *values, pair(record.get("loss_interval")), pair(record.get("bits_per_byte_interval"))
    )


def baselines(run: RunFiles) -> list[Score]:
    """What counting alone reaches on the tokens of the main score, the weakest first."""
    model = main_score(run)
    return baselines_of(run.scores.get(model.name) if model else None) or baselines_of(run.scores)


def baselines_of(record: object) -> list[Score]:
    """The baselines beside one split's score, the weakest first.

    One that states only its loss gets its bits per byte from the score's own ratio, as both are
    over the same tokens.
    """
    loss_of_model, bits_of_model = (
        number(record.get(key)) if isinstance(record, dict) else None
        for key in ("loss", "bits_per_byte")
    )
    found = []
    for name, value in section(record, "baselines").items():
        if not isinstance(value, dict):
            continue
        loss, bits_per_byte = number(value.get("loss")), number(value.get("bits_per_byte"))
        if (
            bits_per_byte is None
            and loss is not None
            and loss_of_model
            and bits_of_model is not None
        ):
            bits_per_byte = loss * bits_of_model / loss_of_model
        if loss is not None or bits_per_byte is not None:
            found.append(Score(BASELINE_NAMES.get(name, label(name)), loss, bits_per_byte))
    return sorted(found, key=lambda score: -(score.loss or score.bits_per_byte or 0.0))


def score_table(run: RunFiles) -> Table | None:
    """One row for each scored split, its baselines below it."""
    columns = (
        "Split",
        "Loss (nats/token)",
        "Perplexity",
        "Bits per byte",
        "Tokens",
        "Documents",
        "Context / stride",
        "Tokens/s",
    )
    rows: list[tuple[str, ...]] = []
    for name, record in scored_splits(run.scores).items():
        rows.append(_score_row(name, record))
        rows += [
            (
                rival.name,
                format_number(rival.loss, 3),
                "",
                format_number(rival.bits_per_byte, 3),
                "",
                "",
                "",
                "",
            )
            for rival in baselines_of(record)
        ]
    return Table(columns, tuple(rows)) if rows else None


def _score_row(name: str, record: Json) -> tuple[str, ...]:
    score = score_of(name, record)
    window = " / ".join(
        format_value(key, record[key]) for key in ("context", "stride") if key in record
    )
    loss, bits_per_byte = (
        with_interval(score.loss, score.loss_interval),
        with_interval(score.bits_per_byte, score.bits_per_byte_interval),
    )
    counts = (format_value(key, record.get(key)) for key in ("tokens", "documents"))
    return (
        name,
        loss,
        format_number(record.get("perplexity"), 2),
        bits_per_byte,
        *counts,
        window,
        format_value("tokens_per_second", record.get("tokens_per_second")),
    )


def split_table(run: RunFiles) -> Table | None:
    """What each split of the data holds."""
    splits = section(run.data, "splits")
    keys = ("documents", "bytes", "characters", "tokens")
    rows = tuple(
        (name, *(format_value(key, section(splits, name).get(key)) for key in keys))
        for name in ordered_splits(splits)
    )
    return Table(("Split", "Documents", "Text", "Characters", "Tokens"), rows) if rows else None


def tokenizer_table(run: RunFiles) -> Table | None:
    """Size and compression of the tokenizer."""
    return _facts(section(run.data, "tokenizer"))


def leakage_table(run: RunFiles, what: str = "Documents") -> Table | None:
    """Documents (or prompts) that stand in training already: word for word, and after ignoring case
    and white space.
    """
    splits = {
        name: value
        for name, value in section(run.data, "leakage").items()
        if isinstance(value, dict)
    }
    keys = ("documents", "exact", "normalised")
    rows = tuple(
        (name, *(format_value(key, splits[name].get(key)) for key in keys))
        for name in ordered_splits(splits)
    )
    return (
        Table(("Split", what, "Repeated exactly", "Repeated but for case and spaces"), rows)
        if rows
        else None
    )


def plan_table(run: RunFiles) -> Table | None:
    """Every choice of the plan, its reason and the runner-up."""
    choices = [choice for choice in items(run.plan.get("choices")) if isinstance(choice, dict)]
    rows = tuple(
        (
            label(str(choice.get("name", ""))),
            *(
                format_value(str(choice.get("name")) if key == "value" else key, choice.get(key))
                for key in ("value", "reason", "alternative")
            ),
        )
        for choice in choices
    )
    return Table(("Choice", "Value", "Reason", "Runner-up"), rows) if rows else None


def batch_sentence(run: RunFiles) -> str:
    """How the recipe's batch is cut to the device; empty when the plan does not say."""
    names = ("micro_batch", "accumulation", "effective_batch")
    micro_batch, accumulation, effective = (number(run.plan.get(name)) for name in names)
    if micro_batch is None or accumulation is None or effective is None:
        return ""
    remainder = number(run.plan.get("remainder")) or 0
    rest = f" + {remainder:.0f}" if remainder else ""
    return (
        f"Every optimizer step sees {effective:.0f} sequences:"
        f" {plural(int(accumulation), 'micro-batch', 'micro-batches')} of {micro_batch:.0f}{rest}."
    )


def environment_table(run: RunFiles) -> Table | None:
    """The machine, the versions and the command."""
    return _facts(run.environment)


def event_table(run: RunFiles) -> Table | None:
    """What happened besides plain steps."""
    rows = tuple(
        (format_value("step", record.get("step")), str(record.get("message", "")))
        for record in run.of_kind("event")
    )
    return Table(("Step", "Event"), rows) if rows else None


def memory_event_table(run: RunFiles) -> Table | None:
    """When memory ran out, and which micro-batches followed which."""
    rows = tuple(
        (
            format_value("step", record.get("step")),
            str(record.get("phase", "")),
            format_micro_batches(record.get("from")),
            format_micro_batches(record.get("to")),
            str(record.get("where") or ""),
        )
        for record in run.of_kind("out_of_memory")
    )
    return (
        Table(("Step", "While", "Micro-batches before", "After", "Where"), rows) if rows else None
    )


def _facts(values: Json) -> Table | None:
    rows = tuple(_flat(values))
    return Table(("", ""), rows) if rows else None


def _flat(values: Json, prefix: str = "", unit_of: str | None = None) -> Iterable[tuple[str, str]]:
    """Nested facts as rows; numbers below a key with a unit, such as `dense_flop_per_s`, have that
    unit.
    """
    for key, value in values.items():
        if key == "packages" and isinstance(value, dict):
            yield "Packages", ", ".join(f"{name} {version}" for name, version in value.items())
        elif isinstance(value, dict):
            yield from _flat(
                value, f"{prefix}{words_of(key)} ", key if key.endswith(UNITS) else None
            )
        elif value is not None and value not in ("", []):
            yield label(prefix + key), format_value(unit_of or key, value)


def ordered_splits(splits: Iterable[str]) -> list[str]:
    """train, validation and test first, others behind them."""
    names = list(splits)
    return [name for name in SPLIT_ORDER if name in names] + [
        name for name in names if name not in SPLIT_ORDER
    ]
