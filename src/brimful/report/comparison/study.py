"""`study.html`: the table of a study with its intervals drawn, which differences are real, the
samples of its rounds, and links to its runs' reports.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from brimful.base.rundir import write_text_atomically
from brimful.base.text import plural
from brimful.base.units import format_duration
from brimful.recipe import BASE
from brimful.report.comparison.compare import RunComparison
from brimful.report.comparison.ranges import all_ranges
from brimful.report.comparison.results import ComparedRun
from brimful.report.comparison.rounds import Link, charts, kind_tables, round_views
from brimful.report.comparison.study_folder import StudyFolder, read_study
from brimful.report.comparison.text import remarks, sentences
from brimful.report.comparison.units import layer_table, score_table, variant_table
from brimful.report.comparison.variants import Variant
from brimful.report.page import html
from brimful.report.table import Table, table_of
from brimful.report.tuned import short_name
from brimful.runs.files import JOURNAL_FILE

FILE_NAME = "study.html"


@dataclass(frozen=True)
class VariantView:
    """A variant, what it is, and the reports of its runs; a path is empty where nothing was
    trained.
    """

    name: str
    what: str
    runs: tuple[Link, ...]


def write_study_report(study_folder: Path, comparison: RunComparison) -> Path:
    """Write `study.html` into a study's folder, and `report.html` of every run in it.

    Args:
        study_folder: Holds study.yaml, a folder for each run, and study.json: what was left out; of
            rounds of sampling also a sentence for each variant ("what") and what was sampled
            ("rounds").
        comparison: Of its runs.

    Returns:
        The path of the page.

    Raises:
        RunFolderError: a page cannot be written.
    """
    study, path = read_study(study_folder), study_folder / FILE_NAME
    values = _values(study, comparison)
    write_text_atomically(path, html.render_page("study.html.j2", values, "1080px"))
    return path


def _values(study: StudyFolder, comparison: RunComparison) -> dict[str, Any]:
    drawn = charts(comparison, BASE) if study.rounds else []
    return {
        "name": study.name,
        "status": "rounds" if study.rounds else "study",
        "description": study.recipe.description,
        "sentence": _sentence(study, comparison),
        "sentences": sentences(comparison),
        "remarks": remarks(comparison, "below values"),
        "scores": score_table(comparison),
        "layers": layer_table(comparison),
        "costs": variant_table(comparison, comparison.costs),
        "charts": drawn,
        "ranges": all_ranges(comparison, frozenset(chart.title for chart in drawn)),
        "kind_tables": kind_tables(comparison),
        "rounds": round_views(study),
        "phases": _phase_table(study),
        "variants": [_variant(study, variant) for variant in comparison.variants],
        "left_out": study.left_out,
        "recipe_text": study.recipe.values
        and yaml.safe_dump(study.recipe.values, sort_keys=False, width=120),
    }


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


def _variant(study: StudyFolder, variant: Variant) -> VariantView:
    if variant.name in study.descriptions:
        what = study.descriptions[variant.name]
    elif variant.name == BASE:
        what = "the model before it is tuned"
    else:
        what = ", ".join(study.changes(variant.name)) or "the recipe as it stands"
    return VariantView(variant.name, what, _reports(study, variant.runs))


def _reports(study: StudyFolder, runs: Sequence[ComparedRun]) -> tuple[Link, ...]:
    """Write the reports of runs that were trained, and return where they are."""
    links = []
    for run in runs:
        folder, link = study.path / run.name, ""
        if (folder / JOURNAL_FILE).is_file():
            link = quote(html.write_report(folder).relative_to(study.path).as_posix())
        links.append(Link(run.name, link))
    return tuple(links)
