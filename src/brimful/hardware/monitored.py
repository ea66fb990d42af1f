"""The samples of the monitor in a run folder, read leniently. docs/monitor.md has the format. No
torch.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from brimful.base.rundir import finite, last_record, read_journal
from brimful.base.types import Json, JsonDict, Numbers, Texts

FILE_NAME = "monitor.jsonl"
JOULES_PER_WH = 3600.0
_NO_READINGS = frozenset({"time", "covers_s"})
_FREE = frozenset({"memory_available_bytes", "disk_free_bytes"})
"""Readings of free space: of several samples the lowest counts."""
LEAST_COVERED = 0.95
"""Least share of a session over which energy must be measured to count for the session."""


@dataclass(frozen=True)
class Sample:
    """One sample of device and machine.

    Attributes:
        time: Unix seconds.
        covers_s: Seconds since the sample before it.
        readings: Readings by the names of docs/monitor.md, without those that could not be read.
        throttled_s: Reason -> seconds of `covers_s`; None where reasons cannot be read.
    """

    time: float
    covers_s: float
    readings: Numbers
    throttled_s: Numbers | None = None


@dataclass(frozen=True)
class MonitoredSession:
    """The samples of one session in order, the facts from its beginning, readings that are absent
    and why, and sensors that failed later (`lost`).
    """

    device: Json = field(default_factory=dict)
    limits: Numbers = field(default_factory=dict)
    absent: Texts = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    samples: tuple[Sample, ...] = ()
    is_ended: bool = False

    @property
    def covered_s(self) -> float:
        """Seconds that the samples cover."""
        return sum(sample.covers_s for sample in self.samples)

    def energy_wh_over(self, seconds: float) -> float | None:
        """Return the energy of a session of this length, by the counter, or else power over time;
        None where readings cover less than LEAST_COVERED of it or their sensor was lost.
        """
        reading = "power_w"
        places = [index for index, each in enumerate(self.samples) if "energy_j" in each.readings]
        covered = [sample for sample in self.samples if reading in sample.readings]
        if places:
            reading, covered = "energy_j", list(self.samples[places[0] : places[-1] + 1])
        # Readers of energy are called "energy" or by their reading, see hardware.sensors.
        is_lost = self.lost & {"energy", reading}
        if not covered or is_lost:
            return None
        if sum(sample.covers_s for sample in covered) < LEAST_COVERED * seconds:
            return None
        if places:
            joules = max(self.samples[index].readings["energy_j"] for index in places)
        else:
            joules = sum(sample.readings["power_w"] * sample.covers_s for sample in covered)
        return joules / JOULES_PER_WH


@dataclass(frozen=True)
class Monitored:
    """The monitored sessions of a run; none without a file."""

    sessions: tuple[MonitoredSession, ...] = ()

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        """Samples of all sessions, in order."""
        return tuple(sample for session in self.sessions for sample in session.samples)

    @property
    def limits(self) -> Numbers:
        """Limits of the last session."""
        return self.sessions[-1].limits if self.sessions else {}

    @property
    def covered_s(self) -> float:
        """Seconds that the samples of all sessions cover."""
        return sum(session.covered_s for session in self.sessions)

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """Return times (Unix seconds) and values of one reading."""
        samples = self._with(name)
        return [each.time for each in samples], [each.readings[name] for each in samples]

    def _with(self, name: str) -> list[Sample]:
        """Return the samples that have a reading."""
        return [sample for sample in self.samples if name in sample.readings]

    def peak(self, name: str) -> float | None:
        """Return the highest value of a reading; None without any."""
        return max(self.series(name)[1], default=None)

    def mean(self, name: str) -> float | None:
        """Return the mean of a reading over the time that its samples cover; None without any."""
        samples = self._with(name)
        seconds = sum(sample.covers_s for sample in samples)
        if not seconds:
            return None
        return sum(sample.covers_s * sample.readings[name] for sample in samples) / seconds

    def energy_wh_over(self, sessions: Sequence[tuple[float | None, float]]) -> float | None:
        """Return the energy of a run with these sessions; None where a part of one was not
        measured.

        Args:
            sessions: Sessions of the run's journal, in order: a moment of each session (Unix
                seconds; None if unknown) and its length in seconds. More sessions may have been
                monitored: those that were killed before their first checkpoint are not in the
                journal.
        """
        length_s = [0.0] * len(self.sessions)
        for number, (moment, took_s) in enumerate(sessions):
            # Without a moment, the last of the journal is the last that was monitored, and so on.
            monitored = len(self.sessions) - len(sessions) + number
            if moment is not None:
                monitored = self._session_at(moment)
            if monitored < 0:
                return None
            length_s[monitored] += took_s
        covered_s = [session.covered_s for session in self.sessions]
        return self._energy_wh([max(pair) for pair in zip(length_s, covered_s, strict=True)])

    def _session_at(self, moment: float) -> int:
        """Return the number of the last monitored session that had begun by then, -1 before all."""
        number = -1
        for each, session in enumerate(self.sessions):
            first = session.samples[0] if session.samples else None
            if first is not None and first.time - first.covers_s <= moment:
                number = each
        return number

    def _energy_wh(self, seconds: Sequence[float]) -> float | None:
        spent = [
            session.energy_wh_over(took_s)
            for session, took_s in zip(self.sessions, seconds, strict=True)
            if session.samples or took_s
        ]
        known = [energy_wh for energy_wh in spent if energy_wh is not None]
        return sum(known) if known and len(known) == len(spent) else None

    def throttled(self) -> dict[str, float] | None:
        """Return reason -> share of the covered time, the largest first; None where reasons could
        not be read.
        """
        samples = [sample for sample in self.samples if sample.throttled_s is not None]
        seconds = sum(sample.covers_s for sample in samples)
        if not seconds:
            return None
        sums = Counter[str]()
        for sample in samples:
            sums.update(sample.throttled_s)
        return {reason: spent_s / seconds for reason, spent_s in sums.most_common()}


def read_monitor(run_folder: Path) -> Monitored:
    """Read the samples of all sessions of a run. Damaged lines are left out; a missing file has no
    sessions.
    """
    try:
        records = list(read_journal(run_folder / FILE_NAME))
    except OSError:
        return Monitored()
    sessions: list[list[JsonDict]] = []
    for record in records:
        if record.get("kind") == "monitor" or not sessions:
            sessions.append([])
        sessions[-1].append(record)
    return Monitored(tuple(map(_session, sessions)))


def monitored_until(run_folder: Path) -> int:
    """Return the time of the newest record of a run's monitor, in whole Unix seconds; 0 without
    any.
    """
    record = last_record(run_folder / FILE_NAME) or {}
    return int(finite(record.get("time")) or 0)


def _session(records: list[JsonDict]) -> MonitoredSession:
    by_kind: dict[object, list[JsonDict]] = {}
    for record in records:
        by_kind.setdefault(record.get("kind"), []).append(record)
    start = next(iter(by_kind.get("monitor", [])), {})
    samples = map(sample_of, by_kind.get("sample", []))
    lost = {
        str(record.get("sensor")): str(record.get("reason"))
        for record in by_kind.get("sensor_lost", [])
    }
    return MonitoredSession(
        device=_mapping(start.get("device")),
        limits=_numbers(start.get("limits")),
        absent={name: str(reason) for name, reason in _mapping(start.get("absent")).items()} | lost,
        lost=frozenset(lost),
        samples=tuple(sample for sample in samples if sample is not None),
        is_ended="monitor_end" in by_kind,
    )


def sample_of(record: Json) -> Sample | None:
    """Return a record of kind `sample`; None where its time or length is missing."""
    values = _numbers(record)
    if "time" not in values or values.get("covers_s", -1.0) < 0:
        return None
    throttled = record.get("throttled_s")
    return Sample(
        time=values["time"],
        covers_s=values["covers_s"],
        readings={name: value for name, value in values.items() if name not in _NO_READINGS},
        throttled_s=_numbers(throttled) if isinstance(throttled, dict) else None,
    )


def _mapping(value: object) -> JsonDict:
    return value if isinstance(value, dict) else {}


def _numbers(value: object) -> Numbers:
    """Return the finite numbers of a mapping."""
    numbers = {name: finite(entry) for name, entry in _mapping(value).items()}
    return {name: number for name, number in numbers.items() if number is not None}


def thinned(records: list[JsonDict], most_samples: int) -> tuple[list[JsonDict], float]:
    """Return the records with neighbouring samples merged, to about half of `most_samples`, and the
    most seconds that a merged one covers.

    A merged sample has the mean of rates and shares, the highest of sizes and temperatures, the
    lowest of free space, the last of counters and the sum of throttled seconds: peaks, means and
    energy do not change.
    """
    resolution_s = 4 * sum(_covered_s(record) for record in records) / most_samples
    kept: list[JsonDict] = []
    for record in records:
        both_are_samples = bool(kept) and record.get("kind") == "sample" == kept[-1].get("kind")
        if both_are_samples and _covered_s(kept[-1]) + _covered_s(record) <= resolution_s:
            kept[-1] = merged(kept[-1], record)
        else:
            kept.append(record)
    return kept, resolution_s


def merged(first: Json, second: Json) -> JsonDict:
    """Return one `sample` record in place of two consecutive ones."""
    before, after = _numbers(first), _numbers(second)
    seconds = (_covered_s(first), _covered_s(second))
    record: JsonDict = {
        "kind": "sample",
        "time": after.get("time", before.get("time")),
        "covers_s": sum(seconds),
    }
    for name in dict.fromkeys((*before, *after)):
        if name in _NO_READINGS:
            continue
        values = [side[name] for side in (before, after) if name in side]
        record[name] = _together(name, values, seconds) if len(values) == 2 else values[0]
    throttled = [
        _numbers(side.get("throttled_s"))
        for side in (first, second)
        if isinstance(side.get("throttled_s"), dict)
    ]
    if throttled:
        record["throttled_s"] = dict(sum(map(Counter, throttled), Counter()))
    return record


def _together(name: str, values: list[float], seconds: tuple[float, float]) -> float:
    if name == "energy_j":
        return values[1]
    if name in _FREE:
        return min(values)
    if name.endswith(("_bytes", "_c")):
        return max(values)
    whole_s = sum(seconds)
    if not whole_s:
        return values[1]
    return (values[0] * seconds[0] + values[1] * seconds[1]) / whole_s


def _covered_s(record: Json) -> float:
    return max(0.0, _numbers(record).get("covers_s", 0.0))
