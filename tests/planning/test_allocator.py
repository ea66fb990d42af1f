"""Scripted allocations whose segments follow by hand from PyTorch's rules, and the replay in C beside
the allocator block by block.
"""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from fixture_types import Refuses

from brimful.base.units import GIB, MIB
from brimful.planning import allocator as module
from brimful.planning.allocator import (
    CachingAllocator,
    SimulatedOutOfMemory,
    Usage,
    least_peak,
    replay,
    replay_blocks,
)

SIZES = (0, 1, 512, 513, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 21 * MIB)
Replay = Callable[..., Usage]


def allocate(allocator: CachingAllocator, *sizes_mib: float) -> list[int]:
    """Allocate these sizes in MiB, in order."""
    return [allocator.malloc(int(size * MIB)) for size in sizes_mib]


def held(allocator: CachingAllocator) -> tuple[float, float]:
    """What is allocated and what is reserved, in MiB."""
    return allocator.allocated_bytes / MIB, allocator.reserved_bytes / MIB


@pytest.fixture(
    params=[
        pytest.param(replay_blocks, id="block by block"),
        pytest.param(
            replay,
            id="C",
            marks=pytest.mark.skipif(module.extension is None, reason="the C replay was not built"),
        ),
    ]
)
def replays(request: pytest.FixtureRequest) -> Replay:
    chosen: Replay = request.param
    return chosen


@pytest.mark.parametrize(
    ("sizes_bytes", "allocated_bytes", "reserved_bytes"),
    [
        ([1, 513, MIB], MIB + 1536, 2 * MIB),  # 512, 1024 and 1 MiB share a small segment
        ([MIB, MIB, MIB], 3 * MIB, 4 * MIB),  # two fill it
        ([MIB, MIB - 512, 1], 2 * MIB, 2 * MIB),  # the small pool splits off 512 bytes
        ([MIB + 1], MIB + 512, 20 * MIB),
        ([10 * MIB - 512], 10 * MIB - 512, 20 * MIB),
        ([10 * MIB - 511], 10 * MIB, 10 * MIB),  # rounded to 10 MiB: a segment of its own
        ([10 * MIB + 1], 10 * MIB + 512, 12 * MIB),  # 2 MiB - 512 B are split off
        ([11 * MIB - 512], 11 * MIB - 512, 12 * MIB),  # 1 MiB + 512 B are split off
        ([11 * MIB], 12 * MIB, 12 * MIB),  # 1 MiB is not: the block holds 12 MiB
        ([GIB + 1], GIB + 512, GIB + 2 * MIB),
        ([0], 0, 0),
    ],
)
def test_requests_take_blocks_and_segments_of_their_size(
    sizes_bytes: list[int], allocated_bytes: int, reserved_bytes: int
) -> None:
    allocator = CachingAllocator()
    for size_bytes in sizes_bytes:
        allocator.malloc(size_bytes)

    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (
        allocated_bytes,
        reserved_bytes,
    )


def test_a_freed_block_is_used_again() -> None:
    """100 MiB freed; 90 MiB are cut from it and 10 MiB from the rest; nothing new is reserved."""
    allocator = CachingAllocator()
    (old,) = allocate(allocator, 100)
    allocator.free(old)

    assert allocate(allocator, 90, 10) == [old, old + 90 * MIB]
    assert held(allocator) == (100, 100)


def test_freed_neighbours_join_in_any_order() -> None:
    """4 + 4 + 4 MiB of 20: the third joins the free 8 MiB behind it, the second both sides."""
    allocator = CachingAllocator()
    first, second, third = allocate(allocator, 4, 4, 4)
    for handle in (first, third, second):
        allocator.free(handle)

    assert allocate(allocator, 9.5, 9.5) == [first, first + int(9.5 * MIB)]


def test_free_segments_do_not_join() -> None:
    """Two free segments of 10 MiB do not hold 20 MiB: 40 MiB are reserved."""
    allocator = CachingAllocator()
    for handle in allocate(allocator, 10, 10):
        allocator.free(handle)
    allocate(allocator, 20)

    assert held(allocator) == (20, 40)


