"""What a process holds beside mapped files, its peak since a moment, and giving free memory back."""

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from brimful.base.units import MIB
from brimful.hardware import process_memory
from brimful.hardware.process_memory import PeakOfProcess, unmapped_bytes

linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems tell less")


def _in_a_process(code: str) -> list[int]:
    """Return what a fresh process prints, as numbers."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@linux
def test_pages_of_a_mapped_file_do_not_count_until_they_are_changed(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(64 * MIB))
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | 2)
    before = unmapped_bytes()
    numbers = np.frombuffer(mapped, np.uint8)
    assert numbers.sum() == 0
    read = unmapped_bytes()
    numbers[:] = 1
    changed = unmapped_bytes()

    assert read - before < 8 * MIB
    assert changed - before > 56 * MIB


@linux
def test_a_peak_begins_anew_and_sees_what_was_freed_between_two_looks() -> None:
    before, peak, after = _in_a_process(
        "from brimful.hardware.process_memory import PeakOfProcess\n"
        "old = bytearray(400 << 20); del old\n"
        "peak = PeakOfProcess(); print(peak.look())\n"
        "short = bytearray(100 << 20); del short\n"
        "print(peak.look()); print(PeakOfProcess().look())\n"
    )

    assert before < 300 * MIB
    assert 95 * MIB < peak - before < 140 * MIB
    assert after < before + 40 * MIB


@linux
def test_files_that_are_dropped_do_not_raise_the_peak(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(64 * MIB))
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert sum(mapped[place] for place in range(0, len(mapped), mmap.PAGESIZE)) == 0
    peak = PeakOfProcess()
    held = np.ones(32 * MIB, np.uint8)
    with_file = peak.look()

    mapped.close()

    assert peak.look() - with_file < 8 * MIB
    assert held.all()


@linux
def test_memory_that_the_c_library_holds_free_is_given_back() -> None:
    full, held, given = _in_a_process(
        "import ctypes\n"
        "from brimful.hardware.host import keep_freed_memory\n"
        "from brimful.hardware.process_memory import give_back_free_memory, unmapped_bytes\n"
        "keep_freed_memory(); c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p\n"
        "c.free.argtypes = [ctypes.c_void_p]\n"
        "block, pin = c.malloc(200 << 20), c.malloc(64)\n"
        "ctypes.memset(ctypes.c_void_p(block), 1, 200 << 20); print(unmapped_bytes())\n"
        "c.free(block); print(unmapped_bytes())\n"
        "give_back_free_memory(); print(unmapped_bytes())\n"
    )

    assert full - held < 8 * MIB
    assert held - given > 190 * MIB


@linux
def test_what_a_training_kept_is_given_back_and_nothing_is_kept_afterwards() -> None:
    """A block that is freed then leaves the process at once, though another lies behind it."""
    kept, given, full, freed = _in_a_process(
        "import ctypes\n"
        "from brimful.hardware.host import stop_keeping_freed_memory, keep_freed_memory\n"
        "from brimful.hardware.process_memory import unmapped_bytes\n"
        "c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p\n"
        "c.free.argtypes = [ctypes.c_void_p]\n"
        "def blocks():\n"
        "    block, pin = c.malloc(200 << 20), c.malloc(64)\n"
        "    ctypes.memset(ctypes.c_void_p(block), 1, 200 << 20)\n"
        "    return block\n"
        "keep_freed_memory(); c.free(blocks()); print(unmapped_bytes())\n"
        "stop_keeping_freed_memory(); print(unmapped_bytes())\n"
        "block = blocks(); print(unmapped_bytes()); c.free(block); print(unmapped_bytes())\n"
    )

    assert kept - given > 190 * MIB
    assert full - freed > 190 * MIB


def test_a_system_that_does_not_tell_files_apart_gives_the_resident_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process_memory, "_STATUS", tmp_path / "absent")
    monkeypatch.setattr(process_memory, "_CLEAR_REFS", tmp_path / "absent" / "too")

    assert unmapped_bytes() > MIB
    assert PeakOfProcess().look() >= unmapped_bytes() - 8 * MIB


def test_swap_is_read_where_linux_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path / "status"
    monkeypatch.setattr(process_memory, "_STATUS", status)
    assert process_memory.swapped_bytes() is None
    status.write_text("Name:\tpython\nVmSwap:\t    2048 kB\n")
    assert process_memory.swapped_bytes() == 2 * MIB
