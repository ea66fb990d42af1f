"""What a watched run shows: progress, a curve, device and host, recovery points, and how old all
that is. Groups of fields, for a terminal or a pipe.
"""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from brimful.base.units import format_bytes
from brimful.hardware.monitored import Sample
from brimful.report.commands import is_several
from brimful.report.live.life import Life
from brimful.report.live.panel import Field, flow, header, printable, sparkline
from brimful.report.live.run_state import age, coarse_duration
from brimful.report.live.watched import Watched
from brimful.report.quantities import format_step_time

BUSY_CORES = 0.2
"""A process that uses more than this computes."""
NEARLY_FULL_BYTES = 2 * 1024**3
CURVE_WIDTH = 60
UNBEGUN = "none of its runs has begun yet"
STATE_STYLES = {"running": "green", "finished": "bold green", "damaged": "bold red"}


class WatchView:
    """A watched run as rich shows it: on a terminal a bar and flowing lines, elsewhere a line for
    each group.

    Args:
        watched: Polled by the caller.
        of_several: What is told of the study or chain it belongs to; "" for a run by itself.
    """

    def __init__(self, watched: Watched, of_several: str = "") -> None:
        self.watched, self.of_several = watched, of_several

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        watched, width = self.watched, options.max_width
        is_live = watched.writer is not None and not watched.is_stale
        if self.of_several:
            yield Text(printable(self.of_several, console), no_wrap=True, overflow="crop")
        if is_several(watched.folder):
            yield Text(UNBEGUN, style="yellow")
            return
        yield header(watched.state, console, width, remaining=is_live)
        for group in groups(watched, console, min(CURVE_WIDTH, width - 24)):
            yield from flow(group, console, width)
        yield Text(
            printable(standing(watched), console),
            style=STATE_STYLES.get(watched.life().word, "yellow"),
            overflow="fold",
        )

    def lines(self, console: Console) -> list[str]:
        """The same for a pipe or a file, a line for each group."""
        if is_several(self.watched.folder):
            return [self.of_several, UNBEGUN]
        state = self.watched.state
        steps = (
            f"step {state.step}/{state.total_steps}" if state.total_steps else f"step {state.step}"
        )
        left = (
            state.remaining_s
            if self.watched.writer is not None and not self.watched.is_stale
            else None
        )
        first = "  ".join(
            [f"{state.run}: {steps}", *([f"{coarse_duration(left)} left"] if left else [])]
        )
        told = [
            "  ".join(f"{label} {value}".strip() for label, value, _ in group)
            for group in groups(self.watched, console, CURVE_WIDTH)
        ]
        return [
            *([self.of_several] if self.of_several else []),
            first,
            *filter(None, told),
            standing(self.watched),
        ]


def groups(watched: Watched, console: Console, width: int) -> Iterator[list[Field]]:
    """Fields by what they are about: training, the loss over all steps, the device, the machine,
    recovery points.
    """
    yield [field for field in watched.state.fields() if field[0] != "checkpoint"]
    if len(watched.losses) > 1 and (curve := sparkline(watched.losses, width, console)):
        yield [("loss so far", f"{watched.losses[0]:.3f} {curve} {watched.losses[-1]:.3f}", "")]
    if watched.sample is not None and (
        watched.writer is not None or watched.life().word == "running"
    ):
        device, host = device_fields(watched.sample, watched), host_fields(watched.sample, watched)
        yield from (
            (device, host)
            if any(label == "device" for label, _, _ in device)
            else [[*host, *device]]
        )
    yield point_fields(watched)


def device_fields(sample: Sample, watched: Watched) -> list[Field]:
    """What the device did in the last sample; nothing that was not read."""
    read, limits = sample.readings, watched.limits
    fields: list[Field] = []
    if (used := read.get("device_utilization")) is not None:
        fields.append(("device", f"{used * 100:.0f} %", "cyan"))
    if (memory := read.get("device_memory_bytes")) is not None:
        fields.append(("device memory", _of(memory, limits.get("device_memory_bytes")), "cyan"))
    if (power_w := read.get("power_w")) is not None:
        limit_w = limits.get("power_limit_w")
        fields.append(
            (
                "power",
                f"{power_w:.0f} W"
                + (f" of {limit_w:.0f}" if isinstance(limit_w, int | float) else ""),
                "cyan",
            )
        )
    if (temperature_c := read.get("temperature_c")) is not None:
        fields.append(("temperature", f"{temperature_c:.0f} \N{DEGREE SIGN}C", "cyan"))
    if (clock_mhz := read.get("sm_clock_mhz", read.get("cpu_clock_mhz"))) is not None:
        fields.append(("clock", f"{clock_mhz:,.0f} MHz", "cyan"))
    for reason, seconds in (sample.throttled_s or {}).items():
        if seconds > 0 and sample.covers_s > 0:
            fields.append(
                (
                    "throttled",
                    f"{reason} {min(1.0, seconds / sample.covers_s) * 100:.0f} %",
                    "bold yellow",
                )
            )
    return fields


