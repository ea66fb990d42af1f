"""Predicted beside published step times, each row with its own software stack, by a fit that has
not seen the row's source or its GPU.

    python benchmarks/time_truth.py CSV [--fit] [--rows] [--no-record]

Rules: a stack follows from a row's source and columns (`time_rows`), never from the time measured
in it. The few parameters of `time_model` are fitted again for every source that is left out and for
every GPU that is left out. Errors are predicted over measured minus one. A row's 90 % interval
comes from the errors of the rows of all other sources, a source of n rows weighing as the root of
n, by how many GPUs share the work and, on one GPU, whether weights of 4 bits are unpacked (told
apart after errors were seen). `--fit` writes what the fit on all rows found to
src/brimful/hardware/efficiencies.toml, which plans use. The first run rehearses some 25 steps
(peft's adapters), which takes minutes; their traces are kept. Rows left out are counted with their
reasons. The parameters' first guesses and the list of operators were chosen with these rows in
sight.
"""

import argparse
import csv
import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import time_rows
from left_out import LeftOut
from record import write_record
from time_model import NAMES, NORM, Array, Table, board, fit, predict, values_of
from time_priors import PRIORS
from time_shipped import shipped_summary
from time_stack import TimedStack
from time_work import work_of

EFFICIENCIES = Path(__file__).parent.parent / "src" / "brimful" / "hardware" / "efficiencies.toml"
SIZES = (
    (0.5e9, "below 0.5B"),
    (2e9, "0.5B to 2B"),
    (10e9, "2B to 10B"),
    (50e9, "10B to 50B"),
    (float("inf"), "above 50B"),
)
REFIT_ROUNDS = 6
INTERVAL = (0.05, 0.95)
FEW_ROWS = 30
"""A kind of row with fewer others takes the interval of all kinds."""
WIDER = 1.1
"""An interval's logarithm is (1 + WIDER / (sources - 1)) times the spread that was seen: Student's
t over the normal distribution at 95 %, to 2 %.
"""
LOOP_KINDS = ("one GPU",)
NOT_OF_PLANS = (
    "stack ",
    "node ring",
    "exposed eager",
    "fp8",
    "host megatron",
    "attention flash1",
)
"""Parameters of what brimful's loop does not do: other programs, tensor parallelism, FP8. They stay
in the record.
"""
UNSEEN = 1.8
"""The interval's logarithm on generations without a single run, over the one with runs; assumption.
"""


@dataclass(frozen=True)
class Outcome:
    """A measured step time beside its predictions.

    Attributes:
        stack: What ran.
        seen_s, source_s, gpu_s: Predicted by the fit on all rows, without the row's source, without
            its GPU.
        low_s, high_s: 90 % interval around `source_s`.
    """

    stack: TimedStack
    seen_s: float
    source_s: float
    gpu_s: float
    low_s: float
    high_s: float


def kind_of(stack: TimedStack) -> str:
    """How many GPUs share the work, and how."""
    if stack.spread.gpus == 1:
        return "one GPU"
    return (
        "several GPUs, whole layers"
        if stack.spread.tensor * stack.spread.pipeline * stack.spread.context == 1
        else "split layers or stages"
    )


def read(path: str) -> tuple[list[TimedStack], Counter[str]]:
    """The declared stacks of a table, and why the other rows are left out."""
    stacks, left_out = list[TimedStack](), Counter[str]()
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            verdict = time_rows.stack_of(row)
            reason = verdict.reason if isinstance(verdict, LeftOut) else _impossible(verdict)
            if isinstance(verdict, LeftOut) or reason:
                left_out[f"{row.get('source_repo', '')}: {reason}"] += 1
            else:
                stacks.append(verdict)
    return stacks, left_out


def _impossible(stack: TimedStack) -> str:
    """Why a row cannot be true; empty where it can."""
    rates = board(stack.device).device.dense_flop_per_s
    peak = (
        2 * max(rates.values())
        if stack.products == "fp8"
        else rates.get(stack.products, max(rates.values()))
    )
    flop = work_of(stack).flop() * stack.accumulation
    return (
        "more operations per second than the data sheet has"
        if flop / stack.measured_s > peak
        else ""
    )


def without_each(table: Table, groups: Sequence[str], start_P: Array) -> Array:
    """Seconds of every row by a fit on the rows of all other groups."""
    found_R = np.empty(len(groups))
    group_R = np.array(groups)
    for group in dict.fromkeys(groups):
        inside_R = group_R == group
        found_R[inside_R] = predict(table, fit(table, ~inside_R, start_P, REFIT_ROUNDS))[inside_R]
    return found_R


