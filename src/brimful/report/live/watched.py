"""A run that is watched from another process. Of files that grow only what was appended is read."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from brimful.base.rundir import finite
from brimful.base.types import Json, Numbers
from brimful.base.units import parse_duration
from brimful.hardware.monitored import FILE_NAME as MONITOR_FILE
from brimful.hardware.monitored import Sample, sample_of
from brimful.report.listing.listing import read_recipe
from brimful.report.live.run_state import RunState
from brimful.report.live.status import (
    RecoveryPoints,
    RunStatus,
    RunWriter,
    changed_at,
    read_run_or_empty,
    recovery_points,
    run_writer,
    status_of,
)
from brimful.report.live.tail import Tail
from brimful.report.quantities import REWARD
from brimful.runs.bookkeeping import json_or_none
from brimful.runs.files import JOURNAL_FILE, PLAN_FILE, RECIPE_FILE, STATUS_FILE
from brimful.runs.parsing import mapping
from brimful.runs.plans import read_plan
from brimful.runs.records import Record, SessionStart, StepRecord, read_record

Tell = Callable[[Record], None]

STALE_S = 30.0
"""When the newest record is older than this, the view says so, and what the process does."""
STALE_STEPS = 10
"""The same in steps, where those are long."""
CORES_OVER_S = 0.5
"""The shortest time over which CPU time is read as cores."""
STATUS_EVERY_S = 10.0
"""How often a folder is read as a whole that no process of this machine writes."""


class RecordClock:
    """A clock in Unix seconds that shows a record's own time while the record is taken in, so that
    pace and ages are those of the run.

    Otherwise it shows `wall`, but never a time before the newest record, as the clock of that
    record's machine may be ahead.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._at: float | None = None
        self.newest: float | None = None
        """The time of the newest record that has one."""

    def __call__(self) -> float:
        return max(self._wall(), self.newest or 0.0) if self._at is None else self._at

    @contextmanager
    def during(self, record: Record) -> Iterator[None]:
        """Show the record's time; without one, that of the record before it."""
        self.newest = self.newest if record.time is None else record.time
        self._at = self.newest
        try:
            yield
        finally:
            self._at = None