def host_fields(sample: Sample, watched: Watched) -> list[Field]:
    """What the machine did in the last sample, and how old that is where it is old."""
    read, cores = sample.readings, watched.limits.get("cores")
    fields: list[Field] = []
    if (used := read.get("process_cpu_cores")) is not None:
        fields.append(
            (
                "CPU",
                f"{used:.1f}"
                + (f" of {cores:.0f}" if isinstance(cores, int | float) else "")
                + " cores",
                "cyan",
            )
        )
    if (rss := read.get("rss_bytes")) is not None:
        fields.append(("process", format_bytes(rss), "cyan"))
    if (free := read.get("memory_available_bytes")) is not None:
        fields.append(("memory free", format_bytes(free), "cyan"))
    if swap := read.get("process_swap_bytes"):
        fields.append(("in swap", format_bytes(swap), "bold yellow"))
    if (disk := read.get("disk_free_bytes")) is not None:
        fields.append(
            ("disk free", format_bytes(disk), "bold yellow" if disk < NEARLY_FULL_BYTES else "cyan")
        )
    since_s = watched.wall() - sample.time
    return (
        [*fields, ("sampled", f"{age(since_s)} ago", "dim")]
        if since_s > 3 * max(10.0, sample.covers_s)
        else fields
    )


def _of(size: float, limit: object) -> str:
    return (
        f"{format_bytes(size)} of {format_bytes(limit)}"
        if isinstance(limit, int | float)
        else format_bytes(size)
    )


def point_fields(watched: Watched) -> list[Field]:
    """Recovery points here and in the mirror, and the end of the session."""
    points, now, fields = watched.points, watched.wall(), list[Field]()
    mirror = points.mirror
    if points.local_step is not None and not (points.is_copy and mirror is not None):
        since = "" if points.local_time is None else f", {age(now - points.local_time)} ago"
        fields.append(
            (
                "recovery point" if mirror is None else "recovery point here",
                f"step {points.local_step}{since}",
                "",
            )
        )
    if mirror is not None:
        since = "" if mirror.durable_time is None else f", {age(now - mirror.durable_time)} ago"
        step = "none yet" if mirror.durable_step is None else f"step {mirror.durable_step}{since}"
        fields.append(
            (
                "in the mirror",
                step + f" ({mirror.state})" * (mirror.state != "ok"),
                "" if mirror.state == "ok" else "bold yellow",
            )
        )
        if points.is_copy and mirror.local_step is not None:
            fields.append(("on its own machine", f"step {mirror.local_step}", ""))
        if mirror.error is not None:
            fields.append(
                ("mirror", f"failing for {age(now - mirror.since)}: {mirror.error}", "bold yellow")
            )
    if (left_s := watched.session_left_s) is not None:
        fields.append(
            ("session ends", f"in {coarse_duration(left_s)}" if left_s > 0 else "now", "")
        )
    return fields


def standing(watched: Watched) -> str:
    """Whether the run is written, by whom, and how old the newest record is; where that is old,
    what its process does.
    """
    if is_several(watched.folder):
        return UNBEGUN
    life, newest_s = watched.life(), watched.newest_s
    if life.word != "running":
        return told_of(life)
    told = life.told if watched.writer is not None else "running, as its mirror tells"
    if newest_s is None:
        return f"{told}; no record yet: it reads data, plans and loads the model{_process(watched)}"
    if not watched.is_stale:
        return f"{told}; newest record {age(newest_s)} ago"
    step = (
        f"; a step takes {format_step_time(watched.state.step_time_s)}"
        if watched.state.step_time_s
        else ""
    )
    return f"{told}; no record for {age(newest_s)}{step}{_process(watched)}"


def _process(watched: Watched) -> str:
    """What the process does that has not told anything for long."""
    if watched.points.is_copy and watched.writer is None:
        return ": that machine may be gone, or the mirror is not reached"
    if watched.is_halted:
        return ": its process is halted (a signal stopped it; `kill -CONT` lets it go on)"
    if watched.cores is None:
        return ""
    if watched.cores >= BUSY_CORES:
        return f": its process computes ({watched.cores:.1f} cores)"
    return ": its process waits; if that lasts it hangs"


def told_of(life: Life) -> str:
    """A run that nobody writes, with what is wrong with it."""
    return "; ".join([life.told, *(problem.rstrip(".") for problem in life.problems)])
