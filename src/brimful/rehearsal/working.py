"""The work of every operator of a step: its class, floating-point operations, bytes, and the shape
of a product.

Suffixes: W operators.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brimful.base.types import Json
from brimful.hardware.rates import CLASSES
from brimful.planning.work import DTYPES, PARTS, PHASES, Calls, Details, Work
from brimful.rehearsal.fusing import FUSIBLE, StorageAccess, fused
from brimful.rehearsal.kernel_sizes import (
    NO_LIST,
    ListSizes,
    launches,
    list_elements,
    lists_of,
    product,
)

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
        self._reads: list[list[StorageAccess]] = []
        self._writes: list[list[StorageAccess]] = []
        self._lists: list[ListSizes] = []
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
    ) -> tuple[list[StorageAccess], list[StorageAccess]]:
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
            writing.append(StorageAccess(-1, 0, extra_bytes, extra_bytes))
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
        softmax = self._operators.get("_log_softmax", -1)
        fused_D, fused_launches = fused(rows, self._reads, self._writes, softmax)
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
        lists: ListSizes,
        dtype: int,
        phase: str,
        layer: int,
        reads: list[StorageAccess],
        writes: list[StorageAccess],
    ) -> None:
        if phase == "optimizer" and class_index in FUSIBLE:
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

    def _access(self, tensor: Tensor, num_bytes: int | None = None) -> StorageAccess:
        number = self._number_of(tensor)
        offset = int(tensor.storage_offset()) * tensor.element_size()
        size = _bytes(tensor) if num_bytes is None else num_bytes
        return StorageAccess(
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


def is_fusible(func: Any) -> bool:
    """Return whether a compiler joins an operator with those before and after it."""
    return CLASSES.index(_class_of(_name_of(func), func)) in FUSIBLE


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
