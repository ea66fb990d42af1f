"""Records every operator that torch runs: the storages that it allocates and frees, and its work.
Works on real and on fake tensors.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import GLOBAL
from brimful.rehearsal import repeated_calls
from brimful.rehearsal.scratch import scratch_bytes
from brimful.rehearsal.working import WorkLog

FORWARD_PHASES = ("forward", "recomputation")
_WEIGHT_KINDS = {
    KINDS.index(kind)
    for kind in ("weights", "adapters", "gathered weights", "communication buffers")
}
_CASTS = {torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype}
_ASKS_DEVICE = torch.ops.prim.device.default
_ACTIVATIONS, _TEMPORARIES, _LOSS, _COPIES, _GATHERED, _EXCHANGED = (
    KINDS.index(kind)
    for kind in (
        "activations",
        "temporaries",
        "loss and logits",
        "16-bit weight copies",
        "gathered weights",
        "communication buffers",
    )
)
_MAIN_STREAM = torch.cpu.current_stream()
"""A CPU has no streams; torch still says on which one its FSDP would make a tensor."""


class Recorder(TorchDispatchMode):
    """Records allocations and frees of storages, with the module and the purpose of each.

    A storage is what the allocator hands out; views share one. Sizes are those that operators ask
    for. Tensors inside an operator are those that `scratch` knows. A storage that is resized, as
    FSDP2 frees and refills gathered weights, ends and another one begins.

    Args:
        cuda: Operators have the inner tensors of CUDA kernels.

    Attributes:
        place: Module that computes now; names new storages.
        layer: Block that computes now, GLOBAL outside.
        phase: "forward", "backward", "optimizer", ...; a storage that outlives the forward phase in
            which it was made is an activation.
        in_loss: New storages belong to the loss.
    """

    supports_higher_order_operators = True

    def __init__(self, *, cuda: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cuda = cuda
        self.place, self.layer, self.phase, self.in_loss = "", GLOBAL, "setup", False
        self._events: list[int] = []
        self._event_layers: list[int] = []
        self._sizes: list[int] = []
        self._kinds: list[int] = []
        self._layers: list[int] = []
        self._places: list[str] = []
        self._phases: list[str] = []
        self._marks: dict[str, int] = {}
        self._number_by_storage: dict[int, int] = {}
        self._watches: dict[int, weakref.ref[Any]] = {}
        self._over = False
        self._fake_mode: Any = None
        self._resize: Any = None
        self._work = WorkLog(self._number)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile work while this is active; the compiler's own tensors are not seen."""
        return True

    def __enter__(self) -> Self:
        self._fake_mode, self._resize = _active_fake_mode(), torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, num_bytes: int) -> Any:
            result = self._resize(storage, num_bytes)
            self._resized(storage, int(num_bytes))
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._dispatch(func, types, args, kwargs or {})

    def _dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run and record an operator."""
        if func is _ASKS_DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device  # two calls of three; nothing runs or is allocated
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # it has the size of the whole; what it does inside is seen
        if _active_fake_mode() is not self._fake_mode:
            return func(*args, **kwargs)  # a DTensor works out shapes
        if (
            func is torch.ops.aten._local_scalar_dense.default
            and args[0].dtype == torch.bool
            and self.phase not in FORWARD_PHASES
        ):
            # The flags of a successful step: nothing overflowed, nothing was skipped. What a model
            # asks of its values is not known.
            return False
        out = self._run(func, args, kwargs)
        with torch._C.DisableTorchFunction():  # of what is asked of the tensors here
            self._note(func, args, kwargs, out)
        return out

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Record an operator that was called."""
        if isinstance(func, HigherOrderOperator):
            self._note_made(out, None, ())  # an operator with the state of its random numbers
            return
        scratch = [
            self._new(size, func, args) for size in scratch_bytes(func, args, out, cuda=self._cuda)
        ]
        self._note_made(out, func, args)
        for number in scratch:
            self._event(-(number + 1))
        self._work.note(func, args, kwargs, out, phase=self.phase, layer=self.layer)

    def _note_made(self, out: Any, func: Any, args: Any) -> None:
        """Record the storages that an operator made."""
        leaves = (out,) if isinstance(out, Tensor) else tree_leaves(out)
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and _storage(leaf)._cdata not in self._number_by_storage:
                self._born(leaf, func, args)
                if self.phase == "optimizer" and args:
                    self._inherit_layer(
                        args[0][index]
                        if isinstance(out, list | tuple) and isinstance(args[0], list | tuple)
                        else args[0]
                    )

    def kernel(
        self,
        name: str,
        class_name: str,
        reads: Iterable[Tensor],
        writes: Iterable[Tensor],
        **counts: Any,
    ) -> None:
        """Record a kernel of the real device that another operator replaces here; see
        `WorkLog.add`.
        """
        self._work.add(
            name, class_name, reads, writes, phase=self.phase, layer=self.layer, **counts
        )

    def _inherit_layer(self, source: Any) -> None:
        """Assign what the optimizer makes from a parameter, gradient or state to the same block."""
        if isinstance(source, Tensor) and (number := self._number(source)) is not None:
            self._layers[-1] = self._layers[number]

    def seed(self, tensor: Tensor, kind: str, place: str, layer: int = GLOBAL) -> None:
        """Record a storage that existed before: a weight, a buffer, the batch."""
        if self._number(tensor) is None:
            self._born(tensor, None, ())
            self.mark(tensor, kind, place, layer)

    def mark(self, tensor: Tensor, kind: str, place: str, layer: int = GLOBAL) -> None:
        """Set the kind, place and block of a storage that is already recorded."""
        number = self._number(tensor)
        if number is not None:
            self._kinds[number] = KINDS.index(kind)
            self._places[number] = place
            self._layers[number] = layer

    def begin(self, phase: str) -> None:
        """Begin another phase, outside every module."""
        self.phase, self.place, self.layer, self.in_loss = phase, "", GLOBAL, False
        name, count = phase, 2
        while name in self._marks:
            name, count = f"{phase} {count}", count + 1
        self._marks[name] = len(self._events)
        self._work.begin(phase, count - 1)

    @contextmanager
    def within(self, place: str, layer: int) -> Iterator[None]:
        """Assign what happens inside to this module and block."""
        before = self.place, self.layer
        self.place, self.layer = place, layer
        yield
        self.place, self.layer = before

    def finish(self, blocks: str = "") -> Trace:
        """End the recording and return the trace. `blocks` is the name of the model's list of
        blocks.
        """
        self._over = True
        for number in self._number_by_storage.values():
            self._note_survival(number)
        birth_layers = np.array(self._layers, np.int32)
        layers = np.array(self._event_layers, np.int32)
        events = _deaths_in_order(
            np.array(self._events, np.int32), layers, list(self._marks.values())
        )
        layers = np.where(layers == GLOBAL, birth_layers[np.abs(events) - 1], layers)
        names = {name: index for index, name in enumerate(dict.fromkeys(self._places))}
        work, details = self._work.finish()
        return Trace(
            events_E=events,
            event_layers_E=layers,
            sizes_S=np.array(self._sizes, np.int64),
            kinds_S=np.array(self._kinds, np.int32),
            places_S=np.array([names[name] for name in self._places], np.int32),
            layers_S=birth_layers,
            places=tuple(names),
            blocks=blocks,
            marks=dict(self._marks),
            work=work,
            details=details,
        )

    def _number(self, tensor: Tensor) -> int | None:
        return self._number_by_storage.get(_storage(tensor)._cdata)

    def _resized(self, storage: torch.UntypedStorage, num_bytes: int) -> None:
        key = storage._cdata
        number = self._number_by_storage.get(key)
        if number is not None and self._sizes[number] == num_bytes:
            return
        if number is not None:
            self._died(key, None)
        if num_bytes:
            self._number_by_storage[key] = self._new(num_bytes, None, ())
            kind = _EXCHANGED if _is_on_side_stream() else _GATHERED
            self._kinds[-1], self._places[-1] = kind, f"{self.place} gathered weights".strip()
            self._watches[key] = weakref.ref(storage, partial(self._died, key))

    def _born(self, tensor: Tensor, func: Any, args: Any) -> None:
        storage = _storage(tensor)
        key = storage._cdata
        self._number_by_storage[key] = self._new(storage.nbytes(), func, args)
        self._watches[key] = weakref.ref(storage, partial(self._died, key))

    def _new(self, num_bytes: int, func: Any, args: Any) -> int:
        number = len(self._sizes)
        self._sizes.append(num_bytes)
        self._kinds.append(self._kind_of(func, args))
        self._layers.append(self.layer)
        operator = "" if func is None else str(func.__name__).partition(".")[0]
        self._places.append(f"{self.place} {operator}".strip())
        self._phases.append(self.phase)
        self._event(number + 1)
        return number

    def _kind_of(self, func: Any, args: Any) -> int:
        if (
            func in _CASTS
            and (source := self._number(args[0])) is not None
            and self._kinds[source] in _WEIGHT_KINDS
        ):
            return _COPIES
        if _is_on_side_stream():
            return _EXCHANGED
        return _LOSS if self.in_loss else _TEMPORARIES

    def _died(self, key: int, _: object) -> None:
        number = self._number_by_storage.pop(key)
        self._watches.pop(key)
        if self._over:
            return
        self._note_survival(number)
        self._event(-(number + 1))

    def _note_survival(self, number: int) -> None:
        """Mark a tensor that outlives its forward pass: it is kept for the backward pass."""
        if (
            self._kinds[number] == _TEMPORARIES
            and self._phases[number] in FORWARD_PHASES
            and self.phase != self._phases[number]
        ):
            self._kinds[number] = _ACTIVATIONS

    def _event(self, signed_number: int) -> None:
        self._events.append(signed_number)
        self._event_layers.append(self.layer)


