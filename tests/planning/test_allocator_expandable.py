"""Scripted allocations in expandable segments, worked out by hand: pages of 2 MiB in the small
pool, of 20 MiB in the large one.
"""

import pytest

from brimful.base.units import MIB
from brimful.planning.allocator import AllocatorSettings, CachingAllocator, SimulatedOutOfMemory

EXPANDABLE = AllocatorSettings(expandable_segments=True)


def allocate(allocator: CachingAllocator, *sizes_mib: float) -> list[int]:
    """Allocate these sizes in MiB, in order."""
    return [allocator.malloc(int(size * MIB)) for size in sizes_mib]


def blocks(allocator: CachingAllocator) -> list[list[tuple[float, str]]]:
    """Per segment by address: (size in MiB, "used" or "free") of its blocks."""
    return [
        [(size / MIB, "used" if in_use else "free") for size, in_use in segment.blocks]
        for segment in allocator.segments()
    ]


def test_an_expandable_segment_grows_by_pages() -> None:
    """15 MiB map 20; 8 MiB take the 5 left and a page more: 40 MiB; 1 MiB maps 2 in the small
    pool.
    """
    allocator = CachingAllocator(EXPANDABLE)
    allocate(allocator, 15, 8, 1)

    assert blocks(allocator) == [
        [(1, "used"), (1, "free")],
        [(15, "used"), (8, "used"), (17, "free")],
    ]
    assert allocator.reserved_bytes == 42 * MIB


def test_an_expandable_segment_splits_off_512_bytes() -> None:
    allocator = CachingAllocator(EXPANDABLE)
    allocator.malloc(20 * MIB - 512)
    allocator.malloc(MIB + 512)

    (segment,) = allocator.segments()

    assert segment.blocks == ((20 * MIB - 512, True), (MIB + 512, True), (19 * MIB, False))


def test_blocks_that_would_leave_holes_between_segments_join_in_an_expandable_one() -> None:
    """Two of 10 MiB, freed, hold 20 MiB (without: 40 MiB reserved)."""
    allocator = CachingAllocator(EXPANDABLE)
    for handle in allocate(allocator, 10, 10):
        allocator.free(handle)
    allocate(allocator, 20)

    assert allocator.reserved_bytes == 20 * MIB


def test_a_larger_hole_goes_before_an_end_that_can_grow() -> None:
    """A hole of 10 MiB and 6 MiB at the end, which count as endless: 5 MiB go into the hole."""
    allocator = CachingAllocator(EXPANDABLE)
    first, _, _ = allocate(allocator, 10, 10, 14)
    allocator.free(first)
    allocate(allocator, 5)

    assert blocks(allocator) == [
        [(5, "used"), (5, "free"), (10, "used"), (14, "used"), (6, "free")]
    ]


def test_whole_free_pages_go_back_and_are_mapped_again_where_they_were() -> None:
    """25 MiB free, 10 used, 5 free on two pages: page one goes, 5 + 10 + 5 stay; 24 MiB then map it
    again and leave 1 of 25.
    """
    allocator = CachingAllocator(EXPANDABLE)
    first, _ = allocate(allocator, 25, 10)
    allocator.free(first)
    allocator.empty_cache()
    emptied, emptied_bytes = blocks(allocator), allocator.reserved_bytes

    assert (emptied, emptied_bytes) == ([[(5, "free"), (10, "used"), (5, "free")]], 20 * MIB)
    assert allocate(allocator, 24) == [first]
    assert blocks(allocator) == [[(24, "used"), (1, "free"), (10, "used"), (5, "free")]]
    assert allocator.reserved_bytes == 40 * MIB


def test_pages_in_the_middle_of_a_free_block_go_back() -> None:
    """5 used, 50 free, 5 used on three pages: only the middle one is wholly free."""
    allocator = CachingAllocator(EXPANDABLE)
    _, middle, _ = allocate(allocator, 5, 50, 5)
    allocator.free(middle)
    allocator.empty_cache()

    assert blocks(allocator) == [[(5, "used"), (15, "free")], [(15, "free"), (5, "used")]]


def test_too_small_a_gap_between_pages_is_passed_over() -> None:
    """An unmapped page between 15 + 15 free MiB is room for 50: for 51 the end grows, where nothing
    is free, by 3 pages.
    """
    allocator = CachingAllocator(EXPANDABLE)
    _, middle, _ = allocate(allocator, 5, 50, 5)
    allocator.free(middle)
    allocator.empty_cache()
    (handle,) = allocate(allocator, 51)

    assert handle == middle + 55 * MIB
    assert allocator.reserved_bytes == 100 * MIB
    assert allocate(allocator, 50) == [middle]
    assert allocator.reserved_bytes == 120 * MIB


def test_pages_of_one_pool_make_room_for_the_other() -> None:
    """40 MiB mapped and free at a limit of 40: a byte in the small pool unmaps them."""
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True, limit_bytes=40 * MIB))
    allocator.free(allocator.malloc(30 * MIB))
    allocator.malloc(1)

    assert allocator.reserved_bytes == 2 * MIB


def test_only_new_pages_count_against_the_limit() -> None:
    """30 of 40 MiB used: 8 MiB fit in what is mapped; 3 more need a page."""
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True, limit_bytes=40 * MIB))
    allocate(allocator, 30, 8)

    with pytest.raises(SimulatedOutOfMemory):
        allocate(allocator, 3)
    assert allocator.reserved_bytes == 40 * MIB
