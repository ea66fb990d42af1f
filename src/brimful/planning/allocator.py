"""A model of PyTorch's CUDA caching allocator: the memory that it reserves for a series of
allocations.

A request is rounded up and cut from the smallest free block that is large enough; without one, a
new segment is asked of the device. Freed blocks join their free neighbours and stay reserved. With
`expandable_segments` each pool is one address range, mapped page by page when needed.

Sources: pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp (commit 001074d, about torch 2.6),
constants and options after c10/core/AllocatorConfig.h of 2.13, large segments after pull request
172056.

Deviations: one stream, frees take effect at once, no garbage collection threshold, no private pools
of CUDA graphs. Of equally large free blocks PyTorch takes the lowest address; here a later segment
always stands higher, while a driver may hand out addresses in another order. An expandable range
never ends here; PyTorch gives it 9/8 of the device's memory and then opens another.

Suffixes: E events, S storages.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from brimful.base.errors import BrimfulError
from brimful.base.units import MIB, format_bytes
from brimful.planning.memory_pool import MemoryBlock, Pool
from brimful.planning.plain_replay import Integers, replay_quickly

MIN_BLOCK_BYTES = 512
"""kMinBlockSize: every block is a multiple."""
SMALL_LIMIT_BYTES = MIB
"""kSmallSize: the largest block of the small pool."""
SMALL_SEGMENT_BYTES = 2 * MIB
"""kSmallBuffer: a segment of the small pool, or a page of its expandable segment."""
OWN_SEGMENT_FROM_BYTES = 10 * MIB
"""kMinLargeAlloc: blocks from this size on get a segment of their own size."""
OWN_SEGMENT_STEP_BYTES = 2 * MIB
"""kRoundLarge: segments of one block are a multiple."""

_ADDRESS_SPACE_PAGES = 1 << 24


@dataclass(frozen=True)
class AllocatorSettings:
    """What `PYTORCH_ALLOC_CONF` can say, and the device's limit.

    Attributes:
        expandable_segments: Grow one segment per pool by pages instead of asking for new segments.
        max_split_size_bytes: Blocks of this size or more are never split; whole MiB, at least a
            large segment. None: every block may be.
        roundup_power2_divisions: Round requests up to one of so many steps between two powers of
            two; a power of two. None: to 512 bytes.
        limit_bytes: What can be reserved at most: the device's memory less everything outside the
            allocator. None: no limit.
        large_segment_bytes: A segment for blocks from 1 to 10 MiB, and an expandable segment's page
            in the large pool; `large_segment_size_mb` since January 2026. It is also how much too
            large an unsplittable block may be (`max_non_split_rounding_mb`).

    Raises:
        ValueError: a value that PyTorch refuses too.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    roundup_power2_divisions: int | None = None
    limit_bytes: int | None = None
    large_segment_bytes: int = 20 * MIB

    def __post_init__(self) -> None:
        large_bytes, split_bytes, divisions = (
            self.large_segment_bytes,
            self.max_split_size_bytes,
            self.roundup_power2_divisions,
        )
        if large_bytes <= OWN_SEGMENT_FROM_BYTES or large_bytes % MIB:
            raise ValueError(
                f"large_segment_bytes is {large_bytes}; it must be whole MiB and more than"
                f" {OWN_SEGMENT_FROM_BYTES}"
            )
        if split_bytes is not None and (split_bytes < large_bytes or split_bytes % MIB):
            raise ValueError(
                f"max_split_size_bytes is {split_bytes}; it must be whole MiB and at least"
                f" {large_bytes}, a large segment"
            )
        if divisions is not None and (divisions < 1 or divisions & (divisions - 1)):
            raise ValueError(f"roundup_power2_divisions is {divisions}; it must be a power of two")
        if self.limit_bytes is not None and self.limit_bytes < 0:
            raise ValueError(f"limit_bytes is {self.limit_bytes}; it cannot be negative")


DEFAULTS = AllocatorSettings()


