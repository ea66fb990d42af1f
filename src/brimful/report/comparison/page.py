"""A page that sets runs side by side: scores and paired differences with intervals, curves over one
another, plans beside what came true, time and cost.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from brimful.base.dotted import flatten
from brimful.base.rundir import write_text_atomically
from brimful.base.units import format_duration
from brimful.evaluation.metric import split_kind
from brimful.report import tables
from brimful.report.bars import Part, parts
from brimful.report.comparison.compare import Pair, RunComparison, compare, told_apart
from brimful.report.comparison.plots import MOST_RUNS, overlays
from brimful.report.comparison.ranges import Cell, cell_of, has_ranges, ranges_of
from brimful.report.comparison.results import NOT_OF_THE_VARIANT, OF_LAYERS
from brimful.report.comparison.text import (
    UNITS,
    comparison_table,
    form_of,
    heading,
    remarks,
    sentences,
)
from brimful.report.page import headline, html
from brimful.report.page.predicted import MAIN
from brimful.report.page.time_page import PLACES
from brimful.report.quantities import format_error, format_quantity
from brimful.report.table import Table
from brimful.report.tables import PREDICTED_NAMES
from brimful.report.time_spent import NAMES, time_spent
from brimful.runs.runfiles import RunFiles, measured, read_run

MOST_KEYS = 40
"""Of recipes, shown where they differ."""
COSTS = ("energy_wh", "cost_usd")
"""Measurements that the comparison itself does not have."""


@dataclass(frozen=True)
class RunTime:
    """Where one run's time went; `width` is its share of the longest run's, as CSS."""

    name: str
    parts: tuple[Part, ...]
    total: str
    width: str


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
    runs = named_runs(run_folders)
    write_text_atomically(
        path, html.render_page("compare.html.j2", _values(comparison, runs, path), "1080px")
    )
    return path


def named_runs(run_folders: Sequence[Path]) -> list[tuple[str, RunFiles]]:
    """Runs with the names that a comparison calls them by, each another.

    Raises:
        RunFolderError: not a run folder.
    """
    runs = [read_run(folder) for folder in run_folders]
    return [*zip(told_apart([run.name for run in runs], run_folders), runs, strict=True)]


def _values(
    comparison: RunComparison, runs: list[tuple[str, RunFiles]], path: Path
) -> dict[str, Any]:
    table, costs = comparison_table(comparison), len(comparison.costs)
    first, last = len(table.columns) - len(comparison.metrics) - costs, len(table.columns) - costs
    whole = [
        first + place
        for place, metric in enumerate(comparison.metrics)
        if not split_kind(metric)[1] and metric not in OF_LAYERS
    ]
    drawn = overlays(runs)
    return {
        "title": " and ".join(name for name, _ in runs) if len(runs) < 4 else f"{len(runs)} runs",
        "sentence": _sentence(comparison, runs),
        "sentences": sentences(comparison),
        "remarks": remarks(comparison, "below values"),
        "has_seeds": any(pair.over_seeds for pair in comparison.pairs),
        "score_columns": [table.columns[place] for place in whole],
        "score_rows": [
            (row[0], [cell_of(row[place]) for place in whole]) for row in table.text_rows
        ],
        "cost_columns": table.columns[last:],
        "cost_rows": [(row[0], [cell_of(cell) for cell in row[last:]]) for row in table.text_rows],
        "ranges": [
            ranges_of(comparison, metric)
            for metric in comparison.metrics
            if has_ranges(comparison, metric, set())
        ],
        "differences": [
            _difference(comparison, pair) for pair in comparison.pairs if not pair.obstacle
        ],
        "drawings": drawn,
        "keys": [
            {"name": name, "style": f"--c: var(--s{place + 1})"}
            for place, (name, _) in enumerate(runs[:MOST_RUNS])
        ],
        "num_hidden": max(0, len(runs) - MOST_RUNS),
        "predictions": _predictions(runs),
        "run_names": [name for name, _ in runs],
        "times": _times(runs),
        "time_keys": [
            Part(NAMES[key], 0.0, 0.0, "", place)
            for key, place in PLACES.items()
            if any(_spent(run, key) for _, run in runs)
        ],
        "differing": _differing(runs),
        "runs": [_run(name, run, path) for name, run in runs],
        "missing": [f"{name}: {told}" for name, run in runs for told in run.missing.values()],
    }


def _sentence(comparison: RunComparison, runs: list[tuple[str, RunFiles]]) -> str:
    """`3 runs as 2 variants; 1 of 3 tested differences is real.`"""
    several = (
        f" as {len(comparison.variants)} variants" if len(comparison.variants) < len(runs) else ""
    )
    tested = [pair for pair in comparison.pairs if not pair.obstacle]
    real = sum(pair.is_real for pair in tested)
    unfinished = sum(not run.is_finished for _, run in runs)
    told = [f"{len(runs)} run{'s' * (len(runs) != 1)}{several}"]
    if len(tested) == 1:
        told.append(f"the one difference that could be tested is {'' if real else 'not '}real")
    elif tested:
        told.append(
            f"{real or 'none'} of {len(tested)} tested differences {'is' if real < 2 else 'are'}"
            " real"
        )
    told += (
        [f"{unfinished} {'is' if unfinished == 1 else 'are'} not finished"] if unfinished else []
    )
    return f"{'; '.join(told)}."


def _difference(comparison: RunComparison, pair: Pair) -> dict[str, str]:
    """One row: the difference of a pair and what to make of it."""
    unit = comparison.unit(pair.metric)
    form = form_of(unit, "+")
    better = pair.first if pair.first_is_better else pair.second

    def span(ends: tuple[float, float] | None) -> str:
        return f"{form(ends[0])} to {form(ends[1])}" if ends else ""

    return {
        "metric": heading(comparison, pair.metric),
        "pair": f"{pair.first} \N{MINUS SIGN} {pair.second}",
        "difference": (
            f"{form(pair.difference or 0.0)} {UNITS.get(unit, ('', 1.0, '', ''))[3]}".rstrip()
        ),
        "interval": span(pair.interval),
        "over_seeds": span(pair.over_seeds),
        "p": "" if pair.p_value is None else f"{pair.p_value:.2g}",
        "n": f"{pair.n or 0:,}",
        "verdict": f"{better} is better" if pair.is_real else "cannot be told apart",
        "tone": "good" if pair.is_real else "",
    }


def _predictions(runs: list[tuple[str, RunFiles]]) -> list[tuple[str, list[Cell]]]:
    """Quantities in rows, runs in columns: what was measured, below it what was predicted and how
    far that was off.
    """
    found = [{each.key: each for each in tables.comparisons(run)} for _, run in runs]
    rows = []
    for key in MAIN:
        cells = []
        for comparisons in found:
            each = comparisons.get(key)
            error = (
                ""
                if each is None or each.error is None
                else f" ({format_error(each.error).replace('-', chr(0x2212))})"
            )
            value = (
                "" if each is None or each.measured is None else format_quantity(key, each.measured)
            )
            cells.append(
                Cell(
                    value,
                    (
                        ""
                        if each is None
                        else f"predicted {format_quantity(key, each.predicted)}{error}"
                    ),
                )
            )
        if any(cell.value for cell in cells):
            rows.append((PREDICTED_NAMES.get(key, key), cells))
    return rows


def _spent(run: RunFiles, key: str) -> float:
    spent = time_spent(run)
    return float(getattr(spent, key) or 0.0) if spent is not None else 0.0


def _times(runs: list[tuple[str, RunFiles]]) -> list[RunTime]:
    """A bar for each run that timed its steps, as long as the run took."""
    spent = [
        (
            name,
            [
                (NAMES[key], _spent(run, key), place)
                for key, place in PLACES.items()
                if _spent(run, key)
            ],
        )
        for name, run in runs
    ]
    found = [
        (name, terms, sum(seconds for _, seconds, _ in terms)) for name, terms in spent if terms
    ]
    longest = max((total for *_, total in found), default=0.0)
    return [
        RunTime(
            name,
            tuple(
                parts(
                    [(what, seconds) for what, seconds, _ in terms],
                    "time_s",
                    [place for *_, place in terms],
                )
            ),
            format_duration(total),
            f"{total / longest:.2%}",
        )
        for name, terms, total in found
    ]


def _differing(runs: list[tuple[str, RunFiles]]) -> Table | None:
    """Keys of the recipes that are not the same in all runs; None where they agree."""
    flat = [flatten(run.recipe) for _, run in runs]
    names = dict.fromkeys(
        key
        for values in flat
        for key in values
        if key.split(".")[0] not in NOT_OF_THE_VARIANT or key == "seed"
    )
    rows = [
        (key, *(str(values.get(key, "-")) for values in flat))
        for key in names
        if len({str(values.get(key)) for values in flat}) > 1
    ]
    return Table(("", *(name for name, _ in runs)), tuple(rows[:MOST_KEYS])) if rows else None


def _run(name: str, run: RunFiles, path: Path) -> dict[str, str]:
    """A line for each run, and where its own report is."""
    report = run.folder / html.FILE_NAME
    link = (
        quote(os.path.relpath(report.resolve(), path.resolve().parent)) if report.is_file() else ""
    )
    found = measured(run)
    extra = ", ".join(
        f"{PREDICTED_NAMES[key].lower()} {format_quantity(key, found[key])}"
        for key in COSTS
        if key in found
    )
    return {
        "name": name,
        "status": headline.status(run),
        "sentence": headline.sentence(run),
        "extra": extra,
        "link": link,
    }
