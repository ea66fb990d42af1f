"""Variants: runs that differ by their seed only count as one, with the spread over their seeds."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from brimful.base.types import Bounds
from brimful.evaluation.several import seeds_interval
from brimful.evaluation.stats import perplexity_of
from brimful.report.comparison.results import COSTS, VIOLATION, ComparedRun, Figure

UNIT_BOUNDS = {
    "share": (0.0, 1.0),
    "area": (0.0, 1.0),
    "cosine": (-1.0, 1.0),
    "bits/byte": (0.0, math.inf),
}
"""The least and the greatest value that a score can have, by unit."""


@dataclass(frozen=True)
class Variant:
    """One run, or several that differ by their seed only.

    Attributes:
        name: Name of the run, or what the names of its runs have in common.
        runs: One per seed.
    """

    name: str
    runs: tuple[ComparedRun, ...]

    def values(self, metric: str) -> list[float]:
        """Return the value of each run that has one."""
        return [figure.value for figure in self._figures(metric)]

    def over_seeds(self, metric: str) -> list[float] | float:
        """Return the values, or the single value of an untuned model, which has no seed."""
        values = self.values(metric)
        return values[0] if len(values) == 1 and self.runs[0].is_untuned else values

    def figure(self, metric: str) -> Figure | None:
        """Return the run's own figure, or the mean of several runs with its interval over seeds.

        Perplexities are averaged as logarithms, and intervals end where values do.
        """
        figures = self._figures(metric)
        if len(figures) < 2:
            return next(iter(figures), None)
        if figures[0].unit == "perplexity":
            mean, interval = _mean_over_seeds([math.log(figure.value) for figure in figures])
            value = perplexity_of(mean)
            interval = interval and (perplexity_of(interval[0]), perplexity_of(interval[1]))
        else:
            value, interval = _mean_over_seeds([figure.value for figure in figures])
        if interval is not None:
            least, most = _bounds(metric, figures[0].unit)
            interval = max(least, interval[0]), min(most, interval[1])
        return replace(figures[0], value=value, interval=interval)

    def _figures(self, metric: str) -> list[Figure]:
        return [run.figures[metric] for run in self.runs if metric in run.figures]


def _mean_over_seeds(values: Sequence[float]) -> tuple[float, Bounds | None]:
    interval = seeds_interval(values)
    ends = None if interval is None else (interval.low, interval.high)
    return statistics.fmean(values), ends


def _bounds(metric: str, unit: str) -> Bounds:
    if metric in (*COSTS, VIOLATION):
        return 0.0, math.inf
    return UNIT_BOUNDS.get(unit, (-math.inf, math.inf))


def variants_of(runs: Sequence[ComparedRun]) -> tuple[Variant, ...]:
    """Return runs that differ by their seed only as one variant. Runs of which two have the same
    seed stay apart.
    """
    by_recipe: dict[str | int, list[ComparedRun]] = {}
    for place, run in enumerate(runs):
        key = place if run.variant is None else run.variant
        by_recipe.setdefault(key, []).append(run)
    groups: list[tuple[ComparedRun, ...]] = []
    for alike in by_recipe.values():
        has_distinct_seeds = len({run.seed for run in alike}) == len(alike)
        groups += [tuple(alike)] if has_distinct_seeds else [(run,) for run in alike]
    names = [_common_name(group) for group in groups]
    return tuple(
        Variant(name if names.count(name) == 1 else f"{name} ({place})", group)
        for place, (name, group) in enumerate(zip(names, groups, strict=True), 1)
    )


def named_variants(runs: Sequence[ComparedRun], names: Sequence[str]) -> tuple[Variant, ...]:
    """Return runs grouped by the name of the variant that each belongs to."""
    groups: dict[str, list[ComparedRun]] = {}
    for name, run in zip(names, runs, strict=True):
        groups.setdefault(name, []).append(run)
    return tuple(Variant(name, tuple(group)) for name, group in groups.items())


def _common_name(runs: Sequence[ComparedRun]) -> str:
    """`lora-16-seed1` and `lora-16-seed2` -> `lora-16`."""
    if len(runs) == 1:
        return runs[0].name
    stems = {re.sub(rf"[-_.]?(seed[-_.]?\d+|{run.seed})$", "", run.name) for run in runs}
    if len(stems) == 1 and "" not in stems:
        return stems.pop()
    return " + ".join(run.name for run in runs)


def distinct_names(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Return names that are all different: a name that repeats is followed by the part of its
    folder's path that differs, as in `quickstart (laptop)`.
    """
    paths: Mapping[str, list[tuple[str, ...]]] = {name: [] for name in names}
    for name, folder in zip(names, folders, strict=True):
        paths[name].append(folder.resolve().parts)
    distinct = []
    for name, folder in zip(names, folders, strict=True):
        alike, path = paths[name], folder.resolve().parts
        if len(alike) == 1:
            distinct.append(name)
            continue
        shortest = min(map(len, alike)) - 1
        same_end = _num_equal([other[::-1] for other in alike], shortest)
        same_start = _num_equal(alike, shortest - same_end)
        different = Path(*path[same_start : len(path) - same_end])
        distinct.append(f"{name} ({different.as_posix()})")
    return distinct


def _num_equal(paths: Sequence[tuple[str, ...]], most: int) -> int:
    """Return how many parts all paths begin with, `most` at most."""
    for place in range(most):
        if len({path[place] for path in paths}) > 1:
            return place
    return most
