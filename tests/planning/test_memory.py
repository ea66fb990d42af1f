"""From a trace to terms, peaks, their intervals and a verdict, at sizes that can be worked out by
hand.
"""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from fixture_types import Make

from brimful.base.units import GIB, MIB
from brimful.planning.host_heap import HOST_SLACK, MANY_PASSES
from brimful.planning.memory import (
    ALLOCATED_SHARE,
    RESERVED_SHARE,
    Footprint,
    Replayed,
    Replays,
    ReservedPeaks,
    cuda_high,
    cuda_high_at_least,
    footprint,
    largest_at,
    peaks_alone,
    phase_at,
    scored_bytes,
    with_workspaces,
)
from brimful.planning.target import METAL_SLACK, WORKSPACES, Target
from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import GLOBAL

GPU = Target("cuda", 2100 * MIB, 100 * MIB)
HOST = Target("cpu", 2000 * MIB, 100 * MIB)
APPLE = Target("mps", 2000 * MIB)


def _trace(
    *events: int, sizes_mib: list[float], kinds: tuple[str, ...] = (), **changes: Any
) -> Trace:
    """Storages of these sizes, born and dead in this order."""
    count = len(sizes_mib)
    names = kinds or ("temporaries",) * count
    return Trace(
        events_E=np.array(events, np.int32),
        event_layers_E=np.full(len(events), GLOBAL, np.int32),
        sizes_S=np.array([size * MIB for size in sizes_mib], np.int64),
        kinds_S=np.array([KINDS.index(name) for name in names], np.int32),
        places_S=np.arange(count, dtype=np.int32),
        layers_S=np.full(count, GLOBAL, np.int32),
        places=tuple(f"place {number}" for number in range(count)),
        **changes,
    )


def _footprint(trace: Trace, target: Target, micro_batch: int = 1) -> Footprint:
    return footprint(Replayed(lambda: trace, target.workspace_bytes), target, micro_batch)


# --- terms and peaks


def test_terms_are_what_is_alive_at_the_peak_and_add_up_to_the_drivers_figure(
    by_hand: Make,
) -> None:
    """400 MiB, two sequences of 50, 30 of logits: 530; the context has 100."""
    found = _footprint(by_hand(logits_bytes=30 * MIB).at(2), GPU, 2)

    assert {name: size / MIB for name, size in found.terms.items()} == {
        "weights": 100,
        "gradients": 100,
        "optimizer states": 200,
        "activations": 100,
        "loss and logits": 30,
        "CUDA context and libraries": 100,
    }
    assert (found.allocated.value, found.reserved.value, found.driver.value) == (
        530 * MIB,
        530 * MIB,
        630 * MIB,
    )
    assert sum(found.terms.values()) == found.driver.value
    assert found.headroom_bytes == 1470 * MIB


def test_what_the_allocator_holds_beyond_tensors_is_its_slack() -> None:
    """Three tensors of 7 MiB: two fill 14 of a segment of 20, the third needs another."""
    found = _footprint(_trace(1, 2, 3, sizes_mib=[7, 7, 7]), GPU)

    assert (found.allocated.value / MIB, found.reserved.value / MIB) == (21, 40)
    assert found.terms["allocator slack"] == 19 * MIB


def test_rounding_of_every_block_counts_as_slack() -> None:
    """513 bytes take a block of 1024, and that a segment of 2 MiB."""
    found = _footprint(_trace(1, sizes_mib=[513 / MIB]), GPU)

    assert (found.allocated.value, found.reserved.value) == (1024, 2 * MIB)
    assert found.terms["temporaries"] + found.terms["allocator slack"] == 2 * MIB


def test_what_was_reserved_before_and_does_not_fit_stays_with_the_allocator() -> None:
    """400 MiB, given back to the allocator and cut for 300: then 200 find no hole, though 100 are
    free.
    """
    found = _footprint(_trace(1, -1, 2, 3, sizes_mib=[400, 300, 200]), GPU)

    assert (found.allocated.value / MIB, found.reserved.value / MIB) == (500, 600)
    assert found.terms["allocator slack"] == 100 * MIB


def test_no_more_is_reserved_than_the_device_has_while_the_tensors_fit() -> None:
    """1200 MiB held and 1500 needed: reserved would be 2700 of 2000, but the allocator gives back
    what it only holds.
    """
    found = _footprint(_trace(1, -1, 2, sizes_mib=[1200, 1500]), GPU)

    assert (found.allocated.value / MIB, found.reserved.value / MIB, found.verdict) == (
        1500,
        2000,
        "fits",
    )


