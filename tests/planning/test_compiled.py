"""By hand: 400 MiB and 50 for every sequence, 30 where blocks are compiled; a T4 with 620 MiB to
use surely holds four sequences of 50 MiB.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fixture_types import Make, MakeRates, MakeRecipe
from syrupy.assertion import SnapshotAssertion

from brimful.base.units import MIB
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.planning.compiled import SHARE_OF_EAGER, Untraced, bounded_by_eager, compiled_memory
from brimful.planning.plan import Choice, Prediction
from brimful.planning.search import SearchResult, search
from brimful.planning.step import StepSpec
from brimful.planning.survey import Memory, Prepared, Tracer, prepare

COMPILED = "plan={precision: fp16, compile: true, recompute: false}"


@pytest.fixture
def tracer(by_hand: Make) -> Tracer:
    return lambda spec: by_hand(sequence_bytes=(50 if spec.compiled == "none" else 30) * MIB)


@pytest.fixture
def prepared(tiny: MakeRecipe) -> Callable[..., Prepared]:
    def prepare_(*overrides: str, device: Device | None = None) -> Prepared:
        recipe = tiny(COMPILED, "batch.sequences=64", *overrides)
        return prepare(recipe, device or catalog.get("Tesla T4"))

    return prepare_


def _untraced(tracer: Tracer) -> Tracer:
    def trace(spec: StepSpec) -> Any:
        if spec.compiled != "none":
            raise Untraced("not now")
        return tracer(spec)

    return trace


def _found(prepared: Prepared, tracer: Tracer, rates: MakeRates) -> SearchResult:
    return search(prepared, tracer, rates(), 100_000)


def test_a_compiled_step_has_the_memory_of_its_own_trace(
    prepared: Callable[..., Prepared], tracer: Tracer, rates: MakeRates
) -> None:
    taken = _found(prepared("plan.micro_batch=64"), tracer, rates)
    eager = _found(prepared("plan.micro_batch=64", "plan.compile=false"), tracer, rates)

    assert taken.untraced == ""
    more = eager.memory.at(64).allocated.value - taken.memory.at(64).allocated.value
    assert more == 64 * 20 * MIB


def test_where_compiled_blocks_take_less_a_larger_micro_batch_fits(
    prepared: Callable[..., Prepared], tracer: Tracer
) -> None:
    ready = prepared("batch.sequences=4096")
    eager = ready.memory(tracer, recompute=False)
    known = compiled_memory(ready, tracer, eager, recompute=False)

    assert isinstance(known, Memory)
    assert known.largest(4096) > eager.largest(4096) > 0


def test_times_are_those_of_the_recorded_operators(
    prepared: Callable[..., Prepared], tracer: Tracer
) -> None:
    ready = prepared()
    eager = ready.memory(tracer, recompute=False)
    known = compiled_memory(ready, tracer, eager, recompute=False)

    assert isinstance(known, Memory)
    assert known.work_at(2).counts().tolist() == eager.work_at(2).counts().tolist()


def test_an_untraced_step_is_bounded_by_the_eager_one_and_says_why(
    prepared: Callable[..., Prepared],
    tracer: Tracer,
    rates: MakeRates,
    snapshot: SnapshotAssertion,
) -> None:
    ready = prepared("plan.micro_batch=8")
    taken = _found(ready, _untraced(tracer), rates)
    eager = ready.memory(tracer, recompute=False).at(8).reserved
    bounded = bounded_by_eager(eager, taken.untraced)

    assert taken.taken.compiled
    assert taken.memory.at(8).reserved == eager
    assert (bounded.low, bounded.high) == (SHARE_OF_EAGER * eager.low, eager.high)
    assert bounded.basis == snapshot


@pytest.mark.parametrize(
    ("packing", "kind"),
    [("stream", "blocks"), ("packed", "open_blocks")],
)
def test_packed_rows_are_compiled_for_every_length(
    prepared: Callable[..., Prepared], tracer: Tracer, packing: str, kind: str
) -> None:
    specs: list[StepSpec] = []

    def trace(spec: StepSpec) -> Any:
        specs.append(spec)
        return tracer(spec)

    ready = prepared()
    ready = replace(ready, choices={**ready.choices, "packing": Choice("packing", packing, "")})
    compiled_memory(ready, trace, ready.memory(tracer, recompute=False), recompute=False)

    assert [spec.compiled for spec in specs] == [kind]


def test_a_prediction_keeps_its_value_where_it_is_a_bound() -> None:
    peak = Prediction(10.0, 9.0, 11.0, "a replay")

    assert bounded_by_eager(peak, "why").value == 10.0
