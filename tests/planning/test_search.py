"""The search takes the fastest way that surely fits, nothing riskier for a gain that prediction
cannot tell, and says what came second.

By hand: 400 MiB and 50 for every sequence, 10 where activations are recomputed, of which a CPU
without other load may use nine tenths with a tenth in doubt. A sequence takes 3.1 ms and 1 ms more
recomputed; a pass issues 50 operators, 60 recomputed, 30 compiled; the update takes 1 ms and one
operator.
"""

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pytest
from fixture_types import Devices, Make, MakeDevice, MakeRates, MakeRecipe
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.base.units import MIB
from brimful.hardware.device import Abilities
from brimful.hardware.rates import Rates
from brimful.planning.choices import COMPILE_GAIN
from brimful.planning.compiling import COLD_S
from brimful.planning.longest_pass import LongestPass, split
from brimful.planning.plan import Choice
from brimful.planning.search import (
    SAME_TIME,
    UNEVEN_GAIN,
    WATCHED_S,
    SearchResult,
    highest_useful,
    search,
)
from brimful.planning.survey import Memory, Prepared, Tracer, prepare
from brimful.planning.timing import Scale, step_time
from brimful.planning.work import PARTS, IrregularWork, Work

Preparing = Callable[..., Prepared]
ROOM_FOR_2 = 840
"""MiB that are free where two sequences surely fit, and ten when activations are recomputed."""
AMPLE = 16_000


@pytest.fixture
def prepared(tiny: MakeRecipe, cpu: MakeDevice) -> Preparing:
    """`prepared("key=value", ..., free_mib=...)` is 64 sequences of 32 tokens in fp32 on a CPU."""

    def prepare_(*overrides: str, free_mib: int = AMPLE, **changes: Any) -> Prepared:
        recipe = tiny("plan={precision: fp32}", "batch.sequences=64", *overrides)
        return prepare(recipe, cpu(free_memory_bytes=free_mib * MIB, **changes))

    return prepare_


@pytest.fixture
def tracer(by_hand: Make) -> Tracer:
    return lambda spec: by_hand(
        sequence_bytes=(10 if spec.recompute else 50) * MIB, recomputed=spec.recompute
    )


class Searching(Protocol):
    def __call__(
        self, *overrides: str, free_mib: int = AMPLE, steps: int | None = None, **rates: Any
    ) -> SearchResult: ...


@pytest.fixture
def found(prepared: Preparing, tracer: Tracer, rates: MakeRates) -> Searching:
    """`found("key=value", ..., free_mib=, steps=, host_s=, ...)` is what the search takes with the
    rates by hand, fields replaced.
    """

    def find(
        *overrides: str, free_mib: int = AMPLE, steps: int | None = None, **changes: Any
    ) -> SearchResult:
        return search(prepared(*overrides, free_mib=free_mib), tracer, rates(**changes), steps)

    return find


def _seconds(found: SearchResult) -> float:
    assert found.taken.time is not None
    return found.taken.time.seconds


def _by_hand_s(
    effective_batch: int, passes: int, host_s: float, *, recomputed: bool = False
) -> float:
    return (
        effective_batch * (0.0041 if recomputed else 0.0031)
        + 0.001
        + host_s * (passes * (60 if recomputed else 50) + 1)
    )


# --- the micro-batch


def test_fewest_passes_are_fastest_where_a_pass_costs(
    found: Searching, snapshot: SnapshotAssertion
) -> None:
    """5 ms a pass: 204.5 ms in one, 209.5 in two."""
    one = found(host_s=1e-4)

    assert one.taken.micro_batch == 64
    assert _seconds(one) == pytest.approx(_by_hand_s(64, 1, 1e-4))
    choice = one.choices["micro_batch"]
    assert (choice.value, choice.alternative) == (64, 32)
    assert choice.reason == snapshot


def test_a_gain_within_the_noise_buys_no_larger_micro_batch(
    found: Searching, snapshot: SnapshotAssertion
) -> None:
    """1 ms a pass of 199.4 ms: up to five passes are equally fast, and four are equal."""
    calm = found(host_s=2e-5)

    assert calm.taken.micro_batch == 16
    assert _by_hand_s(64, 1, 2e-5) < _seconds(calm) < (1 + SAME_TIME) * _by_hand_s(64, 1, 2e-5)
    assert calm.choices["micro_batch"].alternative == 64
    assert calm.choices["micro_batch"].reason == snapshot


