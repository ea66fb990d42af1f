"""What the phases of a job come to."""

import json
import math

import pytest

from brimful.hardware.catalog import Price
from brimful.planning.cost import Conditions
from brimful.planning.job import (
    ANSWERS,
    SAMPLING,
    TRAINING,
    VERIFYING,
    JobPhase,
    WholeJob,
    total_of,
)
from brimful.planning.plan import Prediction, Verdict, summed

GIB = 2**30


def _phase(
    name: str, seconds: float | None, gib: float = 0.0, verdict: Verdict = "fits", variant: str = ""
) -> JobPhase:
    time = None if seconds is None else Prediction(seconds, seconds / 2, seconds * 2, "rates")
    memory = Prediction(gib * GIB, gib * GIB, gib * GIB, "by hand") if gib else None
    return JobPhase(name, "by hand", time, memory, 16 * GIB, verdict, variant)


def test_the_worst_phase_is_the_one_that_needs_most_among_those_that_fit_least() -> None:
    job = WholeJob((_phase(TRAINING, 60, 9), _phase(SAMPLING, 60, 12), _phase(VERIFYING, 1)))
    assert (job.worst.title, job.verdict) == (SAMPLING, "fits")
    tight = WholeJob((*job.phases, _phase(TRAINING, 60, 11, "uncertain", "full")))
    assert (tight.worst.title, tight.verdict) == ("training of full", "uncertain")


def test_errors_of_one_source_add_and_those_of_several_do_not() -> None:
    """By hand: writing 100 + 20 s is off by 60 below together; training of 80 s by 40 apart."""
    total = total_of([_phase(TRAINING, 80), _phase(SAMPLING, 100), _phase(ANSWERS, 20)])
    assert total is not None
    assert total.value == 200
    assert total.low == pytest.approx(200 - math.hypot(40, 60))
    assert total.high == pytest.approx(200 + math.hypot(80, 120))
    alone = Prediction(3.0, 2.0, 5.0, "one")
    assert summed([("", alone)], "one") == alone


def test_trainings_of_several_variants_err_together() -> None:
    variants = [_phase(TRAINING, 80, variant=name) for name in ("a", "b")]
    total = total_of(variants)
    assert total is not None
    assert (total.low, total.value, total.high) == (80, 160, 320)


def test_what_is_not_known_is_not_added_up_and_what_does_not_fit_is_not_done() -> None:
    assert total_of([_phase(TRAINING, 80), _phase(SAMPLING, None)]) is None
    refused = _phase(TRAINING, None, 48, "does not fit", "full")
    assert WholeJob((_phase(TRAINING, 80), refused)).predicted["total_time_s"].value == 80
    assert WholeJob((refused,)).predicted == {}


def test_energy_and_cost_are_those_of_the_whole_job() -> None:
    conditions = Conditions(Price(3.6, "3.6", "by hand", ""), power_w=100.0)
    job = WholeJob((_phase(TRAINING, 80), _phase(VERIFYING, 20)), conditions)
    assert job.predicted["cost_usd"].value == pytest.approx(100 * 3.6 / 3600)
    assert job.predicted["energy_wh"].value == pytest.approx(100 * 76 / 3600)
    values = json.loads(json.dumps(job.to_json(), allow_nan=False))
    assert values["worst_phase"] == TRAINING
    assert [each["name"] for each in values["phases"]] == [TRAINING, VERIFYING]
