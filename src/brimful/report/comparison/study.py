"""`study.html`: the table of a study with its intervals drawn, which differences are real, the
samples of its rounds, and links to its runs' reports.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import yaml

from brimful.base.text import plural
from brimful.base.units import format_duration
from brimful.recipe import BASE
from brimful.report.comparison.compare import RunComparison
from brimful.report.comparison.page import remark_notes
from brimful.report.comparison.ranges import all_ranges
from brimful.report.comparison.results import ComparedRun
from brimful.report.comparison.rounds import charts, kind_tables, round_blocks
from brimful.report.comparison.study_folder import StudyFolder, read_study
from brimful.report.comparison.text import sentences
from brimful.report.comparison.units import layer_table, score_table, variant_table
from brimful.report.comparison.variants import Variant
from brimful.report.page import html
from brimful.report.table import Link, LinkCell, Table, table_of
from brimful.report.tuned import short_name
from brimful.report.views import Block, Code, Heading, Paragraph, View, section, text
from brimful.runs.files import JOURNAL_FILE

FILE_NAME = "study.html"


def write_study_report(study_folder: Path, comparison: RunComparison) -> Path:
    """Write `study.html` into a study's folder, and `report.html` of every run in it.

    Args:
        study_folder: Holds study.yaml, a folder for each run, and study.json: what was left out; of
            rounds of sampling also a sentence for each variant ("what") and what was sampled
            ("rounds").
        comparison: Comparison of its runs.

    Returns:
        The path of the page.

    Raises:
        RunFolderError: a page cannot be written.
    """
    view = study_view(read_study(study_folder), comparison)
    return html.write_view(view, study_folder / FILE_NAME)


def study_view(study: StudyFolder, comparison: RunComparison) -> View:
    """Return all that is told of a study or a chain of rounds; the reports of its runs are written
    on the way.
    """
    costs, told = variant_table(comparison, comparison.costs), sentences(comparison)
    left_out = table_of(("", ""), study.left_out.items())
    recipe = study.recipe.values and yaml.safe_dump(study.recipe.values, sort_keys=False, width=120)
    nothing = text("" if told else "Nothing could be compared.", "missing")
    sections = (
        section("scores", "Scores", *_scores(study, comparison)),
        section(
            "differences",
            "What is real",
            *(Paragraph(each) for each in told),
            *nothing,
            *remark_notes(comparison),
        ),
        section("samples", "Samples", *round_blocks(study)),
        section("phases", "Time by phase, predicted beside measured", *_phases(study)),
        section("costs", "Size, speed and memory", costs if costs.columns[1:] else None),
        section(
            "variants",
            "Variants",
            _variant_table(study, comparison),
            *((Heading("Left out"), left_out) if left_out else ()),
        ),
        section("recipe", "Recipe", Code(recipe) if recipe else None),
    )
    status = "rounds" if study.rounds else "study"
    return View(
        study.name,
        status,
        _sentence(study, comparison),
        text(study.recipe.description, "verdict"),
        tuple(each for each in sections if each.blocks),
        status=status,
        footer="Written by brimful from the runs in this folder.",
    )


def _scores(study: StudyFolder, comparison: RunComparison) -> Iterator[Block]:
    """Scores of the whole, inside the layers, from round to round, and by type of question."""
    drawn, layers = charts(comparison) if study.rounds else [], layer_table(comparison)
    yield score_table(comparison)
    if layers.columns[1:]:
        yield Heading("Inside the layers, means over them")
        yield layers
    yield from drawn
    charted = frozenset(chart.title.removesuffix(" round by round") for chart in drawn)
    yield from all_ranges(comparison, charted)
    for title, table in kind_tables(comparison):
        yield Heading(f"{title} by type of question")
        yield table


def _phases(study: StudyFolder) -> tuple[Block, ...]:
    table = _phase_table(study)
    if table is None:
        return ()
    told = "Predicted from the plan of the first training of each kind."
    if study.rounds:
        told += (
            " Verifying goes on beside sampling and is measured with it; of a chain that was"
            " interrupted, sampling counts its last session."
        )
    return table, Paragraph(told, "note")


def _phase_table(study: StudyFolder) -> Table | None:
    """Predicted beside measured time of each phase of a job."""

    def told(seconds: float | None) -> str:
        return "" if seconds is None else format_duration(seconds)

    rows = []
    for phase in study.phases:
        interval = ""
        if phase.low_s is not None and phase.high_s is not None:
            interval = f"{told(phase.low_s)} to {told(phase.high_s)}"
        times = (told(phase.expected_s), interval, told(phase.measured_s))
        rows.append((phase.name, *times, phase.about))
    return table_of(("", "Predicted", "9 of 10 runs", "Measured", "What"), rows)


def _sentence(study: StudyFolder, comparison: RunComparison) -> str:
    """`2 variants of small-base on builtin:python-code, each trained with 1 seed.`"""
    tuned = [variant for variant in comparison.variants if variant.name != BASE]
    rounds = len({each.round for each in study.rounds})
    sentence = plural(len(tuned), "variant")
    if rounds:
        counted = plural(rounds, "round")
        sentence = f"Fine-tuning and {counted} of sampling, verifying and fine-tuning"
    if study.recipe.published_model:
        sentence += f" of {short_name(study.recipe.published_model)}"
    if study.data:
        sentence += f" on {', '.join(study.data)}, each"
    else:
        sentence += " each"
    seeds = max((len(variant.runs) for variant in tuned), default=0)
    return f"{sentence} trained with {plural(seeds, 'seed')}."


def _variant_table(study: StudyFolder, comparison: RunComparison) -> Table:
    """Every variant, what it is, and the reports of its runs."""
    what = "What it is" if study.rounds else "What it changes"
    rows = [
        (each.name, _what(study, each), LinkCell(_reports(study, each.runs)))
        for each in comparison.variants
    ]
    return Table(("Variant", what, "Reports"), tuple(rows))


def _what(study: StudyFolder, variant: Variant) -> str:
    if variant.name in study.descriptions:
        return study.descriptions[variant.name]
    if variant.name == BASE:
        return "the model before it is tuned"
    return ", ".join(study.changes(variant.name)) or "the recipe as it stands"


def _reports(study: StudyFolder, runs: Sequence[ComparedRun]) -> tuple[Link, ...]:
    """Write the reports of runs that were trained, and return where they are."""
    links = []
    for run in runs:
        folder, link = study.path / run.name, ""
        if (folder / JOURNAL_FILE).is_file():
            link = quote(html.write_report(folder).relative_to(study.path).as_posix())
        links.append(Link(run.name, link))
    return tuple(links)