def test_the_smallest_block_that_fits_is_taken_not_the_first() -> None:
    """Free: 30, 20, 24 MiB. 20 MiB take the 20; 18 MiB then take the 24, whose 6 MiB then hold 6
    MiB.
    """
    allocator = CachingAllocator()
    first, second, third = allocate(allocator, 30, 20, 24)
    for handle in (first, second, third):
        allocator.free(handle)

    assert allocate(allocator, 20, 18, 6) == [second, third, third + 18 * MIB]


def test_of_equally_large_blocks_the_lowest_is_taken() -> None:
    allocator = CachingAllocator()
    handles = allocate(allocator, 30, 30, 30)
    for handle in reversed(handles):
        allocator.free(handle)

    assert allocate(allocator, 30, 30, 30) == handles


def test_holes_that_are_each_too_small_cost_a_new_segment() -> None:
    """Five times 4 MiB fill 20 MiB. Two holes of 4 MiB do not hold 5 MiB."""
    allocator = CachingAllocator()
    first, _, third, _, _ = allocate(allocator, 4, 4, 4, 4, 4)
    allocator.free(first)
    allocator.free(third)
    allocate(allocator, 5)

    assert held(allocator) == (17, 40)


def test_pools_do_not_lend_to_each_other() -> None:
    """A free 20 MiB segment serves no request of 1 MiB, and free small segments none of 2 MiB."""
    allocator = CachingAllocator()
    for handle in allocate(allocator, 5, 1, 1, 1):
        allocator.free(handle)
    before = held(allocator)
    allocate(allocator, 0.5, 1, 1, 1, 2)

    assert (before, held(allocator)) == ((0, 24), (5.5, 24))


def test_emptying_the_cache_keeps_segments_in_part_use_and_peaks() -> None:
    """Of 20, 2 and 30 MiB the 20 (4 MiB in use) stay."""
    allocator = CachingAllocator()
    _, second, small, own = allocate(allocator, 4, 4, 1, 30)
    for handle in (second, small, own):
        allocator.free(handle)
    allocator.empty_cache()

    assert held(allocator) == (4, 20)
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (39 * MIB, 52 * MIB)


def test_a_handle_is_freed_once(refuses: Refuses) -> None:
    allocator = CachingAllocator()
    (handle,) = allocate(allocator, 3)
    allocator.free(handle)

    with refuses(ValueError):
        allocator.free(handle)
    with refuses(ValueError):
        allocator.malloc(-1)


def test_cached_segments_go_back_when_the_limit_is_reached() -> None:
    """60 MiB cached + 80 MiB > 100 MiB: the 60 go back first."""
    allocator = CachingAllocator(100 * MIB)
    (handle,) = allocate(allocator, 60)
    allocator.free(handle)
    allocate(allocator, 80)

    assert held(allocator) == (80, 80)
    assert allocator.peak_reserved_bytes == 80 * MIB


def test_a_segment_in_part_use_cannot_go_back(refuses: Refuses) -> None:
    """20 MiB hold 8 free, 4 used, 8 free; another 20 are used. 10 MiB fit in no hole and not within
    40 MiB; 8 MiB fit.
    """
    allocator = CachingAllocator(40 * MIB)
    first, _, third, _ = allocate(allocator, 8, 4, 8, 20)
    allocator.free(first)
    allocator.free(third)

    with refuses(SimulatedOutOfMemory):
        allocate(allocator, 10)
    assert held(allocator) == (24, 40)
    assert allocate(allocator, 8) == [first]