def test_intervals_lie_around_the_values_and_allocated_below_reserved(
    by_hand: Make,
) -> None:
    doubtful = dataclasses.replace(GPU, context_uncertainty_bytes=30 * MIB)
    found = _footprint(by_hand().at(2), doubtful)

    assert (found.allocated.low, found.allocated.high) == (
        ALLOCATED_SHARE[0] * 500 * MIB,
        ALLOCATED_SHARE[1] * 500 * MIB,
    )
    low, high = RESERVED_SHARE[False]
    assert found.reserved.low == max(low, ALLOCATED_SHARE[0]) * 500 * MIB
    assert found.reserved.high == high * 500 * MIB
    assert (found.driver.low, found.driver.high) == (
        found.reserved.low + 70 * MIB,
        found.reserved.high + 130 * MIB,
    )


def test_a_context_takes_no_less_than_nothing_however_little_is_known_of_it(
    by_hand: Make,
) -> None:
    """As of a V100, whose context is 218 MiB, give or take 250: a tiny model had less than no
    memory at the lower end.
    """
    doubtful = dataclasses.replace(GPU, context_uncertainty_bytes=250 * MIB)

    for trace in (_trace(1, sizes_mib=[1]), by_hand().at(2)):
        found, sure = _footprint(trace, doubtful), _footprint(trace, GPU)
        assert found.driver.low == found.reserved.low >= found.allocated.low > 0
        assert found.driver.high == sure.driver.high + 250 * MIB
        assert (found.terms, found.driver.value) == (sure.terms, sure.driver.value)


@pytest.mark.parametrize(
    ("target", "shares"), [(HOST, HOST_SLACK), (APPLE, (METAL_SLACK, 2 * METAL_SLACK))]
)
def test_off_cuda_live_bytes_and_a_share_of_them_count(
    by_hand: Make, target: Target, shares: tuple[float, float]
) -> None:
    found = _footprint(by_hand().at(2), target)

    assert (found.allocated.low, found.allocated.value, found.allocated.high) == (500 * MIB,) * 3
    assert found.reserved.value == pytest.approx(500 * MIB * (1 + shares[0]))
    assert found.reserved.high == pytest.approx(500 * MIB * (1 + shares[1]))
    assert found.driver.value == found.reserved.value + target.context_bytes
    assert sum(found.terms.values()) == pytest.approx(found.driver.value, abs=1)
    assert found.terms.get("process", 0) == target.context_bytes


def test_only_what_a_pass_holds_leaves_holes_on_a_cpu() -> None:
    trace = _trace(1, 2, sizes_mib=[100, 400], kinds=("weights", "loss and logits"))
    found = footprint(Replayed(lambda: trace, 0), HOST, 1, varying_passes=MANY_PASSES)

    assert found.terms["allocator slack"] == pytest.approx(0.6 * 400 * MIB)
    assert found.reserved.high == pytest.approx(1300 * MIB)


def test_terms_without_a_byte_are_left_out(by_hand: Make) -> None:
    assert "loss and logits" not in _footprint(by_hand().at(1), GPU).terms


# --- verdicts


@pytest.mark.parametrize(("off_mib", "verdict"), [(-2, "fits"), (2, "uncertain")])
def test_a_gpu_surely_holds_what_fits_with_the_tensors_at_their_highest(
    off_mib: int, verdict: str
) -> None:
    """Torch has 2000 MiB; live tensors may take more than traced."""
    sure_mib = int(2000 / ALLOCATED_SHARE[1]) // 2 * 2

    assert _footprint(_trace(1, sizes_mib=[sure_mib + off_mib]), GPU).verdict == verdict


@pytest.mark.parametrize(("off_mib", "verdict"), [(-2, "uncertain"), (2, "does not fit")])
def test_a_gpu_surely_lacks_what_does_not_fit_with_the_tensors_at_their_lowest(
    off_mib: int, verdict: str
) -> None:
    possible_mib = int(2000 / ALLOCATED_SHARE[0]) // 2 * 2

    assert _footprint(_trace(1, sizes_mib=[possible_mib + off_mib]), GPU).verdict == verdict


def test_doubt_about_the_context_makes_the_verdict_doubtful(by_hand: Make) -> None:
    """1900 of 2000 MiB fit; with the context 200 MiB off either way that is not sure, and neither
    is that 2100 do not.
    """
    doubtful = dataclasses.replace(GPU, context_uncertainty_bytes=200 * MIB)

    assert [_footprint(_trace(1, sizes_mib=[size]), GPU).verdict for size in (1900, 2100)] == [
        "fits",
        "does not fit",
    ]
    assert [_footprint(_trace(1, sizes_mib=[size]), doubtful).verdict for size in (1900, 2100)] == [
        "uncertain",
        "uncertain",
    ]


@pytest.mark.parametrize(("target", "size_mib"), [(GPU, 1990), (APPLE, 1700)])
def test_what_may_not_fit_memory_that_the_system_shares_does_not(
    target: Target, size_mib: int
) -> None:
    shared = dataclasses.replace(target, shares_memory=True)
    trace = _trace(1, sizes_mib=[size_mib])

    assert _footprint(trace, target).verdict == "uncertain"
    assert _footprint(trace, shared).verdict == "does not fit"
    assert _footprint(_trace(1, sizes_mib=[1000]), shared).verdict == "fits"


