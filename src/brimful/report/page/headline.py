"""What a report says first: one sentence about the run, its state, the numbers that matter, and how
to go on.
"""

from brimful.base.text import plural
from brimful.base.units import format_count, format_duration
from brimful.model.description import is_own_architecture
from brimful.report.bars import MOST_PARTS, Bar, Bars, Part
from brimful.report.commands import continue_command, repeat_command
from brimful.report.comparison.results import title as title_of
from brimful.report.judgement import guesses_in_words, judge, judgements_in_words
from brimful.report.kinds import report_kind
from brimful.report.live.logger import find_logger, known_loggers
from brimful.report.predictions import PREDICTED_NAMES, Comparison, comparisons
from brimful.report.quantities import (
    MINUS,
    capitalised,
    format_error,
    format_quantity,
    format_score,
    listed,
)
from brimful.report.scores import baselines, main_score
from brimful.report.tasks import comparable, main_metric
from brimful.report.tuned import base_name, method_in_words, parameters
from brimful.report.views import Card, Command
from brimful.runs.facts import ModelSection
from brimful.runs.files import MODEL_FOLDER, RECIPE_FILE
from brimful.runs.folder import RunFolder
from brimful.runs.measurements import measured, total_time_s
from brimful.runs.tasks import TaskEvaluations

MAX_TASK_CARDS = 3
ARCHITECTURE_NAMES = {
    "llama": "Llama-style",
    "gpt2": "GPT-2-style",
    "modernbert": "ModernBERT-style",
}


def status(run: RunFolder) -> str:
    """Return `finished: 500 steps`, or how far the run is."""
    if run.is_finished:
        return f"finished: {plural(run.last_step, 'step')}"
    reason = f" ({run.end.reason})" if run.end and run.end.reason else ""
    return f"unfinished: {run.last_step:,}{_of_total(run)} steps{reason}"


def _of_total(run: RunFolder) -> str:
    return f" of {run.total_steps:,}" if run.total_steps and not run.is_finished else ""


def sentence(run: RunFolder) -> str:
    """Say what was run: model, data, device and time; what is not known is left out."""
    tense = "was" if run.is_finished else "has been"
    subject = f"{_model(run)} {tense} trained"
    if run.is_tuned:
        subject = f"{base_name(run)} {tense} tuned {method_in_words(run)}"
    purpose = report_kind(run).purpose(run)
    parts = [subject, purpose, _length(run), _data(run), _device(run), _time(run)]
    return " ".join(filter(None, parts)).rstrip(",") + "."


def _model(run: RunFolder) -> str:
    """`A 3.67M-parameter Llama-style language model (4 layers, 256 wide)`."""
    count = measured(run).get("parameters") or run.predicted("parameters")
    section = run.recipe.model if isinstance(run.recipe.model, ModelSection) else ModelSection()
    parts = [
        f"{format_count(count)}-parameter" if count else "",
        ARCHITECTURE_NAMES.get(section.architecture, ""),
        report_kind(run).model_name,
    ]
    if section.layers is not None and section.width is not None:
        parts.append(f"({section.layers} layers, {section.width} wide)")
    words = " ".join(filter(None, parts))
    article = "An" if words.startswith(("8", "11.", "18.")) else "A"
    return f"{article} {words}"


def _length(run: RunFolder) -> str:
    if not run.last_step:
        return ""
    counts = [each.tokens for each in run.steps if each.tokens is not None]
    tokens = f" ({format_count(counts[-1])} {report_kind(run).learned})" if counts else ""
    return f"for {run.last_step:,}{_of_total(run)} steps{tokens}"


def _data(run: RunFolder) -> str:
    path = run.recipe.data.path or ()
    names = [path] if isinstance(path, str) else path
    return f"on {listed(names)}," if names else ""


def device_name(run: RunFolder) -> str:
    """Return the device as the environment (else the plan) names it, with the threads that the plan
    uses; "" when neither does.
    """
    device = run.environment.device
    planned = run.planned_device
    name = device.name or device.kind or planned.name or planned.kind
    threads = (run.plan.threads if run.plan else None) or device.threads
    return f"{name} ({plural(threads, 'thread')})" if name and threads else name


