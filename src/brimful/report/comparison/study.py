"""`study.html`: the table of a study with its intervals drawn, what is real of it, the samples of
its rounds, and links to its runs' reports.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_json, write_text_atomically
from brimful.evaluation.metric import split_kind
from brimful.recipe import BASE
from brimful.report.comparison.compare import RunComparison, Variant
from brimful.report.comparison.ranges import cell_of, has_ranges, ranges_of
from brimful.report.comparison.results import OF_LAYERS
from brimful.report.comparison.rounds import (
    DRAWING_COLUMNS,
    RoundView,
    charts,
    kind_tables,
    round_views,
)
from brimful.report.comparison.text import comparison_table, remarks, sentences
from brimful.report.page import html
from brimful.report.tuned import STUDY_FILE, short_name
from brimful.runs.runfiles import Json, items, section

FILE_NAME = "study.html"
RECIPE_FILE = "study.yaml"


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
    links = {
        run.name: _link(study_folder / run.name)
        for variant in comparison.variants
        for run in variant.runs
    }
    recipe, study = _yaml(study_folder / RECIPE_FILE), _json(study_folder / STUDY_FILE)
    path = study_folder / FILE_NAME
    write_text_atomically(
        path,
        html.render_page(
            "study.html.j2", _values(study_folder, recipe, study, comparison, links), "1080px"
        ),
    )
    return path


def _link(run_folder: Path) -> str:
    """Of the run's report, which is written; empty where nothing was trained."""
    if not (run_folder / "metrics.jsonl").is_file():
        return ""
    return quote(str(html.write_report(run_folder).relative_to(run_folder.parent)))


def _yaml(path: Path) -> Json:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return value if isinstance(value, dict) else {}


def _json(path: Path) -> Json:
    try:
        value = read_json(path)
    except (OSError, ValueError, RunFolderError):
        return {}
    return value if isinstance(value, dict) else {}


def _values(
    folder: Path, recipe: Json, study: Json, comparison: RunComparison, links: dict[str, str]
) -> dict[str, Any]:
    table = comparison_table(comparison)
    first, last = (
        len(table.columns) - len(comparison.metrics) - len(comparison.costs),
        len(table.columns) - len(comparison.costs),
    )
    whole = [
        first + place
        for place, metric in enumerate(comparison.metrics)
        if not split_kind(metric)[1] and metric not in OF_LAYERS
    ]
    inside = [
        first + place for place, metric in enumerate(comparison.metrics) if metric in OF_LAYERS
    ]
    rows = [
        (
            row[0],
            *(
                [cell_of(row[place]) for place in places]
                for places in (whole, range(last, len(row)), inside)
            ),
        )
        for row in table.text_rows
    ]
    rounds = round_views(folder, study)
    drawn = charts(comparison, BASE) if rounds else []
    return {
        "name": str(recipe.get("name") or folder.name),
        "status": "rounds" if rounds else "study",
        "description": str(recipe.get("description") or ""),
        "sentence": _sentence(recipe, comparison, rounds),
        "sentences": sentences(comparison),
        "remarks": remarks(comparison, "below values"),
        "score_columns": [table.columns[place] for place in whole],
        "cost_columns": table.columns[last:],
        "layer_columns": [table.columns[place] for place in inside],
        "rows": rows,
        "charts": drawn,
        "ranges": [
            ranges_of(comparison, metric)
            for metric in comparison.metrics
            if has_ranges(comparison, metric, {chart.title for chart in drawn})
        ],
        "kind_tables": kind_tables(comparison),
        "rounds": rounds,
        "drawing_columns": DRAWING_COLUMNS,
        "variants": [
            _variant(variant, recipe, section(study, "what"), links)
            for variant in comparison.variants
        ],
        "left_out": {str(run): str(why) for run, why in section(study, "left_out").items()},
        "recipe_text": yaml.safe_dump(recipe, sort_keys=False, width=120) if recipe else "",
    }


def _sentence(recipe: Json, comparison: RunComparison, rounds: Sequence[RoundView]) -> str:
    tuned = [variant for variant in comparison.variants if variant.name != BASE]
    model, data = recipe.get("model"), section(recipe, "data").get("path")
    names = ", ".join(str(name) for name in ([data] if isinstance(data, str) else items(data)))
    seeds = max((len(variant.runs) for variant in tuned), default=0)
    parts = [f"{len(tuned)} variant{'s' * (len(tuned) != 1)}"]
    if rounds:
        parts = [
            f"Fine-tuning and {len(rounds)} round{'s' * (len(rounds) != 1)} of sampling, verifying"
            " and fine-tuning"
        ]
    parts += [f"of {short_name(model)}"] if isinstance(model, str) else []
    parts += [f"on {names},"] if names else []
    return (
        f"{' '.join(parts).removesuffix(',')}, each trained with {seeds} seed{'s' * (seeds != 1)}."
    )


def _variant(variant: Variant, recipe: Json, told: Json, links: dict[str, str]) -> dict[str, Any]:
    changes = section(section(recipe, "study"), "variants").get(variant.name)
    if variant.name in told:
        what = str(told[variant.name])
    elif variant.name == BASE:
        what = "the model before it is tuned"
    else:
        what = ", ".join(str(change) for change in items(changes)) or "the recipe as it stands"
    return {
        "name": variant.name,
        "what": what,
        "runs": [{"name": run.name, "link": links.get(run.name, "")} for run in variant.runs],
    }
