"""The simulated heap of a CPU: beside glibc's own, and how aligned tensors lose memory."""

import ctypes
import platform
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from brimful.planning.host_heap import LEFTOVER_BYTES, Heap, heap_bytes
from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import GLOBAL

KIB = 1024


def _trace(events: Sequence[int], sizes: Sequence[int], **marks: int) -> Trace:
    count = len(sizes)
    return Trace(
        events_E=np.array(events, np.int32),
        event_layers_E=np.full(len(events), GLOBAL, np.int32),
        sizes_S=np.array(sizes, np.int64),
        kinds_S=np.full(count, KINDS.index("temporaries"), np.int32),
        places_S=np.zeros(count, np.int32),
        layers_S=np.full(count, GLOBAL, np.int32),
        places=("somewhere",),
        marks=marks,
    )


def test_a_block_takes_the_smallest_hole_and_freed_neighbours_join() -> None:
    heap = Heap()
    large, _, small, _ = (heap.allocate(size) for size in (400, 64, 200, 64))
    heap.free(large, 400)
    heap.free(small, 200)

    assert heap.allocate(190) == small
    assert heap.allocate(390) == large
    heap.free(small, 190)
    heap.free(large, 390)
    heap.free(400, 64)  # between the two
    assert heap.allocate(660) == large
    assert heap.end == 728


def test_the_end_of_the_heap_is_free_again_but_stays_taken() -> None:
    heap = Heap()
    heap.free(heap.allocate(1000), 1000)

    assert heap.allocate(600) == 0
    assert heap.end == 1000


def test_a_leftover_in_which_an_object_settled_keeps_the_hole_from_the_next_equal_tensor() -> None:
    """Ten tensors of a forward pass, each freed before the next: they lie in one place, or each in
    its own.
    """
    events = [signed for number in range(1, 11) for signed in (number, -number)]
    trace = _trace(events, [64 * KIB] * 10, forward=0)

    alone, settled = heap_bytes(trace, settled_share=0), heap_bytes(trace, settled_share=1)

    assert alone < 65 * KIB
    assert settled > 10 * 64 * KIB


def test_what_settled_is_gone_when_the_next_micro_batch_begins() -> None:
    events = [1, -1, 2, -2]
    sizes = [64 * KIB] * 2

    assert heap_bytes(_trace(events, sizes, forward=0), 1) > 128 * KIB
    assert heap_bytes(_trace(events, sizes, forward=0, inputs=2, backward=3), 1) < 65 * KIB


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's heap")
def test_the_heap_grows_as_glibcs_own_does() -> None:
    """The same random tensors, aligned as torch's, in both, within 15 %."""
    random = np.random.default_rng(0)
    sizes = [int(2 ** random.uniform(12, 20)) for _ in range(3000)]
    events: list[int] = []
    alive: list[int] = []
    for number in range(1, 3001):
        events.append(number)
        alive.append(number)
        while len(alive) > 200 or (alive and random.random() < 0.4):
            events.append(-alive.pop(int(random.integers(len(alive)))))

    simulated = heap_bytes(_trace(events, sizes), 0)

    assert simulated == pytest.approx(_glibc_bytes(events, sizes), rel=0.15)
    assert simulated > _live_bytes(events, sizes) + LEFTOVER_BYTES


def _live_bytes(events: Sequence[int], sizes: Sequence[int]) -> int:
    return int(_trace(events, sizes).live_E().max())


def _glibc_bytes(events: Sequence[int], sizes: Sequence[int]) -> int:
    """Return how far the heap of a fresh process grows."""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("glibc before 2.33 does not tell")
    done = subprocess.run(
        [sys.executable, "-c", _REPLAY],
        input=repr((list(events), list(sizes))),
        text=True,
        capture_output=True,
        check=True,
    )
    return int(done.stdout)


_REPLAY = """
import ctypes, sys
from brimful.hardware.host import keep_freed_memory
events, sizes = eval(sys.stdin.read())
c = ctypes.CDLL(None)
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Info = type("Info", (ctypes.Structure,), {"_fields_": [(n, ctypes.c_size_t) for n in names]})
c.mallinfo2.restype, c.free.argtypes = Info, [ctypes.c_void_p]
c.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
keep_freed_memory(); c.malloc_trim(0)
# In use, not the whole heap: what Python left free in it is taken first.
before, blocks, out = c.mallinfo2().uordblks, {}, ctypes.c_void_p()
for event in events:
    if event > 0:
        c.posix_memalign(ctypes.addressof(out), 64, sizes[event - 1])
        blocks[event] = out.value
    else:
        c.free(blocks.pop(-event))
print(c.mallinfo2().arena - before)
"""
