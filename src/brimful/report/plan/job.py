"""What the phases of a job are expected to take."""

from brimful.base.units import format_bytes, format_duration, format_named
from brimful.planning.job import OF_JOB, JobPhase, WholeJob
from brimful.planning.plan import Prediction
from brimful.report.plan.table import INTERVAL, SHORT, between
from brimful.report.table import Row, Table

LABELS = dict(zip(OF_JOB, ("in all", "energy", "cost"), strict=True))


def job_table(job: WholeJob) -> Table:
    """Return a row for each phase: share of all, time with its interval, memory, whether it fits,
    and how often it happens and of what; and a row for all of them.
    """
    predicted = job.predicted
    rows = [_row(phase, predicted.get("total_time_s")) for phase in job.phases]
    rows += [
        (LABELS[name], "", format_named(name, each.value), between(name, each), "", "", "")
        for name, each in predicted.items()
    ]
    if not predicted:
        rows.append(("in all", "", "not known", "", "", "", "as one of the phases is not"))
    columns = ("The whole job", "Share", "Time", INTERVAL, "Memory", "Fits", "What")
    return Table(columns, tuple(rows))


def _row(phase: JobPhase, total: Prediction | None) -> Row:
    time, spread, share = "not known", "", ""
    if phase.time_s is not None:
        time = format_duration(phase.time_s.value)
        spread = between("time_s", phase.time_s)
        if total is not None and phase.verdict != "does not fit":
            share = f"{phase.time_s.value / total.value:.0%}"
    memory = "" if phase.memory is None else format_bytes(phase.memory.value)
    fits = "" if phase.memory is None and phase.verdict == "fits" else SHORT[phase.verdict]
    return phase.title, share, time, spread, memory, fits, phase.about