@pytest.mark.parametrize(
    ("live_mib", "verdict"),
    [(1266, "fits"), (1267, "uncertain"), (1900, "uncertain"), (1901, "does not fit")],
)
def test_a_host_holds_live_bytes_and_is_in_doubt_about_its_slack(
    live_mib: int, verdict: str
) -> None:
    """1900 MiB beside the process; half as much again as 1266.7 MiB is above that."""
    assert HOST_SLACK == (0.1, 0.5)

    assert _footprint(_trace(1, sizes_mib=[live_mib]), HOST).verdict == verdict


def test_holes_that_no_giving_back_can_close_make_a_step_fail_that_would_fit_by_its_bytes() -> None:
    """20 MiB hold 8, 4 and 8; the 4 stay. Of 40 MiB, 20 are taken; 10 find neither a hole nor a
    segment.
    """
    holes = Replayed(lambda: _trace(1, 2, 3, 4, -1, -3, 5, sizes_mib=[8, 4, 8, 20, 10]), 0)

    assert holes.usage.peak_allocated_bytes == 40 * MIB
    assert not holes.fits_in(40 * MIB)
    assert holes.fits_in(50 * MIB)


def test_what_is_only_held_is_given_back_before_a_step_fails() -> None:
    held = Replayed(lambda: _trace(1, -1, 2, sizes_mib=[400, 500]), 0)

    assert held.usage.peak_reserved_bytes == 900 * MIB
    assert [held.fits_in(limit * MIB) for limit in (499, 500, 900)] == [False, True, True]


def test_scoring_between_updates_holds_no_gradients_and_states_once_there_are_some() -> None:
    kinds = ("weights", "gradients", "optimizer states", "temporaries", "temporaries")
    events = (1, 2, 3, 4, -4, 5, -5)
    trace = _trace(*events, sizes_mib=[100, 10, 20, 5, 7], kinds=kinds, marks={"evaluation": 3})

    assert scored_bytes(trace, with_states=True) == (100 + 20 + 7) * MIB
    assert scored_bytes(trace) == (100 + 7) * MIB


# --- workspaces


def test_workspaces_are_born_with_the_first_product_and_stay(by_hand: Make) -> None:
    trace = by_hand().at(1)

    made = with_workspaces(trace, 10 * MIB)

    assert made.events_E.tolist() == [1, 6, 7, 2, 3, 4, 5, -5, -4]
    assert made.sizes_S.tolist()[5:] == [10 * MIB] * WORKSPACES
    assert {KINDS[kind] for kind in made.kinds_S[5:]} == {"library workspaces"}
    assert [made.places[place] for place in made.places_S[5:]] == ["cuBLAS workspace"] * 2
    assert dict(made.marks) == {
        "inputs": 0,
        "backward": 3,
        "optimizer": 4,
        "forward 2": 5,
        "backward 2": 7,
    }
    assert len(made.event_layers_E) == len(made.events_E)
    assert len(made.layers_S) == len(made.sizes_S)


def test_phases_begin_where_they_did_beside_workspaces(by_hand: Make) -> None:
    trace = by_hand().at(1)
    made = with_workspaces(trace, 10 * MIB)

    for name, event in trace.marks.items():
        assert made.events_E[made.marks[name]] == trace.events_E[event], name


def test_a_trace_without_phases_has_them_at_the_end_and_none_are_none(
    by_hand: Make,
) -> None:
    trace = _trace(1, -1, sizes_mib=[1])

    assert with_workspaces(trace, MIB).events_E.tolist() == [1, -1, 2, 3]
    assert with_workspaces(by_hand().at(1), 0) is not None
    assert with_workspaces(trace, 0) is trace


def test_two_default_workspaces_cost_a_segment_of_20_mib(by_hand: Make) -> None:
    """8.125 MiB each, in one segment: 3.75 MiB of it stay free."""
    found = _footprint(by_hand().at(2), dataclasses.replace(GPU, workspace_bytes=8_519_680))

    assert found.terms["library workspaces"] == 2 * 8_519_680
    assert found.terms["allocator slack"] == 3.75 * MIB
    assert found.reserved.value == 520 * MIB


# --- why


def test_the_phase_that_needs_most_is_named_without_its_count(by_hand: Make) -> None:
    trace = by_hand().at(2)

    assert _footprint(trace, GPU).peak_phase == _footprint(trace, HOST).peak_phase == "forward"
    assert [phase_at(trace, event) for event in range(7)] == [
        "inputs",
        "backward",
        "optimizer",
        "forward",
        "forward",
        "backward",
        "backward",
    ]


