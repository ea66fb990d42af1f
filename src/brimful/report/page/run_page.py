"""The view of a run: what its report shows, from headline to environment. `PARTS` lists the
sections, each of which a function makes from the run.
"""

from collections.abc import Callable

from brimful.report import tuned
from brimful.report.base_to_tuned import BaseToTuned, base_blocks, base_to_tuned
from brimful.report.kinds import report_kind
from brimful.report.page import data_page, headline
from brimful.report.page.events import event_table, memory_event_table
from brimful.report.page.facts import environment_table
from brimful.report.page.label_page import labels_section
from brimful.report.page.layers import layers_section
from brimful.report.page.memory_page import memory_section
from brimful.report.page.plan_page import choice_table
from brimful.report.page.plots import curves
from brimful.report.page.predicted import judged_blocks
from brimful.report.page.recovery_points import recovery_section
from brimful.report.page.reproduce import identity_table, steps_to_reproduce
from brimful.report.page.samples import samples_section
from brimful.report.page.time_page import time_section
from brimful.report.predictions import comparisons, told_of_others
from brimful.report.tasks import answer_sets, task_blocks
from brimful.report.views import (
    AuthoredAnswer,
    Block,
    Chapter,
    Code,
    Command,
    Heading,
    Paragraph,
    Prompted,
    View,
    fold,
    lacking,
    section,
    text,
)
from brimful.runs.folder import RunFolder
from brimful.runs.side_by_side import AnswerPair

FEW_EVENTS, FEW_SOURCES, FEW_COMMANDS = 6, 4, 3
"""Lists of so many entries, or fewer, are shown without a fold."""


def run_view(run: RunFolder) -> View:
    """Return all that is told of a run, finished or not."""
    untuned = tuned.before_tuning(run)
    verdicts = (
        headline.verdict(run),
        headline.task_verdict(run.tasks, untuned.tasks if untuned else None),
        headline.plan_verdict(run),
    )
    written_by = f"brimful {run.environment.brimful}".strip()
    return View(
        run.name,
        "run report",
        headline.sentence(run),
        (
            *(Paragraph(verdict, "verdict") for verdict in verdicts if verdict),
            *lacking(run, "run.json", "monitor.jsonl", "side_by_side.jsonl"),
            *text(run.model_problem, "missing"),
        ),
        tuple(found for part in PARTS if (found := part(run)) is not None),
        tuple(headline.cards(run)),
        headline.status(run),
        not run.is_finished,
        f"Written by {written_by} from the files in this run folder. brimful report"
        f" {run.folder.name} --files writes every figure as PNG and SVG and every table as CSV.",
    )


def _base(run: RunFolder) -> Chapter | None:
    """Scores and answers of the base beside those of the tuned model."""
    found = base_to_tuned(run)
    if found is None:
        return None
    heading = "Simple models and this one" if found.is_classifier else "Base and tuned"
    samples = [_pair(found, each) for each in found.samples]
    more = f"More prompts, answered by both: {len(samples) - 1}"
    return section(
        "base",
        heading,
        *base_blocks(found),
        *samples[:1],
        *fold(more, *samples[1:]),
        title="Base and tuned",
    )


def _pair(found: BaseToTuned, pair: AnswerPair) -> Prompted:
    answers = [AuthoredAnswer(found.base, pair.base), AuthoredAnswer("Tuned", pair.tuned)]
    answers += [AuthoredAnswer("In the data", pair.reference)] if pair.reference else []
    return Prompted(pair.prompt, answers=tuple(answers))


def _curves(run: RunFolder) -> Chapter:
    charts = curves(run)
    others = [each for each in charts if not each.is_main]
    events, memory_events = event_table(run), memory_event_table(run)
    few = ""
    if not charts and "metrics.jsonl" not in run.problems:
        few = "Fewer than two steps are logged so far."
    blocks: list[Block] = []
    if events:
        summary, is_folded = f"{len(events.rows)} events", len(events.rows) > FEW_EVENTS
        blocks += [Heading("Events"), *fold(summary, events, is_folded=is_folded)]
    if memory_events:
        summary, is_folded = (
            f"{len(memory_events.rows)} times",
            len(memory_events.rows) > FEW_EVENTS,
        )
        told = (
            "No sequence was lost: what ran out of memory was done again with the same sequences in"
            " smaller pieces. Training keeps the smaller micro-batches."
        )
        blocks += [Heading("Out of memory"), Paragraph(told, "note")]
        blocks += fold(summary, memory_events, is_folded=is_folded)
    return section(
        "curves",
        "Curves",
        *lacking(run, "metrics.jsonl"),
        *text(few, "missing"),
        *(each for each in charts if each.is_main),
        *fold("; ".join(each.title for each in others), *others),
        *blocks,
        title="Curves",
    )


