"""Which bytes are alive when, over a traced step."""

import dataclasses
import json

import numpy as np
import pytest
from small_trace import small_trace

from brimful.planning.live_memory import MAX_POINTS, MemoryTimeline, groups_at
from brimful.planning.trace import KINDS, Trace

PEAK = 4


def long_trace(passes: int = 3000) -> Trace:
    """Three storages come and go many times; the middle pass alone has the largest one."""
    once = [4, -4, 6, -6]
    half = once * (passes // 2)
    return dataclasses.replace(
        small_trace(), events_E=np.array([1, 2, 3, *half, 5, -5, *half], np.int32)
    )


def test_the_timeline_begins_with_the_first_batch_and_names_its_phases() -> None:
    values = MemoryTimeline(small_trace()).to_json()

    assert values["events"] == list(range(10))
    assert values["phases"][:2] == [
        {"name": "inputs", "step": 1, "first_event": 0},
        {"name": "forward", "step": 1, "first_event": 1},
    ]


def test_kinds_add_up_to_what_is_alive_after_every_event() -> None:
    values = MemoryTimeline(small_trace()).to_json()

    assert values["total_bytes"] == [158, 228, 428, 228, 278, 208, 308, 300, 250, 150]
    assert np.sum(list(values["live_bytes"].values()), axis=0).tolist() == values["total_bytes"]
    assert "KV cache" not in values["live_bytes"]


def test_the_peak_says_who_is_alive_by_kind_and_by_module() -> None:
    peak = MemoryTimeline(small_trace()).to_json()["peak"]

    assert (peak["event"], peak["bytes"], peak["phase"]) == (PEAK - 2, 428, "forward")
    assert peak["kinds_bytes"] == {
        "weights": 150,
        "activations": 70,
        "loss and logits": 200,
        "inputs": 8,
    }
    assert peak["groups_bytes"] == {"embedding": 100, "block 0": 120, "loss": 200, "inputs": 8}
    assert peak["largest"][0] == {"bytes": 200, "kind": "loss and logits", "place": "mm"}


def test_a_step_ends_with_its_optimizer_update_and_an_evaluation_belongs_to_none() -> None:
    marks = {
        "inputs": 0,
        "backward": 1,
        "optimizer": 2,
        "inputs 2": 3,
        "optimizer 2": 4,
        "between steps": 5,
        "evaluation": 6,
    }
    phases = MemoryTimeline(dataclasses.replace(small_trace(), marks=marks)).phases

    assert [phase.step for phase in phases] == [1, 1, 1, 2, 2, None, None]


def test_a_long_trace_is_thinned_and_keeps_its_peak_and_the_beginnings_of_phases() -> None:
    trace = long_trace()
    timeline = MemoryTimeline(trace)
    shown = timeline.shown_events

    assert len(shown) <= MAX_POINTS + len(trace.marks) + 3
    assert (timeline.start, timeline.peak) == (2, int(trace.live_E().argmax()))
    assert timeline.peak in shown
    assert {2, 3, 5, 9} <= set(shown.tolist())
    assert timeline.peak_bytes == max(timeline.to_json()["total_bytes"]) == 358


def test_a_timeline_is_json() -> None:
    assert (
        json.loads(json.dumps(MemoryTimeline(long_trace()).to_json()))
        == MemoryTimeline(long_trace()).to_json()
    )


@pytest.mark.parametrize(
    ("place", "kind", "group"),
    [
        ("transformer.wte.weight", "weights", "embedding"),
        ("lm_head.weight", "weights", "head"),
        ("final norm backward mul", "activations", "final norm"),
        ("transformer.ln_f add", "activations", "final norm"),
        ("cuBLAS workspace", "library workspaces", "library workspaces"),
        ("linalg_vector_norm", "temporaries", "elsewhere"),
    ],
)
def test_what_lies_outside_the_blocks_has_a_group_of_its_own(
    place: str, kind: str, group: str
) -> None:
    trace = dataclasses.replace(
        small_trace(),
        places=(place, *small_trace().places[1:]),
        kinds_S=np.array([KINDS.index(kind), *small_trace().kinds_S[1:]], np.int32),
    )

    assert groups_at(trace, 0) == {group: 100}
