"""What tuning changed: scores and answers of the base beside those of the tuned model; of a
classifier, whose untrained head knows nothing, beside those of simpler ones.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from brimful.base.text import shortened_at_a_word
from brimful.planning.base_scoring import BASE, missing_parts
from brimful.report.kinds import report_kind
from brimful.report.labels import format_of, main_metric, main_split, metrics_of
from brimful.report.quantities import capitalised
from brimful.report.scores import SplitScore, best_evaluation, main_score
from brimful.report.table import Cell, Row, table_of
from brimful.report.tasks import comparable, metric_cell
from brimful.report.tasks import main_metric as metric_of_task
from brimful.report.terminal import told
from brimful.report.tuned import base_name, before_tuning, score_before
from brimful.report.views import Block, Paragraph, text
from brimful.runs.folder import RunFolder
from brimful.runs.records import BASE_MODEL, TUNED_MODEL, BaseRecord
from brimful.runs.scores import LabelScore
from brimful.runs.side_by_side import AnswerPair, read_side_by_side

ANSWER_CHARACTERS = 68
"""Characters of an answer in a terminal."""
MOST_FREQUENT = "most frequent label"


@dataclass(frozen=True)
class ChangedScore:
    """A score before and after tuning, of the same held-out texts.

    Attributes:
        name: What is scored, such as `held-out loss`.
        before, after: Scores with their intervals, where these are known; a simple model's score
            has its name as a note.
        about: What the scores are of, such as `34% of the validation sequences`; "" for all of
            them.
    """

    name: str
    before: Cell
    after: Cell
    about: str = ""


@dataclass(frozen=True)
class BaseToTuned:
    """What tuning changed.

    Attributes:
        base: The name of what the tuned model is compared with.
        scores: The loss first, then a score of every task.
        samples: Greedy answers of both to the same prompts.
        left_out: Why something is missing; "" where nothing is.
        is_classifier: Whether the scores are those of simple models, not of the untuned one.
    """

    base: str
    scores: tuple[ChangedScore, ...]
    samples: tuple[AnswerPair, ...]
    left_out: str = ""
    is_classifier: bool = False


def base_to_tuned(run: RunFolder) -> BaseToTuned | None:
    """Return what tuning changed; None for a run that tunes nothing, or does not know it."""
    split = main_split(run.scores)
    if split is not None:
        return _beside_simple_models(run.scores.labels[split], split)
    scores = (*_loss(run), *_tasks(run))
    found = BaseToTuned(base_name(run), scores, read_side_by_side(run.folder), _left_out(run))
    return found if found.scores or found.samples or found.left_out else None


def _left_out(run: RunFolder) -> str:
    plan = run.plan
    # Without this choice nobody wanted to know.
    if plan is None or plan.base is None or BASE not in {each.name for each in plan.choices}:
        return ""
    missing = missing_parts(plan.base, has_tasks=bool(run.recipe.evaluation.tasks))
    if not missing:
        return ""
    return f"left out to save time: {', '.join(missing)}; to have it all: evaluation.base=always"


def _loss(run: RunFolder) -> tuple[ChangedScore, ...]:
    """Held-out loss of the base and of the tuned model on the same sequences: the whole validation
    split if both were scored on it, else the part on which the base was scored before training.
    """
    unit = report_kind(run).loss_unit.replace(" per ", "/")
    name, shown = "held-out loss", "{:.3f}".format
    before, after = score_before(run), main_score(run)
    if before is not None and before.loss is not None and after is not None:
        first = Cell(before.loss, shown, before.loss_interval, unit=unit)
        last = Cell(after.loss, shown, after.loss_interval, unit=unit)
        bits = _bits_per_byte(before, after) if run.kind.continues_text else ()
        return (ChangedScore(name, first, last), *bits)
    scored = [each for each in run.base_scores if each.model == BASE_MODEL]
    if not scored or scored[-1].loss is None:
        return ()
    loss, share = _tuned_loss(run, scored[-1]), scored[-1].share or 1.0
    if loss is None:
        return ()
    about = "" if share == 1 else f"{share:.0%} of the validation sequences"
    first, last = (Cell(value, shown, unit=unit) for value in (scored[-1].loss, loss))
    return (ChangedScore(name, first, last, about),)


def _bits_per_byte(before: SplitScore, after: SplitScore) -> Iterator[ChangedScore]:
    if before.bits_per_byte is not None and after.bits_per_byte is not None:
        first, last = (
            Cell(each.bits_per_byte, "{:.3f}".format, each.bits_per_byte_interval, unit="bits/byte")
            for each in (before, after)
        )
        yield ChangedScore("held-out text", first, last)


def _tuned_loss(run: RunFolder, base: BaseRecord) -> float | None:
    """The tuned model's loss on the sequences that the base was scored on."""
    if base.share == 1:
        best = best_evaluation(run)
        return best.loss if best else None
    tuned = [each for each in run.base_scores if each.model == TUNED_MODEL]
    same = [each.loss for each in tuned if each.share == base.share]
    return same[-1] if same else None


