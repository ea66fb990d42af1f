"""The replay of `allocator` for its default settings, written for speed: in C where the package
could be built with it, else with whole numbers and lists. Tests hold all equal.

Sizes and addresses are in units of 512 bytes, the smallest block.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.base.units import MIB
from brimful.planning import events as passes

UNIT_BYTES = 512
SMALL = MIB // UNIT_BYTES
"""The largest block of the small pool, and the rest that a block of the large one must leave to be
split.
"""
SMALL_SEGMENT, LARGE_SEGMENT, OWN_FROM, OWN_STEP = (
    size * MIB // UNIT_BYTES for size in (2, 20, 10, 2)
)
_SHIFT = 44
"""Bits of an address; a free block is listed as size and address in one number, so that the
smallest, then lowest comes first.
"""
Integers = NDArray[np.integer[Any]] | Sequence[int]
Fields = tuple[int, int, int, int, int, int | None, bool]
_SIZE, _ADDRESS, _PREVIOUS, _NEXT, _FREE = range(5)


def replay_quickly(events: Integers, sizes: Integers, limit_bytes: int | None) -> Fields:
    """What `replay_plain` gives, from C if it was built."""
    if passes.extension is None:
        return replay_plain(events, sizes, limit_bytes)
    allocated, allocated_event, reserved_then, reserved, reserved_event, failed, gave_back = (
        passes.extension.replay_sizes(
            np.ascontiguousarray(events, np.int32),
            np.ascontiguousarray(sizes, np.int64),
            _limit_units(limit_bytes),
        )
    )
    return _told(
        allocated,
        allocated_event,
        reserved_then,
        reserved,
        reserved_event,
        None if failed < 0 else failed,
        bool(gave_back),
    )


def replay_plain(events: Integers, sizes: Integers, limit_bytes: int | None) -> Fields:
    """The fields of `allocator.Usage`, in their order.

    Args:
        events: As in `allocator.replay`.
        sizes: As there.
        limit_bytes: What can be reserved at most.
    """
    units: list[int] = (-(-np.asarray(sizes, np.int64) // UNIT_BYTES)).tolist()
    memory = _Memory(_limit_units(limit_bytes))
    held: dict[int, list[Any] | None] = {}
    allocated = most_allocated = most_reserved = reserved_then = 0
    allocated_event = reserved_event = -1
    failed: int | None = None
    for index, event in enumerate(np.asarray(events).tolist()):
        if event <= 0:
            if -event not in held:
                raise ValueError(f"event {index}: storage {-event - 1} dies while it does not live")
            freed = held.pop(-event)
            if freed is not None:
                allocated -= freed[_SIZE]
                memory.free(freed, units[-event - 1])
            continue
        size = units[event - 1]
        if event in held:
            raise ValueError(f"event {index}: storage {event - 1} is born while it lives")
        if not size:
            held[event] = None
            continue
        block = memory.take(size)
        if block is None:
            failed = index
            break
        held[event] = block
        allocated += block[_SIZE]
        if memory.reserved > most_reserved:
            most_reserved, reserved_event = memory.reserved, index
        if allocated > most_allocated:
            most_allocated, allocated_event, reserved_then = allocated, index, memory.reserved
    return _told(
        most_allocated,
        allocated_event,
        reserved_then,
        most_reserved,
        reserved_event,
        failed,
        memory.gave_back,
    )


def _limit_units(limit_bytes: int | None) -> int:
    return (1 << 62) if limit_bytes is None else limit_bytes // UNIT_BYTES


def _segment_for(size: int) -> int:
    """Return the size of the segment that is reserved for a block."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < OWN_FROM:
        return LARGE_SEGMENT
    return -(-size // OWN_STEP) * OWN_STEP


class _Memory:
    """What is reserved, and its free blocks in two pools. A block is a list: size, address, the
    blocks before and after it in its segment, and whether it is free.
    """

    __slots__ = ("_address", "_blocks", "_large", "_limit", "_small", "gave_back", "reserved")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._small: list[int] = []
        self._large: list[int] = []
        self._blocks: dict[int, list[Any]] = {}
        self._address = SMALL_SEGMENT
        self.reserved, self.gave_back = 0, False

    def take(self, size: int) -> list[Any] | None:
        """The smallest free block that is large enough, else one in a new segment; None if that
        exceeds the limit.
        """
        keys = self._small if size <= SMALL else self._large
        place = bisect_left(keys, size << _SHIFT)
        block: list[Any] | None
        if place < len(keys):
            block = self._blocks.pop(keys.pop(place))
            block[_FREE] = False
        else:
            block = self._segment(size)
        if block is not None and block[_SIZE] > size:
            self._split(block, size, keys)
        return block

    def _segment(self, size: int) -> list[Any] | None:
        segment = _segment_for(size)
        if self.reserved + segment > self._limit:
            self.gave_back = True
            self.reserved -= self._give_back()
            if self.reserved + segment > self._limit:
                return None
        block = [segment, self._address, None, None, False]
        self._address += segment
        self.reserved += segment
        return block

    def _split(self, block: list[Any], size: int, keys: list[int]) -> None:
        """Leave a block the size that was asked for; the rest becomes a free block, unless it is
        too small to be one.
        """
        rest = block[_SIZE] - size
        if size > SMALL >= rest:
            return
        following = block[_NEXT]
        cut = [rest, block[_ADDRESS] + size, block, following, True]
        if following is not None:
            following[_PREVIOUS] = cut
        block[_NEXT] = cut
        block[_SIZE] = size
        self._list(cut, keys)

    def free(self, block: list[Any], asked: int) -> None:
        """Free a block of the pool for the size that was asked for, and join it with free
        neighbours.
        """
        keys = self._small if asked <= SMALL else self._large
        following, before = block[_NEXT], block[_PREVIOUS]
        if following is not None and following[_FREE]:
            self._unlist(following, keys)
            _absorb(block, following)
        if before is not None and before[_FREE]:
            self._unlist(before, keys)
            _absorb(before, block)
            block = before
        block[_FREE] = True
        self._list(block, keys)

    def _give_back(self) -> int:
        """Give segments that are wholly free back to the device; returns their size."""
        released = 0
        for keys in (self._large, self._small):
            kept = []
            for key in keys:
                block = self._blocks[key]
                if block[_PREVIOUS] is None and block[_NEXT] is None:
                    del self._blocks[key]
                    released += block[_SIZE]
                else:
                    kept.append(key)
            keys[:] = kept
        return released

    def _list(self, block: list[Any], keys: list[int]) -> None:
        key = (block[_SIZE] << _SHIFT) + block[_ADDRESS]
        self._blocks[key] = block
        insort(keys, key)

    def _unlist(self, block: list[Any], keys: list[int]) -> None:
        key = (block[_SIZE] << _SHIFT) + block[_ADDRESS]
        del keys[bisect_left(keys, key)], self._blocks[key]


def _absorb(block: list[Any], following: list[Any]) -> None:
    """Make a block and the one after it one block."""
    block[_SIZE] += following[_SIZE]
    block[_NEXT] = after = following[_NEXT]
    if after is not None:
        after[_PREVIOUS] = block


def _told(
    allocated: int,
    allocated_event: int,
    reserved_then: int,
    reserved: int,
    reserved_event: int,
    failed: int | None,
    gave_back: bool,
) -> Fields:
    return (
        UNIT_BYTES * allocated,
        allocated_event,
        UNIT_BYTES * reserved_then,
        UNIT_BYTES * reserved,
        reserved_event,
        failed,
        gave_back,
    )
