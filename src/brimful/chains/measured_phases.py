"""What the phases of a job took, beside what the plans of its trainings expected."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from brimful.base.errors import BrimfulError
from brimful.base.types import Json, JsonDict
from brimful.chains.job import REFERENCE_TIME, PlannedTraining, job_of
from brimful.chains.phases import SFT, Member, folder_of, recipe_before
from brimful.data.counts import num_questions
from brimful.kinds.run_data import plan_of
from brimful.planning.job import (
    ANSWERS,
    HELD_OUT,
    REFERENCE,
    SAMPLING,
    SCORING,
    TRAINING,
    VERIFYING,
    JobPhase,
)
from brimful.recipe import Recipe
from brimful.runs.folder import read_run
from brimful.runs.measurements import answering_time_s, stage_times_s

_APART = {
    REFERENCE_TIME: REFERENCE,
    "sampling_time_s": SAMPLING,
    "verifying_time_s": VERIFYING,
    "scoring_time_s": SCORING,
    "evaluation_time_s": HELD_OUT,
}
"""Times of a run that are phases of its job."""


def phases_beside_measured(
    recipe: Recipe,
    base: Path | None,
    done: Sequence[Member],
    drawn: Sequence[Json] = (),
) -> list[JsonDict]:
    """Return a record for each phase: what was expected of the whole job by the plans of its runs,
    with the interval, and what it took so far.

    Args:
        recipe: The recipe of the job.
        base: Folder of the base's scores.
        done: Trainings, in order.
        drawn: Facts of the drawings; `seconds` is the time of the last session of each.
    """
    first, measured = _trained(recipe, done)
    with suppress(BrimfulError):  # what is no longer at hand is left out
        if (before := recipe_before(recipe)) is not None:
            took = stage_times_s(read_run(folder_of(before)))["total_time_s"]
            measured[TRAINING, before.name] = took or 0.0
            first = {before.name: Member(before.name, before), **first}
    if drawn:
        measured[SAMPLING, ""] = sum(float(facts["seconds"]) for facts in drawn)
    scored = [*([] if base is None else [base]), *(member.folder for member in done)]
    measured[ANSWERS, ""] = sum(answering_time_s(read_run(folder)) for folder in scored)
    try:
        plans = {
            name: PlannedTraining(each.recipe, plan_of(each.folder)) for name, each in first.items()
        }
        phases = job_of(recipe, plans, num_questions(recipe)).phases
    except BrimfulError:  # what can no longer be predicted leaves what was measured
        phases = tuple(JobPhase(name, "", None, variant=variant) for name, variant in measured)
    return [_record(phase, measured.get((phase.name, phase.variant))) for phase in phases]


def _trained(
    recipe: Recipe, done: Sequence[Member]
) -> tuple[dict[str, Member], dict[tuple[str, str], float]]:
    """Return the first training of each plan, and what all of them took, by phase and plan."""
    first, measured = dict[str, Member](), Counter[tuple[str, str]]()
    has_variants = recipe.study is not None
    for member in done:
        is_first = recipe.kind.compares_answers and member.variant == SFT
        variant = member.variant if has_variants or is_first else ""
        first.setdefault(variant, member)
        times = stage_times_s(read_run(member.folder))
        took = {name: times[key] or 0.0 for key, name in _APART.items()}
        if not took[SAMPLING]:
            took[HELD_OUT] = 0.0  # evaluations are part of other trainings
        took[TRAINING] = max(0.0, (times["total_time_s"] or 0.0) - sum(took.values()))
        measured.update({(name, variant): seconds for name, seconds in took.items() if seconds})
    return first, dict(measured)


def _record(phase: JobPhase, measured_s: float | None) -> JsonDict:
    time = phase.time_s
    expected = (
        {} if time is None else {"expected_s": time.value, "low_s": time.low, "high_s": time.high}
    )
    return {"name": phase.title, **expected, "measured_s": measured_s, "about": phase.about}