class SimulatedOutOfMemory(BrimfulError):
    """A request cannot be met within the limit, even after every free segment went back to the
    device.
    """

    def __init__(self, requested_bytes: int, allocated_bytes: int, reserved_bytes: int) -> None:
        self.requested_bytes, self.allocated_bytes, self.reserved_bytes = (
            requested_bytes,
            allocated_bytes,
            reserved_bytes,
        )
        asked, allocated, reserved = (
            format_bytes(size_bytes)
            for size_bytes in (requested_bytes, allocated_bytes, reserved_bytes)
        )
        super().__init__(
            f"{asked} cannot be allocated within the limit; {allocated} are allocated, {reserved}"
            " reserved"
        )


@dataclass(frozen=True)
class Segment:
    """Memory reserved in one piece. Of an expandable segment, each mapped run is one.

    Attributes:
        blocks: (size in bytes, in use) of its parts in order of address.
    """

    address: int
    size_bytes: int
    pool: Literal["small", "large"]
    blocks: tuple[tuple[int, bool], ...]


class CachingAllocator:
    """The allocator of one device and stream.

    Attributes:
        allocated_bytes: Blocks in use, rounded as they are. `peak_allocated_bytes`: the most so
            far.
        reserved_bytes: Segments, or mapped pages. `peak_reserved_bytes`: the most so far.
        requested_bytes: What was asked for by the blocks in use.
        gave_back: The limit was met at least once.
    """

    def __init__(self, settings: AllocatorSettings = DEFAULTS) -> None:
        self.settings = settings
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.requested_bytes = 0
        self.gave_back = False
        self._small, self._large = (
            Pool("small", SMALL_SEGMENT_BYTES),
            Pool("large", settings.large_segment_bytes),
        )
        self._in_use: dict[int, MemoryBlock] = {}
        self._next_address = SMALL_SEGMENT_BYTES
        if settings.expandable_segments:
            for pool in (self._small, self._large):
                range_bytes = pool.page_bytes * _ADDRESS_SPACE_PAGES
                pool.insert(pool.add(range_bytes, range_bytes, mapped=False))

    def adopt(self, segments: Iterable[Segment]) -> None:
        """Take over segments as they are, each block in use with its address as its handle. New
        segments stand higher.

        Raises:
            ValueError: segments are expandable here.
        """
        if self.settings.expandable_segments:
            raise ValueError("segments can only be taken over where they are not expandable")
        for segment in segments:
            pool = self._small if segment.pool == "small" else self._large
            block = pool.add(segment.address, segment.size_bytes)
            *others, (_, is_last_in_use) = segment.blocks
            for size_bytes, in_use in others:
                rest = pool.cut(block, size_bytes)
                self._place(block, in_use=in_use)
                block = rest
            self._place(block, in_use=is_last_in_use)
            self._reserve(segment.size_bytes)
            end = segment.address + segment.size_bytes
            self._next_address = max(self._next_address, end)

    def _place(self, block: MemoryBlock, *, in_use: bool) -> None:
        if in_use:
            self._use(block, block.size_bytes)
        else:
            block.pool.insert(block)

    def malloc(self, size_bytes: int) -> int:
        """Allocate; returns the address as a handle, 0 for no bytes.

        Raises:
            SimulatedOutOfMemory: the limit would be passed, even after giving free segments back.
            ValueError: a negative size.
        """
        if size_bytes <= 0:
            if size_bytes < 0:
                raise ValueError(f"cannot allocate {size_bytes} bytes")
            return 0
        block_bytes = round_up(size_bytes, self.settings.roundup_power2_divisions)
        pool = self._small if block_bytes <= SMALL_LIMIT_BYTES else self._large
        block = (
            self._cached(pool, block_bytes)
            or self._new(pool, block_bytes)
            or self._new_after_release(pool, block_bytes)
        )
        if block is None:
            raise SimulatedOutOfMemory(size_bytes, self.allocated_bytes, self.reserved_bytes)
        if self._splits(block, block_bytes):
            pool.insert(pool.cut(block, block_bytes))
        self._use(block, size_bytes)
        return block.address

    def free(self, handle: int) -> None:
        """Free the allocation with a handle from `malloc`; 0 is nothing.

        Raises:
            ValueError: the handle is not in use.
        """
        if handle == 0:
            return
        block = self._in_use.pop(handle, None)
        if block is None:
            raise ValueError(f"{handle} is not an allocation in use")
        block.in_use = False
        self.allocated_bytes -= block.size_bytes
        self.requested_bytes -= block.requested_bytes
        block.pool.insert(block.pool.coalesce(block))

    def empty_cache(self) -> None:
        """Return every wholly free segment or page to the device."""
        for pool in (self._large, self._small):
            for _, address in tuple(pool.free):
                block = pool.blocks[address]
                if self.settings.expandable_segments:
                    self._unmap(block)
                elif block.previous is None and block.next is None:
                    self._release(block)

    def segments(self) -> list[Segment]:
        """Return the reserved segments by address."""
        made: list[Segment] = []
        for start in (*self._small.blocks.values(), *self._large.blocks.values()):
            if not start.mapped or (start.previous is not None and start.previous.mapped):
                continue
            parts: list[tuple[int, bool]] = []
            block: MemoryBlock | None = start
            while block is not None and block.mapped:
                parts.append((block.size_bytes, block.in_use))
                block = block.next
            made.append(
                Segment(
                    start.address,
                    sum(size_bytes for size_bytes, _ in parts),
                    start.pool.name,
                    tuple(parts),
                )
            )
        return sorted(made, key=lambda segment: segment.address)

    def _use(self, block: MemoryBlock, requested_bytes: int) -> None:
        block.in_use = True
        self._in_use[block.address] = block
        block.requested_bytes = requested_bytes
        self.requested_bytes += requested_bytes
        self.allocated_bytes += block.size_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def _cached(self, pool: Pool, block_bytes: int) -> MemoryBlock | None:
        """Take the best free block from its list and return it."""
        free, split_bytes = pool.free, self.settings.max_split_size_bytes
        index = bisect_left(free, (block_bytes, 0))
        if index == len(free):
            return None
        if self.settings.expandable_segments:
            while index + 1 < len(free) and _reach_bytes(
                pool.blocks[free[index + 1][1]]
            ) < _reach_bytes(pool.blocks[free[index][1]]):
                index += 1
        size_bytes, address = free[index]
        if split_bytes is not None:
            if block_bytes < split_bytes <= size_bytes:
                return None
            if (
                block_bytes >= split_bytes
                and size_bytes >= block_bytes + self.settings.large_segment_bytes
            ):
                return None
        del free[index]
        return pool.blocks[address]

    def _splits(self, block: MemoryBlock, block_bytes: int) -> bool:
        rest_bytes = block.size_bytes - block_bytes
        if block.pool is self._small or self.settings.expandable_segments:
            return rest_bytes >= MIN_BLOCK_BYTES
        split_bytes = self.settings.max_split_size_bytes
        return rest_bytes > SMALL_LIMIT_BYTES and (split_bytes is None or block_bytes < split_bytes)

    def _new(self, pool: Pool, block_bytes: int) -> MemoryBlock | None:
        """A block on new memory, on no list; None past the limit."""
        if self.settings.expandable_segments:
            return self._grow(pool, block_bytes)
        segment_bytes = self._segment_bytes(block_bytes)
        if not self._reserve(segment_bytes):
            return None
        self._next_address += segment_bytes
        return pool.add(self._next_address - segment_bytes, segment_bytes)

    def _new_after_release(self, pool: Pool, block_bytes: int) -> MemoryBlock | None:
        """First oversize blocks go back to the device, as many as are needed; then everything that
        is free.
        """
        self.gave_back = True
        if self._release_oversize(pool, block_bytes) and (block := self._new(pool, block_bytes)):
            return block
        self.empty_cache()
        return self._new(pool, block_bytes)

    def _segment_bytes(self, block_bytes: int) -> int:
        if block_bytes <= SMALL_LIMIT_BYTES:
            return SMALL_SEGMENT_BYTES
        return (
            self.settings.large_segment_bytes
            if block_bytes < OWN_SEGMENT_FROM_BYTES
            else _multiple(block_bytes, OWN_SEGMENT_STEP_BYTES)
        )

    def _reserve(self, size_bytes: int) -> bool:
        limit_bytes = self.settings.limit_bytes
        if limit_bytes is not None and self.reserved_bytes + size_bytes > limit_bytes:
            return False
        self.reserved_bytes += size_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def _release(self, block: MemoryBlock) -> None:
        block.pool.remove(block)
        del block.pool.blocks[block.address]
        self.reserved_bytes -= block.size_bytes

    def _release_oversize(self, pool: Pool, block_bytes: int) -> bool:
        """Release one unsplittable free block that is large enough, else the largest ones until
        they are enough together.
        """
        split_bytes = self.settings.max_split_size_bytes
        if split_bytes is None or self.settings.expandable_segments:
            return False
        target_bytes, released_bytes = max(block_bytes, split_bytes), 0
        while released_bytes < target_bytes and pool.free and pool.free[-1][0] >= split_bytes:
            size_bytes, address = pool.free[
                min(bisect_left(pool.free, (target_bytes, 0)), len(pool.free) - 1)
            ]
            self._release(pool.blocks[address])
            released_bytes += size_bytes
        return released_bytes >= target_bytes

    def _grow(self, pool: Pool, block_bytes: int) -> MemoryBlock | None:
        """Map pages at the lowest address where free and unmapped neighbours are large enough
        together.
        """
        block = self._growable(pool, block_bytes)
        if block is not None and not block.mapped:
            block = self._map(block, block_bytes)
        while block is not None and block.size_bytes < block_bytes:
            block = (
                self._map(block.next, block_bytes - block.size_bytes)
                if block.next is not None
                else None
            )
        if block is not None:
            pool.remove(block)
        return block

    def _growable(self, pool: Pool, block_bytes: int) -> MemoryBlock | None:
        for address in pool.unmapped:
            start = pool.blocks[address]
            if start.previous is not None and not start.previous.in_use:
                start = start.previous
            room_bytes, block = start.size_bytes, start.next
            while block is not None and not block.in_use and room_bytes < block_bytes:
                room_bytes += block.size_bytes
                block = block.next
            if room_bytes >= block_bytes:
                return start
        return None

    def _map(self, block: MemoryBlock, wanted_bytes: int) -> MemoryBlock | None:
        """Map the first pages of an unmapped block; returns the free block they are part of,
        listed. None past the limit.
        """
        pool = block.pool
        mapped_bytes = min(block.size_bytes, _multiple(wanted_bytes, pool.page_bytes))
        if not self._reserve(mapped_bytes):
            return None
        pool.remove(block)
        if mapped_bytes < block.size_bytes:
            pool.insert(pool.cut(block, mapped_bytes))
        block.mapped = True
        block = pool.coalesce(block)
        pool.insert(block)
        return block

    def _unmap(self, block: MemoryBlock) -> None:
        """Give the whole pages of a free block back; what is left before and after them stays
        free.
        """
        pool, end = block.pool, block.address + block.size_bytes
        first_page, last_page = (
            _multiple(block.address, pool.page_bytes),
            end // pool.page_bytes * pool.page_bytes,
        )
        if first_page >= last_page:
            return
        pool.remove(block)
        if last_page < end:
            pool.insert(pool.cut(block, last_page - block.address))
        if block.address < first_page:
            pages = pool.cut(block, first_page - block.address)
            pool.insert(block)
            block = pages
        self.reserved_bytes -= block.size_bytes
        block.mapped = False
        pool.insert(pool.coalesce(block))


