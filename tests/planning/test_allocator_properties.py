"""What holds for every series of allocations, and the rules written a second time."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.base.units import MIB
from brimful.planning.allocator import (
    AllocatorSettings,
    CachingAllocator,
    SimulatedOutOfMemory,
    replay,
)

often = settings(max_examples=100, derandomize=True, database=None, deadline=None)

SIZES = st.one_of(
    st.integers(0, 4096),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 64 * MIB),
    st.sampled_from(
        [MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 11 * MIB, 20 * MIB, 32 * MIB, 50 * MIB]
    ),
)
SETTINGS = st.builds(
    AllocatorSettings,
    expandable_segments=st.booleans(),
    max_split_size_bytes=st.sampled_from([None, None, 20 * MIB, 32 * MIB]),
    roundup_power2_divisions=st.sampled_from([None, None, 4, 8]),
    limit_bytes=st.sampled_from([None, 150 * MIB]),
)
SCRIPTS = st.lists(st.tuples(SIZES, st.lists(st.integers(0, 1000), max_size=2)), max_size=40)
"""Per step: the size of a birth, then which of the living die (by index modulo their number)."""


def as_events(script: Sequence[tuple[int, Sequence[int]]]) -> tuple[list[int], list[int]]:
    """The events and sizes of a script."""
    events: list[int] = []
    living: list[int] = []
    for number, (_, deaths) in enumerate(script, start=1):
        events.append(number)
        living.append(number)
        events.extend(-living.pop(death % len(living)) for death in deaths if living)
    return events, [size_bytes for size_bytes, _ in script]


def check(allocator: CachingAllocator) -> None:
    """Blocks tile their segments; segments do not overlap; the sums agree."""
    segments = allocator.segments()
    assert all(one.address + one.size_bytes <= other.address for one, other in pairwise(segments))
    assert all(
        sum(size for size, _ in segment.blocks) == segment.size_bytes for segment in segments
    )
    assert all(
        one or other for segment in segments for (_, one), (_, other) in pairwise(segment.blocks)
    ), "free neighbours are joined"
    assert sum(segment.size_bytes for segment in segments) == allocator.reserved_bytes
    assert (
        sum(size for segment in segments for size, in_use in segment.blocks if in_use)
        == allocator.allocated_bytes
    )
    assert (
        allocator.requested_bytes
        <= allocator.allocated_bytes
        <= allocator.reserved_bytes
        <= allocator.peak_reserved_bytes
    )
    assert (
        allocator.settings.limit_bytes is None
        or allocator.reserved_bytes <= allocator.settings.limit_bytes
    )


@often
@given(SCRIPTS, SETTINGS)
def test_memory_is_never_lost_or_lent_twice(
    script: list[tuple[int, list[int]]], chosen: AllocatorSettings
) -> None:
    allocator, handle_by_storage, span_by_handle = (
        CachingAllocator(chosen),
        dict[int, int](),
        dict[int, int](),
    )
    events, sizes = as_events(script)
    for event in events:
        if event < 0:
            handle = handle_by_storage.pop(-event, 0)
            span_by_handle.pop(handle, None)
            allocator.free(handle)
        else:
            try:
                handle = handle_by_storage[event] = allocator.malloc(sizes[event - 1])
            except SimulatedOutOfMemory:
                continue
            if handle:
                span_by_handle[handle] = sizes[event - 1]
        check(allocator)
        assert all(
            start + size_bytes <= other
            for (start, size_bytes), (other, _) in pairwise(sorted(span_by_handle.items()))
        )
    for handle in handle_by_storage.values():
        allocator.free(handle)
    allocator.empty_cache()

    assert (
        allocator.allocated_bytes,
        allocator.requested_bytes,
        allocator.reserved_bytes,
        allocator.segments(),
    ) == (0, 0, 0, [])


@often
@given(SCRIPTS, SETTINGS)
def test_a_replay_is_the_same_as_calling_by_hand(
    script: list[tuple[int, list[int]]], chosen: AllocatorSettings
) -> None:
    allocator, handle_by_storage = CachingAllocator(chosen), dict[int, int]()
    events, sizes = as_events(script)
    out_of_memory_event, reserved_at = None, dict[int, int]()
    for index, event in enumerate(events):
        try:
            if event > 0:
                handle_by_storage[event] = allocator.malloc(sizes[event - 1])
            else:
                allocator.free(handle_by_storage[-event])
        except SimulatedOutOfMemory:
            out_of_memory_event = index
            break
        reserved_at[index] = allocator.reserved_bytes
    usage = replay(np.array(events, np.int32), np.array(sizes, np.int64), chosen)

    assert (usage.peak_allocated_bytes, usage.out_of_memory_event) == (
        allocator.peak_allocated_bytes,
        out_of_memory_event,
    )
    assert (
        usage.peak_reserved_bytes
        == max(reserved_at.values(), default=0)
        == reserved_at.get(usage.peak_reserved_event, 0)
    )
    assert usage.reserved_at_allocated_peak_bytes == reserved_at.get(usage.peak_allocated_event, 0)


class Retold:
    """The same rules once more, as plainly as they can be written: segments are lists of [size,
    storage or 0], searched from end to end.
    """

    def __init__(self, *, expandable: bool) -> None:
        self.expandable = expandable
        self.segments_by_pool: dict[bool, list[list[list[int]]]] = {
            True: [[]] if expandable else [],
            False: [[]] if expandable else [],
        }

    def born(self, storage: int, size_bytes: int) -> None:
        size = max(512, -(-size_bytes // 512) * 512)
        small = size <= MIB
        segments = self.segments_by_pool[small]
        fits = [
            (self.expandable and index == len(segment) - 1, block[0], number, index)
            for number, segment in enumerate(segments)
            for index, block in enumerate(segment)
            if block[1] == 0 and block[0] >= size
        ]
        if fits:
            _, _, number, index = min(fits)
        else:
            number, index = self.new(segments, size, small)
        segment = segments[number]
        rest = segment[index][0] - size
        if rest >= 512 if small or self.expandable else rest > MIB:
            segment[index : index + 1] = [[size, storage], [rest, 0]]
        else:
            segment[index][1] = storage

    def new(self, segments: list[list[list[int]]], size: int, small: bool) -> tuple[int, int]:
        step = 2 * MIB if small else 20 * MIB
        if not self.expandable:
            segments.append([[step if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB, 0]])
            return len(segments) - 1, 0
        if not segments[0] or segments[0][-1][1]:
            segments[0].append([0, 0])
        segments[0][-1][0] += -(-(size - segments[0][-1][0]) // step) * step
        return 0, len(segments[0]) - 1

    def dies(self, storage: int) -> None:
        for segment in (
            segment for segments in self.segments_by_pool.values() for segment in segments
        ):
            for block in segment:
                if block[1] == storage:
                    block[1] = 0
            for index in reversed(range(len(segment) - 1)):
                if not segment[index][1] and not segment[index + 1][1]:
                    segment[index][0] += segment.pop(index + 1)[0]


@often
@given(SCRIPTS, st.booleans())
def test_the_rules_written_a_second_time_give_the_same_segments(
    script: list[tuple[int, list[int]]], expandable: bool
) -> None:
    allocator, retold, handle_by_storage = (
        CachingAllocator(AllocatorSettings(expandable)),
        Retold(expandable=expandable),
        dict[int, int](),
    )
    events, sizes = as_events(script)
    for event in events:
        if sizes[abs(event) - 1] == 0:
            continue
        if event > 0:
            handle_by_storage[event] = allocator.malloc(sizes[event - 1])
            retold.born(event, sizes[event - 1])
        else:
            allocator.free(handle_by_storage[-event])
            retold.dies(-event)
        for small, segments in retold.segments_by_pool.items():
            seen = [
                [[size, in_use] for size, in_use in segment.blocks]
                for segment in allocator.segments()
                if (segment.pool == "small") == small
            ]
            assert seen == [
                [[size, storage > 0] for size, storage in segment]
                for segment in segments
                if segment
            ]
