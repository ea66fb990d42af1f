"""What was measured in each row of a table of published memory peaks: the software stack as options
a trace can be told, or why the row is left out.

    python benchmarks/memory_rows.py .../memory.csv

prints, per source and configuration, how many rows can be predicted and why the others cannot.
Nothing here is about one row: a stack follows from the source and from the columns, and a value
that was not seen before leaves its row out with a reason. The three families of sources are read in
`memory_fms`, `memory_peft` and `memory_others`.
"""

import csv
import sys
from collections import Counter
from collections.abc import Callable, Mapping

import memory_fms
import memory_others
import memory_peft
from left_out import LeftOut, declared
from memory_stack import Stack

READERS: Mapping[str, Callable[[Mapping[str, str]], Stack | LeftOut]] = {
    "foundation-model-stack/fms-acceleration": memory_fms.stack_of,
    "huggingface/peft": memory_peft.stack_of,
    **memory_others.READERS,
}


def stack_of(row: Mapping[str, str]) -> Stack | LeftOut:
    """The declared software stack of one row, or the reason why it is left out. Never raises on an
    unseen value.
    """
    reader = READERS.get(row.get("source_repo", ""))
    if reader is None:
        return LeftOut(f"no reader for the source {row.get('source_repo', '')!r}")
    if row.get("status") not in ("ok", "oom"):
        return LeftOut(
            "a capacity (the longest context that fits), not a peak"
            if row.get("status") == "capacity"
            else f"status {row.get('status')!r}"
        )
    if row.get("num_gpus") != "1":
        return LeftOut(
            "several GPUs: what stands on each depends on how model and optimizer are sharded"
        )
    return declared(lambda row: _sane(reader(row)), row)


def _sane(verdict: Stack | LeftOut) -> Stack | LeftOut:
    if isinstance(verdict, LeftOut):
        return verdict
    if min(verdict.micro_batch, verdict.sequence_length, verdict.accumulation) < 1:
        return LeftOut("micro-batch, length or accumulation below 1")
    return (
        LeftOut("no measurement in the row")
        if verdict.status == "ok" and not verdict.measured_gib
        else verdict
    )


def print_table(rows: list[Mapping[str, str]]) -> None:
    """One line per source, configuration and verdict with its number of rows."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        verdict = stack_of(row)
        if isinstance(verdict, Stack):
            counts[
                row["source_repo"],
                f"{verdict.configuration}: {verdict.status}{', in doubt' if verdict.doubt else ''}",
            ] += 1
        else:
            counts[row["source_repo"], f"left out: {verdict.reason}"] += 1
    for (source, words), count in sorted(counts.items()):
        print(f"{count:5d}  {source[:42]:42s}  {words}")
    usable = sum(count for (_, words), count in counts.items() if not words.startswith("left out"))
    print(f"{len(rows)} rows, {usable} usable, {len(rows) - usable} left out")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8", newline="") as file:
        print_table(list(csv.DictReader(file)))