def _device(run: RunFolder) -> str:
    name = device_name(run)
    return f"on {name}" if name else ""


def _time(run: RunFolder) -> str:
    seconds = total_time_s(run)
    if not seconds:
        return ""
    so_far = "" if run.is_finished else " so far"
    return f"in {format_duration(seconds)}{so_far}"


def verdict(run: RunFolder) -> str:
    """Return the score in words; "" when nothing was scored."""
    return report_kind(run).verdict(run)


def task_verdict(tasks: TaskEvaluations, before: TaskEvaluations | None) -> str:
    """Return the main metric of every task in a sentence: `code-syntax: syntax 45.8% (4.2% before
    tuning).`; "" without tasks.
    """
    parts = []
    for task, summary in tasks.summaries.items():
        name, metric = main_metric(summary)
        if metric.value is None:
            continue
        text = f"{name} {format_score(metric.value, metric.unit)}"
        other = before.summaries.get(task) if before else None
        if other is not None and comparable(summary, other) and name in other.metrics:
            text += f" ({format_score(other.metrics[name].value, metric.unit)} before tuning)"
        parts.append(text if name == task else f"{task}: {text}")
    return f"{'; '.join(parts)}." if parts else ""


def plan_verdict(run: RunFolder) -> str:
    """Say how far off the plan was, in step time and memory, and how good its predictions were in
    all; "" when nothing can be compared.
    """
    known = [each for each in comparisons(run) if each.error is not None]
    parts = [
        _with_error(each) for each in known if each.key in ("step_time_s", "peak_memory_bytes")
    ]
    judgements = [each.judgement for each in known]
    counts = [judgements_in_words(judgements), guesses_in_words(judgements)]
    sentences = ["; ".join(parts), "; ".join(filter(None, counts))]
    return " ".join(f"{capitalised(text)}." for text in sentences if text)


def _with_error(each: Comparison) -> str:
    """`peak memory 752.9 MiB, predicted 780.8 MiB (+3.7 %, close)`."""
    predicted = format_quantity(each.key, each.predicted)
    actual = format_quantity(each.key, each.measured or 0.0)
    error = format_error(each.error or 0.0, MINUS)
    made, word = each.judgement.made, each.judgement.word
    return f"{each.name.lower()} {actual}, {made} {predicted} ({error}, {word})"


def cards(run: RunFolder) -> list[Card]:
    """Return the headline's numbers, each only when it is known."""
    shown = report_kind(run).score_cards(run) + _task_cards(run.tasks)
    trained = parameters(run)[1] if run.is_tuned else None
    if trained:
        shown.append(Card("Trained", format_count(trained), "parameters"))
    shown += _measured_cards(run, ("tokens_per_s", "peak_memory_bytes"))
    if total_s := total_time_s(run):
        shown.append(Card("Time in all", format_duration(total_s), _time_detail(run)))
    return shown + _measured_cards(run, ("energy_wh", "cost_usd"))


_OTHERWISE = {
    "tokens_per_s": "at the median step",
    "peak_memory_bytes": "highest step",
    "total_time_s": "with evaluation",
}
"""What stands below a number that the plan does not predict."""


def _measured_cards(run: RunFolder, keys: tuple[str, ...]) -> list[Card]:
    values = measured(run)
    return [
        Card(PREDICTED_NAMES[key], format_quantity(key, values[key]), _prediction(run, key))
        for key in keys
        if key in values
    ]


def _prediction(run: RunFolder, key: str) -> str:
    """`predicted 1.22 GiB`."""
    predicted = run.predicted(key)
    if predicted is None:
        return _OTHERWISE.get(key, "")
    made = judge(predicted, run.predicted_interval(key), None).made
    return f"{made} {format_quantity(key, predicted)}"


