"""What every operator of a step computes and moves: its class, floating-point operations, bytes,
and the shape of a product.

Suffixes: W operators.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from brimful.hardware.rates import BACKWARD_OVER_FORWARD, CLASSES
from brimful.planning.work import DTYPES, LIST_ELEMENTS, PARTS, PHASES, Calls, Details, Work

_NOT_RUN = {
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "lift_fresh",
    "_local_scalar_dense",
    "detach_",
    "device",
}
"""Operators that start no kernel, beside views."""
_MATRIX = {"mm", "addmm", "linear", "addmv", "mv", "_grouped_mm"}
_BATCHED = {"bmm", "baddbmm"}
_TRANSCENDENTAL = {
    "exp",
    "silu",
    "silu_backward",
    "gelu",
    "gelu_backward",
    "tanh",
    "tanh_backward",
    "sigmoid",
    "sigmoid_backward",
    "erf",
    "pow",
    "rsqrt",
    "sqrt",
    "log",
    "sin",
    "cos",
    "softplus",
    "softplus_backward",
    "native_dropout",
    "bernoulli_",
    "rand",
    "randn",
    "rand_like",
    "normal_",
    "uniform_",
}
_REDUCTION = {
    "_softmax",
    "_softmax_backward_data",
    "_log_softmax",
    "_log_softmax_backward_data",
    "native_layer_norm",
    "native_layer_norm_backward",
    "logsumexp",
    "linalg_vector_norm",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
    "cumsum",
    "nll_loss_forward",
    "nll_loss_backward",
    "topk",
    "sort",
    "argmax",
    "histc",
}
_GATHER = {
    "embedding",
    "embedding_dense_backward",
    "index",
    "index_select",
    "gather",
    "scatter_add",
    "scatter_add_",
    "scatter",
    "scatter_",
    "index_put",
    "index_put_",
    "index_add",
    "index_add_",
    "_unsafe_index",
    "_unsafe_index_put",
    "masked_select",
}
_NAMES = {
    "matrix": _MATRIX,
    "batched matrix": _BATCHED,
    "transcendental": _TRANSCENDENTAL,
    "reduction": _REDUCTION,
    "gather": _GATHER,
}
_READS_ROWS_ONLY = {"embedding", "index", "index_select", "gather", "nll_loss_forward"}
"""Of their first operand they touch no more than goes out."""
_ADDS_ROWS = {"scatter_add_", "index_add_"}
_WRITES_ROWS_ONLY = {"scatter_", "index_put_"} | _ADDS_ROWS
"""Of their first operand they touch no more than comes in."""
_WRITE_ONLY = {"copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_"}
_LIKE = {
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "new_zeros",
    "new_ones",
    "new_full",
}
"""They take a shape from their operand, not its values."""
_FUSIBLE = {CLASSES.index(name) for name in ("pointwise", "transcendental", "reduction", "copy")}
"""Classes that a compiler joins into one kernel (torch.compile, Inductor's scheduler)."""
_LIST_LIMITS = (110, 64, 48, 36, 30)
"""Tensors per kernel of a foreach operator by number of lists (torch,
aten/native/cuda/MultiTensorApply.cuh).
"""


class _Touch(NamedTuple):
    """Bytes of a storage that an operator reads or writes; the storage's number is -1 where it is
    unknown.
    """

    number: int
    offset: int
    num_bytes: int
    storage_bytes: int


@dataclass(frozen=True)
class _Kind:
    """What is known of an operator before it is called."""

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
        self._reads: list[list[_Touch]] = []
        self._writes: list[list[_Touch]] = []
        self._lists: list[tuple[int, int, int]] = []
        self._kinds: dict[Any, _Kind] = {}
        self._operators: dict[str, int] = {}

    def begin(self, phase: str, count: int) -> None:
        """A phase begins, for the `count`-th time. Of the steps only the second counts, which has
        states to read.
        """
        parts = {
            ("forward", 2): 0,
            ("backward", 2): 0,
            ("inputs", 2): 0,
            ("forward", 3): 1,
            ("backward", 3): 1,
            ("inputs", 3): 1,
        }
        if phase == "optimizer":
            self.part = PARTS.index("optimizer") if count == 2 else None
        elif phase == "evaluation":
            self.part = PARTS.index("evaluation")
        else:
            self.part = parts.get((phase, count))

    def note(
        self, func: Any, args: Sequence[Any], kwargs: Any, out: Any, *, phase: str, layer: int
    ) -> None:
        """An operator was called."""
        if self.part is None:
            return
        kind = self._kinds.get(func) or self._learn(func)
        if not kind.runs:
            return
        operands = [_tensors(arg) for arg in args]
        if kwargs:
            operands += [_tensors(value) for name, value in kwargs.items() if name != "out"]
        written = {
            id(tensor)
            for index in kind.writes
            if index < len(operands)
            for tensor in operands[index]
        }
        given = [tensor for group in operands for tensor in group]
        made = [tensor for tensor in _tensors(out) if id(tensor) not in written]
        reads, puts = self._touched(kind.name, given, made, written)
        if not reads and not puts:
            return
        flop, batch, m, n, k = _product(kind, args, out)
        self._append(
            kind.name,
            kind.class_index,
            (flop, batch, m, n, k),
            _lists(kind.name, operands),
            _dtype_of(given[::-1] if kind.name in _WRITE_ONLY else given or made),
            phase,
            layer,
            reads,
            puts,
        )

    def _touched(
        self, name: str, given: Sequence[Tensor], made: Sequence[Tensor], written: set[int]
    ) -> tuple[list[_Touch], list[_Touch]]:
        """What an operator reads and what it writes."""
        changed, kept = (
            [tensor for tensor in given if (id(tensor) in written) == writes]
            for writes in (True, False)
        )
        if name in _WRITES_ROWS_ONLY:
            rows = [self._touch(changed[0], _bytes(kept[-1]))]
            return [self._touch(tensor) for tensor in kept] + (
                rows if name in _ADDS_ROWS else []
            ), rows
        if name in _READS_ROWS_ONLY:
            given = [*given[1:], *made[:1]]
        elif name == "nll_loss_backward":  # its second operand says how large the gradient is
            given = [*given[:1], *given[2:]]
        elif name in _WRITE_ONLY:
            given = kept
        elif name in _LIKE:
            given = []
        return [self._touch(tensor) for tensor in given], [
            self._touch(tensor) for tensor in (*made, *changed)
        ]

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
        """A kernel that the rehearsal only stands in for.

        Args:
            shape: Batch, m, n, k as in Work.
            extra_bytes: Read or written beside these tensors.
        """
        if self.part is None:
            return
        reads, writes = list(reads), list(writes)
        got, put = ([self._touch(tensor) for tensor in tensors] for tensors in (reads, writes))
        if extra_bytes:
            put.append(_Touch(-1, 0, extra_bytes, extra_bytes))
        self._append(
            name,
            CLASSES.index(class_name),
            (flop, *shape),
            _NO_LIST,
            _dtype_of(reads or writes),
            phase,
            layer,
            got,
            put,
        )

    def finish(self) -> tuple[Work, Details]:
        """Everything that was noted, and what its counts are sums of."""
        rows = np.array(self._rows, np.int64).reshape(len(self._rows), 12)
        fused_D, fused_launches = self._fused(rows)
        rows_D = np.array(
            [row for row, touches in enumerate(self._touches()) for _ in touches], np.int64
        )
        bytes_D = np.array(
            [touch.num_bytes for touches in self._touches() for touch in touches], np.int64
        )
        names = (
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
        columns = {name: rows[:, index].copy() for index, name in enumerate(names)}
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
        kept_D = ~update_W[rows_D]
        details = Details(
            place_W[rows_D][kept_D],
            bytes_D[kept_D],
            fused_D[kept_D],
            self._calls(place_W, update_W),
        )
        return work.with_updates_summed(), details

    def _calls(self, place_W: np.ndarray, update_W: np.ndarray) -> Calls:
        """Of the update; those that work on no lists are one call of each kind, with a kernel for
        each.
        """
        rows = [(int(place_W[index]), *self._lists[index]) for index in np.flatnonzero(update_W)]
        plain = Counter(row for row, *lists in rows if tuple(lists) == _NO_LIST)
        calls = [each for each in rows if each[1:] != _NO_LIST] + [
            (row, 1, count, 0) for row, count in sorted(plain.items())
        ]
        return Calls(*np.array(calls, np.int64).reshape(len(calls), 4).T)

    def _touches(self) -> Iterable[list[_Touch]]:
        return ([*reads, *writes] for reads, writes in zip(self._reads, self._writes, strict=True))

    def _append(
        self,
        name: str,
        class_index: int,
        counts: tuple[int, ...],
        lists: tuple[int, int, int],
        dtype: int,
        phase: str,
        layer: int,
        reads: list[_Touch],
        writes: list[_Touch],
    ) -> None:
        if phase == "optimizer" and class_index in _FUSIBLE:
            class_index = CLASSES.index("optimizer")
        operator = self._operators.setdefault(name, len(self._operators))
        phase_index = PHASES.index(phase) if phase in PHASES else 0
        flop, batch, m, n, k = counts
        self._lists.append(lists)
        self._rows.append(
            [
                flop,
                batch,
                m,
                n,
                k,
                _launches(*lists),
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

    def _touch(self, tensor: Tensor, num_bytes: int | None = None) -> _Touch:
        number = self._number_of(tensor)
        offset = int(tensor.storage_offset()) * tensor.element_size()
        size = _bytes(tensor) if num_bytes is None else num_bytes
        return _Touch(
            -1 if number is None else number, offset, size, tensor.untyped_storage().nbytes()
        )

    def _learn(self, func: Any) -> _Kind:
        name = str(func.__name__).partition(".")[0]
        arguments = [argument for argument in func._schema.arguments if not argument.kwarg_only]
        writes = tuple(
            index
            for index, argument in enumerate(arguments)
            if argument.alias_info and argument.alias_info.is_write
        )
        kind = _Kind(
            name,
            CLASSES.index(_class_of(name, func)),
            writes,
            not (func.is_view or name in _NOT_RUN),
        )
        self._kinds[func] = kind
        return kind

    def _fused(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of every touch, and launches, when each run of element-wise operators and
        reductions is one kernel.

        A run reads what was there before it, once, and writes what somebody reads after it.
        Inductor's choices differ in detail.
        """
        last_read: dict[int, int] = {}
        for index, reads in enumerate(self._reads):
            for touch in reads:
                last_read[touch.number] = index
        fused: list[int] = []
        launches = np.zeros(len(rows), np.int64)
        start = 0
        while start < len(rows):
            end = self._end_of_run(rows, start)
            last_written = {
                touch.number: index for index in range(start, end) for touch in self._writes[index]
            }
            seen: dict[int, dict[int, int]] = {}
            for index in range(start, end):
                fused += [_unseen(touch, seen) for touch in self._reads[index]]
                for touch in self._writes[index]:
                    leaves = (
                        last_written[touch.number] == index
                        and last_read.get(touch.number, len(rows)) >= end
                    )
                    fused.append(
                        touch.num_bytes if touch.number == -1 or leaves or end == start + 1 else 0
                    )
                    _unseen(touch, seen)
            launches[start] = rows[start, 5] if end == start + 1 else 1
            start = end
        return np.array(fused, np.int64), launches

    def _end_of_run(self, rows: np.ndarray, start: int) -> int:
        """Where the chain that begins at `start` ends: at a product, another block, phase or
        part.
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


def _unseen(touch: _Touch, seen: dict[int, dict[int, int]]) -> int:
    """Bytes of a storage that a chain meets for the first time; from now on it has met them. `seen`
    is by storage, then by offset.
    """
    if touch.number == -1:
        return touch.num_bytes
    parts = seen.setdefault(touch.number, {})
    new_bytes = max(
        0,
        min(
            touch.num_bytes - parts.get(touch.offset, 0), touch.storage_bytes - sum(parts.values())
        ),
    )
    parts[touch.offset] = parts.get(touch.offset, 0) + new_bytes
    return new_bytes


def _class_of(name: str, func: Any) -> str:
    if name.startswith(("_fused_adam", "_foreach")):
        return "optimizer"
    if "attention" in name:
        return "attention backward" if name.endswith("backward") else "attention"
    for class_name, names in _NAMES.items():
        if name in names or name.removesuffix("_") in names:
            return class_name
    if torch.Tag.reduction in func.tags:
        return "reduction"
    return "pointwise" if torch.Tag.pointwise in func.tags and name != "clone" else "copy"


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return (
        [tensor for each in value for tensor in _tensors(each)]
        if isinstance(value, list | tuple)
        else []
    )


def _bytes(tensor: Tensor) -> int:
    """An expanded tensor is read as often as its storage holds it."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _dtype_of(tensors: Sequence[Tensor]) -> int:
    """Of the first operand that is no index or mask."""
    dtype = next(
        (tensor.dtype for tensor in tensors if tensor.is_floating_point()), tensors[0].dtype
    )
    if dtype in (torch.bfloat16, torch.float16):
        return DTYPES.index("16-bit")
    return DTYPES.index("fp32" if dtype == torch.float32 else "other")


_NO_LIST = (1, 1, 0)
"""Tensors per kernel, tensors and elements of an operator that works on no lists."""


def _lists(name: str, operands: Sequence[Sequence[Tensor]]) -> tuple[int, int, int]:
    """Tensors per kernel, tensors and elements of the lists that an operator works on."""
    lists = [group for group in operands if len(group) > 1]
    if not lists or not name.startswith(("_fused_adam", "_foreach")):
        return _NO_LIST
    depth = len(lists) - name.startswith("_fused_adam")  # counts of steps come beside
    return (
        _LIST_LIMITS[min(depth, len(_LIST_LIMITS)) - 1],
        len(lists[0]),
        sum(tensor.numel() for tensor in lists[0]),
    )


def _launches(limit: int, tensors: int, elements: int) -> int:
    return max(math.ceil(tensors / limit), math.ceil(elements / LIST_ELEMENTS))


def _product(kind: _Kind, args: Sequence[Any], out: Any) -> tuple[int, int, int, int, int]:
    """Floating-point operations, batch, m, n, k; zeros where the operator is no product."""
    name = CLASSES[kind.class_index]
    if name == "matrix":
        return _matrix_product(kind.name, args, out)
    if name == "batched matrix":
        left, right = args[-2:] if kind.name == "bmm" else args[1:3]
        batch, m, k, n = left.shape[0], left.shape[1], left.shape[2], right.shape[2]
        return 2 * batch * m * n * k, batch, m, n, k
    if name in ("attention", "attention backward"):
        backward = name == "attention backward"
        query, key = args[1:3] if backward else args[:2]
        causal = any(value is True for value in args)
        return attention_product(query.shape, key.shape[-2], causal=causal, backward=backward)
    return 0, 1, 0, 0, 0


def _matrix_product(name: str, args: Sequence[Any], out: Tensor) -> tuple[int, int, int, int, int]:
    """A grouped product, of experts, counts as one over all their rows."""
    left = args[1] if name in ("addmm", "addmv") else args[0]
    k = left.shape[-1]
    m = left.numel() // max(k, 1)
    n = 1 if name in ("mv", "addmv") else out.shape[-1]
    return 2 * m * n * k, 1, m, n, k


def attention_product(
    shape_BHTD: Sequence[int], keys: int, *, causal: bool, backward: bool
) -> tuple[int, int, int, int, int]:
    """Floating-point operations, batch, queries, keys and head size of a fused attention kernel; a
    causal one skips half of the scores.
    """
    batch, queries, head = int(np.prod(shape_BHTD[:-2])), shape_BHTD[-2], shape_BHTD[-1]
    flop = 4 * batch * queries * keys * head
    if causal:
        flop //= 2
    return (int(flop * BACKWARD_OVER_FORWARD) if backward else flop), batch, queries, keys, head
