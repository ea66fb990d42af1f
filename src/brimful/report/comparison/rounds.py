"""Rounds of sampling and fine-tuning on a page: what was drawn in each, what became of it, a few
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
from brimful.report.comparison.compare import RunComparison, Variant
from brimful.report.comparison.sampling import fates, questions_with_kept, reason_text, share_text
from brimful.report.comparison.text import form_of, heading
from brimful.report.quantities import format_number, format_score, with_interval
from brimful.report.table import Table
from brimful.report.tasks import MAX_SHOWN, AnswerView, cut
from brimful.runs.runfiles import Json, items, number, section
from brimful.selection.journal import SAMPLES_FILE, TRAINING_FILE
from brimful.selection.sample import JudgedSample, SampledPrompt

MAIN_METRICS = ("accuracy", "pass@1")
"""Ends of the names of metrics that are told round by round and by type of question."""
DRAWING_COLUMNS = ("Samples", "Tokens", "Correct", "Answered", "Accepted", "Kept")
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
class Drawing:
    """The samples of one seed in a round: (value, interval or count) by column of
    `DRAWING_COLUMNS`, as text.
    """

    name: str
    cells: tuple[tuple[str, str], ...]
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Reason:
    """Why samples were not kept: how many, in words, and one of them."""

    count: str
    what: str
    question: str
    answer: str


@dataclass(frozen=True)
class RoundView:
    """One round, the samples of all its seeds together where nothing else is said.

    Attributes:
        author: Who wrote the samples.
        trained: On how many tokens, as text; once for seeds that are alike.
        notes: What must be known of the drawings; each once.
        fates: Parts of a bar: name, size as text, percent and colour as CSS.
        kinds: By kind of question, those with the fewest accepted questions first; None where there
            are no kinds.
    """

    number: int
    author: str
    drawings: tuple[Drawing, ...]
    trained: tuple[str, ...]
    notes: tuple[str, ...]
    fates: tuple[dict[str, str], ...]
    reasons: tuple[Reason, ...]
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


def round_views(study_folder: Path, study: Json) -> list[RoundView]:
    """What study.json says about every round, in order; what is missing in it is left out."""
    found = [each for each in items(study.get("rounds")) if isinstance(each, dict)]
    found.sort(key=lambda each: number(each.get("round")) or 0.0)
    return [
        _view(int(place), list(group), study_folder)
        for place, group in groupby(found, lambda each: number(each.get("round")) or 0.0)
    ]


def _view(place: int, seeds: Sequence[Json], study_folder: Path) -> RoundView:
    statistics = [section(each, "statistics") for each in seeds]
    return RoundView(
        number=place,
        author=str(seeds[0].get("author") or ""),
        drawings=tuple(_drawing(each, study_folder) for each in seeds),
        trained=tuple(
            dict.fromkeys(
                text for each in seeds if (text := _trained_tokens(each.get("trained_tokens")))
            )
        ),
        notes=tuple(
            dict.fromkeys(str(note) for each in seeds for note in items(each.get("notes")))
        ),
        fates=tuple(_fates(statistics)),
        reasons=tuple(_reasons(statistics)),
        kinds=_kinds(statistics),
        examples=tuple(
            _example(example)
            for example in items(seeds[0].get("examples"))
            if isinstance(example, dict)
        ),
    )


def _drawing(drawn: Json, study_folder: Path) -> Drawing:
    statistics, folder = section(drawn, "statistics"), str(drawn.get("folder") or "")
    accepted, questions = (
        questions_with_kept(statistics),
        number(statistics.get("questions")) or 0.0,
    )
    share = format_score(accepted / questions, "share") if questions else "-"
    cells = (
        (format_number(statistics.get("samples")), ""),
        (format_number(statistics.get("tokens")), ""),
        _parts(share_text(statistics, "correct")),
        _parts(share_text(statistics, "answered")),
        (share, f"{accepted:,.0f} of {questions:,.0f} questions"),
        (format_number(section(statistics, "fates").get("kept")), ""),
    )
    links = tuple(
        Link(name, quote(f"{folder}/{name}"))
        for name in (SAMPLES_FILE, TRAINING_FILE)
        if folder and (study_folder / folder / name).is_file()
    )
    return Drawing(f"Seed {drawn.get('seed')}", cells, links)


def _parts(text: str) -> tuple[str, str]:
    value, _, interval = text.partition(" [")
    return value, interval.removesuffix("]").replace(", ", " to ")


def _trained_tokens(tokens: object) -> str:
    """A number, or several by name: `demonstrations 212,000, samples 388,000`."""
    if isinstance(tokens, dict):
        return ", ".join(f"{name} {format_number(count)}" for name, count in tokens.items())
    return format_number(tokens)


def _fates(statistics: Sequence[Json]) -> Iterator[dict[str, str]]:
    counts: Counter[str] = Counter()
    for each in statistics:
        counts.update(dict(fates(each)))
    for name, count in counts.items():
        style = f"--c: hsl({HUES.get(name, OTHER_HUE)}, 42%, 50%)"
        yield {
            "name": name,
            "text": f"{count:,}",
            "percent": f"{count / counts.total():.2%}",
            "style": style,
        }


def _reasons(statistics: Sequence[Json]) -> Iterator[Reason]:
    """The most frequent of all seeds, each with the first seed's sample."""
    counts: Counter[str] = Counter()
    first: dict[str, Json] = {}
    for reason in (
        each
        for every in statistics
        for each in items(every.get("reasons"))
        if isinstance(each, dict)
    ):
        counts[reason_text(reason)] += int(number(reason.get("samples")) or 0)
        first.setdefault(reason_text(reason), reason)
    for what, count in counts.most_common(MAX_REASONS):
        yield Reason(
            f"{count:,}",
            what,
            *(str(first[what].get(key) or "") for key in ("question", "completion")),
        )


