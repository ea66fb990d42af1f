"""A run folder read once, leniently: what is there, and in words what is not. The other modules of
report only look at this value.
"""

import functools
import statistics
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from brimful.base.rundir import finite
from brimful.hardware.monitored import Monitored
from brimful.runs import folder, measurements
from brimful.runs.files import (
    DATA_FILE,
    ENVIRONMENT_FILE,
    JOURNAL_FILE,
    PLAN_FILE,
    RECIPE_FILE,
    SAMPLES_FILE,
    SCORES_FILE,
)
from brimful.runs.folder import RunFolder

Json = dict[str, Any]
LAYERS = "layers"
"""In scores.json: what was measured inside the model, not a split."""


@dataclass(frozen=True)
class RunFiles:
    """Everything a report needs, as found. What could not be read is empty and stands in
    `missing`.
    """

    folder: Path
    recipe_text: str
    recipe: Json
    plan: Json
    environment: Json
    data: Json
    scores: Json
    records: tuple[Json, ...]
    samples: tuple[Json, ...]
    missing: dict[str, str]
    """File name -> one sentence about what is missing and why."""
    monitored: Monitored = field(default_factory=Monitored)
    """Samples of device and machine over all sessions; none in a run from before there was a
    monitor.
    """

    @functools.cached_property
    def typed(self) -> RunFolder:
        """The same run with typed values."""
        files = {
            RECIPE_FILE: self.recipe,
            PLAN_FILE: self.plan,
            ENVIRONMENT_FILE: self.environment,
            DATA_FILE: self.data,
            SCORES_FILE: self.scores,
            JOURNAL_FILE: self.records,
            SAMPLES_FILE: self.samples,
        }
        return folder.folder_of(self.folder, files, self.recipe_text, self.monitored, self.missing)

    def of_kind(self, kind: str) -> list[Json]:
        """The records of one kind, in order."""
        return [record for record in self.records if record.get("kind") == kind]

    @property
    def name(self) -> str:
        return str(section(self.recipe, "run").get("name") or self.folder.resolve().name)

    @property
    def last_step(self) -> int:
        return max((_step_of(record) for record in self.records), default=0)

    @property
    def total_steps(self) -> int | None:
        starts = [number(record.get("total_steps")) for record in self.of_kind("start")]
        return int(starts[-1]) if starts and starts[-1] is not None else None

    @property
    def end(self) -> Json | None:
        """The record that ends the last session, None while it runs or when it was killed."""
        last = [record for record in self.records if record.get("kind") in ("start", "end")][-1:]
        return last[0] if last and last[0]["kind"] == "end" else None

    @property
    def is_finished(self) -> bool:
        return self.end is not None and (
            self.end.get("reason") == "finished" or self.last_step == self.total_steps
        )


def read_run(run_folder: Path) -> RunFiles:
    """Read what there is in a run folder.

    Raises:
        RunFolderError: no such folder, or none of a run's files in it.
    """
    return folder.read_run(run_folder).old


def files_of(run: RunFolder) -> RunFiles:
    """Return a run with its files as dictionaries."""
    return RunFiles(
        folder=run.folder,
        recipe_text=run.recipe.text,
        recipe=run.files[RECIPE_FILE],
        plan=run.files[PLAN_FILE],
        environment=run.files[ENVIRONMENT_FILE],
        data=run.files[DATA_FILE],
        scores=run.files[SCORES_FILE],
        records=run.files[JOURNAL_FILE],
        samples=run.files[SAMPLES_FILE],
        missing=run.problems,
        monitored=run.monitored,
    )


def is_tuned(run: RunFiles) -> bool:
    """Whether the run tunes a published model."""
    return isinstance(run.recipe.get("model"), str) or bool(section(run.data, "base"))


def kind_of(run: RunFiles) -> Literal["text", "masked", "labels"]:
    """What the model was trained for: to continue text, to fill in masked tokens, or to label
    texts.
    """
    kinds = {str(score.get("kind")) for score in run.scores.values() if isinstance(score, dict)}
    if run.recipe.get("method") == "classify" or "labels" in kinds:
        return "labels"
    return "masked" if run.recipe.get("method") == "mlm" or "masked" in kinds else "text"


def number(value: object) -> float | None:
    """`value` as a finite float, None for anything else."""
    return finite(value)


