"""A plan's choice beside other choices."""

from collections.abc import Mapping
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.prove.record import HELD
from brimful.prove.sweep import AS_PLANNED, beside_a_sweep
from brimful.prove.workplace import TrialFailed, Workplace

SHORT = {"training": {"steps": 5}, "evaluation": {"every": 5}, "checkpoint": {"every": 5}}


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.long
def test_every_choice_that_runs_is_timed(place: Workplace, toy: Mapping[str, Any]) -> None:
    others = {"in the shade": {"device": "nowhere"}}

    outcome = beside_a_sweep(place, "sweep", {**toy, **SHORT}, (0.5, 4), others)

    times = outcome.facts["step_time_s"]
    assert outcome.status == HELD
    assert set(times) == {AS_PLANNED, "micro-batches of 2"}
    assert all(value > 0 for value in times.values())
    assert "2 choices; in the shade: `brimful train` refused: " in outcome.what


@pytest.mark.usefixtures("warm_processes")
def test_a_recipe_that_does_not_run_has_failed(
    place: Workplace, toy: Mapping[str, Any], refuses: Refuses
) -> None:
    with refuses(TrialFailed):
        beside_a_sweep(place, "sweep", {**toy, "sequence_length": 0}, (0.5,), {})