def intervals(stacks: Sequence[TimedStack], ratio_R: Array) -> tuple[Array, Array]:
    """Ends of the interval of measured over predicted time for every row, from rows of other
    sources. Those of one GPU that unpack no weights take it from others that do not.

    Args:
        ratio_R: Logarithm of measured over predicted time.
    """
    sources, kinds = (
        np.array([pick(stack) for stack in stacks]) for pick in (lambda each: each.source, kind_of)
    )
    unpacks_R = np.array([stack.quantize != "no" for stack in stacks])
    low_R, high_R = np.empty(len(stacks)), np.empty(len(stacks))
    for group in dict.fromkeys(zip(sources, kinds, unpacks_R.tolist(), strict=True)):
        source, kind, unpacks = group
        others_R = (sources != source) & (kinds == kind)
        if kind in LOOP_KINDS and not unpacks:
            others_R &= ~unpacks_R
        if others_R.sum() < FEW_ROWS:
            others_R = sources != source
        low, high = spread(ratio_R[others_R], sources[others_R].tolist())
        inside_R = (sources == source) & (kinds == kind) & (unpacks_R == unpacks)
        low_R[inside_R], high_R[inside_R] = low, high
    return low_R, high_R


def spread(ratios: Array, sources: Sequence[str]) -> tuple[float, float]:
    """The interval of ratios, every source with the square root of its number of rows."""
    counts = Counter(sources)
    weights = np.array([counts[source] ** -0.5 for source in sources])
    order = np.argsort(ratios)
    reached = np.cumsum(weights[order]) / weights.sum()
    low, high = (
        float(ratios[order][min(int(np.searchsorted(reached, share)), len(ratios) - 1)])
        for share in INTERVAL
    )
    wider = 1 + WIDER / max(1, len(counts) - 1)
    return wider * min(low, 0.0), wider * max(high, 0.0)


def outcomes_of(stacks: Sequence[TimedStack]) -> tuple[list[Outcome], Array]:
    """Predictions for all rows, and the parameters fitted on all."""
    table = Table(stacks)
    x_P = fit(table, np.ones(len(stacks), np.bool_))
    seen_R = predict(table, x_P)
    source_R = without_each(table, [stack.source for stack in stacks], x_P)
    gpu_R = without_each(table, [stack.device for stack in stacks], x_P)
    low_R, high_R = intervals(stacks, np.log(table.measured_R / source_R))
    ends = source_R * np.exp(low_R), source_R * np.exp(high_R)
    made = [
        Outcome(stack, *map(float, values))
        for stack, *values in zip(stacks, seen_R, source_R, gpu_R, *ends, strict=True)
    ]
    return made, x_P


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Errors in percent of the measurement."""
    measured = np.array([outcome.stack.measured_s for outcome in outcomes])
    made: dict[str, Any] = {"rows": len(outcomes)}
    for name, pick in PREDICTIONS.items():
        errors = np.array([pick(outcome) for outcome in outcomes]) / measured - 1
        made[name] = {
            "median_percent": _percent(np.median(np.abs(errors))),
            "ninetieth_percent": _percent(np.quantile(np.abs(errors), 0.9)),
            "bias_percent": _percent(np.median(errors)),
            "within_25_percent": _percent(np.mean(np.abs(errors) <= 0.25)),
        }
    made["inside_interval_percent"] = _percent(
        statistics.mean(
            outcome.low_s <= outcome.stack.measured_s <= outcome.high_s for outcome in outcomes
        )
    )
    made["interval_low_high"] = [
        round(float(np.median([getattr(each, end) / each.source_s for each in outcomes])), 2)
        for end in ("low_s", "high_s")
    ]
    return made


PREDICTIONS: Mapping[str, Callable[[Outcome], float]] = {
    "source left out": lambda outcome: outcome.source_s,
    "gpu left out": lambda outcome: outcome.gpu_s,
    "all seen": lambda outcome: outcome.seen_s,
}
GROUPS: Mapping[str, Callable[[TimedStack], str]] = {
    "all": lambda stack: "all",
    "source": lambda stack: stack.source,
    "GPU": lambda stack: stack.device,
    "GPU class": lambda stack: (
        f"{_capability(stack)} {'GeForce' if 'GeForce' in stack.device else 'professional'}"
    ),
    "method": lambda stack: (
        stack.method if stack.quantize == "no" else f"{stack.method} ({stack.quantize})"
    ),
    "size": lambda stack: next(name for most, name in SIZES if stack.shape.weights() < most),
    "kind": kind_of,
    "unpacking": lambda stack: kind_of(stack) + ", unpacks weights" * (stack.quantize != "no"),
    "program": lambda stack: stack.family,
}


def _percent(share: Any) -> float:
    return round(100 * float(share), 1)


def tables(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Summaries by each of GROUPS."""
    made: dict[str, dict[str, Any]] = {}
    for title, group_of in GROUPS.items():
        members: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            members[group_of(outcome.stack)].append(outcome)
        made[title] = {name: summary(each) for name, each in sorted(members.items())}
    return made


