"""What would make the next run faster or safer. Something is advised only where this run measured
how much time or memory it cost.
"""

import math
import re
from dataclasses import dataclass, replace

from brimful.base.text import plural
from brimful.base.units import format_bytes, format_duration
from brimful.report.quantities import format_step_time, listed
from brimful.report.time_spent import TimeSpent, time_spent
from brimful.runs.folder import RunFolder
from brimful.runs.measurements import measured
from brimful.runs.records import LoaderRecord

WORTH_S = 5.0
"""Nothing is advised on what took less time in the whole run."""
WAITED_SHARE = 0.05
FASTER = 1.1
"""Loader threads are advised that make batches at least so many times as fast: the fewest that come
within this factor of the fastest.
"""
EVALUATION_SHARE, EVALUATION_GOAL = 0.20, 0.10
CHECKPOINT_SHARE, CHECKPOINT_GOAL = 0.05, 0.02
THROTTLED_SHARE = 0.05
SWAPPED_BYTES = 64 * 2**20
"""Systems move less than that out of any idle program."""
CHECKPOINTS_LEFT = 3
"""The disk should have room for so many more: a checkpoint is written before old ones go."""
POWER_REASONS = frozenset({"power cap", "power brake"})


@dataclass(frozen=True)
class Advice:
    """One thing to change.

    Attributes:
        topic: `loader`, `evaluation`, `checkpoint`, `compile`, `throttling`, `swap`, `memory` or
            `disk`.
        text: What was measured, with its figures, and what follows.
        change: Recipe keys as they are typed, such as `plan.loader_workers=2`; "" where no key
            helps.
    """

    topic: str
    text: str
    change: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.change}" if self.change else f"{self.text}."


def advice(run: RunFolder) -> list[Advice]:
    """Return what costs most first. Empty where nothing stands out, and where nothing was
    measured.
    """
    others = (_throttling(run), _swap(run), _memory(run), _disk(run))
    return [*_on_time(run), *(each for each in others if each is not None)]


def _on_time(run: RunFolder) -> list[Advice]:
    spent = time_spent(run)
    if spent is None:
        return []
    checks = (
        (spent.loader_s or 0.0, _loader),
        (spent.evaluation_s, _evaluation),
        (spent.checkpoint_s, _checkpoints),
        (spent.compile_s, _compiling),
    )
    costly = sorted((check for check in checks if check[0] >= WORTH_S), key=lambda check: -check[0])
    results = [check(run, spent) for _, check in costly]
    found = [each for each in results if each is not None]
    # Two values of one key would contradict each other: the larger one serves both.
    every = f"evaluation.every={max(map(_interval, found), default=0)}"
    return [replace(each, change=every) if _interval(each) else each for each in found]


def _interval(each: Advice) -> int:
    """The steps between evaluations that are advised; 0 where something else is."""
    key, _, value = each.change.partition("=")
    return int(value) if key == "evaluation.every" else 0


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _loader(run: RunFolder, spent: TimeSpent) -> Advice | None:
    """Advise on loader threads, where other numbers of them were measured."""
    share = spent.waiting_share
    if share is None or share <= WAITED_SHARE or not run.loader_records:
        return None
    record = run.loader_records[-1]
    times_s = {count: time_s for count, time_s in record.seconds_per_batch.items() if time_s > 0}
    now = record.loader_workers
    before_s = times_s.get(max(now, 1))
    if before_s is None:
        return None
    text = f"steps waited {_percent(share)} of their time for data: {_batch_times(times_s, record)}"
    fastest_s = min(times_s.values())
    enough = min(count for count, time_s in times_s.items() if time_s <= FASTER * fastest_s)
    if now == 0 or (enough > now and before_s / times_s[enough] >= FASTER):
        return Advice("loader", text, f"plan.loader_workers={enough}")
    text += "; more threads do not help, and shorter or simpler examples would"
    return Advice("loader", text)


def _batch_times(times_s: dict[int, float], record: LoaderRecord) -> str:
    """`making a batch took 40 ms with 1 worker, 22 ms with 2 (measured at the end, n = 20 and
    38)`.
    """
    first, *others = (f"{format_step_time(each)} with {count}" for count, each in times_s.items())
    sizes = [f"{record.batches[count]:.0f}" for count in times_s if count in record.batches]
    batches = f", n = {listed(sizes)}" if sizes else ""
    return (
        f"making a batch took {', '.join([f'{first} worker', *others])} (measured at the end,"
        f" nothing beside it{batches})"
    )


def _evaluation(run: RunFolder, spent: TimeSpent) -> Advice | None:
    share, count = spent.share(spent.evaluation_s), len(run.evaluations)
    every = _steps_between(run, count, spent.evaluation_s, spent.total_s, EVALUATION_GOAL)
    if share <= EVALUATION_SHARE or count < 2 or every is None:
        return None
    text = (
        f"{_percent(share)} of the time went into {count} evaluations of"
        f" {format_duration(spent.evaluation_s / count)} each; with fewer, at most"
        f" {_percent(EVALUATION_GOAL)}"
    )
    return Advice("evaluation", text, f"evaluation.every={every}")