def _kinds(statistics: Sequence[Json]) -> Table | None:
    counts: dict[str, Counter[str]] = {}
    for name, kind in (pair for each in statistics for pair in section(each, "kinds").items()):
        told = {
            key: int(number(kind.get(key)) or 0)
            for key in ("questions", "questions_with_kept", "kept")
        }
        correct = {
            key: int(number(section(kind, "correct").get(key)) or 0) for key in ("count", "total")
        }
        counts.setdefault(name, Counter()).update(told | correct)
    ordered = sorted(
        counts.items(),
        key=lambda kind: kind[1]["questions_with_kept"] / max(1, kind[1]["questions"]),
    )
    rows = tuple((name, *_kind_cells(count)) for name, count in ordered[:MAX_KINDS])
    return (
        Table(("Kind of question", "Questions accepted", "Kept", "Correct"), rows)
        if len(rows) > 1
        else None
    )


def _kind_cells(counts: Counter[str]) -> tuple[str, str, str]:
    accepted, questions, right, total = (
        counts[key] for key in ("questions_with_kept", "questions", "count", "total")
    )
    share = (
        f"{format_score(accepted / questions, 'share')} ({accepted:,} of {questions:,})"
        if questions
        else ""
    )
    if not total:
        return share, f"{counts['kept']:,}", ""
    found = wilson_interval(right, total)
    return (
        share,
        f"{counts['kept']:,}",
        with_interval(
            right / total, (found.low, found.high), lambda value: format_score(value, "share")
        ),
    )


def _example(example: Json) -> AnswerView:
    question, answer, reference = (
        cut(str(example.get(key) or "")) for key in ("question", "answer", "reference")
    )
    return AnswerView(
        "", question, answer, reference, reason_text(example), example.get("fate") == "kept", ""
    )


def sample_examples(
    samples: Sequence[JudgedSample], questions: Sequence[SampledPrompt]
) -> list[Json]:
    """Two kept samples and two that are not right, all of different questions: `examples` of a
    round in study.json.

    Args:
        samples: With their fates.
        questions: Those that were asked.
    """
    asked = {question.id: question for question in questions}
    chosen: dict[str, JudgedSample] = {}
    for wanted in (("kept",), ("wrong", "unparsed", "unended")):
        found = sorted(
            (sample for sample in samples if sample.fate in wanted),
            key=lambda sample: wanted.index(str(sample.fate)),
        )
        firsts = {
            sample.question: sample for sample in reversed(found) if sample.question not in chosen
        }
        chosen |= {
            sample.question: sample
            for sample in [each for each in found if firsts.get(each.question) is each][:MAX_SHOWN]
        }
    return [
        {
            "question": asked[name].text,
            "answer": sample.completion,
            "reference": asked[name].reference,
            "fate": sample.fate,
            "detail": sample.detail,
        }
        for name, sample in chosen.items()
    ]


