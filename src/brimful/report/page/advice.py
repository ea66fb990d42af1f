"""What would make the next run faster or safer: only where this one measured both that something
cost time or room, and how much.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from brimful.base.units import format_bytes, format_duration
from brimful.report.quantities import format_step_time
from brimful.report.time_spent import TimeSpent, time_spent
from brimful.runs.runfiles import Json, RunFiles, items, measured, number, pair, section, series

WORTH_S = 5.0
"""What took less time in the whole run is left alone, whatever its share."""
WAITED_SHARE = 0.05
FASTER = 1.1
"""A number of loader threads is recommended that makes batches at least so many times as fast, and
no more of them than come close to the best.
"""
EVALUATION_SHARE, EVALUATION_GOAL = 0.20, 0.10
CHECKPOINT_SHARE, CHECKPOINT_GOAL = 0.05, 0.02
THROTTLED_SHARE = 0.05
SWAPPED_BYTES = 64 * 2**20
"""Less is what systems move out of any idle program."""
CHECKPOINTS_LEFT = 3
"""Room on the disk below that of so many further checkpoints is told: one is written while the old
ones are still there.
"""
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


def advice(run: RunFiles) -> list[Advice]:
    """What costs most first. Empty where nothing stands out, and where nothing was measured."""
    spent = time_spent(run)
    timed: list[tuple[float, Advice]] = []
    if spent is not None:
        looks = (
            (spent.loader_s or 0.0, _loader),
            (spent.evaluation_s, _evaluation),
            (spent.checkpoint_s, _checkpoints),
            (spent.compile_s, _compiling),
        )
        timed = [
            (seconds, found)
            for seconds, look in looks
            if seconds >= WORTH_S and (found := look(run, spent)) is not None
        ]
    furthest = max((_interval(found) for _, found in timed), default=0)
    change = f"evaluation.every={furthest}"  # two values of one key would contradict each other
    timed = [
        (seconds, replace(found, change=change) if _interval(found) else found)
        for seconds, found in timed
    ]
    others: tuple[Callable[[RunFiles], Advice | None], ...] = (_throttling, _swap, _memory, _disk)
    told = [found for _, found in sorted(timed, key=lambda entry: -entry[0])]
    return told + [found for look in others if (found := look(run)) is not None]


def _interval(found: Advice) -> int:
    """Steps between evaluations that it advises; 0 where it advises something else."""
    key, _, value = found.change.partition("=")
    return int(value) if key == "evaluation.every" else 0


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _loader(run: RunFiles, spent: TimeSpent) -> Advice | None:
    """Only with a measurement of other numbers of threads."""
    share, records = spent.waiting_share, run.of_kind("loader")
    if share is None or share <= WAITED_SHARE or not records:
        return None
    rates = {
        int(workers): seconds
        for workers, value in section(records[-1], "seconds_per_batch").items()
        if (seconds := number(value) or 0.0) > 0 and workers.isdigit()
    }
    now = int(number(records[-1].get("loader_workers")) or 0)
    before_s = rates.get(max(now, 1))
    if before_s is None:
        return None
    told = (
        f"steps waited {_percent(share)} of their time for data: {_batch_times(rates, records[-1])}"
    )
    best_s = min(rates.values())
    enough = min(workers for workers, seconds in rates.items() if seconds <= FASTER * best_s)
    if now == 0 or (enough > now and before_s / rates[enough] >= FASTER):
        return Advice("loader", told, f"plan.loader_workers={enough}")
    return Advice(
        "loader", f"{told}; more threads do not help, and shorter or simpler examples would"
    )


def _batch_times(rates: dict[int, float], record: Json) -> str:
    """`making a batch took 40 ms with 1 worker, 22 ms with 2 (measured at the end, n = 20 and
    38)`.
    """
    counts = [number(section(record, "batches").get(str(workers))) for workers in rates]
    sizes = [f"{count:.0f}" for count in counts if count is not None]
    first, *others = (
        f"{format_step_time(seconds)} with {workers}" for workers, seconds in rates.items()
    )
    number_of = f", n = {_listed(sizes)}" if sizes else ""
    return (
        f"making a batch took {', '.join([f'{first} worker', *others])} (measured at the end,"
        f" nothing beside it{number_of})"
    )


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _evaluation(run: RunFiles, spent: TimeSpent) -> Advice | None:
    share, count = spent.share(spent.evaluation_s), len(run.of_kind("evaluation"))
    every = _steps_between(run, count, spent.evaluation_s, spent.total_s, EVALUATION_GOAL)
    if share <= EVALUATION_SHARE or count < 2 or every is None:
        return None
    took = (
        f"{_percent(share)} of the time went into {count} evaluations of"
        f" {format_duration(spent.evaluation_s / count)} each"
    )
    return Advice(
        "evaluation",
        f"{took}; with fewer, at most {_percent(EVALUATION_GOAL)}",
        f"evaluation.every={every}",
    )


def _checkpoints(run: RunFiles, spent: TimeSpent) -> Advice | None:
    """Every evaluation is followed by a checkpoint, so where there are about as many of both,
    evaluations have to become fewer.
    """
    share, records = spent.share(spent.checkpoint_s), run.of_kind("checkpoint")
    if share <= CHECKPOINT_SHARE or len(records) < 2:
        return None
    took = (
        f"{_percent(share)} of the time went into {len(records)} checkpoints of"
        f" {format_duration(spent.checkpoint_s / len(records))}"
    )
    size = max(series(records, "bytes")[1], default=None)
    told = f"{took}{f' and {format_bytes(size)}' if size else ''} each"
    if len(records) > 1.5 * len(run.of_kind("evaluation")):
        if section(run.recipe, "checkpoint").get("every", "auto") == "auto":
            return Advice("checkpoint", f"{told}; a faster disk takes less", "run.folder=FOLDER")
        return Advice(
            "checkpoint",
            f"{told}; with about one a minute, a twentieth at most",
            "checkpoint.every=auto",
        )
    every = _steps_between(run, len(records), spent.checkpoint_s, spent.total_s, CHECKPOINT_GOAL)
    return (
        None
        if every is None
        else Advice(
            "checkpoint",
            f"{told}, one after every evaluation; with fewer, at most {_percent(CHECKPOINT_GOAL)}",
            f"evaluation.every={every}",
        )
    )


def _steps_between(
    run: RunFiles, count: int, seconds: float, total_s: float, goal: float
) -> int | None:
    """How far apart something that happened `count` times must be to take a share of `goal`, all
    else as it was; None where no float holds it.
    """
    if not count or not seconds or not run.last_step:
        return None
    fewer = goal / (1 - goal) * (total_s - seconds) / (seconds / count)
    return math.ceil(run.last_step / max(1, math.floor(fewer))) if math.isfinite(fewer) else None


def _compiling(run: RunFiles, spent: TimeSpent) -> Advice | None:
    stepping_s = spent.compute_s + (spent.loader_s or 0.0)
    if run.plan.get("compile") is not True or spent.compile_s <= stepping_s:
        return None
    took = (
        f"compiling and warming up took {format_duration(spent.compile_s)}, all {run.last_step:,}"
        f" steps {format_duration(stepping_s)}"
    )
    return Advice(
        "compile", f"{took}; without, a run of this length is over sooner", "plan.compile=false"
    )


def _throttling(run: RunFiles) -> Advice | None:
    shares = {
        reason: share
        for reason, share in (run.monitored.throttled() or {}).items()
        if share > THROTTLED_SHARE
    }
    if not shares:
        return None
    told = ", ".join(f"{reason} {_percent(share)}" for reason, share in shares.items())
    count = sum(sample.throttled_s is not None for sample in run.monitored.samples)
    text = f"clocks were held down in part of the watched time ({told}; {count:,} samples)"
    power_w, limit_w, degrees = (
        run.monitored.mean("power_w"),
        run.monitored.limits.get("power_limit_w"),
        run.monitored.peak("temperature_c"),
    )
    if POWER_REASONS & shares.keys():
        drawn = f", at {power_w:.0f} W of {limit_w:.0f} W on average" if power_w and limit_w else ""
        return Advice(
            "throttling",
            f"{text}{drawn}; where the board allows more, nvidia-smi --power-limit raises it",
        )
    hot = f", at up to {degrees:.0f} °C" if degrees else ""
    return Advice(
        "throttling",
        f"{text}{hot}; better cooling, or fewer programs on the device, would give them back",
    )


def _swap(run: RunFiles) -> Advice | None:
    """Of this process; of the machine only where it grew while the run was watched and the
    process's is not known.
    """
    own = run.monitored.peak("process_swap_bytes")
    known, whose = own, "of this process"
    if own is None:
        sizes = run.monitored.series("swap_used_bytes")[1]
        known, whose = (
            (max(sizes) - sizes[0] if sizes else None),
            "more than at the start, by all programs,",
        )
    if known is None or known <= SWAPPED_BYTES:
        return None
    text = f"up to {format_bytes(known)} {whose} lay in swap, which is slow; close other programs"
    if section(run.plan, "device").get("kind") != "cpu":
        return Advice("swap", text)
    micro_batch = number(run.plan.get("micro_batch"))
    smaller = (
        f"plan.micro_batch={micro_batch // 2:.0f}"
        if micro_batch and micro_batch > 1
        else "plan.recompute=true"
    )
    return Advice("swap", f"{text}, or hold less", smaller)


def _memory(run: RunFiles) -> Advice | None:
    """Where memory bounded the micro-batch by the plan's own words, and less was needed than the
    least that it expected.
    """
    choice = next(
        (
            each
            for each in items(run.plan.get("choices"))
            if isinstance(each, dict) and each.get("name") == "micro_batch"
        ),
        {},
    )
    bound = re.search(
        r"\b(\d+) sequences? fits? (\S+ \S+?)(?:[,;]|$)", str(choice.get("reason", ""))
    )
    size, peak = number(run.plan.get("micro_batch")), measured(run).get("peak_memory_bytes")
    expected = pair(section(run.plan, "predicted_interval").get("peak_memory_bytes"))
    if (
        not bound
        or size is None
        or int(bound[1]) != size
        or peak is None
        or expected is None
        or peak >= expected[0]
    ):
        return None
    if section(run.recipe, "plan").get("margin", "balanced") == "tight":
        return None
    told = (
        f"the plan held micro-batches to {size:.0f} because no more were sure to fit {bound[2]};"
        f" the peak was {format_bytes(peak)}"
    )
    return Advice(
        "memory",
        f"{told}, below the {format_bytes(expected[0])} that it expected at least",
        "plan.margin=tight",
    )


def _disk(run: RunFiles) -> Advice | None:
    free, size = (
        run.monitored.series("disk_free_bytes")[1],
        max(series(run.of_kind("checkpoint"), "bytes")[1], default=None),
    )
    if not free or not size or free[-1] >= CHECKPOINTS_LEFT * size:
        return None
    left = (
        f"the disk of the run folder had {format_bytes(free[-1])} left at the end, and a checkpoint"
        f" takes {format_bytes(size)}"
    )
    return Advice("disk", f"{left}; free some, or write elsewhere", "run.folder=FOLDER")
