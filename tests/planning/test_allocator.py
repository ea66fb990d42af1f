"""Scripted allocations whose segments follow by hand from PyTorch's rules."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from fixture_types import Refuses

from brimful.base.units import GIB, MIB
from brimful.planning.allocator import (
    AllocatorSettings,
    CachingAllocator,
    SimulatedOutOfMemory,
    Usage,
    replay,
    round_up,
)

KIB = 1024


def allocate(allocator: CachingAllocator, *sizes_mib: float) -> list[int]:
    """Allocate these sizes in MiB, in order."""
    return [allocator.malloc(int(size * MIB)) for size in sizes_mib]


def blocks(allocator: CachingAllocator) -> list[list[tuple[float, str]]]:
    """Per segment by address: (size in MiB, "used" or "free") of its blocks."""
    return [
        [(size / MIB, "used" if in_use else "free") for size, in_use in segment.blocks]
        for segment in allocator.segments()
    ]


# Sizes and segments


def test_small_requests_share_one_segment_of_2_mib() -> None:
    """1 B -> 512, 513 B -> 1024, 1 MiB: 1 MiB + 1536 B in use, 1 MiB - 1536 B left of 2 MiB."""
    allocator = CachingAllocator()
    for size_bytes in (1, 513, MIB):
        allocator.malloc(size_bytes)

    (segment,) = allocator.segments()

    assert (segment.pool, segment.size_bytes) == ("small", 2 * MIB)
    assert segment.blocks == ((512, True), (1024, True), (MIB, True), (MIB - 1536, False))
    assert (allocator.requested_bytes, allocator.allocated_bytes, allocator.reserved_bytes) == (
        MIB + 514,
        MIB + 1536,
        2 * MIB,
    )


def test_one_mib_is_the_largest_small_request() -> None:
    """Two fill 2 MiB; the third opens a second segment."""
    allocator = CachingAllocator()
    allocate(allocator, 1, 1, 1)

    assert blocks(allocator) == [[(1, "used"), (1, "used")], [(1, "used"), (1, "free")]]


def test_a_byte_more_than_one_mib_takes_a_segment_of_20_mib() -> None:
    """1 MiB + 1 B -> 1 MiB + 512 B, large pool; 19 MiB - 512 B left."""
    allocator = CachingAllocator()
    allocator.malloc(MIB + 1)

    (segment,) = allocator.segments()

    assert (segment.pool, segment.blocks) == ("large", ((MIB + 512, True), (19 * MIB - 512, False)))


@pytest.mark.parametrize(
    ("size_bytes", "segment_bytes", "allocated_bytes"),
    [
        (10 * MIB - 512, 20 * MIB, 10 * MIB - 512),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),  # rounded to 10 MiB: a segment of its own
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB, 10 * MIB + 512),  # up to 12 MiB; 2 MiB - 512 B are split off
        (11 * MIB - 512, 12 * MIB, 11 * MIB - 512),  # 1 MiB + 512 B are split off
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB is not: the block holds 12 MiB
        (GIB + 1, GIB + 2 * MIB, GIB + 512),
    ],
)
def test_from_10_mib_on_a_request_has_its_own_segment_in_steps_of_2_mib(
    size_bytes: int, segment_bytes: int, allocated_bytes: int
) -> None:
    allocator = CachingAllocator()
    allocator.malloc(size_bytes)

    assert (allocator.reserved_bytes, allocator.allocated_bytes) == (segment_bytes, allocated_bytes)


def test_the_small_pool_splits_off_512_bytes() -> None:
    """1 MiB + (1 MiB - 512 B) leave 512 B, which the next byte takes."""
    allocator = CachingAllocator()
    for size_bytes in (MIB, MIB - 512, 1):
        allocator.malloc(size_bytes)

    assert allocator.allocated_bytes == allocator.reserved_bytes == 2 * MIB


def test_nothing_is_allocated_for_no_bytes() -> None:
    allocator = CachingAllocator()
    handle = allocator.malloc(0)
    allocator.free(handle)

    assert (allocator.reserved_bytes, allocator.segments()) == (0, [])


def test_the_large_segment_can_be_set() -> None:
    """3 MiB from 32 MiB; under expandable segments 40 MiB need two pages of 32 MiB."""
    allocator = CachingAllocator(AllocatorSettings(large_segment_bytes=32 * MIB))
    allocate(allocator, 3)
    expandable = CachingAllocator(
        AllocatorSettings(expandable_segments=True, large_segment_bytes=32 * MIB)
    )
    allocate(expandable, 40)

    assert (allocator.reserved_bytes, expandable.reserved_bytes) == (32 * MIB, 64 * MIB)


@pytest.mark.parametrize(
    ("size_bytes", "divisions", "block_bytes"),
    [
        (1200 * KIB, 4, 1280 * KIB),  # 1024, 1280, 1536, 1792, 2048 KiB
        (1025 * KIB, 4, 1280 * KIB),
        (1024 * KIB, 4, 1024 * KIB),
        (1793 * KIB, 4, 2048 * KIB),
        (84 * MIB, 4, 96 * MIB),  # 64, 80, 96 MiB
        (84 * MIB, 8, 88 * MIB),
        (84 * MIB, 2, 96 * MIB),
        (2048, 4, 2048),  # up to 4 * 512 bytes nothing changes
        (1100, 4, 1536),
        (2049, 4, 2560),  # 2048, 2560
        (700, 1, 1024),
        (700, None, 1024),
    ],
)
def test_requests_can_be_rounded_to_divisions_of_powers_of_two(
    size_bytes: int, divisions: int | None, block_bytes: int
) -> None:
    allocator = CachingAllocator(AllocatorSettings(roundup_power2_divisions=divisions))
    allocator.malloc(size_bytes)

    assert allocator.allocated_bytes == block_bytes == round_up(size_bytes, divisions)


# Reuse, joining, fragmentation


def test_a_freed_block_is_used_again() -> None:
    """100 MiB freed; 90 MiB are cut from it, 10 MiB stay free; nothing new is reserved."""
    allocator = CachingAllocator()
    (old,) = allocate(allocator, 100)
    allocator.free(old)

    assert allocate(allocator, 90) == [old]
    assert blocks(allocator) == [[(90, "used"), (10, "free")]]
    assert allocator.peak_reserved_bytes == 100 * MIB


def test_freed_neighbours_join_in_any_order() -> None:
    """4 + 4 + 4 MiB of 20: the third joins the free 8 MiB behind it, the second both sides."""
    allocator = CachingAllocator()
    first, second, third = allocate(allocator, 4, 4, 4)
    allocator.free(first)
    allocator.free(third)
    apart = blocks(allocator)
    allocator.free(second)

    assert apart == [[(4, "free"), (4, "used"), (12, "free")]]
    assert blocks(allocator) == [[(20, "free")]]


def test_free_segments_do_not_join() -> None:
    """Two free segments of 10 MiB do not hold 20 MiB: 40 MiB are reserved."""
    allocator = CachingAllocator()
    for handle in allocate(allocator, 10, 10):
        allocator.free(handle)
    allocate(allocator, 20)

    assert allocator.reserved_bytes == 40 * MIB


def test_the_smallest_block_that_fits_is_taken_not_the_first() -> None:
    """Free: 30, 20, 24 MiB. 20 MiB take the 20; 18 MiB then take the 24, whose 6 MiB then hold 6
    MiB.
    """
    allocator = CachingAllocator()
    first, second, third = allocate(allocator, 30, 20, 24)
    for handle in (first, second, third):
        allocator.free(handle)

    assert allocate(allocator, 20, 18, 6) == [second, third, third + 18 * MIB]
    assert blocks(allocator) == [[(30, "free")], [(20, "used")], [(18, "used"), (6, "used")]]


def test_of_equally_large_blocks_the_lowest_is_taken() -> None:
    allocator = CachingAllocator()
    handles = allocate(allocator, 30, 30, 30)
    for handle in reversed(handles):
        allocator.free(handle)

    assert allocate(allocator, 30, 30, 30) == handles


def test_holes_that_are_each_too_small_cost_a_new_segment() -> None:
    """Five times 4 MiB fill 20 MiB. Two holes of 4 MiB do not hold 5 MiB: 17 MiB in use, 40 MiB
    reserved.
    """
    allocator = CachingAllocator()
    first, _, third, _, _ = allocate(allocator, 4, 4, 4, 4, 4)
    allocator.free(first)
    allocator.free(third)
    allocate(allocator, 5)

    assert blocks(allocator)[0] == [(4, "free"), (4, "used"), (4, "free"), (4, "used"), (4, "used")]
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (17 * MIB, 40 * MIB)


def test_pools_do_not_lend_to_each_other() -> None:
    """A free 20 MiB segment serves no request of 1 MiB, and free small segments none of 2 MiB."""
    allocator = CachingAllocator()
    for handle in allocate(allocator, 5, 1, 1, 1):
        allocator.free(handle)
    allocate(allocator, 0.5, 1, 1, 1)

    assert [(segment.pool, segment.size_bytes // MIB) for segment in allocator.segments()] == [
        ("large", 20),
        ("small", 2),
        ("small", 2),
    ]


def test_peaks_stay_when_memory_goes_back() -> None:
    """12 and 50 MiB at once, then nothing."""
    allocator = CachingAllocator()
    for handle in allocate(allocator, 12, 50):
        allocator.free(handle)
    allocator.empty_cache()

    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (62 * MIB, 62 * MIB)


def test_emptying_the_cache_keeps_segments_in_part_use() -> None:
    """Of 20, 2 and 30 MiB the 20 (4 MiB in use) stay."""
    allocator = CachingAllocator()
    _, second, small, own = allocate(allocator, 4, 4, 1, 30)
    for handle in (second, small, own):
        allocator.free(handle)
    allocator.empty_cache()

    assert blocks(allocator) == [[(4, "used"), (16, "free")]]


def test_a_handle_is_freed_once(refuses: Refuses) -> None:
    allocator = CachingAllocator()
    (handle,) = allocate(allocator, 3)
    allocator.free(handle)

    with refuses(ValueError):
        allocator.free(handle)
    with refuses(ValueError):
        allocator.malloc(-1)


# The limit


def test_cached_segments_go_back_when_the_limit_is_reached() -> None:
    """60 MiB cached + 80 MiB > 100 MiB: the 60 go back first."""
    allocator = CachingAllocator(AllocatorSettings(limit_bytes=100 * MIB))
    (handle,) = allocate(allocator, 60)
    allocator.free(handle)
    allocate(allocator, 80)

    assert blocks(allocator) == [[(80, "used")]]
    assert allocator.peak_reserved_bytes == 80 * MIB


def test_a_segment_in_part_use_cannot_go_back(refuses: Refuses) -> None:
    """20 MiB hold 8 free, 4 used, 8 free; another 20 are used. 10 MiB fit in no hole and not within
    40 MiB; 8 MiB fit.
    """
    allocator = CachingAllocator(AllocatorSettings(limit_bytes=40 * MIB))
    first, _, third, _ = allocate(allocator, 8, 4, 8, 20)
    allocator.free(first)
    allocator.free(third)

    with refuses(SimulatedOutOfMemory) as caught:
        allocate(allocator, 10)

    assert (
        caught.value.requested_bytes,
        caught.value.allocated_bytes,
        caught.value.reserved_bytes,
    ) == (10 * MIB, 24 * MIB, 40 * MIB)
    assert allocate(allocator, 8) == [first]


def test_the_limit_itself_can_be_reserved() -> None:
    allocator = CachingAllocator(AllocatorSettings(limit_bytes=40 * MIB))
    allocate(allocator, 40)

    assert allocator.reserved_bytes == 40 * MIB
    with pytest.raises(SimulatedOutOfMemory):
        allocator.malloc(1)


# Blocks that are not split


def test_a_free_block_as_large_as_the_split_limit_serves_no_smaller_request() -> None:
    """32 MiB are not cut for 20 at a limit of 32: 52 MiB reserved. At a limit of 20 even free
    segments of 20 MiB serve no 5 MiB: 40.
    """
    allocator = CachingAllocator(AllocatorSettings(max_split_size_bytes=32 * MIB))
    allocator.free(allocator.malloc(32 * MIB))
    allocator.malloc(20 * MIB)
    tight = CachingAllocator(AllocatorSettings(max_split_size_bytes=20 * MIB))
    tight.free(tight.malloc(5 * MIB))
    tight.malloc(5 * MIB)

    assert (allocator.reserved_bytes, tight.reserved_bytes) == (52 * MIB, 40 * MIB)


@pytest.mark.parametrize(
    ("size_bytes", "allocated_mib", "reserved_mib"),
    [
        (20 * MIB, 20, 120),  # under the limit of 32 MiB no larger block is touched
        (70 * MIB, 70, 170),  # 100 >= 70 + 20: too large
        (80 * MIB, 80, 180),  # 100 >= 80 + 20
        (80 * MIB + 512, 100, 100),  # taken, and taken whole
        (90 * MIB, 100, 100),
    ],
)
def test_an_oversize_block_serves_only_requests_near_its_size(
    size_bytes: int, allocated_mib: int, reserved_mib: int
) -> None:
    allocator = CachingAllocator(AllocatorSettings(max_split_size_bytes=32 * MIB))
    allocator.free(allocator.malloc(100 * MIB))
    allocator.malloc(size_bytes)

    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (
        allocated_mib * MIB,
        reserved_mib * MIB,
    )


def test_one_oversize_block_goes_back_before_all_that_is_free() -> None:
    """100 (oversize) and 10 MiB free, limit 130: for 70 MiB the 100 go, the 10 stay."""
    allocator = CachingAllocator(
        AllocatorSettings(max_split_size_bytes=32 * MIB, limit_bytes=130 * MIB)
    )
    for handle in allocate(allocator, 100, 10):
        allocator.free(handle)
    allocate(allocator, 70)

    assert blocks(allocator) == [[(10, "free")], [(70, "used")]]


def test_the_largest_oversize_blocks_go_back_until_they_are_enough() -> None:
    """40, 50 and 60 MiB free, limit 150: for 100 MiB the 60 and the 50 go."""
    allocator = CachingAllocator(
        AllocatorSettings(max_split_size_bytes=32 * MIB, limit_bytes=150 * MIB)
    )
    for handle in allocate(allocator, 40, 50, 60):
        allocator.free(handle)
    allocate(allocator, 100)

    assert blocks(allocator) == [[(40, "free")], [(100, "used")]]


def test_all_goes_back_where_oversize_blocks_are_not_enough() -> None:
    """40 (oversize) and 10 MiB free, limit 130: 120 MiB need both."""
    allocator = CachingAllocator(
        AllocatorSettings(max_split_size_bytes=32 * MIB, limit_bytes=130 * MIB)
    )
    for handle in allocate(allocator, 40, 10):
        allocator.free(handle)
    allocate(allocator, 120)

    assert blocks(allocator) == [[(120, "used")]]


# Settings


@pytest.mark.parametrize(
    "make",
    [
        lambda: AllocatorSettings(max_split_size_bytes=19 * MIB),
        lambda: AllocatorSettings(max_split_size_bytes=32 * MIB + 1),
        lambda: AllocatorSettings(large_segment_bytes=10 * MIB),
        lambda: AllocatorSettings(roundup_power2_divisions=3),
        lambda: AllocatorSettings(limit_bytes=-1),
    ],
)
def test_settings_that_pytorch_refuses_are_refused(
    make: Callable[[], AllocatorSettings], refuses: Refuses
) -> None:
    with refuses(ValueError):
        make()


# Replay


def test_a_replay_names_the_peaks_and_their_events() -> None:
    """Reserved: 30, +12, 30 and 12 free, 20 cut from the 30, and 40 new. Allocated: 30, 42, 12, 0,
    20, 60, 60, 20.
    """
    events_E = np.array([1, 2, -1, -2, 3, 4, 5, -4])
    sizes_S = np.array([30, 12, 20, 40, 0]) * MIB

    usage = replay(events_E, sizes_S, AllocatorSettings())

    assert usage == Usage(
        peak_allocated_bytes=60 * MIB,
        peak_allocated_event=5,
        reserved_at_allocated_peak_bytes=82 * MIB,
        peak_reserved_bytes=82 * MIB,
        peak_reserved_event=5,
        out_of_memory_event=None,
    )


def test_the_most_reserved_can_come_before_the_most_allocated() -> None:
    """Limit 85: 2 MiB in 20 and 60 in 60 reserve 80 for 62; both die, both go back for 70 in 70."""
    usage = replay(
        [1, 2, -1, -2, 3], np.array([2, 60, 70]) * MIB, AllocatorSettings(limit_bytes=85 * MIB)
    )

    assert (usage.peak_reserved_bytes, usage.peak_reserved_event) == (80 * MIB, 1)
    assert (
        usage.peak_allocated_bytes,
        usage.peak_allocated_event,
        usage.reserved_at_allocated_peak_bytes,
    ) == (70 * MIB, 4, 70 * MIB)


def test_a_replay_stops_at_the_birth_that_does_not_fit() -> None:
    usage = replay(
        [1, -1, 2, 3, -2], np.array([30, 20, 30]) * MIB, AllocatorSettings(limit_bytes=40 * MIB)
    )

    assert (usage.out_of_memory_event, usage.peak_allocated_bytes, usage.peak_reserved_bytes) == (
        3,
        30 * MIB,
        30 * MIB,
    )


def test_a_replay_of_nothing_takes_nothing() -> None:
    assert replay([], [], AllocatorSettings()) == Usage(0, -1, 0, 0, -1, None)


@pytest.mark.parametrize(
    "events_E",
    [
        [1, 1],
        [1, -2],
        [0],
    ],
)
def test_a_replay_refuses_storages_that_are_born_twice_or_die_unborn(
    events_E: Sequence[int], refuses: Refuses
) -> None:
    with refuses(ValueError):
        replay(events_E, [1, 1], AllocatorSettings())
