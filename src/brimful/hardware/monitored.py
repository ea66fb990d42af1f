"""What the monitor wrote into a run folder, read back leniently. The format is docs/monitor.md. No
torch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from brimful.base.rundir import finite, read_journal

FILE_NAME = "monitor.jsonl"
JOULES_PER_WH = 3600.0
_NO_READINGS = frozenset({"time", "covers_s"})
_FREE = frozenset({"memory_available_bytes", "disk_free_bytes"})
"""What is left: of several samples the lowest matters."""
LEAST_COVERED = 0.95
"""Of the seconds of a session: where energy was measured over less of it, it is that of a part."""


@dataclass(frozen=True)
class Sample:
    """One look at device and machine.

    Attributes:
        time: Unix seconds.
        covers_s: Seconds since the sample before it.
        readings: By the names of docs/monitor.md; what could not be read is not in it.
        throttled_s: Reason in words -> seconds of `covers_s`; None where reasons cannot be read.
    """

    time: float
    covers_s: float
    readings: Mapping[str, float]
    throttled_s: Mapping[str, float] | None = None


@dataclass(frozen=True)
class MonitoredSession:
    """One session's samples, in order, what stood at its beginning, and what could not be read:
    readings, and sensors that failed later (`lost`).
    """

    device: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    samples: tuple[Sample, ...] = ()
    is_ended: bool = False

    @property
    def covered_s(self) -> float:
        """Seconds that were watched."""
        return sum(sample.covers_s for sample in self.samples)

    @property
    def energy_wh(self) -> float | None:
        """By the counter where there is one, else power over time; None where it was read over a
        part of the watched time only, or not at all.
        """
        return self.energy_wh_over(self.covered_s)

    def energy_wh_over(self, seconds: float) -> float | None:
        """The same for a session that took so long; None where readings cover less than
        LEAST_COVERED of it or their sensor was lost.
        """
        counted = [
            place for place, sample in enumerate(self.samples) if "energy_j" in sample.readings
        ]
        read = [sample for sample in self.samples if "power_w" in sample.readings]
        if counted:
            read = list(self.samples[counted[0] : counted[-1] + 1])
        is_lost = self.lost & {
            "energy",
            "energy_j" if counted else "power_w",
        }  # readers of energy, by hardware.sensors
        if not read or is_lost or sum(sample.covers_s for sample in read) < LEAST_COVERED * seconds:
            return None
        if counted:
            return (
                max(self.samples[place].readings["energy_j"] for place in counted) / JOULES_PER_WH
            )
        return sum(sample.readings["power_w"] * sample.covers_s for sample in read) / JOULES_PER_WH


@dataclass(frozen=True)
class Monitored:
    """The sessions of a run as the monitor saw them; none where there is no file."""

    sessions: tuple[MonitoredSession, ...] = ()

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        """Of all sessions, in order."""
        return tuple(sample for session in self.sessions for sample in session.samples)

    @property
    def latest(self) -> Sample | None:
        return self.samples[-1] if self.samples else None

    @property
    def limits(self) -> Mapping[str, float]:
        """Of the last session."""
        return self.sessions[-1].limits if self.sessions else {}

    @property
    def covered_s(self) -> float:
        """Seconds that were watched, over all sessions."""
        return sum(session.covered_s for session in self.sessions)

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """Times (Unix seconds) and values of one reading; samples without it are left out."""
        found = [
            (sample.time, sample.readings[name])
            for sample in self.samples
            if name in sample.readings
        ]
        return [time for time, _ in found], [value for _, value in found]

    def peak(self, name: str) -> float | None:
        """The highest sample, None without any."""
        return max(self.series(name)[1], default=None)

    def mean(self, name: str) -> float | None:
        """Over the time that the samples cover, None without any."""
        found = [
            (sample.covers_s, sample.readings[name])
            for sample in self.samples
            if name in sample.readings
        ]
        seconds = sum(covers_s for covers_s, _ in found)
        return sum(covers_s * value for covers_s, value in found) / seconds if seconds else None

    @property
    def energy_wh(self) -> float | None:
        """Over all sessions; None where a part of one was not measured, as a part is not the energy
        of the run.
        """
        return self._energy_wh([session.covered_s for session in self.sessions])

    def energy_wh_over(self, sessions: Sequence[tuple[float | None, float]]) -> float | None:
        """The energy of a run whose own journal tells of these sessions; None where a part of one
        was not watched.

        Args:
            sessions: In order, a moment of each (Unix seconds; None where it tells none) and how
                many seconds it took. Others may have been watched: those that were killed before
                their first checkpoint are no longer told of.
        """
        begun = [
            session.samples[0].time - session.samples[0].covers_s if session.samples else math.inf
            for session in self.sessions
        ]
        seconds = [session.covered_s for session in self.sessions]
        told = [0.0] * len(seconds)
        for from_end, (moment, took_s) in zip(range(len(sessions), 0, -1), sessions, strict=True):
            place = len(begun) - from_end
            if moment is not None:
                place = max((each for each, time in enumerate(begun) if time <= moment), default=-1)
            if place < 0:
                return None
            told[place] += took_s
        return self._energy_wh([max(pair) for pair in zip(seconds, told, strict=True)])

    def _energy_wh(self, seconds: Sequence[float]) -> float | None:
        spent = [
            session.energy_wh_over(took_s)
            for session, took_s in zip(self.sessions, seconds, strict=True)
            if session.samples or took_s
        ]
        known = [energy_wh for energy_wh in spent if energy_wh is not None]
        return sum(known) if known and len(known) == len(spent) else None

    def throttled(self) -> dict[str, float] | None:
        """Reason -> share of the watched time, the largest first; None where reasons could not be
        read.
        """
        told = [sample for sample in self.samples if sample.throttled_s is not None]
        seconds = sum(sample.covers_s for sample in told)
        if not seconds:
            return None
        sums: dict[str, float] = {}
        for sample in told:
            for reason, spent_s in (sample.throttled_s or {}).items():
                sums[reason] = sums.get(reason, 0.0) + spent_s
        return dict(
            sorted(
                ((reason, spent_s / seconds) for reason, spent_s in sums.items()),
                key=lambda pair: -pair[1],
            )
        )


def read_monitor(run_folder: Path) -> Monitored:
    """What was sampled in all sessions of a run. Lines that are torn or not as written are left
    out; a missing file holds nothing.
    """
    try:
        records = list(read_journal(run_folder / FILE_NAME))
    except OSError:
        return Monitored()
    sessions: list[list[dict[str, Any]]] = []
    for record in records:
        if record.get("kind") == "monitor" or not sessions:
            sessions.append([])
        sessions[-1].append(record)
    return Monitored(tuple(map(_session, sessions)))


def _session(records: list[dict[str, Any]]) -> MonitoredSession:
    start = records[0] if records[0].get("kind") == "monitor" else {}
    samples = [
        sample
        for record in records
        if record.get("kind") == "sample" and (sample := sample_of(record)) is not None
    ]
    lost = {
        str(record.get("sensor")): str(record.get("reason"))
        for record in records
        if record.get("kind") == "sensor_lost"
    }
    return MonitoredSession(
        device=_mapping(start.get("device")),
        limits=_numbers(start.get("limits")),
        absent={name: str(reason) for name, reason in _mapping(start.get("absent")).items()} | lost,
        lost=frozenset(lost),
        samples=tuple(samples),
        is_ended=any(record.get("kind") == "monitor_end" for record in records),
    )


def sample_of(record: Mapping[str, Any]) -> Sample | None:
    """A record of kind `sample`; None where it does not say when and for how long."""
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


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _numbers(value: object) -> dict[str, float]:
    """The finite numbers of a mapping."""
    return {
        name: number
        for name, entry in _mapping(value).items()
        if (number := finite(entry)) is not None
    }


def thinned(records: list[dict[str, Any]], most_samples: int) -> tuple[list[dict[str, Any]], float]:
    """The same records with neighbouring samples merged, to about half of `most_samples`, and how
    many seconds a merged one covers at most.

    A merged sample has the mean of rates and shares, the highest of sizes and temperatures, the
    lowest of what was free, the last of counters and the sum of throttled seconds: peaks, means and
    energy stay what they were.
    """
    resolution_s = 4 * sum(_covered_s(record) for record in records) / most_samples
    kept: list[dict[str, Any]] = []
    for record in records:
        both_are_samples = bool(kept) and record.get("kind") == "sample" == kept[-1].get("kind")
        if both_are_samples and _covered_s(kept[-1]) + _covered_s(record) <= resolution_s:
            kept[-1] = merged(kept[-1], record)
        else:
            kept.append(record)
    return kept, resolution_s


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """One `sample` record in place of two that follow each other."""
    before, after = _numbers(first), _numbers(second)
    seconds = (_covered_s(first), _covered_s(second))
    found: dict[str, Any] = {
        "kind": "sample",
        "time": after.get("time", before.get("time")),
        "covers_s": sum(seconds),
    }
    for name in dict.fromkeys((*before, *after)):
        if name in _NO_READINGS:
            continue
        values = [side[name] for side in (before, after) if name in side]
        found[name] = _together(name, values, seconds) if len(values) == 2 else values[0]
    throttled = [
        _numbers(side.get("throttled_s"))
        for side in (first, second)
        if isinstance(side.get("throttled_s"), dict)
    ]
    if throttled:
        found["throttled_s"] = {
            reason: sum(side.get(reason, 0.0) for side in throttled)
            for side in throttled
            for reason in side
        }
    return found


def _together(name: str, values: list[float], seconds: tuple[float, float]) -> float:
    if name == "energy_j":
        return values[1]
    if name in _FREE:
        return min(values)
    if name.endswith(("_bytes", "_c")):
        return max(values)
    whole_s = sum(seconds)
    return (values[0] * seconds[0] + values[1] * seconds[1]) / whole_s if whole_s else values[1]


def _covered_s(record: Mapping[str, Any]) -> float:
    return max(0.0, _numbers(record).get("covers_s", 0.0))
