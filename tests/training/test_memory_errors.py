"""Out of memory is recognised on every device by what it is, and leaves nothing behind."""

import errno
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch._dynamo.exc import BackendCompilerFailed

from brimful.base.errors import TrainingStopped
from brimful.training.memory_errors import OutOfMemory, attempt, give_back_memory, is_out_of_memory

CPU = torch.device("cpu")
ON_CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.56 GiB of"
    " which 1.71 GiB is free."
)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(ON_CUDA),
        torch.OutOfMemoryError("worded in a way that nobody knows yet"),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError(
            "MPS backend out of memory (MPS allocated: 39.50 GiB, max allowed: 182.78 GiB). Tried"
            " to allocate 1.02 GiB on private pool."
        ),
        RuntimeError("Invalid buffer size: 13.31 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate"
            " memory: you tried to allocate 64 bytes."
        ),
        RuntimeError(
            "[enforce fail] . DefaultCPUAllocator: not enough memory: you tried to allocate"
            " 68719476736 bytes."
        ),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("CUDA driver error: out of memory"),
        torch.AcceleratorError("CUDA error: out of memory"),
    ],
    ids=lambda error: f"{type(error).__name__}: {error}"[:60],
)
def test_what_each_device_and_library_says_is_recognised(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376"),
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("out of memory"),
        KeyboardInterrupt(),
    ],
    ids=str,
)
def test_other_troubles_are_not(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_a_real_refusal_of_the_host_allocator_is_recognised_with_the_size_it_was_asked_for(
    snapshot: SnapshotAssertion,
) -> None:
    failure = attempt(lambda: torch.empty(10**14))

    assert isinstance(failure, OutOfMemory)
    assert str(failure) == snapshot


def _raised(raise_it: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any error is looked at
        raise_it()
    return caught.value


def _raise(error: Exception) -> None:
    raise error


def _wrapped(first: Exception, second: Exception, how: str) -> None:
    try:
        _raise(first)
    except Exception as error:
        if how == "while handling":
            _raise(second)
        raise second from (error if how == "as its cause" else None)


@pytest.mark.parametrize(
    ("how", "expected"), [("as its cause", True), ("while handling", True), ("from None", False)]
)
def test_an_error_that_wraps_it_counts_unless_it_says_that_it_has_nothing_to_do_with_it(
    how: str, expected: bool
) -> None:
    error = _raised(
        lambda: _wrapped(torch.OutOfMemoryError(ON_CUDA), RuntimeError("the block failed"), how)
    )

    assert is_out_of_memory(error) is expected


def test_the_compiler_wraps_what_happens_in_it() -> None:
    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        raise torch.OutOfMemoryError(ON_CUDA)

    error = _raised(lambda: torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2)))

    assert isinstance(error, BackendCompilerFailed)
    assert is_out_of_memory(error)


def test_an_answer_of_brimful_is_not_taken_for_the_trouble_it_answers() -> None:
    error = _raised(
        lambda: _wrapped(
            torch.OutOfMemoryError(ON_CUDA),
            TrainingStopped("out of memory with one sequence"),
            "as its cause",
        )
    )

    assert not is_out_of_memory(error)


def test_errors_that_point_at_each_other_are_looked_at_once() -> None:
    first, second = RuntimeError("one"), RuntimeError("two")
    first.__cause__, second.__cause__ = second, first

    assert not is_out_of_memory(first)


def test_what_works_is_returned_and_other_errors_come_through() -> None:
    assert attempt(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        attempt(lambda: 1 / 0)


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collector")
def test_the_failed_work_is_freed_at_once(snapshot: SnapshotAssertion) -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def fails() -> None:
        weight = torch.ones(4, requires_grad=True)
        activation = (weight * 2).exp()
        held.append(weakref.ref(activation))
        activation.register_hook(_out_of_memory)
        activation.sum().backward()

    failure = attempt(fails)

    assert isinstance(failure, OutOfMemory)
    assert {"fails", "backward", "_out_of_memory"} <= failure.functions
    assert str(failure) == snapshot
    assert held[0]() is None


def _out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError(ON_CUDA)


def test_giving_memory_back_asks_the_device_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("cuda"))
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: asked.append("mps"))

    for kind in ("cpu", "cuda", "mps"):
        give_back_memory(torch.device(kind))

    assert asked == ["cuda", "mps"]
