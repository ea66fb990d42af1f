"""Memory histories of torch's CUDA allocator beside the model of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from fixture_types import Refuses

from brimful.base.types import JsonDict
from brimful.base.units import MIB
from brimful.planning.allocator import CachingAllocator
from brimful.planning.allocator_history import UnreadableHistory, compare_with_model

REAL = Path(__file__).parent / "linear_layer_history.json"


def _history_of_a_gpu() -> JsonDict:
    """Return it as torch tells it."""
    kept = json.loads(REAL.read_text())
    segments = [
        {
            "address": address,
            "total_size": total,
            "blocks": [{"size": size, "state": state} for size, state in blocks],
        }
        for address, total, blocks in kept["segments"]
    ]
    events = [_event(*each) for each in kept["events"]]
    return {"segments": segments, "device_traces": [events], "allocator_settings": {}}


def _event(action: str, address: int, size_bytes: int) -> JsonDict:
    return {"action": action, "addr": address, "size": size_bytes, "stream": 0}


@dataclass
class Recorder:
    """The model of the allocator, telling a history as torch does."""

    allocator: CachingAllocator = field(default_factory=CachingAllocator)
    events: list[JsonDict] = field(default_factory=list)

    def malloc(self, size_bytes: int) -> int:
        """Allocate, and note new segments before."""
        before = {each.address for each in self.allocator.segments()}
        address = self.allocator.malloc(size_bytes)
        for each in self.allocator.segments():
            if each.address not in before:
                self.events.append(_event("segment_alloc", each.address, each.size_bytes))
        self.events.append(_event("alloc", address, size_bytes))
        return address

    def free(self, address: int, size_bytes: int) -> None:
        """Free."""
        self.allocator.free(address)
        self.events.append(_event("free_requested", address, size_bytes))
        self.events.append(_event("free_completed", address, size_bytes))

    def empty_cache(self) -> None:
        """Return what is free, and note each segment that goes."""
        before = {each.address: each.size_bytes for each in self.allocator.segments()}
        self.allocator.empty_cache()
        left = {each.address for each in self.allocator.segments()}
        for address, size_bytes in before.items():
            if address not in left:
                self.events.append(_event("segment_free", address, size_bytes))

    def snapshot(self, begin: int = 0) -> JsonDict:
        """Return the history from an event on."""
        segments = []
        for each in self.allocator.segments():
            blocks = [
                {"size": size, "state": "active_allocated" if in_use else "inactive"}
                for size, in_use in each.blocks
            ]
            segment = {"address": each.address, "total_size": each.size_bytes, "blocks": blocks}
            segments.append({**segment, "device": 0})
        return {"segments": segments, "device_traces": [self.events[begin:]]}


def _random_requests(recorder: Recorder, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    living: list[tuple[int, int]] = []
    for number in range(400):
        if living and drawn.random() < 0.45:
            recorder.free(*living.pop(int(drawn.integers(len(living)))))
        else:
            # A power of two and a half, so that no freed block can be mistaken for a longer one.
            size_bytes = int(512 * drawn.integers(1, 2000) * drawn.choice([1, 64]))
            living.append((recorder.malloc(size_bytes), size_bytes))
        if number in (150, 300):
            recorder.empty_cache()


def test_a_history_from_a_gpu_is_met_after_every_request() -> None:
    found = compare_with_model(_history_of_a_gpu())

    assert (found.requests, found.same_reserved) == (12, 12)
    assert found.peak_reserved_bytes == found.modelled_bytes == 4234 * MIB
    assert found.error == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("begin", [0, 200, 600])
def test_a_history_may_begin_in_the_middle(seed: int, begin: int) -> None:
    recorder = Recorder()
    _random_requests(recorder, seed)

    found = compare_with_model(recorder.snapshot(begin))

    assert found.same_reserved == found.requests > 0


def test_another_allocator_is_told_apart() -> None:
    history = _history_of_a_gpu()
    events: Sequence[JsonDict] = history["device_traces"][0]
    first = next(each for each in events if each["action"] == "segment_alloc")
    first["size"] += 2 * MIB

    found = compare_with_model(history)

    assert found.same_reserved == 0
    assert found.error < 0


@pytest.mark.parametrize(
    "settings",
    [
        {"expandable_segments": True},
        {"max_split_size": 128 * MIB},
        {"roundup_power2_divisions": {"1": 4}},
    ],
)
def test_other_settings_and_empty_histories_are_refused(
    settings: JsonDict, refuses: Refuses
) -> None:
    with refuses(UnreadableHistory):
        compare_with_model({**_history_of_a_gpu(), "allocator_settings": settings})
    with refuses(UnreadableHistory):
        compare_with_model({"segments": [], "device_traces": [[]]})
