"""Runs side by side: repetitions with other seeds as one variant, and which differences between
variants are real.

Variants are tested in pairs on the very same examples (random signs of their differences), all
p-values are corrected together for their number (Holm), and where both variants have several seeds
the difference must also stand out from their spread. An untuned model has no seed to vary.
"""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.errors import RequestError
from brimful.evaluation.metric import split_kind
from brimful.evaluation.several import holm, seeds_difference, seeds_interval
from brimful.evaluation.stats import paired_difference, perplexity_of
from brimful.report.comparison.equal_time import at_equal_time
from brimful.report.comparison.results import (
    COSTS,
    EQUAL_TIME,
    LABEL_LOSS,
    LOSSES,
    OF_LAYERS,
    SAME_AS_LOSS,
    VIOLATION,
    Figure,
    Result,
    read_result,
)

SIGNIFICANT = 0.05
"""Chance at most that any of the differences called real is there by luck."""
LEAST_RESAMPLES, RESAMPLES_PER_TEST = 10_000, 200
"""So many that a corrected p-value can get below 0.01."""
LEAST_IN_COMMON = 0.9
"""Share of the examples of a task that must be the same. Some may be missing: prompts that are too
long, programs that could not be judged.
"""
LOWER_IS_BETTER = (
    *LOSSES,
    EQUAL_TIME,
    *SAME_AS_LOSS,
    VIOLATION,
    "unended",
    "perplexity",
    "bits_per_byte",
)
"""Ends of names, lm-eval's among them."""
NEITHER_IS_BETTER = ("length",)
RANGES = {
    "share": (0.0, 1.0),
    "area": (0.0, 1.0),
    "cosine": (-1.0, 1.0),
    "bits/byte": (0.0, math.inf),
}
"""Values that a score can have, by unit."""


@dataclass(frozen=True)
class Variant:
    """One run, or several that differ by their seed only.

    Attributes:
        name: Of the run, or what the names of its runs have in common.
        runs: One per seed.
    """

    name: str
    runs: tuple[Result, ...]

    def values(self, metric: str) -> list[float]:
        """By run, where it has one."""
        return [run.figures[metric].value for run in self.runs if metric in run.figures]

    def over_seeds(self, metric: str) -> list[float] | float:
        """Its values, or the only one of a model that was not trained and so has no seed."""
        values = self.values(metric)
        return values[0] if len(values) == 1 and self.runs[0].is_untuned else values

    def figure(self, metric: str) -> Figure | None:
        """The run's own figure; of several runs the mean, its interval over seeds no further than
        values can lie. Of perplexities in logarithms.
        """
        found = [run.figures[metric] for run in self.runs if metric in run.figures]
        if len(found) < 2:
            return found[0] if found else None
        unit = found[0].unit
        to, back = (math.log, perplexity_of) if unit == "perplexity" else (float, float)
        values = [to(each.value) for each in found]
        spread = seeds_interval(values)
        least, most = (
            (0.0, math.inf)
            if metric in (*COSTS, VIOLATION)
            else RANGES.get(unit, (-math.inf, math.inf))
        )
        interval = (
            None if spread is None else (max(least, back(spread.low)), min(most, back(spread.high)))
        )
        return replace(found[0], value=back(statistics.fmean(values)), interval=interval)


@dataclass(frozen=True)
class Pair:
    """Two variants on the same examples; differences are first minus second, in the metric's unit.

    Attributes:
        interval: 95 % over examples, of this pair by itself.
        p_value: Corrected for all pairs of the comparison.
        over_seeds: 95 % over seeds; None where either has one seed of several that it could have.
        n: Examples that all of their runs were scored on.
        left_out: Examples that only some were scored on.
        obstacle: Why the two are not compared; the rest is None then.
    """

    metric: str
    first: str
    second: str
    difference: float | None = None
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    over_seeds: tuple[float, float] | None = None
    n: int | None = None
    left_out: int = 0
    obstacle: str = ""

    @property
    def is_real(self) -> bool:
        """Whether luck with the examples, or with the seeds where those are known, does not explain
        the difference.
        """
        beyond_seeds = self.over_seeds is None or not self.over_seeds[0] <= 0 <= self.over_seeds[1]
        return self.p_value is not None and self.p_value < SIGNIFICANT and beyond_seeds

    @property
    def first_is_better(self) -> bool:
        """By the metric's direction."""
        return ((self.difference or 0.0) < 0) == is_lower_better(self.metric)


