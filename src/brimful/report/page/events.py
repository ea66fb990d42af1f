"""What happened in a run besides plain steps, and when memory ran out."""

from brimful.report.quantities import format_micro_batches
from brimful.report.table import Table, table_of
from brimful.runs.folder import RunFolder


def event_table(run: RunFolder) -> Table | None:
    """Events in words, with their steps."""
    return table_of(("Step", "Event"), [(each.step, each.message) for each in run.events])


def memory_event_table(run: RunFolder) -> Table | None:
    """When memory ran out, and which micro-batches followed which."""
    rows = [
        (
            each.step,
            each.phase,
            format_micro_batches(each.larger),
            format_micro_batches(each.smaller),
            each.where,
        )
        for each in run.out_of_memory
    ]
    return table_of(("Step", "While", "Micro-batches before", "After", "Where"), rows)
