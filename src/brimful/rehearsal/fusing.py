"""What a compiler leaves of the operators of a step: chains of element-wise operators and
reductions are one kernel each.
"""

from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np

from brimful.hardware.rates import CLASSES, MATRIX_CLASSES

FUSIBLE = {CLASSES.index(name) for name in ("pointwise", "transcendental", "reduction", "copy")}
"""Classes that a compiler joins into one kernel (torch.compile, Inductor's scheduler)."""
_PRODUCTS = {CLASSES.index(name) for name in MATRIX_CLASSES}
_LAUNCHES, _CLASS, _PLACE, _OPERATOR = 5, 7, slice(8, 11), 11
"""Columns of `working.WorkLog`; the place is an operator's part, phase and layer."""


class StorageAccess(NamedTuple):
    """Bytes of a storage that an operator reads or writes; the number of an unknown storage is
    -1.
    """

    number: int
    offset: int
    num_bytes: int
    storage_bytes: int


Accesses = Sequence[Sequence[StorageAccess]]
"""Those of each operator."""


def fused(
    rows: np.ndarray, reads: Accesses, writes: Accesses, softmax: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of every access, and the launches of every operator, where each run of
    element-wise operators and reductions is one kernel.

    A run reads each tensor from before it once, and writes those that are read after it, but for
    log-softmaxes, see `_logits`. Inductor's choices differ in detail.

    Args:
        rows: Operators, by the columns of `WorkLog`.
        reads, writes: Of each operator.
        softmax: Number of the operator log-softmax.
    """
    again = _logits(rows, reads, writes, softmax)
    last_read = _last_reads(rows, reads, again)
    found: list[int] = []
    launches = np.zeros(len(rows), np.int64)
    start = 0
    while start < len(rows):
        run = range(start, _end_of_run(rows, start))
        last_written = {access.number: index for index in run for access in writes[index]}
        is_alone = len(run) == 1
        seen: dict[int, dict[int, int]] = {}
        for index in run:
            is_joined = rows[index, _CLASS] in FUSIBLE
            found += [
                _unseen(again.get(access.number, access) if is_joined else access, seen)
                for access in reads[index]
            ]
            for access in writes[index]:
                is_read = last_read.get(access.number, len(rows)) >= run.stop
                leaves = is_read and last_written[access.number] == index
                is_kept = access.number == -1 or is_alone or leaves
                found.append(access.num_bytes * (is_kept and rows[index, _OPERATOR] != softmax))
                _unseen(access, seen)
        launches[start] = rows[start, _LAUNCHES] if is_alone else 1
        start = run.stop
    return np.array(found, np.int64), launches


def _logits(
    rows: np.ndarray, reads: Accesses, writes: Accesses, softmax: int
) -> dict[int, StorageAccess]:
    """Return what log-softmaxes read, before it was converted, by the storage that they write.

    Inductor writes only each row's maximum and sum, and computes the rest again from the logits
    where an element-wise operator reads it (the two kernels of `piece_losses_to_compile`).
    """
    found = {}
    for index in np.flatnonzero(rows[:, _OPERATOR] == softmax).tolist():
        read, before = reads[index][0], index - 1
        if rows[before, _CLASS] in FUSIBLE and read.number in {
            each.number for each in writes[before]
        }:
            read = reads[before][0]
        found[writes[index][0].number] = read
    found.pop(-1, None)
    return found


def _last_reads(rows: np.ndarray, reads: Accesses, again: Container[int]) -> dict[int, int]:
    """Return the last operator that reads each storage; of what is computed again the last product
    that reads it, -1 where none does.
    """
    found = {}
    for index, each in enumerate(reads):
        for access in each:
            if access.number not in again or rows[index, _CLASS] in _PRODUCTS:
                found[access.number] = index
            else:
                found.setdefault(access.number, -1)
    return found


def _end_of_run(rows: np.ndarray, start: int) -> int:
    """Return the end of the chain of fusible operators that begins at `start`: a product or another
    block, phase or part ends it.
    """
    if rows[start, _CLASS] not in FUSIBLE:
        return start + 1
    end = start + 1
    while (
        end < len(rows)
        and rows[end, _CLASS] in FUSIBLE
        and (rows[end, _PLACE] == rows[start, _PLACE]).all()
    ):
        end += 1
    return end


def _unseen(access: StorageAccess, seen: dict[int, dict[int, int]]) -> int:
    """Bytes of a storage that a chain meets for the first time; from now on it has met them. `seen`
    is by storage, then by offset.
    """
    if access.number == -1:
        return access.num_bytes
    parts = seen.setdefault(access.number, {})
    new_bytes = max(
        0,
        min(
            access.num_bytes - parts.get(access.offset, 0),
            access.storage_bytes - sum(parts.values()),
        ),
    )
    parts[access.offset] = parts.get(access.offset, 0) + new_bytes
    return new_bytes