def section(value: object, key: str) -> Json:
    """The mapping `value[key]`, empty for anything else."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def items(value: object) -> list[Any]:
    """`value` when it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def pair(value: object) -> tuple[float, float] | None:
    """An interval, written as [low, high] or as {"low": low, "high": high}; None for anything
    else.
    """
    ends = [value.get("low"), value.get("high")] if isinstance(value, dict) else items(value)
    numbers = [number(end) for end in ends]
    return (
        (numbers[0], numbers[1])
        if len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None
        else None
    )


def series(records: list[Json], name: str) -> tuple[list[int], list[float]]:
    """Steps and finite values of one field; records without it are left out."""
    points = [
        (_step_of(record), value)
        for record in records
        if (value := number(record.get(name))) is not None
    ]
    return [step for step, _ in points], [value for _, value in points]


@dataclass(frozen=True)
class Steady:
    """The step records that speak about speed, and how many steps before them do not.

    The first steps of a session compile, allocate and warm up. They are timed together with those
    of the same second, so this whole first group is left out. A run that has nothing else keeps all
    its steps.
    """

    records: tuple[Json, ...]
    num_left_out: int

    @property
    def step_time_s(self) -> float | None:
        """The median, None without a timed step."""
        times = series(list(self.records), "step_time_s")[1]
        return statistics.median(times) if times else None


def steady(run: RunFiles) -> Steady:
    """The steps of all sessions without the first ones of each."""
    kept: list[Json] = []
    num_left_out = 0
    for session in sessions(run):
        first, later = _first_group(session)
        kept += later
        num_left_out += _count(session, first)
    return Steady(tuple(kept), num_left_out) if kept else Steady(tuple(run.of_kind("step")), 0)


def _first_group(session: list[Json]) -> tuple[list[Json], list[Json]]:
    """Timed steps of a session: those with the very time of the first one, which was measured over
    all of them, and those after.
    """
    steps = [
        record
        for record in session
        if record.get("kind") == "step" and number(record.get("step_time_s")) is not None
    ]
    size = next(
        (
            place
            for place, record in enumerate(steps)
            if record["step_time_s"] != steps[0]["step_time_s"]
        ),
        len(steps),
    )
    return steps[:size], steps[size:]


def _count(session: list[Json], first: list[Json]) -> int:
    """Steps from the start of a session to the last of its first group, which are more than the
    records of a long run.
    """
    return (
        max(0, _step_of(first[-1]) - _step_of(session[0]))
        if first and session[0].get("kind") == "start"
        else len(first)
    )


def _step_of(record: Json) -> int:
    step = number(record.get("step")) or 0.0
    return int(step) if abs(step) < 2**53 else 0


def step_spans(run: RunFiles) -> list[tuple[int, Json]]:
    """(steps, record that speaks for them): each timed record for the steps since the one before
    it. Steps that a rollback repeats count again.
    """
    records = [
        record for record in run.of_kind("step") if (number(record.get("step_time_s")) or -1.0) >= 0
    ]
    if not records:
        return []
    reached = list(map(_step_of, records))
    counts = [after - before if after > before else 1 for before, after in pairwise([0, *reached])]
    counts[-1] += max(run.last_step, reached[-1]) - reached[-1]
    return list(zip(counts, records, strict=True))


def sessions(run: RunFiles) -> list[list[Json]]:
    """The records of each session; one that was started again begins with a start record."""
    found: list[list[Json]] = []
    for record in run.records:
        if record.get("kind") == "start" or not found:
            found.append([])
        found[-1].append(record)
    return found


def measured(run: RunFiles) -> dict[str, float]:
    """See `measurements.measured`."""
    return measurements.measured(run.typed)


def energy_way(run: RunFiles) -> str:
    """See `measurements.energy_source`."""
    return measurements.energy_source(run.typed)


def memory_way(run: RunFiles) -> str:
    """See `measurements.memory_source`."""
    return measurements.memory_source(run.typed)


def stage_times_s(run: RunFiles) -> dict[str, float | None]:
    """See `measurements.stage_times_s`."""
    return measurements.stage_times_s(run.typed)


def training_time_s(run: RunFiles) -> float | None:
    """See `measurements.training_time_s`."""
    return measurements.training_time_s(run.typed)


def total_time_s(run: RunFiles) -> float | None:
    """See `measurements.total_time_s`."""
    return measurements.total_time_s(run.typed)


def warm_up_s(run: RunFiles) -> float:
    """See `measurements.warm_up_s`."""
    return measurements.warm_up_s(run.typed)


def losses_by_training_time(run: RunFiles) -> tuple[tuple[float, float], ...]:
    """See `measurements.losses_by_training_time`."""
    return measurements.losses_by_training_time(run.typed)
