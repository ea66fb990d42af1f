"""A run as it is watched from another process: its files read on as they grow, and what they tell
together. Reads only what was appended.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from brimful.base.units import parse_duration
from brimful.hardware.monitored import FILE_NAME as MONITOR_FILE
from brimful.hardware.monitored import Sample, sample_of
from brimful.report.listing.listing import read_recipe
from brimful.report.live.life import (
    METRICS_FILE,
    RECIPE_FILE,
    STATUS_FILE,
    Life,
    Points,
    Writing,
    changed_at,
    json_or_none,
    life_of,
    points_of,
    read_leniently,
    writing,
)
from brimful.report.live.run_state import RunState
from brimful.report.live.tail import Tail
from brimful.runs.runfiles import Json, number, section

Tell = Callable[[Json], None]

STALE_S = 30.0
"""A record older than this is told, and what its process does."""
STALE_STEPS = 10
"""The same in steps, where those are long."""
LIFE_EVERY_S = 10.0
"""A folder that nobody writes here is read as a whole only so often."""


class RecordClock:
    """Unix seconds: a record's own while it is taken in, so that pace and ages are those of the
    run; else those of `wall`, but never before the newest record, whose machine's clock may be
    ahead.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._at: float | None = None
        self.newest: float | None = None
        """Of the newest record that tells its time."""

    def __call__(self) -> float:
        return max(self._wall(), self.newest or 0.0) if self._at is None else self._at

    @contextmanager
    def during(self, record: Json) -> Iterator[None]:
        """While a record is taken in; one without a time came with the one before it."""
        told = number(record.get("time"))
        self.newest = told if told is not None else self.newest
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
        self.limits: Json = {}
        self.sample: Sample | None = None
        self.points = Points()
        self.writer: Writing | None = None
        self.cores: float | None = None
        self._life: tuple[float, float | None, Life] | None = None
        self._metrics, self._monitor = Tail(folder / METRICS_FILE), Tail(folder / MONITOR_FILE)
        self._process: psutil.Process | None = None
        self._session_s: float | None = None
        self._begin()

    def _begin(self) -> None:
        self.state = RunState(self.clock)
        self.state.run = self.folder.resolve().name
        self.losses.clear()

    def _read_plan(self) -> None:
        """What this session was planned to need, and how long it may last."""
        planned = section(json_or_none(self.folder / "plan.json"), "predicted")
        self.state.planned = {
            name: value for name, entry in planned.items() if (value := number(entry)) is not None
        }
        told = section(read_recipe(self.folder / RECIPE_FILE), "run").get("session")
        try:
            self._session_s = parse_duration(told) if isinstance(told, str) else None
        except ValueError:
            self._session_s = None

    def poll(self, tell: Tell | None = None) -> None:
        """Read on.

        Args:
            tell: Receives every new record once the state has taken it in. Of a journal that was
                cut back, those of the session that did so.
        """
        is_new, records = self._metrics.read()
        if is_new:
            self._begin()
        starts = [place for place, record in enumerate(records) if record.get("kind") == "start"]
        told_from = starts[-1] if is_new and starts else len(records) if is_new else 0
        for place, record in enumerate(records):
            self._take(record, tell if place >= told_from else None)
        if is_new or starts:
            self._read_plan()
        for sample in self._monitor.read()[1]:
            self._take_sample(sample)
        self.points = points_of(self.folder)
        self.writer = writing(self.folder)
        self._look_at_process()

    def _take(self, record: Json, tell: Tell | None) -> None:
        with self.clock.during(record):
            self.state.update(record)
            if tell is not None:
                tell(record)
        loss = number(record.get("loss"))
        if record.get("kind") == "step" and loss is not None:
            self.losses.append(loss)

    def _take_sample(self, record: Json) -> None:
        if record.get("kind") == "monitor":
            self.limits = section(record, "limits")
        elif record.get("kind") == "sample":
            self.sample = sample_of(record) or self.sample

    def _look_at_process(self) -> None:
        """How many cores the process used since the last look, where it runs here."""
        pid = None if self.writer is None else self.writer.pid
        self.cores = None
        try:
            if pid is not None and (self._process is None or self._process.pid != pid):
                self._process = psutil.Process(pid)
                self._process.cpu_percent()
            elif self._process is not None:
                self.cores = self._process.cpu_percent() / 100
        except psutil.Error:
            return

    @property
    def process_lives(self) -> bool:
        """Whether the process that wrote the folder when it was last written still runs here."""
        return self._process is not None and not self.process_has_ended

    @property
    def process_has_ended(self) -> bool:
        """Whether the process that wrote the folder was seen and is gone."""
        try:
            return self._process is not None and (
                not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return True

    def keep_process(self, other: "Watched") -> None:
        """Go on looking at the process that wrote another member of the same study."""
        self._process = other._process

    @property
    def is_halted(self) -> bool:
        """Whether its process was stopped by a signal, to go on later."""
        try:
            return self._process is not None and self._process.status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    @property
    def newest_s(self) -> float | None:
        """Age of the newest record, None before the first: that of the file, as not every record
        tells its time; of a copy by its records.
        """
        changed = (
            self._metrics.changed_at
            if not self.points.is_copy or self.clock.newest is None
            else self.clock.newest
        )
        return None if changed is None else max(0.0, self.wall() - changed)

    @property
    def is_stale(self) -> bool:
        """Whether the newest record is older than steps explain."""
        age_s = self.newest_s
        return age_s is not None and age_s > max(
            STALE_S, STALE_STEPS * (self.state.step_time_s or 0.0)
        )

    @property
    def session_left_s(self) -> float | None:
        """Seconds to the end of the session that the recipe tells of; None without one."""
        if self._session_s is None or self.writer is None or self.writer.started is None:
            return None
        return self.writer.started + self._session_s - self.wall()

    def life(self) -> Life:
        """What the run is now. While it is written that is known at once; else the folder is read
        when its status changes, and every 10 s.
        """
        if self.writer is not None:
            self._life = None
            return Life("running", f"running: {self.writer.told}", self.writer.pid)
        now, changed = self.wall(), changed_at(self.folder / STATUS_FILE)
        if self._life is None or self._life[1] != changed or now - self._life[0] >= LIFE_EVERY_S:
            self._life = (now, changed, life_of(read_leniently(self.folder), now=now))
        return self._life[2]