def test_the_largest_tensors_at_the_peak_are_named_with_kind_and_place(
    by_hand: Make,
) -> None:
    found = _footprint(by_hand(logits_bytes=30 * MIB).at(5), GPU)

    assert [(tensor.num_bytes // MIB, tensor.kind, tensor.place) for tensor in found.largest] == [
        (250, "activations", "place of activations"),
        (200, "optimizer states", "place of optimizer states"),
        (100, "weights", "place of weights"),
        (100, "gradients", "place of gradients"),
        (30, "loss and logits", "place of loss and logits"),
    ]


def test_dead_tensors_are_not_among_the_largest_and_ten_are_enough() -> None:
    trace = _trace(1, *range(2, 14), -1, sizes_mib=[999, *range(1, 13)])

    found = largest_at(trace, len(trace.events_E) - 1)

    assert [tensor.num_bytes // MIB for tensor in found] == list(range(12, 2, -1))


def test_a_footprint_is_plain_values_for_json(by_hand: Make) -> None:
    values = json.loads(
        json.dumps(_footprint(by_hand(parameters=77).at(2), GPU, 2).to_json(), allow_nan=False)
    )

    assert (
        values["micro_batch"],
        values["verdict"],
        values["peak_phase"],
        values["parameters"],
    ) == (2, "fits", "forward", 77)
    assert values["driver_bytes"]["value"] == sum(values["terms_bytes"].values()) == 600 * MIB
    assert values["headroom_bytes"] == values["usable_bytes"] - 600 * MIB
    assert values["largest"][0] == {
        "num_bytes": 200 * MIB,
        "kind": "optimizer states",
        "place": "place of optimizer states",
    }
    for name in ("allocated_bytes", "reserved_bytes", "driver_bytes"):
        assert values[name]["low"] <= values[name]["value"] <= values[name]["high"]


def test_replays_are_made_once_for_devices_with_the_same_workspaces(
    by_hand: Make,
) -> None:
    replays = Replays(by_hand())

    assert replays.at(2, 10) is replays.at(2, 10)
    assert len({id(replays.at(size, workspace)) for size in (2, 3) for workspace in (0, 10)}) == 4


def test_what_a_replay_cannot_fall_below_is_known_without_one(by_hand: Make) -> None:
    made = Replayed(lambda: by_hand().at(3), GPU.workspace_bytes)

    assert made.allocated_bytes <= made.usage.peak_allocated_bytes
    for share in RESERVED_SHARE.values():
        high = cuda_high(peaks_alone(made, share), GPU)
        assert cuda_high_at_least(made, GPU) <= high


def test_what_surely_fits_reserves_no_more_than_the_device_has(by_hand: Make) -> None:
    """The allocator frees what it only caches; what may not fit may take more."""
    made = Replayed(lambda: by_hand().at(20), GPU.workspace_bytes)
    usage = made.usage
    peaks = ReservedPeaks(usage.peak_reserved_bytes, 5 * GIB, (0.9, 1.2))

    found = footprint(made, GPU, 20, peaks)

    assert found.verdict == "fits"
    assert found.reserved.low < found.reserved.value == found.reserved.high == GPU.torch_bytes
    assert found.driver.high == GPU.usable_bytes
    assert cuda_high(peaks, GPU) > GPU.usable_bytes
    too_small = dataclasses.replace(GPU, usable_bytes=GPU.usable_bytes // 2)
    assert footprint(made, too_small, 20, peaks).reserved.high == 1.2 * 5 * GIB


def test_a_limit_that_is_never_met_gives_what_no_limit_gives() -> None:
    trace = _trace(1, -1, 2, 3, sizes_mib=[30, 30, 8])
    near, free = Replayed(lambda: trace, 0), Replayed(lambda: trace, 0)

    assert near.fits_in(round(1.04 * near.allocated_bytes)) == free.fits_in(
        round(1.04 * near.allocated_bytes)
    )
    assert near.usage == free.usage


def test_traces_that_were_let_go_are_made_again(by_hand: Make) -> None:
    replays = Replays(by_hand())
    before = replays.at(2, 0).trace

    replays.release()

    assert replays.at(2, 0).trace.sizes_S.tolist() == before.sizes_S.tolist()


def test_communication_buffers_are_reserved_in_a_pool_of_their_own() -> None:
    events, kinds = (1, -1, 2, -2), ("temporaries", "communication buffers")
    together = _trace(*events, sizes_mib=[100, 100])
    apart = _trace(*events, sizes_mib=[100, 100], kinds=kinds)

    assert Replayed(lambda: together, 0).usage.peak_reserved_bytes == 100 * MIB
    usage = Replayed(lambda: apart, 0).usage
    assert (usage.peak_allocated_bytes, usage.peak_reserved_bytes) == (100 * MIB, 200 * MIB)