def _checkpoints(run: RunFolder, spent: TimeSpent) -> Advice | None:
    """Advise on checkpoints. One follows every evaluation, so where there are about as many of
    both, evaluations have to become fewer.
    """
    share, count = spent.share(spent.checkpoint_s), len(run.checkpoints)
    if share <= CHECKPOINT_SHARE or count < 2:
        return None
    text = (
        f"{_percent(share)} of the time went into {count} checkpoints of"
        f" {format_duration(spent.checkpoint_s / count)}"
    )
    if size := _largest_checkpoint(run):
        text += f" and {format_bytes(size)}"
    text += " each"
    if count > 1.5 * len(run.evaluations):
        if run.recipe.checkpoint.every in ("", "auto"):
            return Advice("checkpoint", f"{text}; a faster disk takes less", "run.folder=FOLDER")
        text += "; with about one a minute, a twentieth at most"
        return Advice("checkpoint", text, "checkpoint.every=auto")
    every = _steps_between(run, count, spent.checkpoint_s, spent.total_s, CHECKPOINT_GOAL)
    if every is None:
        return None
    text += f", one after every evaluation; with fewer, at most {_percent(CHECKPOINT_GOAL)}"
    return Advice("checkpoint", text, f"evaluation.every={every}")


def _largest_checkpoint(run: RunFolder) -> float | None:
    return max((each.bytes for each in run.checkpoints if each.bytes is not None), default=None)


def _steps_between(
    run: RunFolder, count: int, seconds: float, total_s: float, goal: float
) -> int | None:
    """Return how many steps apart something that happened `count` times must be to take a share of
    `goal`, all else as it was; None where no float holds it.
    """
    if not count or not seconds or not run.last_step:
        return None
    fewer = goal / (1 - goal) * (total_s - seconds) / (seconds / count)
    return math.ceil(run.last_step / max(1, math.floor(fewer))) if math.isfinite(fewer) else None


def _compiling(run: RunFolder, spent: TimeSpent) -> Advice | None:
    stepping_s = spent.compute_s + (spent.loader_s or 0.0)
    if run.plan is None or not run.plan.compile or spent.compile_s <= stepping_s:
        return None
    text = (
        f"compiling and warming up took {format_duration(spent.compile_s)}, all {run.last_step:,}"
        f" steps {format_duration(stepping_s)}; without, a run of this length is over sooner"
    )
    return Advice("compile", text, "plan.compile=false")


def _throttling(run: RunFolder) -> Advice | None:
    """Advise on clocks that were held down, by a limit of power or by heat."""
    monitored = run.monitored
    shares = monitored.throttled() or {}
    shares = {reason: share for reason, share in shares.items() if share > THROTTLED_SHARE}
    if not shares:
        return None
    reasons = ", ".join(f"{reason} {_percent(share)}" for reason, share in shares.items())
    count = sum(sample.throttled_s is not None for sample in monitored.samples)
    samples = plural(count, "sample")
    text = f"clocks were held down in part of the watched time ({reasons}; {samples})"
    if POWER_REASONS & shares.keys():
        power_w, limit_w = monitored.mean("power_w"), monitored.limits.get("power_limit_w")
        if power_w and limit_w:
            text += f", at {power_w:.0f} W of {limit_w:.0f} W on average"
        text += "; where the board allows more, nvidia-smi --power-limit raises it"
        return Advice("throttling", text)
    if degrees := monitored.peak("temperature_c"):
        text += f", at up to {degrees:.0f} °C"
    text += "; better cooling, or fewer programs on the device, would give them back"
    return Advice("throttling", text)


def _swap(run: RunFolder) -> Advice | None:
    """Advise on swapped memory: of this process, or of the whole machine where it grew during the
    run and the process's is not known.
    """
    swapped, whose = run.monitored.peak("process_swap_bytes"), "of this process"
    if swapped is None:
        sizes = run.monitored.series("swap_used_bytes")[1]
        swapped = max(sizes) - sizes[0] if sizes else 0.0
        whose = "more than at the start, by all programs,"
    if swapped <= SWAPPED_BYTES:
        return None
    text = f"up to {format_bytes(swapped)} {whose} lay in swap, which is slow; close other programs"
    if run.plan is None or run.device_kind != "cpu":
        return Advice("swap", text)
    micro_batch = max(run.plan.micro_batches, default=0)
    change = f"plan.micro_batch={micro_batch // 2}" if micro_batch > 1 else "plan.recompute=true"
    return Advice("swap", f"{text}, or hold less", change)


def _memory(run: RunFolder) -> Advice | None:
    """Advise a smaller margin, where the plan says that memory limited the micro-batch, and the
    peak was below its interval.
    """
    if run.plan is None or not run.plan.micro_batches or run.recipe.plan.margin == "tight":
        return None
    reasons = [each.reason for each in run.plan.choices if each.name == "micro_batch"]
    limit = re.search(r"\b(\d+) sequences? fits? (\S+ \S+?)(?:[,;]|$)", "".join(reasons[:1]))
    size, peak = run.plan.micro_batches[0], measured(run).get("peak_memory_bytes")
    expected = run.predicted_interval("peak_memory_bytes")
    if not limit or int(limit[1]) != size or peak is None or expected is None:
        return None
    if peak >= expected[0]:
        return None
    text = (
        f"the plan held micro-batches to {size} because no more were sure to fit {limit[2]};"
        f" the peak was {format_bytes(peak)}, below the {format_bytes(expected[0])} that it"
        " expected at least"
    )
    return Advice("memory", text, "plan.margin=tight")


def _disk(run: RunFolder) -> Advice | None:
    free, size = run.monitored.series("disk_free_bytes")[1], _largest_checkpoint(run)
    if not free or not size or free[-1] >= CHECKPOINTS_LEFT * size:
        return None
    text = (
        f"the disk of the run folder had {format_bytes(free[-1])} left at the end, and a checkpoint"
        f" takes {format_bytes(size)}; free some, or write elsewhere"
    )
    return Advice("disk", text, "run.folder=FOLDER")
