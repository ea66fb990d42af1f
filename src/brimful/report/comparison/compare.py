"""Runs side by side: repetitions with other seeds as one variant, and which differences between
variants are real.

Variants are tested in pairs on the same examples (random signs of their differences), all p-values
are corrected together for their number (Holm), and where both variants have several seeds the
difference must also stand out from their spread. An untuned model has no seed to vary.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from brimful.base.errors import RequestError
from brimful.base.types import Bounds, JsonDict, Texts
from brimful.evaluation.metric import split_kind
from brimful.evaluation.several import holm, seeds_difference
from brimful.evaluation.stats import paired_difference
from brimful.recipe.kinds import ModelTask
from brimful.report.comparison.equal_time import at_equal_time
from brimful.report.comparison.results import (
    COSTS,
    EQUAL_TIME,
    LABEL_LOSS,
    LOSSES,
    OF_LAYERS,
    SAME_AS_LOSS,
    VIOLATION,
    ComparedRun,
    Figure,
    read_compared_run,
)
from brimful.report.comparison.variants import (
    Variant,
    distinct_names,
    named_variants,
    variants_of,
)

SIGNIFICANT = 0.05
"""Chance at most that any of the differences called real is there by luck."""
LEAST_RESAMPLES, RESAMPLES_PER_TEST = 10_000, 200
"""So many that a corrected p-value can get below 0.01."""
LEAST_IN_COMMON = 0.9
"""Share of the examples of a task that must be the same. Some may be missing: prompts that are too
long, programs that could not be judged.
"""
_LONG_FINGERPRINT = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{8,}\b")
LOWER_IS_BETTER = (
    *LOSSES,
    EQUAL_TIME,
    *SAME_AS_LOSS,
    VIOLATION,
    "unended",
    "perplexity",
    "bits_per_byte",
)
"""Ends of names of metrics, among them those of lm-eval."""
NEITHER_IS_BETTER = ("length",)
BESIDE_LOSS = (EQUAL_TIME, *SAME_AS_LOSS, *OF_LAYERS)
"""Metrics that stand behind the loss, in this order, and are not tested."""
PURPOSES: dict[ModelTask, str] = {
    "causal_lm": "continues text",
    "masked_lm": "fills in masked tokens",
    "sequence_classification": "labels texts",
}


@dataclass(frozen=True)
class PairComparison:
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
    interval: Bounds | None = None
    p_value: float | None = None
    over_seeds: Bounds | None = None
    n: int | None = None
    left_out: int = 0
    obstacle: str = ""

    @property
    def is_real(self) -> bool:
        """Whether the difference is explained neither by chance among examples nor, where several
        seeds are known, by the spread over seeds.
        """
        beyond_seeds = self.over_seeds is None or not self.over_seeds[0] <= 0 <= self.over_seeds[1]
        return self.p_value is not None and self.p_value < SIGNIFICANT and beyond_seeds

    @property
    def first_is_better(self) -> bool:
        """By the metric's direction."""
        return ((self.difference or 0.0) < 0) == is_lower_better(self.metric)

    @property
    def winner(self) -> str:
        """The better of the two variants."""
        return self.first if self.first_is_better else self.second

    @property
    def loser(self) -> str:
        """The other one."""
        return self.second if self.first_is_better else self.first


@dataclass(frozen=True)
class RunComparison:
    """Variants in the order given, and every pair of them by metric.

    Attributes:
        metrics: Scores that at least one variant has; the loss first.
        costs: Those of COSTS that at least one variant has.
        notes: What is missing, what must be known before reading the numbers, and what was not
            compared.
    """

    variants: tuple[Variant, ...]
    metrics: tuple[str, ...]
    costs: tuple[str, ...]
    pairs: tuple[PairComparison, ...]
    notes: tuple[str, ...]

    @property
    def tested(self) -> list[PairComparison]:
        """Pairs whose difference was tested."""
        return [pair for pair in self.pairs if not pair.obstacle]

    def figures(self, metric: str) -> list[tuple[Variant, Figure]]:
        """Return the variants that have a metric, each with its value."""
        figures = [(variant, variant.figure(metric)) for variant in self.variants]
        return [(variant, figure) for variant, figure in figures if figure is not None]

    def unit(self, metric: str) -> str:
        """Return the unit of a metric, "" if its name ends with it."""
        return self.figures(metric)[0][1].unit

    def to_json(self) -> JsonDict:
        """Return plain values for JSON."""
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
    """Whether a lower value of the metric is better."""
    return metric.endswith(LOWER_IS_BETTER)


