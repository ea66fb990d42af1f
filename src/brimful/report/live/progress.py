"""Live progress of a run and of data preparation: a panel that updates in place on a terminal,
plain lines elsewhere.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from brimful.base.types import JsonDict, Numbers
from brimful.base.units import format_duration
from brimful.report.live.panel import Panel, print_line, printable
from brimful.report.live.run_state import Clock, RunState, coarse_duration, describe, percent
from brimful.runs.records import ROUTINE, EventRecord, Record, StepRecord, read_record

Listener = Callable[[JsonDict], None]
"""Receives the records of metrics.jsonl as they are made."""
DataProgress = Callable[[str, int, int | None], None]
"""Receives (phase, how many are done, how many there are or None)."""

REFRESHES_PER_SECOND = 4
LINE_EVERY_S = 10.0
BRIEF_FROM_S = 3.0
"""Phases that take less are not worth a line before the first step."""
LINE_EVERY_SHARE = 0.05
LINE_AT_MOST_EVERY_S = 1.0
"""Runs whose twentieth part is shorter than this print fewer than twenty lines."""
SHOWN_ABOVE = frozenset({"base", "evaluation", "event", "out_of_memory", "end"})
"""Kinds of records that stay above the panel."""


@contextmanager
def progress_listener(
    console: Console,
    *,
    planned: Numbers | None = None,
    starting: str = "",
    clock: Clock = time.monotonic,
) -> Iterator[Listener]:
    """Show a run's records while they come.

    On a terminal: one panel updated in place, evaluations and events kept above it. Elsewhere: the
    first step, then a line about every 10 s or 5 % of the steps, and one for each evaluation, event
    and checkpoint.

    Args:
        console: Where to show; its width and encoding are respected.
        planned: What the plan predicts, by its names; step_time_s and peak_memory_bytes are shown
            beside what is measured.
        starting: What is done before the first step.
        clock: Seconds, rising; replaced in tests.
    """
    state = RunState(clock, planned or {}, starting)
    if not console.is_terminal or console.is_dumb_terminal:
        yield LineListener(console, state)
        return
    panel = Panel(state)
    with Live(panel, console=console, refresh_per_second=REFRESHES_PER_SECOND) as live:

        def listen(record: JsonDict) -> None:
            read = read_record(record)
            state.take(read)
            if read.kind in SHOWN_ABOVE and not _is_routine(read):
                print_line(live.console, describe(read, state))

        yield listen


def _is_routine(record: Record) -> bool:
    return isinstance(record, EventRecord) and record.message.startswith(ROUTINE)


@contextmanager
def data_progress(
    console: Console, *, brief: bool = False, clock: Clock = time.monotonic
) -> Iterator[DataProgress]:
    """Show the phases of data preparation: a bar each on a terminal, a line each elsewhere (and
    every 10 s in a long one).

    Args:
        console: Where to show.
        brief: Leave nothing of it on a terminal, and print elsewhere only phases that take long.
        clock: Seconds, rising; replaced in tests.
    """
    if not console.is_terminal or console.is_dumb_terminal:
        lines = _PhaseLines(console, clock, brief=brief)
        try:
            yield lines
        finally:
            lines.finish()
        return
    with Progress(
        *_data_columns(),
        console=console,
        refresh_per_second=REFRESHES_PER_SECOND,
        transient=brief,
    ) as bars:
        tasks: JsonDict = {}

        def progress(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(printable(what, console), total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield progress


class LineListener:
    """Plain lines for pipes, files and notebooks."""

    def __init__(self, console: Console, state: RunState) -> None:
        self._console, self.state = console, state
        self._line_at_s: float | None = None
        self._line_share = 0.0

    def __call__(self, record: JsonDict) -> None:
        read = read_record(record)
        self.state.take(read)
        self.show(read)

    def show(self, record: Record) -> None:
        """Print a record that the state has taken in already, unless it is one of many steps, or
        a check without a problem.
        """
        is_shown = self._is_due() if isinstance(record, StepRecord) else not _is_routine(record)
        if is_shown:
            print_line(self._console, describe(record, self.state))

    def _is_due(self) -> bool:
        now_s, share = self.state.clock(), self.state.share
        if self._line_at_s is not None and share != 1.0:
            age_s = now_s - self._line_at_s
            is_next_part = share is not None and share - self._line_share >= LINE_EVERY_SHARE - 1e-9
            if age_s < LINE_EVERY_S and not (is_next_part and age_s >= LINE_AT_MOST_EVERY_S):
                return False
        self._line_at_s, self._line_share = now_s, share or 0.0
        return True


class _PhaseLines:
    """Plain lines for the phases of data preparation."""

    def __init__(self, console: Console, clock: Clock, *, brief: bool) -> None:
        self._console, self._clock = console, clock
        self._least_s = BRIEF_FROM_S if brief else 0.0
        self._what: str | None = None
        self._done = 0
        self._is_printed = True
        self._started_s = self._line_at_s = self._ended_s = clock()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show progress. A phase whose first report has some done began when the one before it
        ended.
        """
        if what != self._what or done < self._done:
            self.finish()
            self._what, self._is_printed = what, False
            self._line_at_s = self._clock()
            self._started_s = self._ended_s if done else self._line_at_s
        self._done = done
        if done == total:
            self.finish()
        elif not self._is_printed and self._clock() - self._line_at_s >= self._line_every_s():
            self._line_at_s = self._clock()
            of_all = f" of {total:,}{percent(done / total)}" if total else ""
            print_line(self._console, f"{what}: {done:,}{of_all}")

    def _line_every_s(self) -> float:
        """Return the seconds to the next line; in brief they double."""
        if self._least_s:
            return max(self._least_s, self._line_at_s - self._started_s)
        return LINE_EVERY_S

    def finish(self) -> None:
        """Print the phase that ends now, once."""
        if not self._is_printed:
            self._is_printed, self._ended_s = True, self._clock()
            took_s = self._ended_s - self._started_s
            if took_s >= self._least_s:
                line = f"{self._what}: {self._done:,} in {format_duration(took_s)}"
                print_line(self._console, line)


class _CountColumn(ProgressColumn):
    """`1,234/5,678`, or `1,234` while the total is unknown."""

    def render(self, task: Task) -> Text:
        total = f"/{task.total:,.0f}" if task.total is not None else ""
        return Text(f"{task.completed:,.0f}{total}", style="cyan")


class _TimeColumn(ProgressColumn):
    """Time left while a phase runs, time taken when it is done."""

    def render(self, task: Task) -> Text:
        if task.finished or task.time_remaining is None:
            return Text(format_duration(task.finished_time or task.elapsed or 0.0), style="dim")
        return Text(f"{coarse_duration(task.time_remaining)} left", style="dim")


def _data_columns() -> list[ProgressColumn]:
    def column() -> Column:
        return Column(no_wrap=True, overflow="crop")

    return [
        TextColumn("{task.description}", markup=False, table_column=column()),
        BarColumn(
            bar_width=30, complete_style="cyan", finished_style="green", table_column=column()
        ),
        _CountColumn(table_column=column()),
        _TimeColumn(table_column=column()),
    ]
