"""What a report says first: one sentence about the run, its state, the numbers that matter, and how
to go on.
"""

import shlex
from dataclasses import dataclass

from brimful.base.units import format_bytes, format_count, format_duration
from brimful.report import labels
from brimful.report.commands import continue_command, repeat_command
from brimful.report.comparison.results import title
from brimful.report.labels import (
    WATCHED,
    form_of,
    label_scores,
    listed,
    main_split,
    metric_rows,
    names_of,
    watched,
)
from brimful.report.quantities import format_error, format_quantity, format_score
from brimful.report.tables import (
    PREDICTED_NAMES,
    Comparison,
    Score,
    baselines,
    best_evaluation,
    comparisons,
    main_score,
)
from brimful.report.tasks import Tasks, comparable, main_metric
from brimful.report.tuned import base_name, manner, parameters, score_before
from brimful.runs.runfiles import (
    RunFiles,
    is_tuned,
    items,
    kind_of,
    measured,
    number,
    section,
    series,
    total_time_s,
)

MAX_TASK_CARDS = 3
ARCHITECTURE_NAMES = {
    "llama": "Llama-style",
    "gpt2": "GPT-2-style",
    "modernbert": "ModernBERT-style",
}
MODEL_KINDS = {"text": "language model", "masked": "masked language model", "labels": "classifier"}
AUTO_CLASSES = {
    "text": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "labels": "AutoModelForSequenceClassification",
}


@dataclass(frozen=True)
class Card:
    """One number of the headline."""

    name: str
    value: str
    detail: str


@dataclass(frozen=True)
class Command:
    """Something to run next."""

    purpose: str
    text: str


@dataclass(frozen=True)
class Bar:
    """A score drawn as a bar; `share` of the longest, 0 to 1."""

    name: str
    value: str
    share: float
    is_model: bool


def status(run: RunFiles) -> str:
    """`finished`, or how far the run is."""
    total = f" of {run.total_steps:,}" if run.total_steps else ""
    if run.is_finished:
        return f"finished: {run.last_step:,} steps"
    reason = f" ({run.end['reason']})" if run.end and run.end.get("reason") else ""
    return f"unfinished: {run.last_step:,}{total} steps{reason}"


def sentence(run: RunFiles) -> str:
    """What was run: model, data, device and time; what is not known is left out."""
    tense = "was" if run.is_finished else "has been"
    subject = (
        f"{base_name(run)} {tense} tuned {manner(run)}"
        if is_tuned(run)
        else f"{_model(run)} {tense} trained"
    )
    parts = [subject, _purpose(run), _length(run), _data(run), _device(run), _time(run)]
    return " ".join(part for part in parts if part).rstrip(",") + "."


def _purpose(run: RunFiles) -> str:
    """`to classify texts into ham and spam`; "" for a language model."""
    if kind_of(run) != "labels":
        return ""
    split = main_split(run.scores)
    names = (
        names_of(label_scores(run.scores)[split])
        if split
        else [str(name) for name in items(section(run.data, "labels").get("names"))]
    )
    return f"to classify texts into {listed(names)}" if names else "to classify texts"


def _model(run: RunFiles) -> str:
    model = section(run.recipe, "model")
    count = measured(run).get("parameters") or number(
        section(run.plan, "predicted").get("parameters")
    )
    size = f"{format_count(count)}-parameter " if count else ""
    kind = ARCHITECTURE_NAMES.get(str(model.get("architecture")), "")
    shape = (
        f" ({model['layers']} layers, {model['width']} wide)"
        if "layers" in model and "width" in model
        else ""
    )
    words = " ".join(f"{size}{kind} {MODEL_KINDS[kind_of(run)]}{shape}".split())
    return f"A{'n' if words.startswith(('8', '11.', '18.')) else ''} {words}"


def _length(run: RunFiles) -> str:
    tokens = series(run.of_kind("step"), "tokens")[1]
    seen = (
        f" ({format_count(tokens[-1])}"
        f" {'learned ' * (is_tuned(run) and kind_of(run) == 'text')}tokens)"
        if tokens
        else ""
    )
    total = f" of {run.total_steps:,}" if run.total_steps and not run.is_finished else ""
    return f"for {run.last_step:,}{total} steps{seen}" if run.last_step else ""


def _data(run: RunFiles) -> str:
    path = section(run.recipe, "data").get("path")
    names = [str(name) for name in ([path] if isinstance(path, str) else items(path))]
    if not names:
        return ""
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"on {listed},"


