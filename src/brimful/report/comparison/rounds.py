"""Rounds of sampling and fine-tuning on a page: what was sampled in each, what became of it, a few
samples, and the scores round by round.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from brimful.base.intervals import wilson_interval
from brimful.evaluation.metric import split_kind
from brimful.report.comparison.compare import RunComparison
from brimful.report.comparison.sampling import fates, questions_with_kept, reason_text, share_cell
from brimful.report.comparison.study_folder import RoundSamples, SampleExample, StudyFolder
from brimful.report.comparison.units import heading, unit_of, variant_cell
from brimful.report.comparison.variants import Variant
from brimful.report.quantities import format_number, format_score
from brimful.report.table import Cell, Row, Table
from brimful.report.tasks import MAX_SHOWN, AnswerView, cut
from brimful.runs.parsing import Json
from brimful.selection.journal import PAIRS_FILE, SAMPLES_FILE, TRAINING_FILE
from brimful.selection.sample import JudgedSample, SampledPrompt
from brimful.selection.statistics import Statistics

MAIN_METRICS = ("accuracy", "pass@1")
"""Ends of the names of metrics that are shown round by round and by type of question."""
MAX_REASONS, MAX_KINDS = 5, 12
HUES = {
    "kept": 145,
    "repeated path": 175,
    "enough": 205,
    "wrong": 8,
    "unparsed": 38,
    "unended": 60,
    "too short": 265,
    "too long": 290,
    "contaminated": 325,
}
OTHER_HUE = 230
SCALE_STEP = 0.05
"""A chart of shares begins and ends at a multiple of this."""


@dataclass(frozen=True)
class Link:
    """Where more can be read, relative to the page."""

    name: str
    path: str


@dataclass(frozen=True)
class FatePart:
    """The samples of one fate as a part of a bar; `percent` and `style` are CSS."""

    name: str
    text: str
    percent: str
    style: str


@dataclass(frozen=True)
class ReasonView:
    """Why samples were not kept: how many, the reason, and one of them."""

    count: str
    what: str
    question: str
    answer: str


@dataclass(frozen=True)
class RoundView:
    """One round, the samples of all its seeds together where nothing else is said.

    Attributes:
        author: Which model wrote the samples.
        samples: A row for each seed.
        links: Files of each row.
        trained: How many tokens were trained on, as text; once for seeds that are alike.
        notes: What must be known about the samples; each once.
        fates: Parts of a bar.
        kinds: By kind of question, those with the fewest accepted questions first; None where there
            are no kinds.
    """

    number: int
    author: str
    samples: Table
    links: tuple[tuple[Link, ...], ...]
    trained: tuple[str, ...]
    notes: tuple[str, ...]
    fates: tuple[FatePart, ...]
    reasons: tuple[ReasonView, ...]
    kinds: Table | None
    examples: tuple[AnswerView, ...]


@dataclass(frozen=True)
class Stage:
    """A variant in a chart: what is written below it, and where its interval is drawn, in percent
    of the chart's height from the top.
    """

    name: str
    value: str
    interval: str
    left: float
    top: float
    high: float
    height: float
    is_base: bool


@dataclass(frozen=True)
class Chart:
    """One metric from variant to variant. Lines are points of a drawing 100 wide and 100 high: the
    means, and every seed's own.
    """

    title: str
    highest: str
    lowest: str
    stages: tuple[Stage, ...]
    line: str
    seed_lines: tuple[str, ...]


def round_views(study: StudyFolder) -> list[RoundView]:
    """Return every round of a study, in order."""
    by_round = groupby(study.rounds, key=lambda each: each.round)
    return [_view(number, list(seeds), study.path) for number, seeds in by_round]


def _view(number: int, seeds: Sequence[RoundSamples], study_folder: Path) -> RoundView:
    statistics = [seed.statistics for seed in seeds]
    trained = dict.fromkeys(map(_trained_tokens, seeds))
    return RoundView(
        number=number,
        author=seeds[0].author,
        samples=_samples_table(seeds),
        links=tuple(_links(seed, study_folder) for seed in seeds),
        trained=tuple(filter(None, trained)),
        notes=tuple(dict.fromkeys(note for seed in seeds for note in seed.notes)),
        fates=tuple(_fates(statistics)),
        reasons=tuple(_reasons(statistics)),
        kinds=_kinds(statistics),
        examples=tuple(map(_example, seeds[0].examples)),
    )


def _samples_table(seeds: Sequence[RoundSamples]) -> Table:
    titles = ("Samples", "Tokens", "Correct", "Answered", "Accepted", "Kept")
    return Table(("", *titles), tuple(map(_samples_row, seeds)))


def _samples_row(seed: RoundSamples) -> Row:
    statistics = seed.statistics
    accepted, questions = questions_with_kept(statistics), statistics.questions
    note = f"{accepted:,} of {questions:,} questions"
    return (
        f"Seed {seed.seed}",
        Cell(statistics.samples),
        Cell(statistics.tokens),
        share_cell(statistics.correct),
        share_cell(statistics.answered),
        Cell(accepted / questions if questions else None, "{:.1%}".format, note=note),
        Cell(statistics.kept),
    )


def _links(seed: RoundSamples, study_folder: Path) -> tuple[Link, ...]:
    """Return the files of a seed's samples that are there."""
    return tuple(
        Link(name, quote(f"{seed.folder}/{name}"))
        for name in (SAMPLES_FILE, TRAINING_FILE, PAIRS_FILE)
        if seed.folder and (study_folder / seed.folder / name).is_file()
    )


