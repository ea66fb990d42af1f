"""Predicted beside published peaks of GPU memory on several GPUs, each row with its own software
stack, through the planner's trace of one rank.

    python benchmarks/memory_parallel.py CSV [--minutes 60] [--rows] [--no-record]

Rules are those of `memory_truth`: a stack follows from a row's source and columns
(`memory_parallel_rows`), never from what was measured in it. Nothing here is fitted to these rows:
the shares behind the intervals and what NCCL takes are those that plans use. A setting that is not
traced when the time is up leaves its rows out, and they are counted; traces are kept, so that the
same command goes on. Steps are traced in a random order, so that what is left out is no choice.
"""

import argparse
import csv
import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from brimful.base.env import cache_folder
from brimful.base.errors import BrimfulError
from brimful.hardware import catalog as devices
from brimful.planning.memory import SHARDED_SHARE, Footprint, Replayed, footprint, peaks_alone
from brimful.planning.target import target_of, with_communication
from brimful.rehearsal.store import StoredTraces
from left_out import LeftOut
from memory_parallel_rows import reasons, stack_of
from memory_stack import Stack, version_of
from memory_truth import Outcome, outcomes_of, spec_of, summary
from record import write_record

SEED = 0
WORST = 12
Row = Mapping[str, str]


class Traces:
    """Traces of different steps, each looked up once."""

    def __init__(self) -> None:
        self._made: dict[str, StoredTraces] = {}

    def of(self, stack: Stack) -> StoredTraces:
        key = repr(spec_of(stack))
        if key not in self._made:
            self._made[key] = StoredTraces(spec_of(stack), cache_folder() / "traces")
        return self._made[key]


def predict(stack: Stack, traces: Traces) -> Footprint:
    """The footprint of one rank of a declared stack, as a plan for several devices makes it."""
    version = None if stack.torch_version is None else version_of(stack.torch_version)
    target = with_communication(target_of(devices.get(stack.device)), version)
    rows = 1 if stack.lengths == "padding_free" else stack.micro_batch
    trace = traces.of(stack).at(rows)
    replayed = Replayed(lambda: trace, target.workspace_bytes)
    return footprint(replayed, target, rows, peaks_alone(replayed, SHARDED_SHARE))


def in_order(usable: Sequence[tuple[Row, Stack]]) -> list[tuple[Row, Stack]]:
    """Rows by their steps, which come in a random order: what time leaves out is no choice."""
    keys = sorted({repr(spec_of(stack)) for _, stack in usable})
    random.Random(SEED).shuffle(keys)
    return sorted(usable, key=lambda pair: keys.index(repr(spec_of(pair[1]))))


def predict_all(
    usable: Sequence[tuple[Row, Stack]], until_s: float
) -> tuple[list[Outcome], Counter[str], Counter[str]]:
    """Outcomes of rows that ran, verdicts on all by how they ended, reasons of the rest."""
    traces, failed = Traces(), dict[str, str]()
    outcomes: list[Outcome] = []
    verdicts: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for row, stack in in_order(usable):
        key = repr(spec_of(stack))
        if key not in failed and time.monotonic() > until_s and not traces.of(stack).is_kept():
            failed[key] = "not traced within the time given"
        if key not in failed:
            try:
                foot = predict(stack, traces)
            except BrimfulError as error:
                failed[key] = f"cannot be traced: {error}"[:120]
        if key in failed:
            left_out[f"{row['source_repo']}: {failed[key]}"] += 1
            continue
        verdicts[f"{'failed' if stack.status == 'oom' else 'ran'}: {foot.verdict}"] += 1
        if stack.status == "oom":
            continue
        for outcome in outcomes_of(row, stack, foot):
            outcomes.append(outcome)
            print(
                f"{outcome.error:+8.2%} {outcome.kind:9s} {outcome.predicted_gib:7.3f} /"
                f" {outcome.measured_gib:7.3f} GiB  {stack.gpus} x {outcome.setting}",
                flush=True,
            )
    return outcomes, verdicts, left_out


def tables(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Summaries by kind of memory, source and method, and the worst rows of each kind."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        source, _, method = outcome.group
        for group in ("all", source, f"{source} {method}"):
            groups[f"{outcome.kind} | {group}"].append(outcome)
    worst = {
        kind: [
            {"setting": each.setting, "error_percent": round(100 * each.error, 1)}
            for each in sorted(outcomes, key=lambda each: -abs(each.error))
            if each.kind == kind
        ][:WORST]
        for kind in ("allocated", "reserved", "driver")
    }
    return {
        "results": {name: summary(each) for name, each in sorted(groups.items())},
        "worst": worst,
    }


def main() -> None:
    """Predict every usable row, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv")
    parser.add_argument("--minutes", type=float, default=600, help="then no further step is traced")
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    with open(asked.csv, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["num_gpus"] not in {"", "1"}]
    declared = [(row, stack_of(row)) for row in rows]
    usable = [(row, stack) for row, stack in declared if not isinstance(stack, LeftOut)]
    until_s = time.monotonic() + 60 * asked.minutes
    outcomes, verdicts, late = predict_all(usable, until_s)
    made = tables(outcomes)
    for name, figures in made["results"].items():
        print(name, figures)
    left_out = dict((reasons(rows) + late).most_common())
    for reason, count in left_out.items():
        print(f"{count:5d} left out: {reason}")
    print(f"how rows ended, and the verdict on them: {dict(verdicts)}")
    if not asked.no_record:
        values = {
            "rows": len(rows),
            **made,
            "fitted_on_these_rows": [],
            "verdicts": dict(sorted(verdicts.items())),
            "left_out": left_out,
        }
        print(write_record("memory_parallel", values))


if __name__ == "__main__":
    main()