def _predictions(run: RunFolder) -> Chapter:
    found = comparisons(run)
    blocks: tuple[Block, ...] = ()
    if found:
        first = "The plan was written before the first step."
        rest = "" if run.is_finished else ", or not yet"
        others = text(told_of_others(run), "note")
        blocks = (Paragraph(first, "note"), *judged_blocks(found, rest), *others)
    elif "plan.json" not in run.problems:
        blocks = text("The plan states no predictions.", "missing")
    missing = lacking(run, "plan.json")
    return section("predictions", "Predicted and measured", *missing, *blocks, title="Predictions")


def _scores(run: RunFolder) -> Chapter | None:
    """The losses; None for a classifier whose losses stand with its other metrics."""
    if run.scores.labels:
        return None
    bars, table = headline.score_bars(run), report_kind(run).score_table(run)
    about = "Bits per byte of held-out text, lower is better."
    return section(
        "scores",
        "Scores",
        *lacking(run, "scores.json"),
        bars,
        *text(about if bars else "", "note"),
        *text("Intervals are 95 %." if table else "", "note"),
        table,
        title="Scores",
    )


def _tasks(run: RunFolder) -> Chapter | None:
    tasks, untuned = run.tasks, tuned.before_tuning(run)
    before = untuned.tasks if untuned else None
    if not tasks.summaries and not tasks.problems:
        return None
    blocks = [Paragraph(problem, "missing") for problem in tasks.problems]
    return section(
        "tasks",
        "Tasks",
        *blocks,
        *task_blocks(tasks, before),
        *answer_sets(tasks, before),
        title="Tasks",
    )


def _tuning(run: RunFolder) -> Chapter | None:
    table = tuned.tuning_table(run)
    if table is None:
        return None
    return section(
        "tuning", "What was tuned", *fold("Base, adapters, parameters, optimizer", table)
    )


def _data(run: RunFolder) -> Chapter:
    kind, sources, notes = report_kind(run), run.data.sources, run.data.notes
    told = [Paragraph(each.description) for each in sources]
    noted = [Paragraph(note, "note") for note in notes]
    folded = {
        "Labels of each split": data_page.label_count_table(run),
        "Repeated and contradicting texts": data_page.duplicate_table(run),
        "Some repeated texts": data_page.repeat_table(run),
        "Some texts with different labels": data_page.conflict_table(run),
        f"{kind.texts.capitalize()} that repeat training {kind.texts}": data_page.leakage_table(
            run, kind.texts
        ),
        "Tokenizer": data_page.tokenizer_table(run),
    }
    return section(
        "data",
        kind.data_heading,
        *lacking(run, "data.json"),
        *fold(f"{len(sources)} sources", *told, is_folded=len(sources) > FEW_SOURCES),
        data_page.split_table(run),
        *fold(f"{len(notes)} notes", *noted, is_folded=len(notes) > FEW_SOURCES),
        *(block for name, table in folded.items() for block in fold(name, table)),
        title="Data",
    )


def _plan(run: RunFolder) -> Chapter:
    table = choice_table(run.plan)
    chosen = "; ".join(f"{row[0]} {row[1]}" for row in table.text_rows) if table else ""
    return section(
        "plan",
        "The plan and its reasons",
        *lacking(run, "plan.json"),
        *text(report_kind(run).batch_sentence(run)),
        *text(chosen),
        *fold("The reason of each, and the second best", table),
        title="Plan",
    )


def _reproduce(run: RunFolder) -> Chapter:
    commands, identity = headline.commands(run), identity_table(run)
    equal: list[Block] = [Heading("What must be equal"), identity] if identity else []
    recipe = Code(run.recipe.text) if run.recipe.text else None
    steps: list[Command] = steps_to_reproduce(run)
    return section(
        "reproduce",
        "Reproduce, continue, use",
        *lacking(run, "recipe.yaml"),
        *commands[:FEW_COMMANDS],
        *fold("More commands", *commands[FEW_COMMANDS:]),
        *fold("On another machine, from nothing", *steps, *equal),
        *fold("Recipe", recipe),
        title="Reproduce",
    )


def _environment(run: RunFolder) -> Chapter:
    folded = fold("Machine, versions and command", environment_table(run))
    missing = lacking(run, "environment.json")
    return section("environment", "Environment", *missing, *folded, title="Environment")


PARTS: tuple[Callable[[RunFolder], Chapter | None], ...] = (
    _base,
    _curves,
    _predictions,
    labels_section,
    _scores,
    _tasks,
    samples_section,
    time_section,
    memory_section,
    layers_section,
    _tuning,
    _data,
    _plan,
    recovery_section,
    _reproduce,
    _environment,
)
"""The sections, in order; one that a run has nothing of is None."""
