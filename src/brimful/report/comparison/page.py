"""A page that compares runs: scores and paired differences with intervals, curves over one another,
predictions beside measurements, time and cost.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from brimful.base.dotted import flatten
from brimful.base.rundir import write_text_atomically
from brimful.base.text import plural
from brimful.report.bars import Part
from brimful.report.comparison.compare import PairComparison, RunComparison, compare
from brimful.report.comparison.plots import MOST_RUNS, overlays
from brimful.report.comparison.ranges import all_ranges
from brimful.report.comparison.results import NOT_OF_THE_VARIANT
from brimful.report.comparison.text import remarks, sentences
from brimful.report.comparison.units import heading, score_table, unit_of, variant_table
from brimful.report.comparison.variants import distinct_names
from brimful.report.page import headline, html
from brimful.report.page.predicted import MAIN
from brimful.report.page.time_page import PLACES, TimeRow, measured_row, on_one_scale
from brimful.report.predictions import PREDICTED_NAMES, Comparison, comparisons
from brimful.report.quantities import MINUS, format_error, format_quantity
from brimful.report.table import Cell, Row, Table, table_of
from brimful.report.time_spent import NAMES, time_spent
from brimful.runs import RunFolder, read_run
from brimful.runs.measurements import measured

MAX_KEYS = 40
"""Keys of recipes that are shown where runs differ in them."""
FURTHER_COSTS = ("energy_wh", "cost_usd")
"""Measurements that the comparison itself does not have."""
NamedRuns = Sequence[tuple[str, RunFolder]]


@dataclass(frozen=True)
class Difference:
    """The tested difference of a pair, and the verdict on it."""

    metric: str
    pair: str
    difference: Cell
    over_seeds: str
    p_value: str
    n: str
    verdict: str
    is_real: bool


def write_comparison(run_folders: Sequence[Path], path: Path) -> Path:
    """Write a page that compares runs to `path`.

    Args:
        run_folders: Each once; repetitions with other seeds are one variant.
        path: Of the page; an earlier one is replaced.

    Returns:
        `path`.

    Raises:
        RequestError: no run, one given twice, or runs that were trained for different things.
        RunFolderError: not a run folder, a damaged file in it, or the page cannot be written.
    """
    comparison = compare(run_folders)
    values = _scores(comparison) | _curves_and_times(named_runs(run_folders), comparison, path)
    write_text_atomically(path, html.render_page("compare.html.j2", values, "1080px"))
    return path


def named_runs(run_folders: Sequence[Path]) -> list[tuple[str, RunFolder]]:
    """Return runs, each with the name that a comparison gives it.

    Raises:
        RunFolderError: not a run folder.
    """
    runs = [read_run(folder) for folder in run_folders]
    return [*zip(distinct_names([run.name for run in runs], run_folders), runs, strict=True)]


def _scores(comparison: RunComparison) -> dict[str, Any]:
    """Return the values of the page that follow from the comparison alone."""
    return {
        "sentences": sentences(comparison),
        "remarks": remarks(comparison, "below values"),
        "has_seeds": any(pair.over_seeds for pair in comparison.pairs),
        "scores": score_table(comparison),
        "costs": variant_table(comparison, comparison.costs),
        "ranges": all_ranges(comparison),
        "differences": [_difference(comparison, pair) for pair in comparison.tested],
    }


def _curves_and_times(runs: NamedRuns, comparison: RunComparison, path: Path) -> dict[str, Any]:
    """Return the values of the page that follow from the run folders."""
    names = [name for name, _ in runs]
    times = _times(runs)
    return {
        "title": " and ".join(names) if len(runs) < 4 else f"{len(runs)} runs",
        "sentence": _sentence(comparison, runs),
        "drawings": overlays(runs),
        "keys": [
            {"name": name, "style": f"--c: var(--s{place})"}
            for place, name in enumerate(names[:MOST_RUNS], 1)
        ],
        "num_hidden": max(0, len(runs) - MOST_RUNS),
        "predictions": _predictions(runs),
        "times": times,
        "time_keys": [
            Part(NAMES[key], 0.0, 0.0, "", place)
            for key, place in PLACES.items()
            if any(part.place == place for row in times for part in row.parts)
        ],
        "differing": _differing(runs),
        "runs": [_run(name, run, path) for name, run in runs],
        "missing": [f"{name}: {reason}" for name, run in runs for reason in run.problems.values()],
    }


def _sentence(comparison: RunComparison, runs: NamedRuns) -> str:
    """`3 runs as 2 variants; 1 of 3 tested differences is real.`"""
    first = plural(len(runs), "run")
    if len(comparison.variants) < len(runs):
        first += f" as {len(comparison.variants)} variants"
    unfinished = sum(not run.is_finished for _, run in runs)
    last = f"{unfinished} {'is' if unfinished == 1 else 'are'} not finished" if unfinished else ""
    return f"{'; '.join(filter(None, (first, _tested(comparison), last)))}."


def _tested(comparison: RunComparison) -> str:
    tested = comparison.tested
    real = sum(pair.is_real for pair in tested)
    if len(tested) == 1:
        return f"the one difference that could be tested is {'' if real else 'not '}real"
    if not tested:
        return ""
    return (
        f"{real or 'none'} of {len(tested)} tested differences {'is' if real < 2 else 'are'} real"
    )


def _difference(comparison: RunComparison, pair: PairComparison) -> Difference:
    unit = unit_of(comparison, pair.metric)
    form = unit.formatter("+")

    def with_unit(value: float) -> str:
        return f"{form(value)} {unit.of_difference}".rstrip()

    interval = Cell(0.0, form, pair.interval).interval_text
    return Difference(
        metric=heading(comparison, pair.metric),
        pair=f"{pair.first} {MINUS} {pair.second}",
        difference=Cell(pair.difference or 0.0, with_unit, note=interval),
        over_seeds=Cell(0.0, form, pair.over_seeds).interval_text,
        p_value="" if pair.p_value is None else f"{pair.p_value:.2g}",
        n=f"{pair.n or 0:,}",
        verdict=f"{pair.winner} is better" if pair.is_real else "cannot be told apart",
        is_real=pair.is_real,
    )


def _predictions(runs: NamedRuns) -> Table | None:
    """Return quantities in rows and runs in columns: what was measured, below it what was predicted
    and the error. None where nothing was measured.
    """
    by_run = [{each.key: each for each in comparisons(run)} for _, run in runs]
    rows: list[Row] = []
    for key in MAIN:
        cells = [_prediction_cell(known.get(key)) for known in by_run]
        if any(cell.text for cell in cells):
            rows.append((PREDICTED_NAMES.get(key, key), *cells))
    return table_of(("", *(name for name, _ in runs)), rows)


def _prediction_cell(prediction: Comparison | None) -> Cell:
    if prediction is None:
        return Cell(None)
    form = partial(format_quantity, prediction.key)
    judgement = prediction.judgement
    note = f"{judgement.made} {form(prediction.predicted)}"
    if judgement.error is not None:
        note += f" ({format_error(judgement.error, MINUS)}, {judgement.word})"
    return Cell(prediction.measured, form, note=note)


def _times(runs: NamedRuns) -> tuple[TimeRow, ...]:
    """Return a bar for each run that timed its steps, as long as the run took."""
    rows = [measured_row(time_spent(run), name) for name, run in runs]
    return on_one_scale([row for row in rows if row])


def _differing(runs: NamedRuns) -> Table | None:
    """Return the keys of the recipes that are not the same in all runs; None where they agree."""
    flat = [flatten(run.recipe.values) for _, run in runs]
    keys = dict.fromkeys(key for values in flat for key in values)
    rows: list[Row] = []
    for key in keys:
        values = [str(recipe.get(key, "-")) for recipe in flat]
        is_of_variant = key == "seed" or key.split(".")[0] not in NOT_OF_THE_VARIANT
        if is_of_variant and len(set(values)) > 1:
            rows.append((key, *values))
    return table_of(("", *(name for name, _ in runs)), rows[:MAX_KEYS])


def _run(name: str, run: RunFolder, path: Path) -> dict[str, str]:
    """Return a line about a run, and where its own report is."""
    report = run.folder / html.FILE_NAME
    link = ""
    if report.is_file():
        link = quote(os.path.relpath(report.resolve(), path.resolve().parent))
    values = measured(run)
    extra = [
        f"{PREDICTED_NAMES[key].lower()} {format_quantity(key, values[key])}"
        for key in FURTHER_COSTS
        if key in values
    ]
    return {
        "name": name,
        "status": headline.status(run),
        "sentence": headline.sentence(run),
        "extra": ", ".join(extra),
        "link": link,
    }