@dataclass(frozen=True)
class Usage:
    """The memory of a series of allocations and frees. Events are counted from 0; the first that
    reached a peak is named.

    Attributes:
        peak_allocated_bytes: The most that blocks in use held, at event `peak_allocated_event` (-1:
            nothing was ever allocated).
        reserved_at_allocated_peak_bytes: Reserved after that event.
        peak_reserved_bytes: The most that was reserved, at event `peak_reserved_event`.
        out_of_memory_event: The birth that did not fit; the rest was not replayed. None: all
            fitted.
        gave_back: The limit was met, and what was only held went back to the device.
    """

    peak_allocated_bytes: int
    peak_allocated_event: int
    reserved_at_allocated_peak_bytes: int
    peak_reserved_bytes: int
    peak_reserved_event: int
    out_of_memory_event: int | None
    gave_back: bool = False


def replay(events_E: Integers, sizes_S: Integers, settings: AllocatorSettings) -> Usage:
    """Replay a series of allocations and frees.

    Args:
        events_E: +(i+1): storage i is born; -(i+1): it dies.
        sizes_S: Bytes that each storage asks for. A storage of no bytes takes nothing.
        settings: Of the allocator.

    Raises:
        ValueError: a storage is born while it lives or dies while it does not.
    """
    if settings == AllocatorSettings(limit_bytes=settings.limit_bytes):
        return Usage(*replay_quickly(events_E, sizes_S, settings.limit_bytes))
    return replay_blocks(events_E, sizes_S, settings)