def device_name(run: RunFiles) -> str:
    """The device as the environment (else the plan) names it, with the threads the plan uses; empty
    when neither does.
    """
    device = section(run.environment, "device") or section(run.plan, "device")
    name, threads = (
        str(device.get("name") or device.get("kind") or ""),
        number(run.plan.get("threads") or device.get("threads")),
    )
    return f"{name} ({threads:.0f} thread{'s' * (threads != 1)})" if name and threads else name


def _device(run: RunFiles) -> str:
    return f"on {device_name(run)}" if device_name(run) else ""


def _time(run: RunFiles) -> str:
    seconds = total_time_s(run)
    if not seconds:
        return ""
    return (
        f"in {format_duration(seconds)}"
        if run.is_finished
        else f"in {format_duration(seconds)} so far"
    )


def verdict(run: RunFiles) -> str:
    """The score in words, against the best baseline; empty when nothing was scored."""
    score = main_score(run)
    if kind_of(run) == "labels":
        return labels.verdict(run.scores) or _verdict_so_far(run)
    if kind_of(run) == "masked":
        return _verdict_of_masked(score)
    if is_tuned(run):
        return _verdict_of_answers(run, score)
    if score is None or score.bits_per_byte is None:
        return ""
    interval = (
        f" (95 % interval {score.bits_per_byte_interval[0]:.3f} to"
        f" {score.bits_per_byte_interval[1]:.3f})"
        if score.bits_per_byte_interval
        else ""
    )
    text = (
        f"On held-out text ({score.name}) it needs {score.bits_per_byte:.3f} bits per"
        f" byte{interval}"
    )
    rivals = [rival for rival in baselines(run) if rival.bits_per_byte]
    if not rivals:
        return f"{text}."
    best = min(rivals, key=lambda rival: rival.bits_per_byte or 0.0)
    difference = score.bits_per_byte / (best.bits_per_byte or 1.0) - 1
    comparative = "less" if difference < 0 else "more"
    return (
        f"{text}, {abs(difference) * 100:.0f} % {comparative} than the best counting baseline"
        f" ({best.name.lower()}, {best.bits_per_byte:.3f})."
    )


def _verdict_so_far(run: RunFiles) -> str:
    """The metrics of a classifier that is still trained, after the evaluation that was best; ""
    before the first.
    """
    best = best_evaluation(run)
    told = [f"{WATCHED[key]} {form_of(key)(value)}" for key, value in watched(best or {}).items()]
    return (
        f"So far, on {best.get('split', 'validation')} after step {best.get('step')}:"
        f" {', '.join(told)}."
        if best and told
        else ""
    )


def _verdict_of_masked(score: Score | None) -> str:
    """The loss over hidden tokens, which says nothing of how likely a text is."""
    if score is None or score.loss is None:
        return ""
    interval = (
        f" (95 % interval {score.loss_interval[0]:.3f} to {score.loss_interval[1]:.3f})"
        if score.loss_interval
        else ""
    )
    return (
        f"On held-out text ({score.name}) the loss is {score.loss:.3f} nats per masked"
        f" token{interval}."
    )


def _verdict_of_answers(run: RunFiles, score: Score | None) -> str:
    """The loss over held-out answers, beside that of the untuned model."""
    if score is None or score.loss is None:
        return ""
    interval = (
        f" (95 % interval {score.loss_interval[0]:.3f} to {score.loss_interval[1]:.3f})"
        if score.loss_interval
        else ""
    )
    before = score_before(run)
    beside = (
        f"; it was {before.loss:.3f} before tuning"
        if before is not None and before.loss is not None
        else ""
    )
    what = "examples" if section(run.recipe, "data").get("loss_on") == "all" else "answers"
    return (
        f"The loss over held-out {what} ({score.name}) is {score.loss:.3f} nats per"
        f" token{interval}{beside}."
    )


def task_verdict(tasks: Tasks, before: Tasks | None) -> str:
    """The main metric of every task in a sentence: `code-syntax: syntax 45.8% (4.2% before
    tuning).`; empty without tasks.
    """
    told = []
    for name, summary in tasks.summaries.items():
        main = main_metric(summary)
        value = number(main[1].get("value")) if main else None
        if main is None or value is None:
            continue
        unit, other = str(main[1].get("unit", "")), before.summaries.get(name) if before else None
        was = (
            number(section(section(other, "metrics"), main[0]).get("value"))
            if comparable(summary, other)
            else None
        )
        beside = f" ({format_score(was, unit)} before tuning)" if was is not None else ""
        told.append(
            f"{f'{name}: ' * (name != main[0])}{main[0]} {format_score(value, unit)}{beside}"
        )
    return f"{'; '.join(told)}." if told else ""