@pytest.mark.parametrize(
    ("host_s", "micro_batches"), [(1e-4, (5, 4)), (2.5e-5, (3, 3, 3)), (5e-6, (3, 3, 3))]
)
def test_equal_passes_are_preferred_where_they_cost_little(
    found: Searching, host_s: float, micro_batches: tuple[int, ...]
) -> None:
    """8 of 9 sequences fit: 5 and 4 in two passes, or three times 3. With 1.25 ms a pass the
    two gain 4 %, too little for a last pass of another size.
    """
    taken = found("batch.sequences=9", "plan.recompute=false", free_mib=1340, host_s=host_s)

    assert taken.largest == 8
    assert split(9, taken.taken.micro_batch) == micro_batches
    assert _seconds(taken) == pytest.approx(_by_hand_s(9, len(micro_batches), host_s))
    reason = taken.choices["micro_batch"].reason
    assert ("too little for passes of unequal size" in reason) is (len(micro_batches) == 3)


def test_a_batch_that_cannot_be_divided_has_a_smaller_last_pass(found: Searching) -> None:
    """7 sequences, 4 of which fit: one at a time would take seven passes."""
    taken = found("batch.sequences=7", "plan.recompute=false", free_mib=1010)

    assert (taken.largest, split(7, taken.taken.micro_batch)) == (4, (4, 3))