def test_a_replay_names_the_peaks_and_their_events(replays: Replay) -> None:
    """Reserved: 30, +12, 30 and 12 free, 20 cut from the 30, and 40 new. Allocated: 30, 42, 12, 0,
    20, 60, 60, 20.
    """
    events_E = np.array([1, 2, -1, -2, 3, 4, 5, -4])
    sizes_S = np.array([30, 12, 20, 40, 0]) * MIB

    assert replays(events_E, sizes_S) == Usage(
        peak_allocated_bytes=60 * MIB,
        peak_allocated_event=5,
        reserved_at_allocated_peak_bytes=82 * MIB,
        peak_reserved_bytes=82 * MIB,
        peak_reserved_event=5,
        out_of_memory_event=None,
    )
    assert replays([], []) == Usage(0, -1, 0, 0, -1, None)


def test_the_most_reserved_can_come_before_the_most_allocated(replays: Replay) -> None:
    """Limit 85: 2 MiB in 20 and 60 in 60 reserve 80 for 62; both die, both go back for 70 in 70."""
    usage = replays([1, 2, -1, -2, 3], np.array([2, 60, 70]) * MIB, 85 * MIB)

    assert usage == Usage(70 * MIB, 4, 70 * MIB, 80 * MIB, 1, None, gave_back=True)


def test_a_replay_stops_at_the_birth_that_does_not_fit(replays: Replay) -> None:
    usage = replays([1, -1, 2, 3, -2], np.array([30, 20, 30]) * MIB, 40 * MIB)

    assert (usage.out_of_memory_event, usage.peak_allocated_bytes, usage.peak_reserved_bytes) == (
        3,
        30 * MIB,
        30 * MIB,
    )


@pytest.mark.parametrize("events_E", [[1, 1], [1, -2], [1, -1, -1], [0]])
def test_a_replay_refuses_storages_that_are_born_twice_or_die_unborn(
    events_E: Sequence[int], replays: Replay
) -> None:
    with pytest.raises(ValueError, match="storage"):
        replays(events_E, [1, 1])


def test_a_storage_without_a_size_is_refused(replays: Replay) -> None:
    with pytest.raises(IndexError):
        replays([2], [5])


def _life(rng: random.Random, count: int, largest: int, keeps: int) -> tuple[list[int], list[int]]:
    """Births and deaths of storages of all kinds of sizes; some live on."""
    sizes = [
        rng.choice([*SIZES, rng.randint(1, MIB), rng.randint(1, largest)]) for _ in range(count)
    ]
    events: list[int] = []
    alive: list[int] = []
    for number in range(1, count + 1):
        events.append(number)
        alive.append(number)
        most = keeps if number % 1000 < 600 else keeps // 15
        while len(alive) > most or (alive and rng.random() < 0.3):
            events.append(-alive.pop(rng.choice([-1, rng.randrange(len(alive))])))
    return events, sizes


@pytest.mark.skipif(module.extension is None, reason="the C replay was not built")
@pytest.mark.parametrize("seed", range(40))
def test_the_replay_in_c_equals_the_allocator_block_by_block(seed: int) -> None:
    """Short series; and long ones with sizes beyond 32 bits, whose lists of free blocks have many
    pages, which grow, empty and are given back.
    """
    rng = random.Random(seed)
    long = seed % 10 == 0
    events, sizes = _life(rng, *((3000, 3 * GIB, 900) if long else (80, 40 * MIB, 80)))

    found = replay_blocks(events, sizes)
    most_bytes = found.peak_reserved_bytes
    assert 0 < least_peak(np.array(events), np.array(sizes)) <= found.peak_allocated_bytes
    for limit_bytes in (None, most_bytes - MIB, int(0.97 * most_bytes), int(0.6 * most_bytes)):
        assert replay(events, sizes, limit_bytes) == replay_blocks(events, sizes, limit_bytes)


def test_without_the_build_in_c_python_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "extension", None)

    assert replay([1, -1], [5]) == Usage(512, 0, 2 * MIB, 2 * MIB, 0, None)


def test_the_least_peak_is_that_of_whole_blocks_without_holes() -> None:
    assert least_peak(np.array([1, 2, -1, 3]), np.array([1, 513, 1024])) == 2048
