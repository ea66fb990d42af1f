"""What was timed in each row of a table of published speeds: the software stack as declared
options, or why the row is left out.

    python benchmarks/time_rows.py .../speed.csv

prints, per source and configuration, how many rows can be predicted and why the others cannot.
Nothing here is about one row: a stack follows from the source and from the columns, and a value
that was not seen before leaves its row out with a reason.
"""

import csv
import sys
from collections import Counter
from collections.abc import Callable, Mapping

import time_fine_tuning
import time_parallel
import time_single
from left_out import LeftOut, declared
from time_stack import TimedStack

READERS: Mapping[str, Callable[[Mapping[str, str]], TimedStack | LeftOut]] = {
    **time_fine_tuning.READERS,
    **time_parallel.READERS,
    **time_single.READERS,
}


def stack_of(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """The declared software stack of one row, or the reason why it is left out. Never raises on an
    unseen value.
    """
    reader = READERS.get(row.get("source_repo", ""))
    if reader is None:
        return LeftOut(f"no reader for the source {row.get('source_repo', '')!r}")
    if row.get("status") not in ("ok", "approx"):
        return LeftOut(f"status {row.get('status')!r}: nothing was timed")
    return declared(lambda row: _sane(reader(row)), row)


def _sane(verdict: TimedStack | LeftOut) -> TimedStack | LeftOut:
    if isinstance(verdict, LeftOut):
        return verdict
    if min(
        verdict.micro_batch, verdict.positions, verdict.accumulation
    ) <= 0 or not 0 < verdict.measured_s < float("inf"):
        return LeftOut("no time in the row, or a batch of nothing")
    return verdict


def print_table(rows: list[Mapping[str, str]]) -> None:
    """One line per source, configuration and verdict with its number of rows."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        verdict = stack_of(row)
        words = (
            verdict.configuration
            if isinstance(verdict, TimedStack)
            else f"left out: {verdict.reason}"
        )
        counts[row.get("source_repo", ""), words] += 1
    for (source, words), count in sorted(counts.items()):
        print(f"{count:5d}  {source[:42]:42s}  {words}")
    usable = sum(count for (_, words), count in counts.items() if not words.startswith("left out"))
    print(f"{len(rows)} rows, {usable} usable, {len(rows) - usable} left out")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8", newline="") as file:
        print_table(list(csv.DictReader(file)))
