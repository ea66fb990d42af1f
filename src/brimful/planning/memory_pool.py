"""The blocks of one pool of a caching allocator: lists of what is free, cutting and joining.

A block is a piece of a segment and knows its neighbours there. In an expandable segment it may be
unmapped: address space without memory.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """A piece of a segment. It is in use, or on one of its pool's lists, or just being moved
    between them.
    """

    address: int
    size_bytes: int
    pool: "Pool"
    mapped: bool = True
    in_use: bool = False
    requested_bytes: int = 0
    previous: "MemoryBlock | None" = None
    next: "MemoryBlock | None" = None


class Pool:
    """The blocks of one pool.

    Attributes:
        page_bytes: Step in which an expandable segment of this pool is mapped.
        blocks: All blocks by address.
        free: (size in bytes, address) of the mapped blocks not in use, smallest first, then lowest.
        unmapped: Addresses of the unmapped blocks, lowest first.
    """

    def __init__(self, name: Literal["small", "large"], page_bytes: int) -> None:
        self.name: Literal["small", "large"] = name
        self.page_bytes = page_bytes
        self.blocks: dict[int, MemoryBlock] = {}
        self.free: list[tuple[int, int]] = []
        self.unmapped: list[int] = []

    def add(self, address: int, size_bytes: int, *, mapped: bool = True) -> MemoryBlock:
        """A new segment as one block, on no list yet."""
        block = self.blocks[address] = MemoryBlock(address, size_bytes, self, mapped)
        return block

    def insert(self, block: MemoryBlock) -> None:
        """List a block that is not in use."""
        if block.mapped:
            insort(self.free, (block.size_bytes, block.address))
        else:
            insort(self.unmapped, block.address)

    def remove(self, block: MemoryBlock) -> None:
        """Take a block off its list; before its size, address or state changes."""
        if block.mapped:
            del self.free[bisect_left(self.free, (block.size_bytes, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address)]

    def cut(self, block: MemoryBlock, size_bytes: int) -> MemoryBlock:
        """Shorten a block that is on no list to `size_bytes`; returns the rest, on no list."""
        rest = self.add(
            block.address + size_bytes, block.size_bytes - size_bytes, mapped=block.mapped
        )
        rest.previous, rest.next = block, block.next
        if block.next is not None:
            block.next.previous = rest
        block.next = rest
        block.size_bytes = size_bytes
        return rest

    def coalesce(self, block: MemoryBlock) -> MemoryBlock:
        """Join a block that is on no list with those neighbours that are free and mapped as it is;
        returns the whole, on no list.
        """
        left, right = block.previous, block.next
        if right is not None and not right.in_use and right.mapped == block.mapped:
            self.remove(right)
            self._join(block, right)
        if left is not None and not left.in_use and left.mapped == block.mapped:
            self.remove(left)
            self._join(left, block)
            return left
        return block

    def _join(self, left: MemoryBlock, right: MemoryBlock) -> None:
        del self.blocks[right.address]
        left.size_bytes += right.size_bytes
        left.next = right.next
        if right.next is not None:
            right.next.previous = left
