"""A training is judged by what it measured beside its plan."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from fixture_types import Refuses
from rich.console import Console

from brimful.chains import pipeline
from brimful.prove.record import HELD
from brimful.prove.training import judged, trains_as_planned
from brimful.prove.workplace import TrialFailed, Workplace
from brimful.recipe import Recipe
from brimful.runs.folder import RunFolder, read_run
from brimful.runs.records import EventRecord, OutOfMemoryRecord


@pytest.mark.usefixtures("warm_processes")
def test_a_training_says_what_it_ran_and_measured(place: Workplace, toy: Mapping[str, Any]) -> None:
    recipe = {**toy, "training": {"steps": 4}, "evaluation": {"every": 4}}

    outcome = trains_as_planned(place, "short", recipe)

    assert outcome.status == HELD
    assert outcome.what == "4 steps of 4 x 64 tokens in micro-batches of 4, fp32"
    assert {each.key for each in outcome.measured} >= {"peak_memory_bytes"}


@pytest.fixture
def run(tiny: Callable[..., Recipe]) -> RunFolder:
    finished = pipeline.train(tiny("training.steps=4"), Console(file=StringIO()))
    return read_run(finished.folder)


def test_a_peak_above_its_interval_has_failed_and_keeps_what_it_measured(
    run: RunFolder, refuses: Refuses
) -> None:
    assert run.plan is not None
    peak = run.plan.predicted["peak_memory_bytes"]
    low = replace(peak, value=peak.value / 100, low=peak.low / 100, high=peak.high / 100)
    plan = replace(run.plan, predicted={**run.plan.predicted, "peak_memory_bytes": low})

    with refuses(TrialFailed) as caught:
        judged(replace(run, plan=plan))

    assert caught.value.outcome.measured[0].key == "peak_memory_bytes"


def test_memory_that_ran_out_has_failed(run: RunFolder, refuses: Refuses) -> None:
    ran_out = OutOfMemoryRecord(kind="out_of_memory", phase="training", smaller=(2,))

    with refuses(TrialFailed):
        judged(replace(run, records=(*run.records, ran_out)))


def test_what_was_to_be_compiled_and_was_not_has_failed(run: RunFolder, refuses: Refuses) -> None:
    message = "B307: torch.compile failed, training goes on without it: x"
    went_on = EventRecord(kind="event", step=1, message=message)

    with refuses(TrialFailed):
        judged(replace(run, records=(*run.records, went_on)))