def compare(
    run_folders: Sequence[Path], names: Sequence[str] | None = None, *, without: Sequence[str] = ()
) -> RunComparison:
    """Read runs and test every pair of variants on every metric whose examples were kept. A single
    run is a table without tests.

    Args:
        run_folders: Folders of runs, each once.
        names: The variant that each run belongs to, if known; by default runs whose recipes differ
            by their seed only are one variant.
        without: Metrics that mean something else in each variant.

    Raises:
        RequestError: no run, one given twice, or runs that were trained for different things.
        RunFolderError: not a run folder, or a damaged file in it.
    """
    runs, time_notes = at_equal_time(_read_runs(run_folders))
    variants = variants_of(runs) if names is None else named_variants(runs, names)
    runs = [run for variant in variants for run in variant.runs]
    measured = dict.fromkeys(name for run in runs for name in run.figures)
    metrics = sorted((name for name in measured if name not in (*COSTS, *without)), key=_order)
    pairs = _compare_pairs(
        [
            (metric, first, second)
            for metric in metrics
            if _is_tested(metric, runs)
            for first, second in combinations(variants, 2)
        ]
    )
    notes = (*_notes(variants, runs, metrics), *time_notes, *_pair_notes(pairs))
    costs = tuple(name for name in COSTS if name in measured)
    return RunComparison(variants, tuple(metrics), costs, pairs, notes)


def _read_runs(run_folders: Sequence[Path]) -> list[ComparedRun]:
    folders = [folder.resolve() for folder in run_folders]
    if not folders or len(set(folders)) < len(folders):
        raise RequestError("give different runs, each once: brimful compare RUN RUN ...")
    runs = [read_compared_run(folder) for folder in folders]
    names = distinct_names([run.name for run in runs], folders)
    runs = [replace(run, name=name) for run, name in zip(runs, names, strict=True)]
    by_task = {run.kind.task: run.name for run in runs}
    if len(by_task) > 1:
        purposes = "; ".join(f"{name} {PURPOSES[task]}" for task, name in by_task.items())
        raise RequestError(f"{purposes}: they have no score in common. Compare runs of one kind.")
    return runs


def _order(metric: str) -> tuple[bool, int]:
    """Return a sort key: losses come first, then what stands beside them."""
    place = (*BESIDE_LOSS, metric).index(metric)
    return not metric.endswith(LOSSES), place


def _is_tested(metric: str, runs: Sequence[ComparedRun]) -> bool:
    return not metric.endswith(NEITHER_IS_BETTER) and any(metric in run.examples for run in runs)


def _compare_pairs(
    untested: Sequence[tuple[str, Variant, Variant]],
) -> tuple[PairComparison, ...]:
    """Test pairs of variants, each on a metric, and correct their p-values for their number."""
    resamples = max(LEAST_RESAMPLES, RESAMPLES_PER_TEST * len(untested))
    pairs = [_compare_pair(*each, resamples) for each in untested]
    corrected = iter(holm([pair.p_value for pair in pairs if pair.p_value is not None]))
    return tuple(
        pair if pair.p_value is None else replace(pair, p_value=next(corrected)) for pair in pairs
    )


