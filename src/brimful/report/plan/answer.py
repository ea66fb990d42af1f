"""The answer of a plan in one line: whether the recipe fits, how much memory that takes, how long
and at what cost; or the change that costs least and makes it fit.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from brimful.base.text import wrapped
from brimful.base.units import format_bytes, format_duration, format_money
from brimful.planning.job import ANSWERS, SAMPLING, TRAINING, WholeJob
from brimful.planning.memory import Footprint
from brimful.planning.surveyed import Surveyed
from brimful.report.plan.table import VERDICTS, Entries, amount_of
from brimful.report.quantities import capitalised, memory_of, time_and_cost

LEAST_HEADROOM = 0.01
"""Share of the usable memory; less is said to be none."""


def answer_lines(surveyed: Entries, width: int) -> list[str]:
    """Return the answer: one line, or two where a name is so long that it does not fit `width`."""
    if len(surveyed) == 1 and isinstance(surveyed[0], Surveyed):
        ways = list(_of_one(surveyed[0]))
    else:
        ways = list(_of_several(surveyed))
    return wrapped(next((way for way in ways if len(way) <= width), ways[-1]), width, 2)


def verdict_of(entry: Surveyed) -> str:
    """`Does not fit Tesla T4: 30.5 of 14.6 GiB`, of a job of several phases with the name of the
    worst one.
    """
    footprint, job = entry.derived.footprint, entry.chain
    verdict = f"{capitalised(VERDICTS[entry.verdict])} {entry.device.name}"
    phase = f" in {job.worst.title}" if job is not None else ""
    verdict += " tightly" * (footprint.is_tight and entry.verdict == "fits")
    return f"{verdict}: {memory_of(*entry.memory)}{phase}"


def headroom_of(footprint: Footprint) -> str:
    """Memory that is left, or `none`; negative where memory is missing."""
    least_bytes = LEAST_HEADROOM * footprint.usable_bytes
    if abs(footprint.headroom_bytes) < least_bytes:
        return "none"
    return format_bytes(footprint.headroom_bytes)


def _of_one(entry: Surveyed) -> Iterator[str]:
    """The answer for one device, the longest first."""
    start, predicted = verdict_of(entry), entry.predicted
    if entry.verdict == "fits":
        yield start + time_and_cost(predicted, intervals=True)
        yield start + time_and_cost(predicted, intervals=False)
        return
    yield f"{start}; {_way_out(entry)}"


def _way_out(entry: Surveyed) -> str:
    """`quantize=nf4 would make it fit`: the change that costs the result least, or a device."""
    if entry.chain is not None and (way := _way_out_of_job(entry.chain)):
        return way
    fitting = [remedy for remedy in entry.remedies if remedy.largest]
    if fitting:
        least = min(fitting, key=lambda remedy: remedy.price)
        surely = "surely " * (entry.verdict == "uncertain")
        return f"{least.set or least.name} {surely}makes it fit"
    if entry.derived.plan.devices > 1:
        enough = entry.smallest_device or "no number of them that divides the batch"
        return f"{enough} holds it"
    if entry.smallest_device:
        return f"no single change helps, {entry.smallest_device} holds it"
    return "no single change and no device of the catalog helps"


def _way_out_of_job(job: WholeJob) -> str:
    """Return what helps where a phase beside the one training stands in the way."""
    worst = job.worst
    if worst.name in {SAMPLING, ANSWERS}:
        return (
            "a smaller model would write"
            if worst.name == ANSWERS
            else "a smaller rft.teacher would fit"
        )
    trainings = [phase for phase in job.phases if phase.name == TRAINING]
    fitting = sum(phase.verdict == "fits" for phase in trainings)
    return f"the run leaves it out, {fitting} of {len(trainings)} fit" if worst.variant else ""


def _of_several(surveyed: Entries) -> Iterator[str]:
    """The answer for several devices, the longest first."""
    planned = [entry for entry in surveyed if isinstance(entry, Surveyed)]
    fitting = [entry for entry in planned if entry.verdict == "fits"]
    perhaps = sum(entry.verdict == "uncertain" for entry in planned)
    start = f"{len(fitting)} of {len(surveyed)} devices fit"
    start += f", {perhaps} may" * bool(perhaps)
    cheapest = _best(fitting, "cost", format_money)
    fastest = _best(fitting, "time", format_duration)
    for amounts in (True, False):
        told = [
            f"{' and '.join(names)} {device}" + f" ({', '.join(numbers)})" * amounts
            for device, names, numbers in _merged({"cheapest": cheapest, "fastest": fastest})
        ]
        yield "; ".join(filter(None, (start, ", ".join(told))))


def _best(
    fitting: Sequence[Surveyed], by: str, form: Callable[[float], str]
) -> tuple[str, str] | None:
    """The device with the least amount, and that; None where no amount is known."""
    known = [entry for entry in fitting if math.isfinite(amount_of(entry, by))]
    if not known:
        return None
    winner = min(known, key=lambda entry: amount_of(entry, by))
    return winner.device.name, form(amount_of(winner, by))


def _merged(
    best: Mapping[str, tuple[str, str] | None],
) -> list[tuple[str, list[str], list[str]]]:
    """Devices with all that they are best by, and the amounts."""
    by_device: dict[str, tuple[list[str], list[str]]] = {}
    for name, winner in best.items():
        if winner is not None:
            names, numbers = by_device.setdefault(winner[0], ([], []))
            names.append(name)
            numbers.append(winner[1])
    return [(device, *lists) for device, lists in by_device.items()]