def _tasks(run: RunFolder) -> list[ChangedScore]:
    """The main metric of every task that both models had."""
    earlier = before_tuning(run)
    if earlier is None:
        return []
    found = []
    for task, summary in run.tasks.summaries.items():
        before, (name, metric) = earlier.tasks.summaries.get(task), metric_of_task(summary)
        if before is None or not comparable(summary, before) or name not in before.metrics:
            continue
        shown = task if name == task else f"{task}: {name}"
        cells = metric_cell(before.metrics[name]), metric_cell(metric)
        found.append(ChangedScore(shown, *cells))
    return found


def _beside_simple_models(score: LabelScore, split: str) -> BaseToTuned | None:
    """A classifier beside a bag of words, and beside always giving the most frequent label."""
    metrics = {each.key: each for each in metrics_of(score)}
    main, accuracy = metrics.get(main_metric(score)), metrics.get("accuracy")
    scores = []
    if main is not None and main.floor.value is not None:
        name = main.name.partition(" (")[0]
        floor = replace(main.floor, note=score.floor.name)
        scores.append(ChangedScore(name, floor, main.value, split))
    most = _most_frequent(score)
    if accuracy is not None and most is not None:
        first = Cell(most, format_of("accuracy"), note=MOST_FREQUENT)
        scores.append(ChangedScore("Accuracy", first, accuracy.value, split))
    base = score.floor.name or MOST_FREQUENT
    return BaseToTuned(base, tuple(scores), (), is_classifier=True) if scores else None


def _most_frequent(score: LabelScore) -> float | None:
    """The accuracy of always giving the most frequent label; None where texts have several."""
    if score.multiple or not isinstance(score.confusion, tuple):
        return None
    counts = [sum(each or 0.0 for each in row) for row in score.confusion]
    return max(counts) / sum(counts) if counts and sum(counts) > 0 else None


def base_blocks(found: BaseToTuned) -> tuple[Block, ...]:
    """Return the scores side by side, and what is missing."""
    columns = ("Score", "Before", "After")
    if found.is_classifier:
        columns = ("Score", "Simple model", "This classifier")
    rows: list[Row] = [
        (Cell(each.name, note=each.about), each.before, each.after) for each in found.scores
    ]
    table = table_of(columns, rows)
    return (*((table,) if table else ()), *text(capitalised(found.left_out), "note"))


def base_lines(run: RunFolder, width: float = math.inf) -> list[str]:
    """Return what tuning changed for a terminal of `width` columns, with one answer of both models
    cut to a line each; none where nothing is known.
    """
    found = base_to_tuned(run)
    if found is None:
        return []
    heading = f"before tuning ({found.base}) -> after:"
    if found.is_classifier:
        heading = "simple models -> this classifier:"
    lines = told([Paragraph(heading), *base_blocks(found)], width).plain.splitlines()
    for pair in found.samples[:1]:
        answers = {"asked": pair.prompt, "before": pair.base, "after": pair.tuned}
        for name, answer in answers.items():
            lines.append(f"{name:>8}: {shortened_at_a_word(answer, ANSWER_CHARACTERS)}")
    return lines