@pytest.mark.parametrize(
    ("effective", "largest", "size"), [(9, 8, 5), (16, 8, 8), (17, 8, 6), (10, 100, 10), (7, 1, 1)]
)
def test_without_rates_passes_are_as_few_as_fit_and_then_as_equal_as_can_be(
    prepared: Preparing, tracer: Tracer, effective: int, largest: int, size: int
) -> None:
    free_mib = -(-15 * (400 + 50 * largest) // 9)
    blind = search(
        prepared(f"batch.sequences={effective}", "plan.recompute=false", free_mib=free_mib),
        tracer,
        None,
        10**6,
    )

    assert (blind.largest, blind.taken.micro_batch, blind.taken.time) == (
        min(largest, effective),
        size,
        None,
    )
    assert len(split(effective, size)) == -(-effective // largest)


def test_a_rate_that_is_missing_is_as_none(
    prepared: Preparing, tracer: Tracer, rates: MakeRates
) -> None:
    partial = rates(flop_per_s={"matrix": {"bf16": 1e12}})

    assert (
        search(prepared(), tracer, partial, None).taken
        == search(prepared(), tracer, None, None).taken
    )


def test_operators_that_cannot_be_told_cost_the_time_and_not_the_plan(
    prepared: Preparing,
    by_hand: Make,
    rates: MakeRates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work_at(traces: Any, micro_batch: int) -> Work:
        raise IrregularWork("not told")

    monkeypatch.setattr(by_hand, "work_at", work_at)
    found = search(prepared(), lambda spec: by_hand(), rates(), 100)

    assert found.taken.time is None
    assert found.largest == 64


def test_no_more_tokens_than_bring_speed_are_looked_at(prepared: Preparing) -> None:
    """2048 tokens of 32 on a CPU; but a micro-batch that is fixed above it is the user's
    business.
    """
    assert highest_useful(prepared("batch.sequences=1000")) == 64
    assert highest_useful(prepared("batch.sequences=1000", "plan.micro_batch=100")) == 100
    assert highest_useful(prepared("batch.sequences=50", "plan.micro_batch=100")) == 50
    assert highest_useful(prepared("batch.sequences=50", "sequence_length=4096")) == 1


# --- recomputation


def test_recomputation_is_taken_when_it_buys_speed_and_both_times_are_told(
    found: Searching,
    snapshot: SnapshotAssertion,
) -> None:
    """50 ms a pass: 2 at a time take 32 passes, 10 recomputed 7."""
    taken = found(free_mib=ROOM_FOR_2, host_s=1e-3)

    assert (taken.taken.recompute, taken.taken.micro_batch, taken.largest) == (True, 10, 10)
    assert _seconds(taken) == pytest.approx(_by_hand_s(64, 7, 1e-3, recomputed=True))
    assert _by_hand_s(64, 32, 1e-3) == pytest.approx(1.8004)
    reason = taken.choices["recompute"].reason
    assert reason == snapshot


def test_recomputation_is_not_taken_when_it_costs_and_its_time_is_told(
    found: Searching, snapshot: SnapshotAssertion
) -> None:
    """0.5 ms a pass: 215 ms, and 268 recomputed."""
    taken = found(free_mib=ROOM_FOR_2, host_s=1e-5)

    assert (taken.taken.recompute, taken.taken.micro_batch) == (False, 2)
    assert _seconds(taken) == pytest.approx(_by_hand_s(64, 32, 1e-5))
    assert taken.choices["recompute"].reason == snapshot
    assert taken.choices["micro_batch"].reason == snapshot


def test_what_fits_without_recomputation_is_told_before_that_is_looked_at(
    prepared: Preparing, tracer: Tracer, rates: MakeRates
) -> None:
    said: list[tuple[str, bool]] = []

    def heard(spec: Any) -> Any:
        said.append(("asked", spec.recompute))
        return tracer(spec)

    def first(result: SearchResult) -> None:
        said.append(("told", result.taken.recompute))

    taken = search(prepared(free_mib=ROOM_FOR_2), heard, rates(host_s=1e-3), None, first=first)

    assert taken.taken.recompute
    assert said.index(("told", False)) < said.index(("asked", True))
    said.clear()
    search(prepared(free_mib=700), heard, rates(), None, first=first)
    assert {what for what, _ in said} == {"asked"}


def test_recomputation_is_not_looked_at_where_computing_half_of_it_would_cost_too_much(
    prepared: Preparing, by_hand: Make, rates: MakeRates, snapshot: SnapshotAssertion
) -> None:
    """All 64 at once would take 201 ms, and half of 71 ms for the blocks' forward pass again."""
    asked = []

    def tracer(spec: Any) -> Any:
        asked.append(spec.recompute)
        return by_hand(layer=0)

    taken = search(prepared(free_mib=ROOM_FOR_2), tracer, rates(host_s=1e-5), None)

    assert (asked, taken.taken.recompute) == ([False], False)
    assert taken.choices["recompute"].reason == snapshot


def test_recomputation_is_not_looked_at_where_all_activations_fit(
    prepared: Preparing, by_hand: Make
) -> None:
    asked = []

    def tracer(spec: Any) -> Any:
        asked.append(spec.recompute)
        return by_hand()

    assert search(prepared(), tracer, None, None).choices["recompute"].value is False
    assert asked == [False]


def test_without_rates_activations_are_recomputed_only_where_not_even_one_sequence_fits(
    prepared: Preparing, tracer: Tracer, snapshot: SnapshotAssertion
) -> None:
    """One sequence takes 450 to 675 MiB, recomputed 410 to 615; 630 of 700 may be used, 756 of
    840.
    """
    tight, roomy = (
        search(prepared(free_mib=free_mib), tracer, None, None) for free_mib in (700, ROOM_FOR_2)
    )

    assert tight.taken.recompute is True
    assert tight.choices["recompute"].reason == snapshot
    assert (roomy.taken.recompute, roomy.choices["recompute"].alternative) == (False, True)


def test_recomputation_does_not_help_weights(found: Searching, snapshot: SnapshotAssertion) -> None:
    none = found(free_mib=200)

    assert (none.largest, none.taken.recompute, none.taken.micro_batch) == (0, False, 1)
    assert none.choices["recompute"].reason == snapshot


# --- the user's word


def test_a_fixed_micro_batch_is_taken_and_costed(
    found: Searching, snapshot: SnapshotAssertion
) -> None:
    taken = found("batch.sequences=8", "plan.micro_batch=3")

    assert (taken.taken.micro_batch, taken.taken.recompute) == (3, False)
    assert taken.choices["micro_batch"].reason == snapshot
    assert _seconds(taken) == pytest.approx(_by_hand_s(8, 3, 1e-4))


def test_a_fixed_micro_batch_that_fits_only_with_recomputation_gets_it(
    found: Searching, snapshot: SnapshotAssertion
) -> None:
    taken = found("plan.micro_batch=8", free_mib=ROOM_FOR_2)

    assert (taken.taken.micro_batch, taken.taken.recompute) == (8, True)
    assert taken.choices["recompute"].reason == snapshot
    assert _seconds(taken) == pytest.approx(_by_hand_s(64, 8, 1e-4, recomputed=True))


def test_a_fixed_micro_batch_that_fits_as_it_is_computes_nothing_twice(found: Searching) -> None:
    assert found("plan.micro_batch=2", free_mib=ROOM_FOR_2, host_s=1e-3).taken.recompute is False


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_fixed_recomputation_and_compiling_are_costed(
    found: Searching, *, recompute: bool, compiled: bool
) -> None:
    """Compiled, a pass issues 20 operators fewer, and sequences move half of their 10 MB."""
    taken = found(
        f"plan.recompute={str(recompute).lower()}", f"plan.compile={str(compiled).lower()}"
    )

    assert (taken.taken.recompute, taken.taken.compiled, taken.taken.micro_batch) == (
        recompute,
        compiled,
        64,
    )
    saved_s = 20e-4 + 64 * 0.00005 if compiled else 0.0
    assert _seconds(taken) == pytest.approx(_by_hand_s(64, 1, 1e-4, recomputed=recompute) - saved_s)
    assert {taken.choices[name].reason for name in ("recompute", "compile")} == {
        "fixed by the user"
    }


def test_selective_recomputation_is_taken_where_it_is_asked_for(
    found: Searching, snapshot: SnapshotAssertion
) -> None:
    taken = found("plan.recompute=selective")

    assert (taken.taken.recompute, taken.taken.compiled) == ("selective", False)
    assert taken.choices["recompute"] == snapshot
    assert taken.choices["compile"] == snapshot
    assert found().taken.recompute is False
    # Watching takes the program time for each operator that it issues.
    assert _seconds(taken) == pytest.approx(_by_hand_s(64, 1, 1e-4 + WATCHED_S, recomputed=True))


def test_margins_from_conservative_to_tight_take_more_and_more(found: Searching) -> None:
    sizes = [
        found("plan.recompute=false", f"plan.margin={margin}", free_mib=1100).largest
        for margin in ("conservative", "balanced", "tight")
    ]

    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_what_fits_by_less_than_the_margin_is_told_so(
    prepared: Preparing, tracer: Tracer, devices: Devices, snapshot: SnapshotAssertion
) -> None:
    """One sequence surely gets through, but not at the upper end of what the allocator may hold:
    1.25 x 514 MiB beside a context of up to 704.
    """
    loose = prepared("plan.margin=conservative", "plan.recompute=false")
    device = dataclasses.replace(devices["NVIDIA H200"], memory_bytes=1250 * MIB)
    card = prepare(loose.recipe, device)

    narrow = search(card, tracer, None, None)

    assert (narrow.largest, narrow.memory.verdict(1)) == (0, "fits")
    assert narrow.choices["micro_batch"].reason == snapshot


# --- compiling


@pytest.mark.parametrize(("margin", "compiles"), [(0.99, False), (1.01, True)])
def test_compiling_is_taken_when_it_saves_half_more_than_it_costs(
    snapshot: SnapshotAssertion, found: Searching, margin: float, *, compiles: bool
) -> None:
    """By what the device kind gained at most: operators by hand would gain more."""
    saved_s = _by_hand_s(64, 1, 1e-2) * (1 - 1 / COMPILE_GAIN["cpu"])
    steps = round(margin * 1.5 * COLD_S[1] / saved_s)

    taken = found("plan.recompute=false", steps=steps, host_s=1e-2)

    assert (
        taken.taken.compiled,
        taken.choices["compile"].value,
        taken.choices["compile"].alternative,
    ) == (compiles, compiles, not compiles)
    assert taken.choices["compile"].reason == snapshot
    assert (_seconds(taken) < _by_hand_s(64, 1, 1e-2)) is compiles


@pytest.mark.parametrize("packing", ["padded", "document"])
def test_texts_side_by_side_are_not_compiled(
    prepared: Preparing, tracer: Tracer, rates: MakeRates, packing: str
) -> None:
    """Only passes of one shape run compiled blocks, and padded texts hardly ever have it."""
    plain = prepared("plan.recompute=false")
    padded = dataclasses.replace(
        plain, choices={**plain.choices, "packing": Choice("packing", packing, "")}
    )

    taken = [
        search(each, tracer, rates(host_s=1e-2), 10**6).choices["compile"]
        for each in (plain, padded)
    ]

    assert [choice.value for choice in taken] == [True, False]
    assert "many shapes" in taken[1].reason


def test_the_steps_after_which_compiling_pays_are_told_where_the_length_of_the_run_is_not_known(
    found: Searching,
) -> None:
    saved_s = _by_hand_s(64, 1, 1e-2) * (1 - 1 / COMPILE_GAIN["cpu"])

    reason = found("plan.recompute=false", host_s=1e-2).choices["compile"].reason

    assert f"pays from {math.ceil(1.5 * COLD_S[1] / saved_s):,} steps on" in reason


def _with_evaluation(work_at: Callable[..., Work]) -> Callable[..., Work]:
    """The first operator again, as that of an evaluation."""

    def twice(traces: Any, micro_batch: int) -> Work:
        work = work_at(traces, micro_batch)
        arrays = {
            each.name: getattr(work, each.name)
            for each in dataclasses.fields(work)
            if each.name != "operators"
        }
        both = work.replaced(
            {name: np.concatenate([array, array[:1]]) for name, array in arrays.items()}
        )
        both.parts_W[-1] = PARTS.index("evaluation")
        return both

    return twice


def test_evaluation_is_not_compiled_and_takes_as_long(
    found: Searching, by_hand: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound on what compiling gains stretches the compiled step alone."""
    monkeypatch.setattr(by_hand, "work_at", _with_evaluation(by_hand.work_at))  # type: ignore[attr-defined]
    plain, compiled = (
        found(f"plan={{precision: fp32, recompute: false, compile: {text}}}", host_s=1e-2).taken
        for text in ("false", "true")
    )

    assert plain.time is not None
    assert compiled.time is not None
    assert compiled.time.seconds == pytest.approx(plain.time.seconds / COMPILE_GAIN["cpu"])
    assert compiled.time.evaluation_s == plain.time.evaluation_s > 0


@pytest.mark.parametrize("fusible", [0.0, 0.4])
def test_compiling_gains_what_timed_passes_leave_to_gain(
    fusible: float, prepared: Preparing, tracer: Tracer, rates: MakeRates
) -> None:
    """By operators alone it would gain more; where passes were timed, their own share of
    element-wise operators shrinks, and the update stays.
    """
    eager, compiled = (
        search(
            prepared(f"plan.compile={text}"),
            tracer,
            rates(host_s=1e-2),
            100,
            Scale(fusible=fusible),
        ).taken.time
        for text in ("false", "true")
    )

    assert eager is not None
    assert compiled is not None
    update_s = eager.terms.get("optimizer update", 0.0)
    least_s = eager.seconds - fusible * (eager.seconds - update_s)
    assert least_s <= compiled.seconds <= eager.seconds
    assert (compiled.seconds < eager.seconds) is (fusible > 0)
    assert sum(compiled.terms.values()) == pytest.approx(compiled.seconds)


def test_reasons_and_the_worth_of_compiling_count_in_times_as_earlier_runs_measured_them(
    prepared: Preparing, tracer: Tracer, rates: MakeRates, snapshot: SnapshotAssertion
) -> None:
    """Measured three times as slow as predicted, a third of the steps is enough."""
    saved_s = _by_hand_s(64, 1, 1e-2) * (1 - 1 / COMPILE_GAIN["cpu"])
    steps = round(1.5 * COLD_S[1] / saved_s / 2)

    one, slow = (
        search(prepared(), tracer, rates(host_s=1e-2), steps, Scale(lambda size, by=by: by))
        for by in (1.0, 3.0)
    )

    assert (one.taken.compiled, slow.taken.compiled) == (False, True)
    assert one.choices["micro_batch"].reason == snapshot
    assert slow.choices["micro_batch"].reason == snapshot


def test_what_a_pass_was_timed_to_cost_decides_how_many_there_are(
    prepared: Preparing, tracer: Tracer, rates: MakeRates
) -> None:
    """By their operators passes cost next to nothing; a pass that was timed takes a tenth more."""
    ready = prepared("plan.compile=false")

    def timed(size: int) -> float:
        return 1 + 0.1 * len(split(64, size))

    small = search(ready, tracer, rates(host_s=1e-6), 100)
    large = search(ready, tracer, rates(host_s=1e-6), 100, Scale(timed))

    assert small.taken.micro_batch == 1
    assert large.taken.micro_batch == large.largest > 1


def test_compiling_never_pays_where_fusing_saves_nothing(
    prepared: Preparing,
    by_hand: Make,
    rates: MakeRates,
    snapshot: SnapshotAssertion,
) -> None:
    taken = search(prepared(), lambda spec: by_hand(moved_bytes=0), rates(host_s=0.0), 10**9)

    assert taken.taken.compiled is False
    assert taken.choices["compile"].reason == snapshot


@pytest.mark.parametrize(
    ("changes", "known", "steps", "because"),
    [
        ({"abilities": Abilities()}, True, 10**7, "no compiler"),
        ({}, False, 10**7, "no time is predicted"),
        ({}, True, None, "once the data are read and the length of the run is known"),
    ],
)
def test_compiling_is_not_taken_where_it_cannot_be_done_or_judged(
    prepared: Preparing,
    tracer: Tracer,
    rates: MakeRates,
    changes: JsonDict,
    steps: int | None,
    because: str,
    *,
    known: bool,
) -> None:
    choice = search(prepared(**changes), tracer, rates() if known else None, steps).choices[
        "compile"
    ]

    assert choice.value is False
    assert because in choice.reason


# --- of data that are known


def test_a_step_has_the_passes_and_the_padding_of_the_data(
    prepared: Preparing, tracer: Tracer, rates: MakeRates
) -> None:
    """Of 64 rows that are half full of text, a third of which is learned, padding makes 44 in 17
    passes of 4 at most.
    """
    read = prepared("plan.micro_batch=4")
    laid_out = dataclasses.replace(
        read,
        known_longest_pass_at=lambda room: LongestPass(room, room, step_rows=44, step_passes=16.8),
    )
    values = {"fill": 0.5, "scored": 1 / 3}

    times = [
        search(each, tracer, rates(), 10, Scale(**values)).taken.time for each in (read, laid_out)
    ]

    assert read.passes_of_step(4, 0.5, 1 / 3) == ((4,) * 16, 0.5, 1 / 3)
    sizes, fill, scored = laid_out.passes_of_step(4, 0.5, 1 / 3)
    assert (sizes, fill * sum(sizes)) == ((4,) * 17, pytest.approx(44))
    assert scored * 44 == pytest.approx(0.5 * 64 / 3)
    assert times[0] is not None
    assert times[1] is not None
    # All operators of this step are of the loss, so that the further pass is what takes time.
    assert times[1].seconds - times[0].seconds == pytest.approx(50 * rates().host_s)


# --- of all ways


def _brute_force_s(prepared: Prepared, memories: dict[bool, Memory], rates: Rates) -> float:
    """The fastest of every micro-batch that surely fits, with and without recomputation."""
    effective = prepared.recipe.effective_batch
    ways = [
        (memory, size)
        for memory in memories.values()
        for size in range(1, memory.largest(highest_useful(prepared)) + 1)
    ]
    return min(
        step_time(memory.work_at, split(effective, size), rates, precision="fp32").seconds
        for memory, size in ways
    )


@pytest.mark.parametrize("seed", range(12))
def test_little_is_lost_against_trying_everything(
    prepared: Preparing, tracer: Tracer, rates: MakeRates, seed: int
) -> None:
    """Also where small operators find their operands in a cache, so that the largest micro-batch is
    not the fastest.
    """
    draw = random.Random(seed)
    cache = {
        "cache_bytes": draw.choice([0, 4, 16]) * 10**7,
        "cached_bytes_per_s": {"pointwise": 1e12},
    }
    speeds = rates(
        host_s=draw.choice([1e-6, 1e-5, 1e-4, 1e-3]),
        bytes_per_s=dict.fromkeys(rates().bytes_per_s, 1e10),
        **cache,
    )
    free_mib = draw.choice([ROOM_FOR_2, 1000, 2000, AMPLE])
    case = prepared(f"batch.sequences={draw.randint(2, 64)}", free_mib=free_mib)

    taken = search(case, tracer, speeds, None)

    memories = {on: case.memory(tracer, recompute=on) for on in (False, True)}
    lost = (1 + SAME_TIME) * (1 + UNEVEN_GAIN)
    assert _seconds(taken) <= lost * _brute_force_s(case, memories, speeds)
    assert taken.memory.verdict(taken.taken.micro_batch) == "fits"


def test_the_same_question_has_the_same_answer(found: Searching) -> None:
    one, other = (found(free_mib=ROOM_FOR_2, steps=10**5) for _ in range(2))

    assert (one.taken, one.choices, one.largest) == (other.taken, other.choices, other.largest)