def _trained_tokens(seed: RoundSamples) -> str:
    """`388,000`, or several by kind: `demonstrations 212,000, samples 388,000`."""
    counts = seed.trained_tokens.items()
    return ", ".join(f"{kind} {format_number(count)}".strip() for kind, count in counts)


def _fates(statistics: Sequence[Statistics]) -> Iterator[FatePart]:
    counts: Counter[str] = Counter()
    for each in statistics:
        counts.update(dict(fates(each)))
    for name, count in counts.items():
        style = f"--c: hsl({HUES.get(name, OTHER_HUE)}, 42%, 50%)"
        yield FatePart(name, f"{count:,}", f"{count / counts.total():.2%}", style)


def _reasons(statistics: Sequence[Statistics]) -> Iterator[ReasonView]:
    """Return the most frequent reasons of all seeds, each with the first seed's sample."""
    counts: Counter[str] = Counter()
    samples: dict[str, tuple[str, str]] = {}
    for reason in (reason for each in statistics for reason in each.reasons):
        what = reason_text(reason)
        counts[what] += reason.samples
        samples.setdefault(what, (reason.question, reason.completion))
    for what, count in counts.most_common(MAX_REASONS):
        yield ReasonView(f"{count:,}", what, *samples[what])


@dataclass
class _KindTotals:
    """Counts of one kind of question over all seeds."""

    questions: int = 0
    accepted: int = 0
    kept: int = 0
    correct: int = 0
    samples: int = 0

    def row(self, name: str) -> Row:
        accepted = ""
        if self.questions:
            share = format_score(self.accepted / self.questions, "share")
            accepted = f"{share} ({self.accepted:,} of {self.questions:,})"
        correct = Cell(None)
        if self.samples:
            interval = wilson_interval(self.correct, self.samples)
            ends = (interval.low, interval.high)
            correct = Cell(self.correct / self.samples, "{:.1%}".format, ends)
        return name, accepted, Cell(self.kept), correct


def _kinds(statistics: Sequence[Statistics]) -> Table | None:
    totals: dict[str, _KindTotals] = {}
    for name, kind in (item for each in statistics for item in each.kinds.items()):
        total = totals.setdefault(name, _KindTotals())
        total.questions += kind.questions
        total.accepted += kind.questions_with_kept
        total.kept += kind.kept
        if kind.correct is not None:
            total.correct += kind.correct.count
            total.samples += kind.correct.total
    if len(totals) < 2:
        return None
    ordered = sorted(totals.items(), key=lambda item: item[1].accepted / max(1, item[1].questions))
    columns = ("Kind of question", "Questions accepted", "Kept", "Correct")
    return Table(columns, tuple(total.row(name) for name, total in ordered[:MAX_KINDS]))


def _example(example: SampleExample) -> AnswerView:
    return AnswerView(
        id="",
        prompt=cut(example.question),
        answer=cut(example.answer),
        reference=cut(example.reference),
        verdict=reason_text(example),
        is_good=example.fate == "kept",
        scores="",
    )


