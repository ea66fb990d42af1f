"""What torch's CUDA allocator did, read from its memory history, beside what the model of it does
with the same requests.

The history is what `torch.cuda.memory._snapshot()` returns after `_record_memory_history()` (torch
2.13, torch/cuda/memory.py). It may begin in the middle of a program: what lay in memory then is
worked out backwards from what lies there at the end.

Deviation: of a freed block the history says what was asked for, not how large the block was. In the
large pool, which leaves up to 1 MiB uncut, such a block is taken to reach up to the next one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from brimful.base.errors import BrimfulError
from brimful.base.types import Json
from brimful.planning.allocator import (
    SMALL_LIMIT_BYTES,
    SMALL_SEGMENT_BYTES,
    CachingAllocator,
    Segment,
    round_up,
)

Event = Mapping[str, Any]
PoolName = Literal["small", "large"]


class UnreadableHistory(BrimfulError):
    """A history that cannot be compared, with the reason in a sentence."""


@dataclass(frozen=True)
class HistoryComparison:
    """Torch's allocator beside the model of it.

    Attributes:
        requests: Allocations in the history.
        same_reserved: Number of requests after which both had reserved the same number of bytes.
        peak_reserved_bytes: The most that torch's allocator had reserved.
        modelled_bytes: The most that the model had reserved.
    """

    requests: int
    same_reserved: int
    peak_reserved_bytes: int
    modelled_bytes: int

    @property
    def error(self) -> float:
        """By what share the model's peak is too high; negative: too low."""
        return self.modelled_bytes / self.peak_reserved_bytes - 1


def compare_with_model(snapshot: Json, device: int = 0) -> HistoryComparison:
    """Give a history's requests to the model of the allocator.

    Args:
        snapshot: Snapshot as `torch.cuda.memory._snapshot()` returns it.
        device: Index of the GPU.

    Raises:
        UnreadableHistory: it holds no requests, or the allocator had other than default settings.
    """
    events = [each for each in snapshot["device_traces"][device] if "addr" in each]
    if not any(each["action"] == "alloc" for each in events):
        raise UnreadableHistory("the memory history holds no allocation")
    _refuse_other_settings(snapshot.get("allocator_settings") or {})
    at_the_end = [each for each in snapshot["segments"] if each.get("device", 0) == device]
    return _replayed(events, _segments_before(at_the_end, events))


def _replayed(events: Sequence[Event], before: Sequence[Segment]) -> HistoryComparison:
    reserved_bytes = sum(each.size_bytes for each in before)
    peak_bytes, requests, same = reserved_bytes, 0, 0
    model = CachingAllocator()
    model.adopt(before)
    handles = {address: address for each in before for address in _addresses_in_use(each)}
    last_action = ""
    for event in events:
        action, address, size_bytes = event["action"], event["addr"], event["size"]
        if action == "segment_alloc":
            reserved_bytes += size_bytes
            peak_bytes = max(peak_bytes, reserved_bytes)
        elif action == "segment_free":
            reserved_bytes -= size_bytes
            if last_action != "segment_free":
                # All free segments go at once.
                model.empty_cache()
        elif action == "alloc":
            handles[address] = model.malloc(size_bytes)
            requests += 1
            same += model.reserved_bytes == reserved_bytes
        elif action == "free_completed":
            model.free(handles.pop(address))
        last_action = action
    return HistoryComparison(requests, same, peak_bytes, model.peak_reserved_bytes)


def _refuse_other_settings(settings: Json) -> None:
    """Refuse other settings than the default ones, whose segments grow and are cut otherwise."""
    divisions = settings.get("roundup_power2_divisions") or {}
    if (
        settings.get("expandable_segments", False)
        or settings.get("max_split_size", -1) != -1
        or any(divisions.values())
    ):
        raise UnreadableHistory(
            "the allocator had other settings than the default ones: unset PYTORCH_ALLOC_CONF"
        )


def _segments_before(at_the_end: Iterable[Json], events: Sequence[Event]) -> list[Segment]:
    """Return what was reserved when a history began, by address."""
    sizes, in_use = {}, {}
    for segment in at_the_end:
        sizes[segment["address"]] = segment["total_size"]
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                in_use[address] = block["size"]
            address += block["size"]
    for event in reversed(events):
        action, address, size_bytes = event["action"], event["addr"], event["size"]
        if action == "alloc":
            del in_use[address]
        elif action == "free_completed":
            in_use[address] = round_up(size_bytes)
        elif action == "segment_alloc":
            del sizes[address]
        elif action == "segment_free":
            sizes[address] = size_bytes
    found, addresses = [], sorted(in_use)
    for start, size_bytes in sorted(sizes.items()):
        inside = [each for each in addresses if start <= each < start + size_bytes]
        pool: PoolName = "small" if size_bytes == SMALL_SEGMENT_BYTES else "large"
        blocks = tuple(_blocks(start, size_bytes, {each: in_use[each] for each in inside}, pool))
        found.append(Segment(start, size_bytes, pool, blocks))
    return found


def _blocks(
    start: int, size_bytes: int, in_use: Mapping[int, int], pool: PoolName
) -> Iterable[tuple[int, bool]]:
    """Yield (size in bytes, in use) of a segment's blocks in order of address."""
    uncut_bytes = SMALL_LIMIT_BYTES if pool == "large" else 0
    ends = [*list(in_use)[1:], start + size_bytes]
    position = start
    for (address, block_bytes), next_start in zip(in_use.items(), ends, strict=False):
        if address > position:
            yield address - position, False
        is_uncut = next_start - address - block_bytes <= uncut_bytes
        held_bytes = next_start - address if is_uncut else block_bytes
        yield held_bytes, True
        position = address + held_bytes
    if position < start + size_bytes:
        yield start + size_bytes - position, False


def _addresses_in_use(segment: Segment) -> Iterable[int]:
    address = segment.address
    for size_bytes, in_use in segment.blocks:
        if in_use:
            yield address
        address += size_bytes
