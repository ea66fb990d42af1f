"""The replay of `allocator` for its default settings, written for speed: in C where the package
could be built with it, else in one function with whole numbers and no classes. Tests hold all
equal.

Sizes and addresses are in units of 512 bytes, the smallest block.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.base.units import MIB

try:
    from brimful.planning import _replay
except ImportError:  # installed where no C compiler was
    _replay = None  # type: ignore[assignment]

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
    if _replay is None:
        return replay_plain(events, sizes, limit_bytes)
    units = -(-np.ascontiguousarray(sizes, np.int64) // UNIT_BYTES)
    allocated, allocated_event, reserved_then, reserved, reserved_event, failed, gave_back = (
        _replay.replay(np.ascontiguousarray(events, np.int64), units, _limit_units(limit_bytes))
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


def replay_plain(  # noqa: PLR0912, PLR0915 - one function without calls is what makes it fast
    events: Integers, sizes: Integers, limit_bytes: int | None
) -> Fields:
    """The fields of `allocator.Usage`, in their order.

    Args:
        events: As in `allocator.replay`.
        sizes: As there.
        limit_bytes: What can be reserved at most.
    """
    units: list[int] = (-(-np.asarray(sizes, np.int64) // UNIT_BYTES)).tolist()
    limit = _limit_units(limit_bytes)
    small: list[int] = []
    large: list[int] = []
    listed: dict[int, list[Any]] = {}
    held: dict[int, list[Any] | None] = {}
    allocated = reserved = most_allocated = most_reserved = reserved_then = 0
    allocated_event = reserved_event = -1
    address, gave_back = SMALL_SEGMENT, False
    for index, event in enumerate(np.asarray(events).tolist()):
        if event > 0:
            size = units[event - 1]
            if event in held:
                raise ValueError(f"event {index}: storage {event - 1} is born while it lives")
            if not size:
                held[event] = None
                continue
            free = small if size <= SMALL else large
            place = bisect_left(free, size << _SHIFT)
            if place < len(free):
                block = listed.pop(free.pop(place))
                block[_FREE] = False
            else:
                segment = _segment_for(size)
                if reserved + segment > limit:
                    gave_back = True
                    reserved -= _released(large, listed) + _released(small, listed)
                    if reserved + segment > limit:
                        return _told(
                            most_allocated,
                            allocated_event,
                            reserved_then,
                            most_reserved,
                            reserved_event,
                            index,
                            gave_back,
                        )
                block = [segment, address, None, None, False]
                address += segment
                reserved += segment
                if reserved > most_reserved:
                    most_reserved, reserved_event = reserved, index
            rest = block[_SIZE] - size
            if rest > (0 if free is small else SMALL):
                following = block[_NEXT]
                cut = [rest, block[_ADDRESS] + size, block, following, True]
                if following is not None:
                    following[_PREVIOUS] = cut
                block[_NEXT] = cut
                block[_SIZE] = size
                key = (rest << _SHIFT) + cut[_ADDRESS]
                listed[key] = cut
                insort(free, key)
            held[event] = block
            allocated += block[_SIZE]
            if allocated > most_allocated:
                most_allocated, allocated_event, reserved_then = allocated, index, reserved
        else:
            if -event not in held:
                raise ValueError(f"event {index}: storage {-event - 1} dies while it does not live")
            freed = held.pop(-event)
            if freed is not None:
                allocated -= freed[_SIZE]
                _join(freed, small if units[-event - 1] <= SMALL else large, listed)
    return _told(
        most_allocated,
        allocated_event,
        reserved_then,
        most_reserved,
        reserved_event,
        None,
        gave_back,
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


def _join(block: list[Any], free: list[int], listed: dict[int, list[Any]]) -> None:
    """Free a block and join it with free neighbours."""
    following, before = block[_NEXT], block[_PREVIOUS]
    if following is not None and following[_FREE]:
        key = (following[_SIZE] << _SHIFT) + following[_ADDRESS]
        del free[bisect_left(free, key)], listed[key]
        block[_SIZE] += following[_SIZE]
        block[_NEXT] = after = following[_NEXT]
        if after is not None:
            after[_PREVIOUS] = block
    if before is not None and before[_FREE]:
        key = (before[_SIZE] << _SHIFT) + before[_ADDRESS]
        del free[bisect_left(free, key)], listed[key]
        before[_SIZE] += block[_SIZE]
        before[_NEXT] = after = block[_NEXT]
        if after is not None:
            after[_PREVIOUS] = before
        block = before
    block[_FREE] = True
    key = (block[_SIZE] << _SHIFT) + block[_ADDRESS]
    listed[key] = block
    insort(free, key)


def _released(free: list[int], listed: dict[int, list[Any]]) -> int:
    """Give segments that are wholly free back; returns their size."""
    whole = [key for key in free if listed[key][_PREVIOUS] is None and listed[key][_NEXT] is None]
    for key in whole:
        del listed[key]
    gone = set(whole)
    free[:] = [key for key in free if key not in gone]
    return sum(key >> _SHIFT for key in whole)


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