def _time_detail(run: RunFolder) -> str:
    detail = _prediction(run, "total_time_s") if run.is_finished else "so far"
    sessions = len(run.starts)
    return f"{sessions} sessions; {detail}" if sessions > 1 else detail


def _task_cards(tasks: TaskEvaluations) -> list[Card]:
    """The main metric of the first tasks that have one."""
    shown = []
    for task, summary in tasks.summaries.items():
        name, metric = main_metric(summary)
        if metric.value is None:
            continue
        unit = "" if metric.unit in {"BLEU", "chrF"} else metric.unit
        detail = "share of answers" if metric.n is None else f"n = {metric.n:,.0f}"
        title = capitalised(title_of(task, name))
        shown.append(Card(title, format_score(metric.value, unit), detail))
    return shown[:MAX_TASK_CARDS]


def score_bars(run: RunFolder) -> Bars | None:
    """Return the model's bits per byte among the baselines', the largest first; None without
    baselines.
    """
    model = main_score(run)
    rivals = {each.name: each.bits_per_byte for each in baselines(run) if each.bits_per_byte}
    if model is None or model.bits_per_byte is None or not rivals:
        return None
    own = "This model"
    values = sorted([*rivals.items(), (own, model.bits_per_byte)], key=lambda bar: -bar[1])
    return Bars(
        "",
        "Bits per byte",
        tuple(
            Bar(
                name,
                (Part(name, value, 1.0, f"{value:.3f}", 0 if name == own else MOST_PARTS - 1),),
                f"{value:.3f}",
            )
            for name, value in values
        ),
    )


def commands(run: RunFolder) -> list[Command]:
    """Return how to continue or repeat the run, and how to use the model."""
    shown = []
    continuation = "" if run.is_finished else _continuation(run)
    if continuation:
        shown.append(Command("Continue where it stopped", continuation))
    if run.recipe.text:
        again = repeat_command(run, str(run.folder / RECIPE_FILE))
        purpose = "Repeat it from the resolved recipe, in a folder of its own"
        shown.append(Command(purpose, again))
    if (run.folder / MODEL_FOLDER).is_dir():
        shown += [*report_kind(run).commands(run), _loading(run)]
    return [*shown, *_curves(run)]


def _curves(run: RunFolder) -> list[Command]:
    """Return how to look at the curves in each logger that has a command for it."""
    known = known_loggers()
    loggers = [find_logger(name) for name in run.recipe.run.loggers if name in known]
    return [
        Command(f"Look at the curves in {logger.label}", logger.look(run.folder))
        for logger in loggers
        if logger.look(run.folder)
    ]


def _continuation(run: RunFolder) -> str:
    """What continues the run: from its recipe, else the command that started it."""
    own = run.environment.command
    by_recipe = continue_command(run.folder, command=own) if run.recipe.text else None
    return by_recipe or " ".join(word for word in own.split(" ") if word != "--fresh")


def _loading(run: RunFolder) -> Command:
    adapters = run.recipe.adapter is not None
    lines = loading_lines(run, str(run.folder / MODEL_FOLDER), adapters=adapters)
    return Command("Load it in Python", "\n".join(lines))


def loading_lines(run: RunFolder, source: str, *, adapters: bool) -> list[str]:
    """Return the Python that loads the model and its tokenizer.

    Args:
        run: The run that made it.
        source: Its folder, or its name on the hub.
        adapters: Whether to load adapters by PEFT's own class.
    """
    auto_class, own = report_kind(run).auto_class, []
    imports = [f"from transformers import {auto_class}, AutoTokenizer"]
    if adapters:
        auto_class = "AutoPeftModelForCausalLM"
        imports = [f"from peft import {auto_class}", "from transformers import AutoTokenizer"]
    if is_own_architecture(run.recipe.model):
        own = ["from brimful.model.registered import register", "", "register()"]
    return [
        *imports,
        *own,
        f"model = {auto_class}.from_pretrained({source!r})",
        f"tokenizer = AutoTokenizer.from_pretrained({source!r})",
    ]
