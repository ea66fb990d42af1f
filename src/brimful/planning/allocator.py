"""A model of PyTorch's CUDA caching allocator with its default settings: the memory that it
reserves for a series of allocations. It stands here block by block, and in C (`_replay.c`), where
the package could be built with it, for series as long as a step. Tests hold both equal.

A request is rounded up and cut from the smallest free block that is large enough; without one, a
new segment is asked of the device. Freed blocks join their free neighbours and stay reserved.

Sources: pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp (commit 001074d, about torch 2.6),
constants after c10/core/AllocatorConfig.h of 2.13.

Deviations: one stream, frees take effect at once, no garbage collection threshold, no private pools
of CUDA graphs. Of equally large free blocks PyTorch takes the lowest address; here a later segment
always stands higher, while a driver may hand out addresses in another order.

Suffixes: E events, S storages.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brimful.base.arrays import Ints
from brimful.base.errors import BrimfulError
from brimful.base.units import MIB, format_bytes

MIN_BLOCK_BYTES = 512
"""kMinBlockSize: every block is a multiple."""
SMALL_LIMIT_BYTES = MIB
"""kSmallSize: the largest block of the small pool, and the rest that a block of the large one must
leave to be split.
"""
SMALL_SEGMENT_BYTES = 2 * MIB
"""kSmallBuffer: a segment of the small pool."""
LARGE_SEGMENT_BYTES = 20 * MIB
"""A segment for blocks from 1 to 10 MiB."""
OWN_SEGMENT_FROM_BYTES = 10 * MIB
"""kMinLargeAlloc: blocks from this size on get a segment of their own size."""
OWN_SEGMENT_STEP_BYTES = 2 * MIB
"""kRoundLarge: segments of one block are a multiple."""
_NO_LIMIT_BYTES = 1 << 62
Integers = NDArray[np.integer[Any]] | Sequence[int]


def _built() -> Any:
    """Return the extension; None where it was not built."""
    try:
        from brimful.planning import _replay  # noqa: PLC0415
    except ImportError:  # installed where no C compiler was
        return None
    return _replay


extension: Any = _built()


class SimulatedOutOfMemory(BrimfulError):
    """A request cannot be met within the limit, even after every free segment went back to the
    device.
    """

    def __init__(self, requested_bytes: int, allocated_bytes: int, reserved_bytes: int) -> None:
        asked, allocated, reserved = map(
            format_bytes, (requested_bytes, allocated_bytes, reserved_bytes)
        )
        super().__init__(
            f"{asked} cannot be allocated within the limit; {allocated} are allocated, {reserved}"
            " reserved"
        )


@dataclass(frozen=True)
class Segment:
    """Memory reserved in one piece.

    Attributes:
        blocks: (size in bytes, in use) of its parts in order of address.
    """

    address: int
    size_bytes: int
    pool: Literal["small", "large"]
    blocks: tuple[tuple[int, bool], ...]


@dataclass(slots=True, eq=False)
class _Block:
    """A piece of a segment, which knows its neighbours there."""

    address: int
    size_bytes: int
    pool: "_Pool"
    in_use: bool = False
    previous: "_Block | None" = None
    next: "_Block | None" = None

    def cut(self, size_bytes: int) -> "_Block":
        """Shorten it to `size_bytes`; return the rest."""
        address, rest_bytes = self.address + size_bytes, self.size_bytes - size_bytes
        rest = _Block(address, rest_bytes, self.pool, previous=self, next=self.next)
        if self.next is not None:
            self.next.previous = rest
        self.next, self.size_bytes = rest, size_bytes
        return rest

    def absorb_next(self) -> None:
        """Make it and the block after it one."""
        if self.next is not None:
            self.size_bytes += self.next.size_bytes
            self.next = self.next.next
            if self.next is not None:
                self.next.previous = self


@dataclass
class _Pool:
    """Free blocks.

    Attributes:
        order: (size in bytes, address), smallest first, then lowest.
        blocks: Blocks by address.
    """

    order: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, _Block] = field(default_factory=dict)

    def insert(self, block: _Block) -> None:
        """List a block."""
        insort(self.order, (block.size_bytes, block.address))
        self.blocks[block.address] = block

    def remove(self, block: _Block) -> None:
        """Take a block off the list, before its size changes."""
        del self.order[bisect_left(self.order, (block.size_bytes, block.address))]
        del self.blocks[block.address]

    def smallest(self, size_bytes: int) -> _Block | None:
        """Take the smallest block that is large enough off the list."""
        place = bisect_left(self.order, (size_bytes, 0))
        return None if place == len(self.order) else self.blocks.pop(self.order.pop(place)[1])


class CachingAllocator:
    """The allocator of one device and stream.

    Args:
        limit_bytes: What can be reserved at most: the device's memory less everything outside the
            allocator. None: no limit.

    Attributes:
        allocated_bytes: Blocks in use, rounded as they are.
        reserved_bytes: Segments.
        peak_allocated_bytes, peak_reserved_bytes: The most so far.
        gave_back: The limit was met at least once.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit_bytes = _NO_LIMIT_BYTES if limit_bytes is None else limit_bytes
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.gave_back = False
        self._small, self._large = _Pool(), _Pool()
        self._in_use: dict[int, _Block] = {}
        self._next_address = SMALL_SEGMENT_BYTES

    def adopt(self, segments: Iterable[Segment]) -> None:
        """Take over segments as they are, each block in use with its address as its handle. New
        segments stand higher.
        """
        for segment in segments:
            pool = self._small if segment.pool == "small" else self._large
            block = _Block(segment.address, segment.size_bytes, pool)
            *others, (_, is_last_in_use) = segment.blocks
            for size_bytes, in_use in others:
                rest = block.cut(size_bytes)
                self._place(block, in_use=in_use)
                block = rest
            self._place(block, in_use=is_last_in_use)
            self._reserve(segment.size_bytes)
            end = segment.address + segment.size_bytes
            self._next_address = max(self._next_address, end)

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
        block_bytes = round_up(size_bytes)
        pool = self._small if block_bytes <= SMALL_LIMIT_BYTES else self._large
        block = pool.smallest(block_bytes) or self._new(pool, block_bytes)
        if block is None:
            raise SimulatedOutOfMemory(size_bytes, self.allocated_bytes, self.reserved_bytes)
        rest_bytes = block.size_bytes - block_bytes
        if rest_bytes > (0 if pool is self._small else SMALL_LIMIT_BYTES):
            pool.insert(block.cut(block_bytes))
        self._place(block, in_use=True)
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
        if block.next is not None and not block.next.in_use:
            block.pool.remove(block.next)
            block.absorb_next()
        if block.previous is not None and not block.previous.in_use:
            block = block.previous
            block.pool.remove(block)
            block.absorb_next()
        block.pool.insert(block)

    def empty_cache(self) -> None:
        """Return every wholly free segment to the device."""
        for pool in (self._large, self._small):
            for block in tuple(pool.blocks.values()):
                if block.previous is None and block.next is None:
                    pool.remove(block)
                    self.reserved_bytes -= block.size_bytes

    def segments(self) -> list[Segment]:
        """Return the reserved segments by address."""
        listed = (
            *self._in_use.values(),
            *self._small.blocks.values(),
            *self._large.blocks.values(),
        )
        made = []
        for start in (each for each in listed if each.previous is None):
            parts: list[tuple[int, bool]] = []
            block: _Block | None = start
            while block is not None:
                parts.append((block.size_bytes, block.in_use))
                block = block.next
            pool: Literal["small", "large"] = "small" if start.pool is self._small else "large"
            size_bytes = sum(size for size, _ in parts)
            made.append(Segment(start.address, size_bytes, pool, tuple(parts)))
        return sorted(made, key=lambda segment: segment.address)

    def _place(self, block: _Block, *, in_use: bool) -> None:
        block.in_use = in_use
        if not in_use:
            block.pool.insert(block)
            return
        self._in_use[block.address] = block
        self.allocated_bytes += block.size_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def _new(self, pool: _Pool, block_bytes: int) -> _Block | None:
        """Return a block on new memory; None past the limit."""
        segment_bytes = _segment_bytes(block_bytes)
        if self.reserved_bytes + segment_bytes > self._limit_bytes:
            self.gave_back = True
            self.empty_cache()
            if self.reserved_bytes + segment_bytes > self._limit_bytes:
                return None
        self._reserve(segment_bytes)
        self._next_address += segment_bytes
        return _Block(self._next_address - segment_bytes, segment_bytes, pool)

    def _reserve(self, size_bytes: int) -> None:
        self.reserved_bytes += size_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)


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