def replay_blocks(events_E: Integers, sizes_S: Integers, settings: AllocatorSettings) -> Usage:
    """The same through `CachingAllocator`, which knows every setting."""
    allocator = CachingAllocator(settings)
    sizes, handle_by_storage = np.asarray(sizes_S).tolist(), dict[int, int]()
    allocated_bytes = reserved_bytes = reserved_at_peak_bytes = 0
    allocated_event = reserved_event = -1
    out_of_memory_event = None
    for index, event in enumerate(np.asarray(events_E).tolist()):
        storage = abs(event) - 1
        if (storage in handle_by_storage) == (event > 0) or event == 0:
            raise ValueError(
                f"event {index}: storage {storage}"
                f" {'is born while it lives' if event > 0 else 'dies while it does not live'}"
            )
        if event < 0:
            allocator.free(handle_by_storage.pop(storage))
            continue
        try:
            handle_by_storage[storage] = allocator.malloc(sizes[storage])
        except SimulatedOutOfMemory:
            out_of_memory_event = index
            break
        if allocator.peak_reserved_bytes > reserved_bytes:
            reserved_bytes, reserved_event = allocator.peak_reserved_bytes, index
        if allocator.peak_allocated_bytes > allocated_bytes:
            allocated_bytes, allocated_event = allocator.peak_allocated_bytes, index
            reserved_at_peak_bytes = allocator.reserved_bytes
    return Usage(
        allocated_bytes,
        allocated_event,
        reserved_at_peak_bytes,
        reserved_bytes,
        reserved_event,
        out_of_memory_event,
        allocator.gave_back,
    )


def round_up(size_bytes: int, power2_divisions: int | None = None) -> int:
    """The size of the block for a request: a multiple of 512, or the next of so many steps between
    two powers of two.

    >>> round_up(513), round_up(1200 * 1024, power2_divisions=4) // 1024
    (1024, 1280)
    """
    if (
        power2_divisions is None
        or power2_divisions <= 1
        or size_bytes <= MIN_BLOCK_BYTES * power2_divisions
    ):
        return max(MIN_BLOCK_BYTES, _multiple(size_bytes, MIN_BLOCK_BYTES))
    return _multiple(size_bytes, (1 << (size_bytes.bit_length() - 1)) // power2_divisions)


def _reach_bytes(block: MemoryBlock) -> int:
    """A free block with the unmapped range right after it: in an expandable segment, its size for
    "best fit".
    """
    return block.size_bytes + (
        block.next.size_bytes if block.next is not None and not block.next.mapped else 0
    )


def _multiple(size_bytes: int, step_bytes: int) -> int:
    return (size_bytes + step_bytes - 1) // step_bytes * step_bytes
