"""Rounds of sampling and fine-tuning on a page: what was sampled in each, what became of it, a few
samples, and the scores round by round.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from brimful.base.types import Json
from brimful.evaluation.metric import split_kind
from brimful.report.chart import Chart, Series
from brimful.report.comparison.compare import RunComparison
from brimful.report.comparison.sampling import DRAWN, drawn_row, fate_blocks, reason_text
from brimful.report.comparison.study_folder import RoundSamples, SampleExample, StudyFolder
from brimful.report.comparison.units import heading, unit_of, variant_cell
from brimful.report.comparison.variants import Variant
from brimful.report.quantities import capitalised, format_number
from brimful.report.table import Link, LinkCell, Row, Table
from brimful.report.tasks import MAX_SHOWN, cut
from brimful.report.views import AuthoredAnswer, Block, Heading, Paragraph, Prompted
from brimful.selection.journal import PAIRS_FILE, SAMPLES_FILE, TRAINING_FILE
from brimful.selection.sample import JudgedSample, SampledPrompt

MAIN_METRICS = ("accuracy", "pass@1")
"""Ends of the names of metrics that are shown round by round and by type of question."""
HOW_SAMPLES_ARE_KEPT = (
    "Every answer was drawn, then held against the reference. Kept are the first ones of a question"
    " that are right and reason differently; a repeated path is right, but reasons as an earlier"
    " one; enough: right and different, but the question had as many as are kept. A question is"
    " accepted when at least one of its samples is kept. Intervals (95 %) are over samples of these"
    " questions."
)


def round_blocks(study: StudyFolder) -> tuple[Block, ...]:
    """Return what was sampled in each round of a study, in order; nothing without any."""
    if not study.rounds:
        return ()
    by_round = groupby(study.rounds, key=lambda each: each.round)
    rounds = [each for number, seeds in by_round for each in _round(number, list(seeds), study)]
    return Paragraph(HOW_SAMPLES_ARE_KEPT, "note"), *rounds


def _round(number: int, seeds: Sequence[RoundSamples], study: StudyFolder) -> Iterator[Block]:
    """One round, the samples of all its seeds together where nothing else is said."""
    statistics, author = [seed.statistics for seed in seeds], seeds[0].author
    trained = [f"Tokens trained on: {each}." for each in map(_trained_tokens, seeds) if each]
    notes = [f"{capitalised(note)}." for seed in seeds for note in seed.notes]
    yield Heading(f"Round {number}{f': samples by {author}' if author else ''}")
    yield _samples_table(seeds, study.path)
    yield from (Paragraph(each, "note") for each in dict.fromkeys([*trained, *notes]))
    yield from fate_blocks(statistics)
    if seeds[0].examples:
        yield Heading("Samples to look at")
        yield from map(_example, seeds[0].examples)


def _samples_table(seeds: Sequence[RoundSamples], study_folder: Path) -> Table:
    """A row for each seed, with the files that are there."""
    rows = [
        (*drawn_row(f"Seed {seed.seed}", seed.statistics), LinkCell(_links(seed, study_folder)))
        for seed in seeds
    ]
    return Table((*DRAWN, "Files"), tuple(rows))


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


def _example(example: SampleExample) -> Prompted:
    answers = (
        AuthoredAnswer("Answer", cut(example.answer)),
        AuthoredAnswer("Reference", cut(example.reference)),
    )
    is_kept = example.fate == "kept"
    return Prompted(cut(example.question), "", "", answers, reason_text(example), is_kept)


def sample_examples(
    samples: Sequence[JudgedSample], questions: Sequence[SampledPrompt]
) -> list[Json]:
    """Return two kept samples and two that are not right, all of different questions: `examples` of
    a round in study.json.

    Args:
        samples: Samples with their fates.
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


def charts(comparison: RunComparison) -> list[Chart]:
    """Return a chart of each main metric from variant to variant."""
    metrics = [metric for metric in comparison.metrics if metric.endswith(MAIN_METRICS)]
    return [_chart(comparison, metric) for metric in metrics]


def _chart(comparison: RunComparison, metric: str) -> Chart:
    figures, factor = comparison.figures(metric), unit_of(comparison, metric).factor
    variants, form = [variant for variant, _ in figures], unit_of(comparison, metric).formatter()
    places = tuple(map(float, range(len(figures))))
    lines = []
    for seed in _repeated_seeds(variants):
        values = [_value_of_seed(variant, metric, seed) for variant in variants]
        own = tuple(None if value is None else value * factor for value in values)
        lines.append(Series(f"seed {seed}", places, own, "faint", "training"))
    mean = Series(
        "mean and 95 % interval" if lines else "",
        places,
        tuple(figure.value * factor for _, figure in figures),
        "dotted",
        "training",
        intervals=tuple(
            (figure.bounds[0] * factor, figure.bounds[1] * factor) for _, figure in figures
        ),
    )
    title = heading(comparison, metric)
    told = ", ".join(f"{variant.name} {form(figure.value)}" for variant, figure in figures)
    return Chart(
        f"rounds-{metric.replace(' ', '-')}",
        f"{title} round by round",
        f"{title}: {told}",
        "",
        (*lines, mean),
        x_names=tuple(variant.name for variant in variants),
        is_main=True,
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