def print_rows(outcomes: Sequence[Outcome]) -> None:
    """Every row, sources in order of the table."""
    for outcome in outcomes:
        stack = outcome.stack
        error = outcome.source_s / stack.measured_s - 1
        print(
            f"{error:+7.1%} {outcome.source_s:9.4f} / {stack.measured_s:9.4f} s "
            f" {stack.source[-24:]:24s} {stack.device.removeprefix('NVIDIA '):24s}"
            f" {stack.configuration}: {stack.micro_batch:g} x {stack.positions:g} x"
            f" {stack.accumulation} on {stack.spread.gpus}"
        )


def fitted_values(x_P: Array) -> dict[str, dict[str, Any]]:
    """Every parameter with what it was guessed to be."""
    values = {name: float(f"{value:.4g}") for name, value in values_of(x_P).items()}
    return {
        name: {"value": value, "guess": PRIORS[name].guess, "source": PRIORS[name].source}
        for name, value in values.items()
    }


def write_efficiencies(outcomes: Sequence[Outcome], x_P: Array) -> None:
    """efficiencies.toml: parameters, the interval of one-GPU rows on sources not seen, generations
    with runs.
    """
    alone = [each for each in outcomes if kind_of(each.stack) in LOOP_KINDS]
    low, high = _spread_of([each for each in alone if each.stack.quantize == "no"])
    all_low, all_high = _spread_of(alone)
    capabilities = sorted(
        {name.split()[1] for name in NAMES if name.startswith("matrix")}
        & {_capability(each.stack) for each in outcomes}
    )
    sources = Counter(outcome.stack.source for outcome in outcomes)
    lines = [
        (
            "# Shares of data-sheet numbers that training reaches on NVIDIA GPUs. Written by"
            " `python benchmarks/time_truth.py CSV --fit`; not edited by hand."
        ),
        (
            "# value: fitted. guess: what was believed before, with its source; a value without"
            " runs stays at its guess. Times in seconds, energy in"
        ),
        "# picojoule per 16-bit operation, the rest are shares.",
        "",
        "[fit]",
        f'made = "{time.strftime("%Y-%m-%d")}"',
        f"norm = {NORM}",
        f"interval = [{np.exp(low):.3f}, {np.exp(high):.3f}]",
        f"unpacking_interval = [{np.exp(all_low):.3f}, {np.exp(all_high):.3f}]",
        f"unseen_interval = [{np.exp(UNSEEN * all_low):.3f}, {np.exp(UNSEEN * all_high):.3f}]",
        f"compute_capabilities = [{', '.join(map(_quoted, capabilities))}]",
        (
            f'source = "{len(outcomes)} published training runs from {len(sources)} sources'
            ' (benchmarks/records/time_truth.json)"'
        ),
    ]
    for name, row in fitted_values(x_P).items():
        if name.startswith(NOT_OF_PLANS):
            continue
        lines += [
            "",
            f"[efficiency.{_quoted(name)}]",
            f"value = {row['value']}",
            f"guess = {row['guess']}",
            f"source = {_quoted(row['source'])}",
        ]
    EFFICIENCIES.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(EFFICIENCIES)


def _spread_of(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """The interval of measured over predicted time on sources not seen, as logarithms."""
    ratios = np.array([np.log(each.stack.measured_s / each.source_s) for each in outcomes])
    return spread(ratios, [each.stack.source for each in outcomes])


def _capability(stack: TimedStack) -> str:
    major, minor = board(stack.device).device.compute_capability or (0, 0)
    return f"{major}.{minor}"


def _quoted(words: str) -> str:
    return '"' + words.replace('"', "'") + '"'


def main() -> None:
    """Predict every usable row, print, record and, when asked, write the fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv")
    parser.add_argument(
        "--fit", action="store_true", help="write src/brimful/hardware/efficiencies.toml"
    )
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    stacks, left_out = read(asked.csv)
    outcomes, x_P = outcomes_of(stacks)
    if asked.rows:
        print_rows(outcomes)
    made = tables(outcomes)
    print(json.dumps(made, indent=1))
    for reason, count in left_out.most_common():
        print(f"{count:5d} left out: {reason}")
    if asked.fit:
        write_efficiencies(outcomes, x_P)
    shipped = shipped_summary(stacks)
    print(f"as shipped, one GPU: {shipped}")
    if not asked.no_record:
        print(
            write_record(
                "time_truth",
                {
                    "results": made,
                    "shipped": shipped,
                    "parameters": fitted_values(x_P),
                    "left_out": dict(left_out.most_common()),
                },
            )
        )


if __name__ == "__main__":
    main()
