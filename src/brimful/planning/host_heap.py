"""The heap of glibc on a CPU, simulated: how far it grows when tensors come and go.

brimful keeps freed memory in the process (`hardware.host.keep_freed_memory`), so all tensors lie in
one heap that only grows. A freed block joins its free neighbours; a request takes the smallest free
block that holds it and leaves the rest free; without one the heap grows at its end.

What is lost beside the tensors comes from alignment. For an aligned block glibc asks for
`LEFTOVER_BYTES` more and frees them behind the block. Objects of the autograd graph are small
enough to settle there until the backward pass. The hole that the tensor leaves is then too small
for the next tensor of the same size. With the allocations of a real step of LoRA replayed through
glibc 2.36, the heap grew to 766 MiB; to 595 without objects below 1 KiB, to 553 without alignment
(513 MiB in use; docs/log.md).

Sources: glibc 2.36, malloc/malloc.c (_int_malloc, _int_free, _int_memalign).
"""

import bisect
from random import Random

import numpy as np

from brimful.planning.plan import Prediction
from brimful.planning.target import HOST_SLACK
from brimful.planning.trace import Trace

ALIGNMENT_BYTES = 64
"""Of torch's tensors on a CPU (c10/core/alignment.h)."""
HEADER_BYTES = 16
"""Size and flags before each block."""
LEFTOVER_BYTES = 96
"""Alignment and the smallest block (MINSIZE)."""
SETTLED_SHARE = 0.12
"""Share of a forward pass's leftovers in which an object settles, chosen on one run of one model
(see above: 0.10; 0.2 in a process without earlier work). Which ones is drawn at random.
"""
FEW_PASSES, MANY_PASSES = 10, 60
VARYING_HOST_SLACK = {FEW_PASSES: (0.17, 1.0), MANY_PASSES: (0.6, 2.0)}
"""On a CPU where passes have many lengths: what the heap loses between tensors, expected and at
most, as a share of what a pass holds for its gradients; by the number of the run's passes, and in
between on a straight line. What the matrix library keeps of each new length settles in holes that
earlier passes left, and the heap of a single step does not show that. At most: chosen on 45 tunings
of 23M to 519M parameters, 2 to 4 passes each (at most 0.94), and on nine of SmolLM2-135M and its
conversions with 80 to 105 passes (1.20 to 1.88), in processes without `env.WHOLE_HEAP`, as
notebooks are. Expected: with it, chosen on tunings of SmolLM2-135M (docs/log.md).
"""
_RELEASING = frozenset({"optimizer", "inputs", "between steps"})
"""Phases that begin without an autograd graph."""


class Heap:
    """Blocks of a heap that starts empty, by address.

    Attributes:
        end: The highest address that was ever used: the heap's size in bytes.
    """

    def __init__(self) -> None:
        self.end = 0
        self._top = 0
        """Everything from here to the end is free."""
        self._free_blocks: list[tuple[int, int]] = []
        """Size and address of free blocks below the top, sorted."""
        self._size_at: dict[int, int] = {}
        """Size of the free block at an address."""
        self._start_by_end: dict[int, int] = {}
        """Address of the free block that ends at an address."""

    def allocate(self, size: int) -> int:
        """Return the address of a new block of `size` bytes."""
        place = bisect.bisect_left(self._free_blocks, (size, 0))
        if place == len(self._free_blocks):
            address, self._top = self._top, self._top + size
            self.end = max(self.end, self._top)
            return address
        free_size, address = self._free_blocks[place]
        self._remove(address, free_size)
        if free_size > size:
            self._add(address + size, free_size - size)
        return address

    def free(self, address: int, size: int) -> None:
        """Free a block, or a part of one."""
        before = self._start_by_end.get(address)
        if before is not None:
            left = address - before
            self._remove(before, left)
            address, size = before, size + left
        behind = self._size_at.get(address + size)
        if behind is not None:
            self._remove(address + size, behind)
            size += behind
        if address + size == self._top:
            self._top = address
        else:
            self._add(address, size)

    def _add(self, address: int, size: int) -> None:
        bisect.insort(self._free_blocks, (size, address))
        self._size_at[address], self._start_by_end[address + size] = size, address

    def _remove(self, address: int, size: int) -> None:
        del self._free_blocks[bisect.bisect_left(self._free_blocks, (size, address))]
        del self._size_at[address], self._start_by_end[address + size]


def heap_bytes(trace: Trace, settled_share: float = SETTLED_SHARE, seed: int = 0) -> int:
    """Return how far the heap grows over a trace.

    Args:
        trace: Of some training steps.
        settled_share: Share of a forward pass's leftovers in which an object settles.
        seed: Of which ones.
    """
    heap, random = Heap(), Random(seed)
    block_of: dict[int, tuple[int, int]] = {}
    settled: list[int] = []
    sizes = trace.sizes_S.tolist()
    phases = {event: name.rstrip("0123456789 ") for name, event in trace.marks.items()}
    phase = ""
    for event, signed in enumerate(trace.events_E.tolist()):
        phase = phases.get(event, phase)
        if event in phases and phase in _RELEASING:
            while settled:
                heap.free(settled.pop(), LEFTOVER_BYTES)
        if signed < 0:
            heap.free(*block_of.pop(-signed))
            continue
        size = _block_bytes(sizes[signed - 1])
        address = heap.allocate(size + LEFTOVER_BYTES)
        block_of[signed] = address, size
        if phase == "forward" and random.random() < settled_share:
            settled.append(address + size)
        else:
            heap.free(address + size, LEFTOVER_BYTES)
    return heap.end


def _block_bytes(num_bytes: int) -> int:
    """Return the size of a tensor's block, header included."""
    return -(-(num_bytes + HEADER_BYTES) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def lost_shares(passes: int) -> tuple[float, float]:
    """Return the shares of VARYING_HOST_SLACK for so many passes of many lengths; 0 for none."""
    if not passes:
        return 0.0, 0.0
    expected, most = (
        float(np.interp(passes, [*VARYING_HOST_SLACK], shares))
        for shares in zip(*VARYING_HOST_SLACK.values(), strict=True)
    )
    return expected, most


def host_reserved(
    allocated: float, heap_bytes: int, lost_bytes: float, most_lost_bytes: float
) -> Prediction:
    """Return the size of a CPU's heap.

    Args:
        allocated: Bytes of live tensors.
        heap_bytes: Of the simulated heap.
        lost_bytes, most_lost_bytes: What passes of many lengths lose between tensors, expected and
            at most; 0 where all are of one length.
    """
    simulated = max(heap_bytes - allocated, HOST_SLACK * allocated)
    basis = "live tensors, the C library's heap simulated"
    if lost_bytes > simulated:
        basis = "live tensors, and a measured share between them as passes have many lengths"
    return Prediction(
        allocated + max(simulated, lost_bytes),
        allocated,
        allocated + max(2 * simulated, most_lost_bytes),
        basis,
    )