def main_metrics(comparison: RunComparison) -> list[str]:
    """The metrics of a chain that are told round by round."""
    return [metric for metric in comparison.metrics if metric.endswith(MAIN_METRICS)]


def kind_tables(comparison: RunComparison) -> list[tuple[str, Table]]:
    """How right variants are by type of question, a table for each metric that has types; (title,
    table).
    """
    by_metric: dict[str, list[tuple[str, str]]] = {}
    for name in comparison.metrics:
        metric, kind = split_kind(name)
        if kind and metric.endswith(MAIN_METRICS):
            by_metric.setdefault(metric, []).append((kind, name))
    return [
        (heading(comparison, metric), _kind_table(comparison, kinds))
        for metric, kinds in by_metric.items()
        if metric in comparison.metrics
    ]


def _kind_table(comparison: RunComparison, kinds: Sequence[tuple[str, str]]) -> Table:
    found = {name: [variant.figure(name) for variant in comparison.variants] for _, name in kinds}
    counts = {
        name: max((figure.n or 0 for figure in figures if figure), default=0)
        for name, figures in found.items()
    }
    columns = [f"{kind} (n = {counts[name]:,})" if counts[name] else kind for kind, name in kinds]
    rows = [
        (variant.name, *(_figure_text(comparison, variant, name) for _, name in kinds))
        for variant in comparison.variants
        if any(variant.figure(name) for _, name in kinds)
    ]
    return Table(("", *columns), tuple(rows))


def _figure_text(comparison: RunComparison, variant: Variant, metric: str) -> str:
    figure = variant.figure(metric)
    return (
        ""
        if figure is None
        else with_interval(figure.value, figure.interval, form_of(comparison.unit(metric)))
    )


def charts(comparison: RunComparison, base: str) -> list[Chart]:
    """Each of the main metrics from variant to variant; `base` is the name of the model before it
    was tuned.
    """
    return [_chart(comparison, metric, base) for metric in main_metrics(comparison)]


def _chart(comparison: RunComparison, metric: str, base: str) -> Chart:
    found = [
        (variant, figure)
        for variant in comparison.variants
        if (figure := variant.figure(metric)) is not None
    ]
    ends: list[float] = [
        end
        for variant, figure in found
        for end in (figure.value, *(figure.interval or ()), *variant.values(metric))
    ]
    lowest = math.floor(min(ends) / SCALE_STEP) * SCALE_STEP
    highest = max(math.ceil(max(ends) / SCALE_STEP) * SCALE_STEP, lowest + SCALE_STEP)
    form = form_of(comparison.unit(metric))

    def height(value: float) -> float:
        return 100 * (highest - value) / (highest - lowest)

    stages = []
    for place, (variant, figure) in enumerate(found):
        low, high = figure.interval or (figure.value, figure.value)
        interval = f"{form(low)} to {form(high)}" if figure.interval else ""
        left, top, of_high, of_low = (
            100 * (place + 0.5) / len(found),
            *map(height, (figure.value, high, low)),
        )
        stages.append(
            Stage(
                variant.name,
                form(figure.value),
                interval,
                left,
                top,
                of_high,
                of_low - of_high,
                variant.name == base,
            )
        )
    seeds = sorted(
        {
            run.seed
            for variant, _ in found
            for run in variant.runs
            if run.seed is not None and len(variant.runs) > 1
        }
    )
    of_seeds = [[_of_seed(variant, metric, seed) for variant, _ in found] for seed in seeds]
    seed_lines = [
        [
            (stage.left, height(value))
            for stage, value in zip(stages, values, strict=True)
            if value is not None
        ]
        for values in of_seeds
    ]
    line = _points([(stage.left, stage.top) for stage in stages])
    return Chart(
        heading(comparison, metric),
        form(highest),
        form(lowest),
        tuple(stages),
        line,
        tuple(map(_points, seed_lines)),
    )


def _of_seed(variant: Variant, metric: str, seed: int) -> float | None:
    """The value of one seed's run; that of a model which was not trained and so has no seed, for
    every seed.
    """
    runs = [
        run
        for run in variant.runs
        if metric in run.figures and (run.seed == seed or run.is_untuned)
    ]
    return runs[0].figures[metric].value if runs else None


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{left:.2f},{top:.2f}" for left, top in places)