class QuickRecorder(Recorder):
    """The same in half of the time, for steps on fake tensors under no further mode, of which
    nothing is compiled.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave `__torch_dispatch__` as it is. By default torch keeps its compiler away from it in
        every call, which takes as long as what most calls need here.
        """
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._dispatch(func, types, args, kwargs or {})

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        return repeated_calls.call(self._fake_mode, func, args, kwargs)


def _active_fake_mode() -> Any:
    """Return the mode that makes tensors fake, None outside of one."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


def _is_on_side_stream() -> bool:
    return torch.cpu.current_stream() is not _MAIN_STREAM


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    """Return what the allocator handed out for a tensor; of one in parts, for the part here."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()


def note_kernel(
    name: str, class_name: str, reads: Iterable[Tensor], writes: Iterable[Tensor], **counts: Any
) -> None:
    """Record a kernel of the real device that another operator replaces here, if a recorder is
    active.
    """
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, Recorder):
            mode.kernel(name, class_name, reads, writes, **counts)


def _deaths_in_order(
    events_E: NDArray[np.int32], layers_E: NDArray[np.int32], marks: list[int]
) -> NDArray[np.int32]:
    """Return the events with consecutive frees of a phase in the order of their allocations: torch
    frees some in the arbitrary order of a hash table.
    """
    dying = events_E < 0
    follows = np.zeros(len(events_E), bool)
    follows[1:] = dying[1:] & dying[:-1] & (layers_E[1:] == layers_E[:-1])
    follows[[mark for mark in marks if mark < len(follows)]] = False
    group_E = np.cumsum(~follows)
    return events_E[np.lexsort((np.where(dying, -events_E, 0), group_E))]