def sample_examples(
    samples: Sequence[JudgedSample], questions: Sequence[SampledPrompt]
) -> list[Json]:
    """Return two kept samples and two that are not right, all of different questions: `examples` of
    a round in study.json.

    Args:
        samples: With their fates.
        questions: Those that were asked.
    """
    by_id = {question.id: question for question in questions}
    chosen: dict[str, JudgedSample] = {}
    for preferred in (("kept",), ("wrong", "unparsed", "unended")):
        candidates = [sample for fate in preferred for sample in samples if sample.fate == fate]
        firsts: dict[str, JudgedSample] = {}
        for sample in candidates:
            if sample.question not in chosen:
                firsts.setdefault(sample.question, sample)
        chosen |= dict([*firsts.items()][:MAX_SHOWN])
    return [
        {
            "question": by_id[name].text,
            "answer": sample.completion,
            "reference": by_id[name].reference,
            "fate": sample.fate,
            "detail": sample.detail,
        }
        for name, sample in chosen.items()
    ]


def kind_tables(comparison: RunComparison) -> list[tuple[str, Table]]:
    """Return a table of scores by type of question, with its title, for each main metric that has
    types.
    """
    by_metric: dict[str, list[str]] = {}
    for name in comparison.metrics:
        metric, kind = split_kind(name)
        if kind and metric.endswith(MAIN_METRICS) and metric in comparison.metrics:
            by_metric.setdefault(metric, []).append(name)
    return [
        (heading(comparison, metric), _kind_table(comparison, names))
        for metric, names in by_metric.items()
    ]


def _kind_table(comparison: RunComparison, metrics: Sequence[str]) -> Table:
    """Return a column for each metric of one type of question, such as `accuracy[TYPE]`."""
    columns = [""]
    for metric in metrics:
        kind = split_kind(metric)[1]
        count = max((figure.n or 0 for _, figure in comparison.figures(metric)), default=0)
        columns.append(f"{kind} (n = {count:,})" if count else kind)
    rows: list[Row] = []
    for variant in comparison.variants:
        cells = [variant_cell(comparison, variant, metric) for metric in metrics]
        if any(cell.text for cell in cells):
            rows.append((variant.name, *cells))
    return Table(tuple(columns), tuple(rows))


def charts(comparison: RunComparison, base: str) -> list[Chart]:
    """Return a chart of each main metric from variant to variant; `base` is the name of the model
    before it was tuned.
    """
    return [
        _chart(comparison, metric, base)
        for metric in comparison.metrics
        if metric.endswith(MAIN_METRICS)
    ]


def _chart(comparison: RunComparison, metric: str, base: str) -> Chart:
    figures = comparison.figures(metric)
    ends = [end for variant, figure in figures for end in (*figure.bounds, *variant.values(metric))]
    ends += [figure.value for _, figure in figures]
    lowest = math.floor(min(ends) / SCALE_STEP) * SCALE_STEP
    highest = max(math.ceil(max(ends) / SCALE_STEP) * SCALE_STEP, lowest + SCALE_STEP)
    form = unit_of(comparison, metric).formatter()

    def height(value: float) -> float:
        return 100 * (highest - value) / (highest - lowest)

    stages = []
    for place, (variant, figure) in enumerate(figures):
        low, high = figure.bounds
        stages.append(
            Stage(
                name=variant.name,
                value=form(figure.value),
                interval=f"{form(low)} to {form(high)}" if figure.interval else "",
                left=100 * (place + 0.5) / len(figures),
                top=height(figure.value),
                high=height(high),
                height=height(low) - height(high),
                is_base=variant.name == base,
            )
        )
    variants = [variant for variant, _ in figures]
    seed_lines = []
    for seed in _repeated_seeds(variants):
        values = [_value_of_seed(variant, metric, seed) for variant in variants]
        places = zip(stages, values, strict=True)
        seed_lines.append(
            _points([(stage.left, height(value)) for stage, value in places if value is not None])
        )
    return Chart(
        title=heading(comparison, metric),
        highest=form(highest),
        lowest=form(lowest),
        stages=tuple(stages),
        line=_points([(stage.left, stage.top) for stage in stages]),
        seed_lines=tuple(seed_lines),
    )


def _repeated_seeds(variants: Sequence[Variant]) -> list[int]:
    """Return the seeds of variants that were trained with several, sorted."""
    runs = [run for variant in variants if len(variant.runs) > 1 for run in variant.runs]
    return sorted({run.seed for run in runs if run.seed is not None})


def _value_of_seed(variant: Variant, metric: str, seed: int) -> float | None:
    """Return the metric of the run with this seed, or None. An untuned model has no seed: its one
    value counts for every seed.
    """
    for run in variant.runs:
        if metric in run.figures and (run.seed == seed or run.is_untuned):
            return run.figures[metric].value
    return None


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{left:.2f},{top:.2f}" for left, top in places)
