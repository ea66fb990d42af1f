"""A page that compares runs: scores and paired differences with intervals, curves over one another,
predictions beside measurements, time and cost.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from brimful.base.dotted import flatten
from brimful.base.text import plural
from brimful.report.bars import Bars
from brimful.report.comparison.compare import PairComparison, RunComparison
from brimful.report.comparison.plots import MOST_RUNS, overlays
from brimful.report.comparison.ranges import all_ranges
from brimful.report.comparison.results import NOT_OF_THE_VARIANT
from brimful.report.comparison.text import remarks, sentences
from brimful.report.comparison.units import heading, score_table, unit_of, variant_table
from brimful.report.comparison.variants import distinct_names
from brimful.report.page import headline, html
from brimful.report.page.predicted import MAIN
from brimful.report.page.time_page import measured_bar
from brimful.report.predictions import PREDICTED_NAMES, Comparison, comparisons
from brimful.report.quantities import MINUS, capitalised, format_error, format_quantity
from brimful.report.table import Cell, Link, LinkCell, Row, Table, table_of
from brimful.report.time_spent import time_spent
from brimful.report.views import Block, Paragraph, View, section, text
from brimful.runs.folder import RunFolder, read_run
from brimful.runs.measurements import measured

MAX_KEYS = 40
"""Keys of recipes that are shown where runs differ in them."""
FURTHER_COSTS = ("energy_wh", "cost_usd")
"""Measurements that the comparison itself does not have."""
NamedRuns = Sequence[tuple[str, RunFolder]]


def write_comparison(comparison: RunComparison, run_folders: Sequence[Path], path: Path) -> Path:
    """Write a page that compares runs to `path`, and return that.

    Args:
        comparison: Comparison of the runs.
        run_folders: Folders of the same runs, in the same order.
        path: Path of the page; an earlier one is replaced.

    Raises:
        RunFolderError: not a run folder, or the page cannot be written.
    """
    return html.write_view(comparison_view(comparison, named_runs(run_folders), path), path)


def named_runs(run_folders: Sequence[Path]) -> list[tuple[str, RunFolder]]:
    """Return runs, each with the name that a comparison gives it.

    Raises:
        RunFolderError: not a run folder.
    """
    runs = [read_run(folder) for folder in run_folders]
    return [*zip(distinct_names([run.name for run in runs], run_folders), runs, strict=True)]


def comparison_view(comparison: RunComparison, runs: NamedRuns, path: Path) -> View:
    """Return all that is told of several runs.

    Args:
        comparison: Comparison of the runs.
        runs: Runs with their names, in the same order.
        path: Path of the page, from which links lead.
    """
    names = [name for name, _ in runs]
    missing = [f"{name}: {reason}" for name, run in runs for reason in run.problems.values()]
    charts, times = overlays(runs), _times(runs)
    costs, predictions = variant_table(comparison, comparison.costs), _predictions(runs)
    differing = _differing(runs)
    hidden = max(0, len(runs) - MOST_RUNS)
    not_drawn = f"{hidden} more runs are not drawn." if hidden and charts else ""
    sections = (
        section("scores", "Scores", *_scores(comparison), *all_ranges(comparison)),
        section("differences", "What is real", *_differences(comparison)),
        section("curves", "Curves", *text(not_drawn, "note"), *charts),
        section(
            "predictions",
            "Predicted and measured",
            Paragraph("Error = (predicted - measured) / measured.", "note")
            if predictions
            else None,
            predictions,
        ),
        section(
            "time",
            "Time, size and memory",
            times if times.bars else None,
            costs if costs.columns[1:] else None,
        ),
        section("recipes", "What differs in the recipes", differing),
        section("runs", "Runs", _run_table(runs, path)),
    )
    return View(
        " and ".join(names) if len(runs) < 4 else f"{len(runs)} runs",
        "comparison of runs",
        _sentence(comparison, runs),
        (
            *(Paragraph(each, "verdict") for each in sentences(comparison)),
            *(Paragraph(each, "missing") for each in missing),
        ),
        tuple(each for each in sections if each.blocks),
        footer="Written by brimful from the folders of these runs.",
    )


def _scores(comparison: RunComparison) -> tuple[Block, ...]:
    table = score_table(comparison)
    return (table,) if table.columns[1:] else text("None of the runs was scored.", "missing")


def remark_notes(comparison: RunComparison) -> tuple[Paragraph, ...]:
    """Return what must be known to read the values."""
    remarked = remarks(comparison, "below values")
    return tuple(Paragraph(f"{capitalised(each)}.", "note") for each in remarked)


def _differences(comparison: RunComparison) -> tuple[Block, ...]:
    """Every tested difference of a pair, and the verdict on it."""
    rows = [_difference(comparison, pair) for pair in comparison.tested]
    columns = ("Pair", "Score", "Difference, 95 %", "Over seeds", "p, corrected", "n", "Verdict")
    table = table_of(columns, rows)
    nothing = text("" if table else "Nothing could be tested.", "missing")
    shown = (table.without_empty_columns(),) if table else ()
    return (*shown, *nothing, *remark_notes(comparison))


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


def _difference(comparison: RunComparison, pair: PairComparison) -> Row:
    unit = unit_of(comparison, pair.metric)
    form = unit.formatter("+")
    return (
        f"{pair.first} {MINUS} {pair.second}",
        heading(comparison, pair.metric),
        Cell(pair.difference or 0.0, form, pair.interval, unit=unit.of_difference),
        Cell(0.0, form, pair.over_seeds).interval_text,
        "" if pair.p_value is None else Cell(pair.p_value, "{:.2g}".format),
        Cell(pair.n or 0),
        f"{pair.winner} is better" if pair.is_real else "cannot be told apart",
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


def _times(runs: NamedRuns) -> Bars:
    """Return a bar for each run that timed its steps, as long as the run took."""
    bars = [measured_bar(time_spent(run), name) for name, run in runs]
    return Bars("", "Time", tuple(bar for bar in bars if bar), has_sizes=False)


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


def _run_table(runs: NamedRuns, path: Path) -> Table:
    """A line about each run, and where its own report is."""
    rows = []
    for name, run in runs:
        report, link, values = run.folder / html.FILE_NAME, "", measured(run)
        if report.is_file():
            link = quote(os.path.relpath(report.resolve(), path.resolve().parent))
        extra = ", ".join(
            f"{PREDICTED_NAMES[key].lower()} {format_quantity(key, values[key])}"
            for key in FURTHER_COSTS
            if key in values
        )
        told = headline.sentence(run) + (f" Measured: {extra}." if extra else "")
        rows.append((LinkCell((Link(name, link),)), headline.status(run), told))
    return Table(("Run", "State", "What it is"), tuple(rows))
