"""What each phase of a chain took, beside what the plan of its first training predicted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brimful.base.errors import BrimfulError
from brimful.chains.chain_plan import phases_of
from brimful.kinds.run_data import plan_of
from brimful.planning.chain import ChainPhase
from brimful.recipe import Recipe
from brimful.runs import read_run
from brimful.runs.measurements import answering_time_s, total_time_s


def phases_beside_measured(
    recipe: Recipe, base: Path, members: Sequence[Path], drawn: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a record for each phase: what was expected of the whole chain, with the interval, and
    what it took so far.

    Args:
        recipe: Of the chain.
        base: Folder of the base's scores.
        members: Folders of the trainings, in order.
        drawn: Facts of the drawings; `seconds` is the time of the last session of each.
    """
    measured = {
        "training": sum(total_time_s(read_run(folder)) or 0.0 for folder in members),
        "sampling": sum(float(facts["seconds"]) for facts in drawn),
        "task answers": sum(answering_time_s(read_run(folder)) for folder in (base, *members)),
    }
    try:
        phases = phases_of(recipe, plan_of(members[0]))
    except BrimfulError:  # what can no longer be predicted leaves what was measured
        phases = [ChainPhase(name, None, None, "") for name in measured]
    return [_record(phase, measured.get(phase.name)) for phase in phases]


def _record(phase: ChainPhase, measured_s: float | None) -> dict[str, Any]:
    time = phase.time_s
    expected = (
        {} if time is None else {"expected_s": time.value, "low_s": time.low, "high_s": time.high}
    )
    return {"name": phase.name, **expected, "measured_s": measured_s, "about": phase.about}