def plan_verdict(run: RunFiles) -> str:
    """How far off the plan was, in step time and memory, and how many of its intervals held; empty
    when nothing can be compared.
    """
    found = [comparison for comparison in comparisons(run) if comparison.error is not None]
    told = [
        _beside(comparison)
        for comparison in found
        if comparison.key in ("step_time_s", "peak_memory_bytes")
    ]
    checked = [comparison.came_true for comparison in found if comparison.came_true is not None]
    if checked:
        told.append(
            f"{sum(checked)} of {len(checked)} predictions came true within their intervals"
        )
    text = "; ".join(told)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _beside(comparison: Comparison) -> str:
    """`peak memory 752.9 MiB, predicted 780.8 MiB (+3.7 %)`."""
    predicted, found = (
        format_quantity(comparison.key, value)
        for value in (comparison.predicted, comparison.measured or 0.0)
    )
    error = format_error(comparison.error or 0.0).replace("-", "\N{MINUS SIGN}")
    return f"{comparison.name.lower()} {found}, predicted {predicted} ({error})"


def cards(run: RunFiles, tasks: Tasks) -> list[Card]:
    """The headline's numbers, each only when it is known."""
    found, score, planned = measured(run), main_score(run), _planned(run)
    shown = _score_cards(run, score) if score else []
    shown += _task_cards(tasks)
    if is_tuned(run) and (trained := parameters(run)[1]):
        shown.append(Card("Trained", format_count(trained), "parameters"))
    if "tokens_per_s" in found:
        shown.append(
            Card(
                "Tokens per second",
                format_count(found["tokens_per_s"]),
                planned.get("tokens_per_s", "at the median step"),
            )
        )
    if "peak_memory_bytes" in found:
        shown.append(
            Card(
                "Peak memory",
                format_bytes(found["peak_memory_bytes"]),
                planned.get("peak_memory_bytes", "highest step"),
            )
        )
    if seconds := total_time_s(run):
        sessions = len(run.of_kind("start"))
        detail = planned.get("total_time_s", "with evaluation") if run.is_finished else "so far"
        shown.append(
            Card(
                "Time in all",
                format_duration(seconds),
                f"{sessions} sessions; {detail}" if sessions > 1 else detail,
            )
        )
    for key in ("energy_wh", "cost_usd"):
        if key in found:
            shown.append(
                Card(PREDICTED_NAMES[key], format_quantity(key, found[key]), planned.get(key, ""))
            )
    return shown


def _planned(run: RunFiles) -> dict[str, str]:
    """`predicted 1.22 GiB` for what the plan says, by name."""
    predicted = section(run.plan, "predicted")
    return {
        key: f"predicted {format_quantity(key, value)}"
        for key in predicted
        if (value := number(predicted[key])) is not None
    }


def _score_cards(run: RunFiles, score: Score) -> list[Card]:
    if kind_of(run) == "labels":
        return _label_cards(run)
    shown = []
    if score.bits_per_byte is not None and not is_tuned(run):
        interval = score.bits_per_byte_interval
        shown.append(
            Card("Bits per byte", f"{score.bits_per_byte:.3f}", _span(interval) or score.name)
        )
    if score.loss is not None:
        interval = score.loss_interval
        shown.append(
            Card(
                "Loss",
                f"{score.loss:.3f}",
                _span(interval) or f"nats per {'masked ' * (kind_of(run) == 'masked')}token",
            )
        )
    record = section(run.scores, score.name)
    if is_tuned(run):
        return shown
    if perplexity := number(record.get("perplexity")):
        shown.append(Card("Perplexity", f"{perplexity:,.2f}", "per token"))
    return shown


def _label_cards(run: RunFiles) -> list[Card]:
    """The main metric, the area under precision and recall, and the accuracy."""
    split = main_split(run.scores)
    if split is None:
        return []
    score = label_scores(run.scores)[split]
    rows = {row.key: row for row in metric_rows(score)}
    chosen = [rows[key] for key in (labels.main_metric(score), "pr_auc", "accuracy") if key in rows]
    return [
        Card(
            row.name.partition(" (")[0],
            row.value,
            (
                f"95 %: {row.interval}".replace(" to ", "\N{EN DASH}").replace(
                    "%\N{EN DASH}", "\N{EN DASH}"
                )
                if row.interval
                else split
            ),
        )
        for row in chosen
    ]


