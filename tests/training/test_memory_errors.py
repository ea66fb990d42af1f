"""Out of memory is recognised on every device by what it is, and leaves nothing behind."""

import errno
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from brimful.base.errors import RunFolderError, TrainingStopped
from brimful.base.rundir import read_json
from brimful.base.types import JsonDict
from brimful.training.memory_errors import (
    FILE_NAME,
    OutOfMemory,
    RememberedSizes,
    all_or_nothing,
    attempt,
    give_back_memory,
    halved,
    is_out_of_memory,
    random_states,
    rewind,
)

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


EVENT = {
    "kind": "out_of_memory",
    "step": 3,
    "phase": "training",
    "from": [8, 8, 3],
    "to": [4, 4, 4, 4, 2, 1],
    "where": "backward pass",
}


@pytest.mark.parametrize(
    ("sizes", "smaller"),
    [
        ((8, 8, 3), (4, 4, 4, 4, 2, 1)),
        ((8,), (4, 4)),
        ((5, 5, 2), (3, 2, 3, 2, 1, 1)),
        ((2, 1), (1, 1, 1)),
        ((1, 1), (1, 1)),
    ],
)
def test_every_micro_batch_is_halved_in_its_place(
    sizes: tuple[int, ...], smaller: tuple[int, ...]
) -> None:
    assert halved(sizes) == smaller
    assert list(torch.cat(torch.arange(sum(sizes)).split(smaller))) == list(range(sum(sizes)))


def test_halving_reaches_one_sequence_in_as_many_steps_as_the_logarithm_says() -> None:
    for size in range(1, 300):
        sizes, halvings = (size, 7), 0
        while max(sizes) > 1:
            sizes, halvings = halved(sizes), halvings + 1
        assert sizes == (1,) * (size + 7)
        assert halvings == max(3, (size - 1).bit_length())


def _plan(**changes: Any) -> Any:
    """What a plan says about memory."""
    values = {
        "device": {"name": "Tesla T4"},
        "micro_batches": (8, 8, 3),
        "precision": "fp16",
        "attention": "sdpa",
        "recompute": False,
        "compile": False,
        "optimizer": "fused",
        "loss_chunk": 512,
        "devices": 1,
        "spread": "replicated",
    }
    return SimpleNamespace(**{**values, **changes})


def test_a_run_without_trouble_has_the_sizes_of_its_plan_and_no_file(tmp_path: Path) -> None:
    sizes = RememberedSizes.of(tmp_path, _plan())
    assert (sizes.micro_batches, sizes.events) == ((8, 8, 3), [])
    assert list(tmp_path.iterdir()) == []


def test_what_was_noted_holds_for_the_next_session_under_the_same_plan(tmp_path: Path) -> None:
    RememberedSizes.of(tmp_path, _plan()).note(EVENT)
    again = RememberedSizes.of(tmp_path, _plan())
    assert (again.micro_batches, again.events) == ((4, 4, 4, 4, 2, 1), [EVENT])


@pytest.mark.parametrize(
    "change",
    [
        {"device": {"name": "A100"}},
        {"recompute": True},
        {"loss_chunk": 64},
        {"devices": 2},
        {"micro_batches": (10, 9)},
    ],
    ids=str,
)
def test_under_another_plan_the_plan_holds(tmp_path: Path, change: JsonDict) -> None:
    RememberedSizes.of(tmp_path, _plan()).note(EVENT)
    other = RememberedSizes.of(tmp_path, _plan(**change))
    assert (other.micro_batches, other.events) == (_plan(**change).micro_batches, [])


@pytest.mark.parametrize(
    "change",
    [
        {"micro_batches": [4, 4]},
        {"micro_batches": None},
        {"micro_batches": [20, -1]},
        {"events": 3},
    ],
    ids=str,
)
def test_a_file_that_does_not_fit_the_run_is_refused_with_the_way_out(
    tmp_path: Path, change: JsonDict
) -> None:
    RememberedSizes.of(tmp_path, _plan()).note(EVENT)
    (tmp_path / FILE_NAME).write_text(json.dumps({**read_json(tmp_path / FILE_NAME), **change}))
    with pytest.raises(
        RunFolderError, match=rf"{FILE_NAME} does not hold the micro-batches of this run. Remove it"
    ):
        RememberedSizes.of(tmp_path, _plan())


def test_rewound_generators_draw_the_same_again() -> None:
    states = random_states(CPU)
    first = torch.rand(5)
    rewind(states, CPU)
    assert torch.equal(torch.rand(5), first)


Made = tuple[list[nn.Parameter], torch.optim.AdamW]


@pytest.fixture
def optimizer() -> Callable[..., Made]:
    """Two groups, as `build_optimizer` makes them, with gradients."""

    def make(*, fused: bool) -> Made:
        weights = [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        return weights, torch.optim.AdamW(
            [{"params": weights[:1]}, {"params": weights[1:]}],
            lr=0.1,
            fused=fused,
            foreach=not fused,
        )

    return make


def _fails_at(monkeypatch: pytest.MonkeyPatch, name: str, call: int) -> None:
    """Let the `call`-th use of `torch.name` run out of memory, once."""
    real, count = getattr(torch, name), 0

    def act(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            raise torch.OutOfMemoryError("CUDA out of memory (for the test)")
        return real(*args, **kwargs)

    monkeypatch.setattr(torch, name, act)


def _guarded(optimizer: torch.optim.Optimizer) -> None:
    with all_or_nothing(optimizer):
        optimizer.step()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("call", [1, 2])
def test_an_update_that_fails_while_it_makes_its_first_states_can_be_repeated(
    optimizer: Callable[..., Made], monkeypatch: pytest.MonkeyPatch, fused: bool, call: int
) -> None:
    weights, failing = optimizer(fused=fused)
    _fails_at(monkeypatch, "zeros_like", call)
    assert isinstance(attempt(lambda: _guarded(failing)), OutOfMemory)
    assert failing.state == {}
    assert all(torch.equal(weight, torch.ones_like(weight)) for weight in weights)
    _guarded(failing)
    expected, undisturbed = optimizer(fused=fused)
    undisturbed.step()
    assert all(torch.equal(weight, other) for weight, other in zip(weights, expected, strict=True))


@pytest.mark.parametrize("fused", [True, False])
def test_a_later_update_that_fails_before_it_writes_keeps_its_states(
    optimizer: Callable[..., Made], monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    weights, failing = optimizer(fused=fused)
    _guarded(failing)
    with monkeypatch.context() as patch:
        _fails_at(patch, "_foreach_add_", 1)
        assert isinstance(attempt(lambda: _guarded(failing)), OutOfMemory)
    _guarded(failing)
    expected, undisturbed = optimizer(fused=fused)
    for _ in range(2):
        undisturbed.step()
    assert all(torch.equal(weight, other) for weight, other in zip(weights, expected, strict=True))


@pytest.mark.parametrize(
    ("fused", "name", "call"),
    [(True, "zeros_like", 3), (False, "zeros_like", 3), (False, "_foreach_sqrt", 1)],
)
def test_an_update_that_fails_half_done_stops_training(
    optimizer: Callable[..., Made],
    monkeypatch: pytest.MonkeyPatch,
    fused: bool,
    name: str,
    call: int,
    refuses: Refuses,
) -> None:
    _, failing = optimizer(fused=fused)
    _fails_at(monkeypatch, name, call)
    with refuses(TrainingStopped):
        attempt(lambda: _guarded(failing))


def test_other_errors_of_an_update_come_through(optimizer: Callable[..., Made]) -> None:
    _, failing = optimizer(fused=True)
    failing.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        _guarded(failing)
