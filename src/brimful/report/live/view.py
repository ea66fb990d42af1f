"""The view of a watched run for a terminal or a pipe: progress, the loss curve, device and host,
recovery points, and the age of the newest record.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from brimful.base.units import format_bytes
from brimful.hardware.monitored import Sample
from brimful.mirror.status import MirrorStatus
from brimful.report.commands import is_several
from brimful.report.live.panel import flow, header, printable, sparkline
from brimful.report.live.run_state import Field, age, coarse_duration
from brimful.report.live.status import RunStatus
from brimful.report.live.watched import Watched
from brimful.report.quantities import REWARD, format_step_time
from brimful.report.table import table_of
from brimful.report.views import Block, Paragraph

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
        of_several: A line about the study or chain it belongs to; "" for a run by itself.
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
            printable(state_line(watched), console),
            style=STATE_STYLES.get(watched.status().status, "yellow"),
            overflow="fold",
        )

    def lines(self, console: Console) -> list[str]:
        """Return the same for a pipe or a file, a line for each group."""
        if is_several(self.watched.folder):
            return [self.of_several, UNBEGUN]
        state = self.watched.state
        first = f"{state.run}: {state.position}"
        is_live = self.watched.writer is not None and not self.watched.is_stale
        if is_live and state.remaining_s:
            first += f"  {coarse_duration(state.remaining_s)} left"
        rows = [
            "  ".join(f"{label} {value}".strip() for label, value, _ in group)
            for group in groups(self.watched, console, CURVE_WIDTH)
        ]
        lines = [self.of_several, first, *rows, state_line(self.watched)]
        return [line for line in lines if line]


def groups(watched: Watched, console: Console, width: int) -> Iterator[list[Field]]:
    """Return the fields in groups: training, the loss over all steps, the device, the machine,
    recovery points.
    """
    training, *others = field_groups(watched)
    yield training
    if len(watched.losses) > 1 and (curve := sparkline(watched.losses, width, console)):
        name = REWARD if REWARD in watched.state.named else "loss"
        yield [(f"{name} so far", f"{watched.losses[0]:.3f} {curve} {watched.losses[-1]:.3f}", "")]
    yield from others


def field_groups(watched: Watched) -> Iterator[list[Field]]:
    """Return the fields in groups, without the loss over all steps."""
    yield [field for field in watched.state.fields() if field[0] != "checkpoint"]
    is_running = watched.writer is not None or watched.status().status == "running"
    if watched.sample is not None and is_running:
        device, host = device_fields(watched.sample, watched), host_fields(watched.sample, watched)
        if any(label == "device" for label, _, _ in device):
            yield device
            yield host
        else:
            yield [*host, *device]
    yield point_fields(watched)


def live_blocks(watched: Watched) -> tuple[Block, ...]:
    """Return the same as blocks of a view; the loss over all steps is a chart of the report."""
    rows = [(label, value) for group in field_groups(watched) for label, value, _ in group]
    position = f"{watched.state.position}; {state_line(watched)}"
    table = table_of(("", ""), rows)
    return (Paragraph(position), *([table] if table else []))


def _count(value: float) -> str:
    return f"{value:,.0f}"


DEVICE: tuple[tuple[str, str, Callable[[float], str], str, str], ...] = (
    ("device", "device_utilization", lambda share: f"{share * 100:.0f} %", "", ""),
    ("device memory", "device_memory_bytes", format_bytes, "device_memory_bytes", ""),
    ("power", "power_w", _count, "power_limit_w", " W"),
    ("temperature", "temperature_c", _count, "", " \N{DEGREE SIGN}C"),
    ("clock", "sm_clock_mhz", _count, "", " MHz"),
)
HOST: tuple[tuple[str, str, Callable[[float], str], str, str], ...] = (
    ("CPU", "process_cpu_cores", "{:.1f}".format, "cores", " cores"),
    ("process", "rss_bytes", format_bytes, "", ""),
    ("memory free", "memory_available_bytes", format_bytes, "", ""),
)
"""Labels, readings (docs/monitor.md has their names), how they print, their limits, and the unit
behind both.
"""


def _read(watched: Watched, sample: Sample, rows: Iterable[Any]) -> Iterator[Field]:
    """Readings of the last sample; those that are missing are left out."""
    for label, name, form, limit, unit in rows:
        value, most = sample.readings.get(name), watched.limits.get(limit)
        if value is not None:
            told = form if form is format_bytes else _count
            of_all = "" if most is None else f" of {told(most)}"
            yield (label, f"{form(value)}{of_all}{unit}", "cyan")


def device_fields(sample: Sample, watched: Watched) -> list[Field]:
    """Return what the device did in the last sample."""
    fields = [*_read(watched, sample, DEVICE)]
    if "clock" not in [label for label, *_ in fields]:
        fields += _read(watched, sample, [("clock", "cpu_clock_mhz", _count, "", " MHz")])
    for reason, seconds in (sample.throttled_s or {}).items():
        if seconds > 0 and sample.covers_s > 0:
            share = min(1.0, seconds / sample.covers_s)
            fields.append(("throttled", f"{reason} {share * 100:.0f} %", "bold yellow"))
    return fields


def host_fields(sample: Sample, watched: Watched) -> list[Field]:
    """Return what the machine did in the last sample, and how old that is where it is old."""
    fields = [*_read(watched, sample, HOST)]
    if swap := sample.readings.get("process_swap_bytes"):
        fields.append(("in swap", format_bytes(swap), "bold yellow"))
    if (disk := sample.readings.get("disk_free_bytes")) is not None:
        style = "bold yellow" if disk < NEARLY_FULL_BYTES else "cyan"
        fields.append(("disk free", format_bytes(disk), style))
    since_s = watched.wall() - sample.time
    if since_s > 3 * max(10.0, sample.covers_s):
        fields.append(("sampled", f"{age(since_s)} ago", "dim"))
    return fields


def point_fields(watched: Watched) -> list[Field]:
    """Return recovery points here and in the mirror, and the end of the session."""
    points, now = watched.points, watched.wall()
    mirror = points.mirror
    fields: list[Field] = []
    if points.shows_checkpoint:
        label = "recovery point" if mirror is None else "recovery point here"
        fields.append((label, points.local(now), ""))
    if mirror is not None:
        fields += _mirror_fields(mirror, points.is_copy, now)
    if (left_s := watched.session_left_s) is not None:
        fields.append(
            ("session ends", f"in {coarse_duration(left_s)}" if left_s > 0 else "now", "")
        )
    return fields


def _mirror_fields(mirror: MirrorStatus, is_copy: bool, now: float) -> Iterator[Field]:
    step = "none yet"
    if mirror.durable_step is not None:
        since = "" if mirror.durable_time is None else f", {age(now - mirror.durable_time)} ago"
        step = f"step {mirror.durable_step}{since}"
    if mirror.state == "ok":
        yield ("in the mirror", step, "")
    else:
        yield ("in the mirror", f"{step} ({mirror.state})", "bold yellow")
    if is_copy and mirror.local_step is not None:
        yield ("on its own machine", f"step {mirror.local_step}", "")
    if mirror.error is not None:
        failing = f"failing for {age(now - mirror.since)}: {mirror.error}"
        yield ("mirror", failing, "bold yellow")


def state_line(watched: Watched) -> str:
    """Return whether the run is being written, by whom, and how old the newest record is; where
    that is old, also what the process does.
    """
    if is_several(watched.folder):
        return UNBEGUN
    status, newest_s = watched.status(), watched.newest_s
    if status.status != "running":
        return with_problems(status)
    running = status.description
    if watched.writer is None:  # what is known is in its mirror, which may be damaged
        running = with_problems(replace(status, description="running, as its mirror tells"))
    if newest_s is None:
        preparing = "no record yet: it reads data, plans and loads the model"
        return f"{running}; {preparing}{_process(watched)}"
    if not watched.is_stale:
        return f"{running}; newest record {age(newest_s)} ago"
    step_time_s = watched.state.step_time_s
    step = f"; a step takes {format_step_time(step_time_s)}" if step_time_s else ""
    return f"{running}; no record for {age(newest_s)}{step}{_process(watched)}"


def _process(watched: Watched) -> str:
    """Return what the process does that has not written a record for long."""
    if watched.points.is_copy and watched.writer is None:
        return ": that machine may be gone, or the mirror is not reached"
    if watched.is_halted:
        return ": its process is halted (a signal stopped it; `kill -CONT` lets it go on)"
    if watched.cores is None:
        return ""
    if watched.cores >= BUSY_CORES:
        return f": its process computes ({watched.cores:.1f} cores)"
    return ": its process waits; if that lasts it hangs"


def with_problems(status: RunStatus) -> str:
    """Return the status of a run that no process writes, with what is wrong with it."""
    problems = (problem.rstrip(".") for problem in status.problems)
    return "; ".join([status.description, *problems])