class Watched:
    """One run folder; `poll` brings it up to date.

    Args:
        folder: The run's, or its copy in a mirror.
        clock: Unix seconds; replaced in tests.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.wall = folder, clock
        self.clock = RecordClock(clock)
        self.losses: list[float] = []
        self.limits: Numbers = {}
        self.sample: Sample | None = None
        self.points = RecoveryPoints()
        self.writer: RunWriter | None = None
        self.cores: float | None = None
        self._status: tuple[float, float | None, RunStatus] | None = None
        self._metrics, self._monitor = Tail(folder / JOURNAL_FILE), Tail(folder / MONITOR_FILE)
        self._process: psutil.Process | None = None
        self._used: tuple[float, float] = (0.0, 0.0)
        self._session_s: float | None = None
        self._begin()

    def _begin(self) -> None:
        self.state = RunState(self.clock)
        self.state.run = self.folder.resolve().name
        self.losses.clear()

    def _read_plan(self) -> None:
        """Read what the plan of this session predicts, and how long the session may last."""
        plan = read_plan(json_or_none(self.folder / PLAN_FILE) or {})
        predictions = plan.predicted if plan else {}
        self.state.planned = {name: each.value for name, each in predictions.items()}
        recipe = read_recipe(self.folder / RECIPE_FILE)
        try:
            self._session_s = parse_duration(recipe.run.session) if recipe.run.session else None
        except ValueError:
            self._session_s = None

    def poll(self, tell: Tell | None = None) -> None:
        """Read on.

        Args:
            tell: Receives every new record once the state has taken it in. Of a journal that was
                cut back, those of the session that did so.
        """
        is_new, lines = self._metrics.read()
        records = [read_record(line) for line in lines]
        if is_new:
            self._begin()
        starts = [place for place, record in enumerate(records) if isinstance(record, SessionStart)]
        first_told = 0
        if is_new:
            first_told = starts[-1] if starts else len(records)
        for place, record in enumerate(records):
            self._take(record, tell if place >= first_told else None)
        if is_new or starts:
            self._read_plan()
        for sample in self._monitor.read()[1]:
            self._take_sample(sample)
        self.points = recovery_points(self.folder)
        self.writer = run_writer(self.folder)
        self._look_at_process()

    def _take(self, record: Record, tell: Tell | None) -> None:
        with self.clock.during(record):
            self.state.take(record)
            if tell is not None:
                tell(record)
        if isinstance(record, StepRecord) and record.loss is not None:
            self.losses.append(record.named.get(REWARD, record.loss))

    def _take_sample(self, record: Json) -> None:
        if record.get("kind") == "monitor":
            limits = mapping(record.get("limits"))
            known = {name: finite(value) for name, value in limits.items()}
            self.limits = {name: each for name, each in known.items() if each is not None}
        elif record.get("kind") == "sample":
            self.sample = sample_of(record) or self.sample

    def _look_at_process(self) -> None:
        """Measure how many cores the process used since it was last looked at, where it runs here.

        CPU time is counted in hundredths of a second, so over less than `CORES_OVER_S` the figure
        of before stays.
        """
        pid = None if self.writer is None else self.writer.pid
        try:
            if pid is not None and (self._process is None or self._process.pid != pid):
                self._process = psutil.Process(pid)
                self._used, self.cores = (self.wall(), _cpu_seconds(self._process)), None
            elif self._process is not None:
                now, (then, used_s) = self.wall(), self._used
                if now - then >= CORES_OVER_S:
                    self._used = (now, _cpu_seconds(self._process))
                    self.cores = (self._used[1] - used_s) / (now - then)
                elif now < then:  # the computer's clock was set back
                    self._used = (now, _cpu_seconds(self._process))
        except psutil.Error:
            self.cores = None

    @property
    def process_lives(self) -> bool:
        """Return whether the process that last wrote the folder still runs here."""
        return self._process is not None and not self.process_has_ended

    @property
    def process_has_ended(self) -> bool:
        """Return whether the process that wrote the folder was seen and has ended."""
        try:
            return self._process is not None and (
                not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return True

    def keep_process(self, other: "Watched") -> None:
        """Keep watching the process that wrote another member of the same study."""
        self._process = other._process

    @property
    def is_halted(self) -> bool:
        """Return whether its process was halted by a signal, to continue later."""
        try:
            return self._process is not None and self._process.status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    @property
    def newest_s(self) -> float | None:
        """Return the age of the newest record, None before the first. It is the age of the file, as
        not every record has a time; of a copy, that of its newest record.
        """
        changed = self._metrics.changed_at
        if self.points.is_copy and self.clock.newest is not None:
            changed = self.clock.newest
        return None if changed is None else max(0.0, self.wall() - changed)

    @property
    def is_stale(self) -> bool:
        """Return whether the newest record is older than the time of a step explains."""
        age_s, step_time_s = self.newest_s, self.state.step_time_s or 0.0
        return age_s is not None and age_s > max(STALE_S, STALE_STEPS * step_time_s)

    @property
    def session_left_s(self) -> float | None:
        """Return the seconds to the end of the recipe's session, None without one."""
        if self._session_s is None or self.writer is None or self.writer.started is None:
            return None
        return self.writer.started + self._session_s - self.wall()

    def status(self) -> RunStatus:
        """Return the status of the run.

        While a process writes it the status is known at once. Otherwise the folder is read when
        its recorded status changes, and every 10 s.
        """
        if self.writer is not None:
            self._status = None
            return RunStatus("running", f"running: {self.writer.description}", self.writer.pid)
        now, changed = self.wall(), changed_at(self.folder / STATUS_FILE)
        if self._status is not None:
            read_at, changed_then, status = self._status
            if changed_then == changed and now - read_at < STATUS_EVERY_S:
                return status
        status = status_of(read_run_or_empty(self.folder), now=now)
        self._status = (now, changed, status)
        return status


def _cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time that a process has used on all cores together."""
    times = process.cpu_times()
    return float(times.user + times.system)