def _task_cards(tasks: Tasks) -> list[Card]:
    """The main metric of the first tasks; not when it has none."""
    shown = []
    for name, summary in tasks.summaries.items():
        main = main_metric(summary)
        if main is None or (value := number(main[1].get("value"))) is None:
            continue
        n = number(main[1].get("n"))
        number_shown = format_score(
            value, "" if main[1].get("unit") == "BLEU" else str(main[1].get("unit", ""))
        )
        shown.append(
            Card(
                _heading(name, main[0]),
                number_shown,
                f"n = {n:,.0f}" if n is not None else "share of answers",
            )
        )
    return shown[:MAX_TASK_CARDS]


def _heading(task: str, metric: str) -> str:
    name = title(task, metric)
    return f"{name[:1].upper()}{name[1:]}"


def _span(interval: tuple[float, float] | None) -> str:
    return f"95 %: {interval[0]:.3f}\N{EN DASH}{interval[1]:.3f}" if interval else ""


def score_bars(run: RunFiles) -> list[Bar]:
    """The model's bits per byte among the baselines', the largest first; empty without
    baselines.
    """
    model, rivals = main_score(run), [rival for rival in baselines(run) if rival.bits_per_byte]
    if model is None or model.bits_per_byte is None or not rivals:
        return []
    values = [(rival.name, float(rival.bits_per_byte or 0), False) for rival in rivals] + [
        ("This model", model.bits_per_byte, True)
    ]
    values.sort(key=lambda value: -value[1])
    return [
        Bar(name, f"{value:.3f}", value / values[0][1], is_model)
        for name, value, is_model in values
    ]


def commands(run: RunFiles) -> list[Command]:
    """How to continue or repeat the run, and how to use what it made."""
    folder, own = shlex.quote(str(run.folder)), str(run.environment.get("command") or "")
    shown = []
    if not run.is_finished:
        of_recipe = continue_command(run.folder, command=own) if run.recipe_text else None
        typed = " ".join(word for word in own.split(" ") if word != "--fresh")
        shown += (
            [Command("Continue where it stopped", of_recipe or typed)] if of_recipe or typed else []
        )
    if run.recipe_text:
        shown.append(
            Command(
                "Repeat it from the resolved recipe, in a folder of its own",
                repeat_command(run, str(run.folder / "recipe.yaml")),
            )
        )
    if (run.folder / "model").is_dir():
        model = str(run.folder / "model")
        auto = AUTO_CLASSES[kind_of(run)]
        load = (
            f"model = {auto}.from_pretrained({model!r})\ntokenizer ="
            f" AutoTokenizer.from_pretrained({model!r})"
        )
        shown += _commands_of_kind(run, folder)
        shown.append(
            Command("Load it in Python", f"from transformers import {auto}, AutoTokenizer\n{load}")
        )
    shown.append(
        Command(
            "Look at the curves in TensorBoard",
            f"tensorboard --logdir {shlex.quote(str(run.folder / 'tensorboard'))}",
        )
    )
    return shown


def _commands_of_kind(run: RunFiles, folder: str) -> list[Command]:
    """What the model is for."""
    if kind_of(run) == "labels":
        return [
            Command("Label the texts of a file", f"brimful predict {folder} FILE"),
            Command("Score it again on validation and test", f"brimful evaluate {folder}"),
        ]
    if kind_of(run) == "masked":
        tune = "Classify texts with it"
        return [
            Command(
                tune,
                f"brimful train moderation model={shlex.quote(str(run.folder / 'model'))}"
                " data.path=FILE",
            )
        ]
    return (
        _commands_of_tuned(run, folder)
        if is_tuned(run)
        else [Command("Generate text", f'brimful generate {folder} --prompt "..."')]
    )


def _commands_of_tuned(run: RunFiles, folder: str) -> list[Command]:
    shown = [
        Command(
            "Ask it, and the model from before it was tuned",
            f'brimful generate {folder} --prompt "..." --beside-base',
        ),
        Command(
            "Score it on tasks, and the model from before",
            f"brimful evaluate {folder} code-syntax bleu\nbrimful evaluate {folder} --untuned",
        ),
    ]
    if section(run.recipe, "adapter"):
        shown.append(
            Command("Write it as one model, adapters merged", f"brimful export {folder} --merge")
        )
    return shown