@dataclass(frozen=True)
class RunComparison:
    """Variants in the order given, and every pair of them by metric.

    Attributes:
        metrics: Scores that at least one variant has; the loss first.
        costs: The same of COSTS.
        notes: What is missing, what must be known before reading the numbers, and what was not
            compared.
    """

    variants: tuple[Variant, ...]
    metrics: tuple[str, ...]
    costs: tuple[str, ...]
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]

    def unit(self, metric: str) -> str:
        """Of a metric, "" where its name ends with its unit."""
        return next(
            figure.unit
            for variant in self.variants
            if (figure := variant.figure(metric)) is not None
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = (*self.metrics, *self.costs)
        variants = [
            {
                "name": variant.name,
                "runs": [run.name for run in variant.runs],
                "seeds": [run.seed for run in variant.runs],
                "figures": {
                    name: asdict(figure)
                    for name in names
                    if (figure := variant.figure(name)) is not None
                },
            }
            for variant in self.variants
        ]
        pairs = [{**asdict(pair), "real": pair.is_real} for pair in self.pairs]
        return {"variants": variants, "pairs": pairs, "notes": list(self.notes)}


def is_lower_better(metric: str) -> bool:
    """Whether less of a metric is better."""
    return metric.endswith(LOWER_IS_BETTER)


def compare(
    run_folders: Sequence[Path], names: Sequence[str] | None = None, *, without: Sequence[str] = ()
) -> RunComparison:
    """Read runs and test every pair of variants on every metric whose examples were kept. A single
    run is a table without tests.

    Args:
        run_folders: Of runs, each once.
        names: Of the variant that each belongs to, where that is known; else runs whose recipes
            differ by their seed only are one variant.
        without: Metrics that mean something else in each variant.

    Raises:
        RequestError: no run, one given twice, or runs that were trained for different things.
        RunFolderError: not a run folder, or a damaged file in it.
    """
    folders = [folder.resolve() for folder in run_folders]
    if not folders or len(set(folders)) < len(folders):
        raise RequestError("give different runs, each once: brimful compare RUN RUN ...")
    results = [read_result(folder) for folder in folders]
    names_apart = told_apart([result.name for result in results], folders)
    results = [
        replace(result, name=name) for result, name in zip(results, names_apart, strict=True)
    ]
    _refuse_mixture(results)
    results, told = at_equal_time(results)
    variants = _variants(results) if names is None else _named_variants(results, names)
    found = dict.fromkeys(
        name for variant in variants for run in variant.runs for name in run.figures
    )
    metrics = [name for name in found if name not in (*COSTS, *without)]
    behind_losses = (EQUAL_TIME, *SAME_AS_LOSS, *OF_LAYERS)
    metrics.sort(
        key=lambda name: (
            not name.endswith(LOSSES),
            behind_losses.index(name) if name in behind_losses else len(behind_losses),
        )
    )
    pairs = _corrected(
        [
            _Untested(metric, *two)
            for metric in metrics
            if _is_tested(metric, variants)
            for two in combinations(variants, 2)
        ]
    )
    notes = (*_notes(variants, metrics), *told, *_obstacles(pairs))
    return RunComparison(
        variants, tuple(metrics), tuple(name for name in COSTS if name in found), pairs, notes
    )


def told_apart(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Names of runs, each another: behind one that repeats stands the part of its folder's path
    that differs, as in `quickstart (laptop)`.
    """
    paths = [folder.resolve().parts for folder in folders]
    found = []
    for name, path in zip(names, paths, strict=True):
        alike = [
            other for other_name, other in zip(names, paths, strict=True) if other_name == name
        ]
        least = min(map(len, alike)) - 1
        same_end = _num_same([other[::-1] for other in alike], least)
        same_start = _num_same(alike, least - same_end)
        found.append(
            name
            if len(alike) == 1
            else f"{name} ({Path(*path[same_start : len(path) - same_end]).as_posix()})"
        )
    return found


def _num_same(paths: Sequence[tuple[str, ...]], most: int) -> int:
    """How many parts all paths begin with, `most` at most."""
    return next((place for place in range(most) if len({path[place] for path in paths}) > 1), most)


def _named_variants(results: Sequence[Result], names: Sequence[str]) -> tuple[Variant, ...]:
    pairs = [*zip(names, results, strict=True)]
    return tuple(
        Variant(name, tuple(result for other, result in pairs if other == name))
        for name in dict.fromkeys(names)
    )


def _variants(results: Sequence[Result]) -> tuple[Variant, ...]:
    """Runs that differ by their seed only, together; a seed that comes twice keeps all of them
    apart.
    """
    groups: dict[Any, list[Result]] = {}
    for place, result in enumerate(results):
        groups.setdefault(place if result.variant is None else result.variant, []).append(result)
    found: list[tuple[Result, ...]] = []
    for runs in groups.values():
        together = len({run.seed for run in runs}) == len(runs)
        found += [(run,) for run in runs] if not together else [tuple(runs)]
    names = [_common_name(runs) for runs in found]
    return tuple(
        Variant(name if names.count(name) == 1 else f"{name} ({place})", runs)
        for place, (name, runs) in enumerate(zip(names, found, strict=True), 1)
    )


def _common_name(runs: Sequence[Result]) -> str:
    """`lora-16-seed1` and `lora-16-seed2` -> `lora-16`."""
    if len(runs) == 1:
        return runs[0].name
    stems = {re.sub(rf"[-_.]?(seed[-_.]?\d+|{run.seed})$", "", run.name) for run in runs}
    return (
        stems.pop() if len(stems) == 1 and "" not in stems else " + ".join(run.name for run in runs)
    )


def _is_tested(metric: str, variants: Sequence[Variant]) -> bool:
    return not metric.endswith(NEITHER_IS_BETTER) and any(
        metric in run.examples for variant in variants for run in variant.runs
    )


@dataclass(frozen=True)
class _Untested:
    """A pair before its test."""

    metric: str
    first: Variant
    second: Variant

    def tested(self, resamples: int) -> Pair:
        """With a p-value that is not corrected yet, or the obstacle."""
        empty = Pair(self.metric, self.first.name, self.second.name)
        runs = [*self.first.runs, *self.second.runs]
        if obstacle := _obstacle(self.metric, runs):
            return replace(empty, obstacle=obstacle)
        examples = [run.examples[self.metric] for run in runs]
        common = set.intersection(*(set(each.ids) for each in examples))
        order = [number for number in examples[0].ids if number in common]
        sums = [each.in_order(order).sums_N for each in examples]
        weights_N = examples[0].in_order(order).weights_N
        first, second = (
            np.mean(sums[: len(self.first.runs)], axis=0),
            np.mean(sums[len(self.first.runs) :], axis=0),
        )
        found = paired_difference(first, second, weights_N, resamples=resamples)
        if found.interval is None or found.p_value is None:
            return replace(empty, obstacle="there are too few examples")
        seeds = seeds_difference(
            self.first.over_seeds(self.metric), self.second.over_seeds(self.metric)
        )
        return replace(
            empty,
            difference=found.difference,
            interval=(found.interval.low, found.interval.high),
            p_value=found.p_value,
            over_seeds=None if seeds is None else (seeds.low, seeds.high),
            n=len(weights_N),
            left_out=len(set.union(*(set(each.ids) for each in examples))) - len(common),
        )


def _obstacle(metric: str, runs: Sequence[Result]) -> str:
    """Why runs cannot be compared on a metric; empty where they were scored on the same examples in
    the same way.
    """
    for run in runs:
        if metric not in run.figures:
            return f"{run.name} was not scored on it"
        if metric not in run.examples:
            return f"the scores of single examples of {run.name} were not kept"
    first, *others = [(run.name, run.examples[metric]) for run in runs]
    for name, examples in others:
        if examples.version != first[1].version:
            return f"{first[0]} has {first[1].version}, {name} {examples.version}"
        all_ids, common = (
            len(combine(set(first[1].ids), examples.ids))
            for combine in (set.union, set.intersection)
        )
        if common < (1.0 if metric.endswith(LOSSES) else LEAST_IN_COMMON) * all_ids:
            return (
                f"other examples: {len(first[1].ids)} of {first[0]}, {len(examples.ids)} of {name},"
                f" {common} in common"
            )
    return ""


def _corrected(untested: Sequence[_Untested]) -> tuple[Pair, ...]:
    pairs = [
        pair.tested(max(LEAST_RESAMPLES, RESAMPLES_PER_TEST * len(untested))) for pair in untested
    ]
    tested = [place for place, pair in enumerate(pairs) if pair.p_value is not None]
    for place, p_value in zip(
        tested, holm([pairs[place].p_value or 0.0 for place in tested]), strict=True
    ):
        pairs[place] = replace(pairs[place], p_value=p_value)
    return tuple(pairs)


def _obstacles(pairs: Sequence[Pair]) -> list[str]:
    told = [(pair, f"not compared: {pair.obstacle}") for pair in pairs if pair.obstacle]
    told += [
        (pair, f"compared on the {pair.n} examples of both, without {pair.left_out} of one only")
        for pair in pairs
        if pair.left_out
    ]
    return [f"{pair.metric}: {pair.first} and {pair.second} are {what}" for pair, what in told]


def _notes(variants: Sequence[Variant], metrics: Sequence[str]) -> list[str]:
    runs = [run for variant in variants for run in variant.runs]
    notes = [note for run in runs for note in run.notes]
    for task in dict.fromkeys(task for run in runs for task in run.prompts):
        notes += _differing(
            f"{task} was asked in different ways",
            {run.name: run.prompts.get(task, "") for run in runs},
        )
    notes += _differing(
        "time, speed and memory are of different devices", {run.name: run.device for run in runs}
    )
    if runs[0].kind == "labels":
        return [
            *notes,
            *[
                f"which classifier is better is tested on the {LABEL_LOSS} alone; the other scores"
                " have one value over all texts"
            ]
            * (len(variants) > 1),
        ]
    for metric in metrics:
        if (
            metric.endswith(LOSSES)
            or metric in (EQUAL_TIME, *SAME_AS_LOSS, *OF_LAYERS)
            or split_kind(metric)[1]
        ):
            continue
        if any(metric in run.figures for run in runs) and not any(
            metric in run.examples for run in runs
        ):
            notes.append(f"{metric} is one number over all examples and not tested")
    if any(split_kind(metric)[1] for metric in metrics):
        notes.append(
            "scores of one type of question, as in `accuracy[TYPE]`, are shown and not tested"
        )
    return notes


def _refuse_mixture(results: Sequence[Result]) -> None:
    kinds = {result.kind: result.name for result in results}
    if len(kinds) > 1:
        told = "; ".join(f"{name} {_PURPOSES[kind]}" for kind, name in kinds.items())
        raise RequestError(f"{told}: they have no score in common. Compare runs of one kind.")


_PURPOSES = {"text": "continues text", "masked": "fills in masked tokens", "labels": "labels texts"}


def _differing(what: str, by_run: Mapping[str, str]) -> list[str]:
    """A note where runs differ; those that say nothing are left out."""
    said: dict[str, list[str]] = {}
    for name, value in by_run.items():
        if value:
            said.setdefault(value, []).append(name)
    return (
        [f"{what}: " + "; ".join(f"{value} ({', '.join(names)})" for value, names in said.items())]
        if len(said) > 1
        else []
    )