def _compare_pair(metric: str, first: Variant, second: Variant, resamples: int) -> PairComparison:
    """Return a pair with its p-value before correction, or with the obstacle to comparing it."""
    pair = PairComparison(metric, first.name, second.name)
    runs = [*first.runs, *second.runs]
    if obstacle := _obstacle(metric, runs):
        return replace(pair, obstacle=obstacle)
    examples = [run.examples[metric] for run in runs]
    ids = [set(each.ids) for each in examples]
    common = set.intersection(*ids)
    order = [each for each in examples[0].ids if each in common]
    ordered = [each.in_order(order) for each in examples]
    weights_N = ordered[0].weights_N
    split = len(first.runs)
    first_N, second_N = (
        np.mean([each.sums_N for each in side], axis=0)
        for side in (ordered[:split], ordered[split:])
    )
    tested = paired_difference(first_N, second_N, weights_N, resamples=resamples)
    if tested.interval is None or tested.p_value is None:
        return replace(pair, obstacle="there are too few examples")
    seeds = seeds_difference(first.over_seeds(metric), second.over_seeds(metric))
    return replace(
        pair,
        difference=tested.difference,
        interval=(tested.interval.low, tested.interval.high),
        p_value=tested.p_value,
        over_seeds=None if seeds is None else (seeds.low, seeds.high),
        n=len(weights_N),
        left_out=len(set.union(*ids)) - len(common),
    )


def _obstacle(metric: str, runs: Sequence[ComparedRun]) -> str:
    """Return why runs cannot be compared on a metric; empty if they were scored on the same
    examples in the same way.
    """
    for run in runs:
        if metric not in run.figures:
            return f"{run.name} was not scored on it"
        if metric not in run.examples:
            return f"the scores of single examples of {run.name} were not kept"
    least_in_common = 1.0 if metric.endswith(LOSSES) else LEAST_IN_COMMON
    first, examples = runs[0].name, runs[0].examples[metric]
    for run in runs[1:]:
        other = run.examples[metric]
        if other.version != examples.version:
            differing = f"{first} has {examples.version}, {run.name} {other.version}"
            return _LONG_FINGERPRINT.sub(r"\1", differing)
        ids, other_ids = set(examples.ids), set(other.ids)
        common = len(ids & other_ids)
        if common < least_in_common * len(ids | other_ids):
            return (
                f"other examples: {len(examples.ids)} of {first}, {len(other.ids)} of {run.name},"
                f" {common} in common"
            )
    return ""


def _pair_notes(pairs: Sequence[PairComparison]) -> list[str]:
    notes = [(pair, f"not compared: {pair.obstacle}") for pair in pairs if pair.obstacle]
    notes += [
        (pair, f"compared on the {pair.n} examples of both, without {pair.left_out} of one only")
        for pair in pairs
        if pair.left_out
    ]
    return [f"{pair.metric}: {pair.first} and {pair.second} are {note}" for pair, note in notes]


def _notes(
    variants: Sequence[Variant], runs: Sequence[ComparedRun], metrics: Sequence[str]
) -> list[str]:
    notes = [note for run in runs for note in run.notes]
    for task in dict.fromkeys(task for run in runs for task in run.prompts):
        prompts = {run.name: run.prompts.get(task, "") for run in runs}
        notes += _differing(f"{task} was asked in different ways", prompts)
    devices = {run.name: run.device for run in runs}
    notes += _differing("time, speed and memory are of different devices", devices)
    if not runs[0].kind.gives_labels:
        return notes + _untested_notes(runs, metrics)
    if len(variants) > 1:
        notes.append(
            f"which classifier is better is tested on the {LABEL_LOSS} alone; the other scores have"
            " one value over all texts"
        )
    return notes


def _untested_notes(runs: Sequence[ComparedRun], metrics: Sequence[str]) -> list[str]:
    """Return a note for each score of a task that has no scores of single examples."""
    with_examples = {metric for run in runs for metric in run.examples}
    over_all = [metric for metric in metrics if not split_kind(metric)[1]]
    notes = [
        f"{metric} is one number over all examples and not tested"
        for metric in over_all
        if not metric.endswith(LOSSES) and metric not in {*BESIDE_LOSS, *with_examples}
    ]
    if len(over_all) < len(metrics):
        notes.append(
            "scores of one type of question, as in `accuracy[TYPE]`, are shown and not tested"
        )
    return notes


def _differing(what: str, by_run: Texts) -> list[str]:
    """Return a note if runs have different values; runs without a value are left out."""
    runs_of: dict[str, list[str]] = {}
    for name, value in by_run.items():
        if value:
            runs_of.setdefault(value, []).append(name)
    if len(runs_of) < 2:
        return []
    values = "; ".join(f"{value} ({', '.join(names)})" for value, names in runs_of.items())
    return [f"{what}: {values}"]
