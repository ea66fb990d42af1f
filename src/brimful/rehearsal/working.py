"""The work of every operator of a step: its class, floating-point operations, bytes, and the shape
of a product.

Suffixes: W operators.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from brimful.base.types import Json
from brimful.hardware.rates import CLASSES
from brimful.planning.work import DTYPES, PARTS, PHASES, Calls, Details, Work
from brimful.rehearsal.kernel_sizes import NO_LIST, launches, list_elements, lists_of, product

_OPERATORS = tomllib.loads(
    resources.files("brimful.rehearsal").joinpath("operators.toml").read_text(encoding="utf-8")
)
_CLASS_OF: dict[str, str] = {
    name: kind for kind, names in _OPERATORS["class"].items() for name in names
}
_NOT_RUN = frozenset(_OPERATORS["access"]["starts_no_kernel"])
_READS_ROWS_ONLY = frozenset(_OPERATORS["access"]["reads_output_rows"])
_ADDS_ROWS = frozenset(_OPERATORS["access"]["adds_rows"])
_WRITES_ROWS_ONLY = _ADDS_ROWS | set(_OPERATORS["access"]["writes_rows"])
_WRITE_ONLY = frozenset(_OPERATORS["access"]["write_only"])
_SHAPE_ONLY = frozenset(_OPERATORS["access"]["shape_only"])
_FUSIBLE = {CLASSES.index(name) for name in ("pointwise", "transcendental", "reduction", "copy")}
"""Classes that a compiler joins into one kernel (torch.compile, Inductor's scheduler)."""
_COLUMNS = (
    "flop_W",
    "batch_W",
    "m_W",
    "n_W",
    "k_W",
    "launches_W",
    "dtypes_W",
    "classes_W",
    "parts_W",
    "phases_W",
    "layers_W",
    "operators_W",
)
"""Columns of the rows that WorkLog collects."""


class _StorageAccess(NamedTuple):
    """Bytes of a storage that an operator reads or writes; the number of an unknown storage is
    -1.
    """

    number: int
    offset: int
    num_bytes: int
    storage_bytes: int


@dataclass(frozen=True)
class _Operator:
    """An operator's schema: name, class, indices of the arguments that it writes, and whether it
    starts a kernel.
    """

    name: str
    class_index: int
    writes: tuple[int, ...]
    runs: bool


class WorkLog:
    """Rows of a Work, written as operators are called.

    Args:
        number_of: Number of a tensor's storage, None for unknown ones.
    """

    def __init__(self, number_of: Callable[[Tensor], int | None]) -> None:
        self._number_of = number_of
        self.part: int | None = None
        self._rows: list[list[int]] = []
        self._reads: list[list[_StorageAccess]] = []
        self._writes: list[list[_StorageAccess]] = []
        self._lists: list[tuple[int, int, int]] = []
        self._list_elements: list[list[int]] = []
        self._known: dict[Any, _Operator] = {}
        self._operators: dict[str, int] = {}

    def begin(self, phase: str, count: int) -> None:
        """Begin a phase for the `count`-th time. Only the second step is recorded, because the
        first one has no optimizer states to read.
        """
        name = ""
        if phase == "evaluation" or (phase == "optimizer" and count == 2):
            name = phase
        elif phase in ("measure", "inputs", "forward", "backward"):
            name = {2: "micro-batch", 3: "further micro-batch"}.get(count, "")
        self.part = PARTS.index(name) if name else None

    def note(
        self, func: Any, args: Sequence[Any], kwargs: Any, out: Any, *, phase: str, layer: int
    ) -> None:
        """Record a called operator."""
        if self.part is None:
            return
        operator = self._known.get(func) or self._learn(func)
        if not operator.runs:
            return
        operands = _operands_of(args, kwargs or {})
        written = {id(tensor) for index in operator.writes for tensor in _group(operands, index)}
        given = [tensor for group in operands for tensor in group]
        made = [tensor for tensor in _tensors(out) if id(tensor) not in written]
        reads, writes = self._accesses_of(operator.name, given, made, written)
        if not reads and not writes:
            return
        typed = given or made
        if operator.name in _WRITE_ONLY:
            typed = given[::-1]
        lists = lists_of(operator.name, operands)
        self._list_elements.append(list_elements(lists, operands))
        self._append(
            operator.name,
            operator.class_index,
            product(CLASSES[operator.class_index], operator.name, args, out),
            lists,
            _dtype_of(typed),
            phase,
            layer,
            reads,
            writes,
        )

    def _accesses_of(
        self, name: str, given: Sequence[Tensor], made: Sequence[Tensor], written: set[int]
    ) -> tuple[list[_StorageAccess], list[_StorageAccess]]:
        """Return what an operator reads and what it writes."""
        changed = [tensor for tensor in given if id(tensor) in written]
        kept = [tensor for tensor in given if id(tensor) not in written]
        if name in _WRITES_ROWS_ONLY:
            rows = [self._access(changed[0], _bytes(kept[-1]))]
            reads = [self._access(tensor) for tensor in kept]
            if name in _ADDS_ROWS:
                reads += rows
            return reads, rows
        if name in _READS_ROWS_ONLY:
            given = [*given[1:], *made[:1]]
        elif name == "nll_loss_backward":  # its second operand says how large the gradient is
            given = [*given[:1], *given[2:]]
        elif name in _WRITE_ONLY:
            given = kept
        elif name in _SHAPE_ONLY:
            given = []
        reads = [self._access(tensor) for tensor in given]
        return reads, [self._access(tensor) for tensor in (*made, *changed)]

    def add(
        self,
        name: str,
        class_name: str,
        reads: Iterable[Tensor],
        writes: Iterable[Tensor],
        *,
        flop: int = 0,
        shape: tuple[int, int, int, int] = (0, 0, 0, 0),
        extra_bytes: int = 0,
        phase: str,
        layer: int,
    ) -> None:
        """Record a kernel that runs on the real device in place of what was called.

        Args:
            shape: Batch, m, n, k as in Work.
            extra_bytes: Read or written in addition to these tensors.
        """
        if self.part is None:
            return
        reads, writes = list(reads), list(writes)
        self._list_elements.append([])
        reading = [self._access(tensor) for tensor in reads]
        writing = [self._access(tensor) for tensor in writes]
        if extra_bytes:
            writing.append(_StorageAccess(-1, 0, extra_bytes, extra_bytes))
        self._append(
            name,
            CLASSES.index(class_name),
            (flop, *shape),
            NO_LIST,
            _dtype_of(reads or writes),
            phase,
            layer,
            reading,
            writing,
        )

    def finish(self) -> tuple[Work, Details]:
        """Return everything that was recorded, and what its counts are sums of."""
        rows = np.array(self._rows, np.int64).reshape(len(self._rows), len(_COLUMNS))
        fused_D, fused_launches = self._fused(rows)
        accesses = [
            [*reads, *writes] for reads, writes in zip(self._reads, self._writes, strict=True)
        ]
        rows_D = np.repeat(
            np.arange(len(rows)), np.array([len(each) for each in accesses], np.int64)
        )
        bytes_D = np.array([access.num_bytes for each in accesses for access in each], np.int64)
        columns = {name: rows[:, index].copy() for index, name in enumerate(_COLUMNS)}
        bytes_W, fused_bytes_W = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        np.add.at(bytes_W, rows_D, bytes_D)
        np.add.at(fused_bytes_W, rows_D, fused_D)
        work = Work(
            **columns,
            bytes_W=bytes_W,
            fused_bytes_W=fused_bytes_W,
            fused_launches_W=fused_launches,
            repeats_W=np.ones(len(rows)),
            operators=tuple(self._operators),
        )
        place_W = work.places_with_updates_summed()
        update_W = work.parts_W == PARTS.index("optimizer")
        is_update_D = update_W[rows_D]
        elements = [self._list_elements[index] for index in np.flatnonzero(update_W)]
        elements = [each for each in elements if each]
        details = Details(
            place_W[rows_D][~is_update_D],
            bytes_D[~is_update_D],
            fused_D[~is_update_D],
            self._calls(place_W, update_W),
            rows_U=place_W[rows_D][is_update_D],
            bytes_U=bytes_D[is_update_D],
            fused_bytes_U=fused_D[is_update_D],
            calls_N=np.repeat(np.arange(len(elements)), [len(each) for each in elements]),
            elements_N=np.array([count for each in elements for count in each], np.int64),
        )
        return work.with_updates_summed(), details

    def _calls(self, place_W: np.ndarray, update_W: np.ndarray) -> Calls:
        """Return the calls of the update; operators that do not work on lists are one call of each
        kind, with as many kernels as there are operators.
        """
        rows = [(int(place_W[index]), *self._lists[index]) for index in np.flatnonzero(update_W)]
        plain = Counter(row for row, *lists in rows if tuple(lists) == NO_LIST)
        calls = [each for each in rows if each[1:] != NO_LIST] + [
            (row, 1, count, 0) for row, count in sorted(plain.items())
        ]
        return Calls(*np.array(calls, np.int64).reshape(len(calls), 4).T)

    def _append(
        self,
        name: str,
        class_index: int,
        counts: tuple[int, ...],
        lists: tuple[int, int, int],
        dtype: int,
        phase: str,
        layer: int,
        reads: list[_StorageAccess],
        writes: list[_StorageAccess],
    ) -> None:
        if phase == "optimizer" and class_index in _FUSIBLE:
            class_index = CLASSES.index("optimizer")
        operator = self._operators.setdefault(name, len(self._operators))
        phase_index = PHASES.index(phase) if phase in PHASES else 0
        self._lists.append(lists)
        self._rows.append(
            [
                *counts,
                launches(*lists),
                dtype,
                class_index,
                self.part or 0,
                phase_index,
                layer,
                operator,
            ]
        )
        self._reads.append(reads)
        self._writes.append(writes)

    def _access(self, tensor: Tensor, num_bytes: int | None = None) -> _StorageAccess:
        number = self._number_of(tensor)
        offset = int(tensor.storage_offset()) * tensor.element_size()
        size = _bytes(tensor) if num_bytes is None else num_bytes
        return _StorageAccess(
            -1 if number is None else number, offset, size, tensor.untyped_storage().nbytes()
        )

    def _learn(self, func: Any) -> _Operator:
        name = _name_of(func)
        arguments = [argument for argument in func._schema.arguments if not argument.kwarg_only]
        writes = tuple(
            index
            for index, argument in enumerate(arguments)
            if argument.alias_info and argument.alias_info.is_write
        )
        operator = _Operator(
            name,
            CLASSES.index(_class_of(name, func)),
            writes,
            not (func.is_view or name in _NOT_RUN),
        )
        self._known[func] = operator
        return operator

    def _fused(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes of every access, and the launches, where each run of element-wise
        operators and reductions is one kernel.

        A run reads each tensor from before it once, and writes those that are read after it, but
        for log-softmaxes, see `_computed_again`. Inductor's choices differ in detail.
        """
        again = self._computed_again(rows)
        last_read: dict[int, int] = {}
        for index, reads in enumerate(self._reads):
            for access in reads:
                last_read[access.number] = index
        fused: list[int] = []
        launches = np.zeros(len(rows), np.int64)
        start = 0
        while start < len(rows):
            end = self._end_of_run(rows, start)
            last_written = {
                access.number: index
                for index in range(start, end)
                for access in self._writes[index]
            }
            seen: dict[int, dict[int, int]] = {}
            for index in range(start, end):
                is_joined = rows[index, 7] in _FUSIBLE
                fused += [
                    _unseen(again.get(access.number, access) if is_joined else access, seen)
                    for access in self._reads[index]
                ]
                for access in self._writes[index]:
                    leaves = (
                        access.number not in again
                        and last_written[access.number] == index
                        and last_read.get(access.number, len(rows)) >= end
                    )
                    fused.append(
                        access.num_bytes if access.number == -1 or leaves or end == start + 1 else 0
                    )
                    _unseen(access, seen)
            launches[start] = rows[start, 5] if end == start + 1 else 1
            start = end
        return np.array(fused, np.int64), launches

    def _computed_again(self, rows: np.ndarray) -> dict[int, _StorageAccess]:
        """Return what a log-softmax reads, by the number of the storage that it writes.

        Inductor writes only each row's maximum and sum, and computes the rest again from the logits
        where an element-wise operator reads it (the two kernels of `piece_losses_to_compile`).
        Logits that were converted before are read as they were.
        """
        again: dict[int, _StorageAccess] = {}
        for index in np.flatnonzero(rows[:, 11] == self._operators.get("_log_softmax", -1)):
            read, written = self._reads[index][0], self._writes[index][0]
            if index and [read.number] == [each.number for each in self._writes[index - 1]]:
                read = self._reads[index - 1][0]
            again[written.number] = read
        return again

    def _end_of_run(self, rows: np.ndarray, start: int) -> int:
        """Return the end of the chain of fusible operators that begins at `start`: a product or
        another block, phase or part ends it.
        """
        if rows[start, 7] not in _FUSIBLE:
            return start + 1
        end = start + 1
        while (
            end < len(rows)
            and rows[end, 7] in _FUSIBLE
            and (rows[end, 8:11] == rows[start, 8:11]).all()
        ):
            end += 1
        return end


def _unseen(access: _StorageAccess, seen: dict[int, dict[int, int]]) -> int:
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


def is_fusible(func: Any) -> bool:
    """Return whether a compiler joins an operator with those before and after it."""
    return CLASSES.index(_class_of(_name_of(func), func)) in _FUSIBLE


def _name_of(func: Any) -> str:
    return str(func.__name__).partition(".")[0]


def _class_of(name: str, func: Any) -> str:
    if name.startswith(("_fused_adam", "_foreach")):
        return "optimizer"
    if "attention" in name:
        return "attention backward" if name.endswith("backward") else "attention"
    named = _CLASS_OF.get(name) or _CLASS_OF.get(name.removesuffix("_"))
    if named is not None:
        return named
    if torch.Tag.reduction in func.tags:
        return "reduction"
    return "pointwise" if torch.Tag.pointwise in func.tags and name != "clone" else "copy"


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in _tensors(each)]
    return []


def _operands_of(args: Sequence[Any], kwargs: Json) -> list[list[Tensor]]:
    """Return the tensors of every argument except `out`."""
    named = [value for name, value in kwargs.items() if name != "out"]
    return [_tensors(value) for value in (*args, *named)]


def _group(operands: Sequence[Sequence[Tensor]], index: int) -> Sequence[Tensor]:
    """Return the tensors of one operand, none where it was left out of the call."""
    return operands[index] if index < len(operands) else ()


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor; an expanded one counts as its storage holds it."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _dtype_of(tensors: Sequence[Tensor]) -> int:
    """Return the index in DTYPES of the first floating-point operand."""
    dtype = next(
        (tensor.dtype for tensor in tensors if tensor.is_floating_point()), tensors[0].dtype
    )
    if dtype in (torch.bfloat16, torch.float16):
        return DTYPES.index("16-bit")
    return DTYPES.index("fp32" if dtype == torch.float32 else "other")