def replay(events_E: Integers, sizes_S: Integers, limit_bytes: int | None = None) -> Usage:
    """Replay a series of allocations and frees.

    Args:
        events_E: +(i+1): storage i is born; -(i+1): it dies.
        sizes_S: Bytes that each storage asks for. A storage of no bytes takes nothing.
        limit_bytes: What can be reserved at most; None: no limit.

    Raises:
        ValueError: a storage is born while it lives or dies while it does not.
    """
    if extension is None:
        return replay_blocks(events_E, sizes_S, limit_bytes)
    limit = _NO_LIMIT_BYTES if limit_bytes is None else limit_bytes // MIN_BLOCK_BYTES
    allocated, allocated_event, reserved_then, reserved, reserved_event, failed, gave_back = (
        extension.replay_sizes(
            np.ascontiguousarray(events_E, np.int32), np.ascontiguousarray(sizes_S, np.int64), limit
        )
    )
    return Usage(
        MIN_BLOCK_BYTES * allocated,
        allocated_event,
        MIN_BLOCK_BYTES * reserved_then,
        MIN_BLOCK_BYTES * reserved,
        reserved_event,
        None if failed < 0 else failed,
        bool(gave_back),
    )


def replay_blocks(events_E: Integers, sizes_S: Integers, limit_bytes: int | None = None) -> Usage:
    """The same through `CachingAllocator`."""
    allocator = CachingAllocator(limit_bytes)
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


def least_peak(events_E: NDArray[np.int32], sizes_S: Ints) -> int:
    """Return the most that storages hold together if each takes whole blocks."""
    blocks_S = -(-sizes_S // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
    return int(np.cumsum(np.sign(events_E) * blocks_S[np.abs(events_E) - 1]).max(initial=0))


def round_up(size_bytes: int) -> int:
    """The size of the block for a request: a multiple of 512.

    >>> round_up(1), round_up(513)
    (512, 1024)
    """
    return _multiple(size_bytes, MIN_BLOCK_BYTES)


def _segment_bytes(block_bytes: int) -> int:
    if block_bytes <= SMALL_LIMIT_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < OWN_SEGMENT_FROM_BYTES:
        return LARGE_SEGMENT_BYTES
    return _multiple(block_bytes, OWN_SEGMENT_STEP_BYTES)


def _multiple(size_bytes: int, step_bytes: int) -> int:
    return (size_bytes + step_bytes - 1) // step_bytes * step_bytes
