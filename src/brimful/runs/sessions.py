"""The sessions of a run, and what each tells about speed; results that take all records of a run
are computed once, as a run that was read does not change.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from brimful.base.types import JsonDict
from brimful.runs.records import Record, SessionEnd, SessionStart, StepRecord


@dataclass(frozen=True)
class Session:
    """What one process wrote into the journal: a start, steps and the rest, and an end unless it
    was killed. The records before the first start, of a damaged journal, are a session, too.
    """

    records: tuple[Record, ...]

    @property
    def start(self) -> SessionStart | None:
        first = self.records[0]
        return first if isinstance(first, SessionStart) else None

    @cached_property
    def steps(self) -> tuple[StepRecord, ...]:
        return tuple(each for each in self.records if isinstance(each, StepRecord))

    @cached_property
    def _timed_steps(self) -> tuple[StepRecord, ...]:
        return tuple(each for each in self.steps if each.step_time_s is not None)

    @cached_property
    def first_steps(self) -> tuple[StepRecord, ...]:
        """Return the steps that were timed together with the first one.

        They have the same time, which is the mean over all of them. They compile, allocate and
        warm up, so they say nothing about the speed of the others.
        """
        steps = self._timed_steps
        other = (
            place for place, each in enumerate(steps) if each.step_time_s != steps[0].step_time_s
        )
        return steps[: next(other, len(steps))]

    @property
    def later_steps(self) -> tuple[StepRecord, ...]:
        """Return the timed steps after `first_steps`."""
        return self._timed_steps[len(self.first_steps) :]

    @property
    def num_first_steps(self) -> int:
        """Return how many steps were done up to the last of `first_steps`.

        A long run records only some of its steps, so this may be more than their number.
        """
        if not self.first_steps or self.start is None:
            return len(self.first_steps)
        return max(0, self.first_steps[-1].step - self.start.step)

    @property
    def first_step_time_s(self) -> float:
        """Return the mean time of `first_steps`, 0 without any."""
        return (self.first_steps[0].step_time_s or 0.0) if self.first_steps else 0.0

    def warm_up_s(self, usual_s: float) -> float:
        """Return how much longer the first steps took than as many usual ones.

        0 where no later step was timed, as there is nothing to compare with.
        """
        if not self.later_steps:
            return 0.0
        return self.num_first_steps * max(0.0, self.first_step_time_s - usual_s)

    @property
    def first_time(self) -> float | None:
        """Return the first moment that the journal names, in Unix seconds."""
        return next((each.time for each in self.records if each.time), None)

    @property
    def seconds(self) -> float:
        """Return how long the session took; a killed one counts from its first step to its last
        record.
        """
        ends = [each.seconds for each in self.records if isinstance(each, SessionEnd)]
        if ends and ends[-1] is not None:
            return ends[-1]
        timed = [place for place, each in enumerate(self.records) if each.time is not None]
        if not timed:
            return 0.0
        first, last = self.records[timed[0]].time or 0.0, self.records[timed[-1]].time or 0.0
        before_s = self.num_first_steps * self.first_step_time_s
        # An evaluation and the checkpoint after it do not say when they were.
        after_s = sum(each.seconds or 0.0 for each in self.records[timed[-1] :])
        return before_s + last - first + after_s


def sessions_of(records: Iterable[Record]) -> tuple[Session, ...]:
    """Return the sessions of a journal; each begins with a start record."""
    groups: list[list[Record]] = []
    for record in records:
        if isinstance(record, SessionStart) or not groups:
            groups.append([])
        groups[-1].append(record)
    return tuple(Session(tuple(group)) for group in groups)


def total_seconds(sessions: Sequence[Session]) -> float | None:
    """Return the time spent in all sessions, None without any."""
    return sum(session.seconds for session in sessions) if sessions else None


RunT = TypeVar("RunT")
ResultT = TypeVar("ResultT")


def once_per_run(function: Callable[[RunT], ResultT]) -> Callable[[RunT], ResultT]:
    """Return the same function, which keeps its result with the run. Callers must not change it."""
    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def kept(run: RunT) -> ResultT:
        results: JsonDict = run.__dict__.setdefault("_results", {})
        if name not in results:
            results[name] = function(run)
        result: ResultT = results[name]
        return result

    return kept
