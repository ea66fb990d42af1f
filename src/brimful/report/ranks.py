"""The ranks of a run on several devices: a line, and a table with one row for each."""

from brimful.base.units import format_bytes
from brimful.report.quantities import format_step_time
from brimful.report.table import Table, table_of
from brimful.runs import RunFolder
from brimful.runs.records import RanksRecord


def ranks_text(record: RanksRecord) -> str:
    """Return `slowest 2 (1.2 s a step), communication 12 %, memory up to 3.1 GiB (rank 0)`."""
    slowest = record.slowest
    parts = [
        f"slowest {slowest.rank} ({format_step_time(slowest.computing_s)} a step)",
        f"communication {record.communication_share:.0%}",
    ]
    known = [each for each in record.ranks if each.memory_bytes is not None]
    if known:
        fullest = max(known, key=lambda each: each.memory_bytes or 0)
        memory = format_bytes(fullest.memory_bytes or 0)
        parts.append(f"memory up to {memory} (rank {fullest.rank})")
    return ", ".join(parts)


def ranks_table(run: RunFolder) -> Table | None:
    """A row for each rank, by the last checkpoint; None for a run on one device."""
    record = run.ranks
    if record is None:
        return None
    rows = [
        (
            f"{each.rank}{' (slowest)' * (each == record.slowest)}",
            each.machine,
            format_step_time(each.computing_s),
            format_step_time(each.communication_s),
            "" if each.memory_bytes is None else format_bytes(each.memory_bytes),
        )
        for each in record.ranks
    ]
    return table_of(
        ("Rank", "Machine", "Computing, a step", "Communication, a step", "Peak memory"), rows
    )
