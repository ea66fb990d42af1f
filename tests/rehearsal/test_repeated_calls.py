"""A call that was made before returns what torch itself returns for it."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import MakeStep
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from brimful.base.types import JsonDict
from brimful.planning.step import Lora
from brimful.planning.trace import Trace
from brimful.rehearsal import repeated_calls, training
from brimful.rehearsal.models import config_of
from brimful.rehearsal.recorder import Recorder
from brimful.rehearsal.training import record_training

aten = torch.ops.aten
CALLS: dict[str, tuple[Any, Callable[[Tensor], tuple[Any, ...]]]] = {
    "a product": (aten.mm.default, lambda x: (x, x.t())),
    "a sum with a number": (aten.add.Tensor, lambda x: (x, 2)),
    "a cast": (aten._to_copy.default, lambda x: (x,)),
    "a view": (aten.view.default, lambda x: (x, [2, 12])),
    "a slice": (aten.slice.Tensor, lambda x: (x, 1, 1, 3)),
    "a reshaped product": (aten._unsafe_view.default, lambda x: (x, [24])),
    "an operator in place": (aten.add_.Tensor, lambda x: (x, x)),
    "several outputs": (aten.native_layer_norm.default, lambda x: (x, [6], None, None, 1e-5)),
    "several views": (aten.split.Tensor, lambda x: (x, 2)),
}
MAKES_STORAGE = {"a product", "a sum with a number", "a cast", "several outputs"}


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """Fake tensors, of which nothing is known yet."""
    monkeypatch.setattr(repeated_calls, "_KNOWN", {})
    with FakeTensorMode() as mode:
        yield mode


def _looks(value: Any) -> Any:
    """What can be seen of a tensor, or of several."""
    if not isinstance(value, Tensor):
        return type(value), [_looks(each) for each in value]
    storage = value.untyped_storage()
    return (
        *(value.shape, value.stride(), value.dtype, value.storage_offset()),
        *(storage.nbytes(), value.device, value.requires_grad),
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_returns_what_torch_returns(name: str, mode: FakeTensorMode) -> None:
    operator, arguments = CALLS[name]
    kwargs = {"dtype": torch.bfloat16} if operator is aten._to_copy.default else {}
    outputs, sources = [], []
    for asked in (operator, *[None] * 4):
        source = torch.empty(4, 6)
        call = arguments(source)
        out = (
            operator(*call, **kwargs)
            if asked
            else repeated_calls.call(mode, operator, call, kwargs)
        )
        outputs.append(out)
        sources.append(source)

    assert repeated_calls._KNOWN, "nothing was learned"
    assert all(_looks(out) == _looks(outputs[0]) for out in outputs)
    for out, source in zip(outputs, sources, strict=True):
        each = out if isinstance(out, Tensor) else out[-1]
        shares = each.untyped_storage()._cdata == source.untyped_storage()._cdata
        assert shares is (name not in MAKES_STORAGE)
        assert (out is source) is (name == "an operator in place")


def test_a_number_of_another_type_is_another_call(mode: FakeTensorMode) -> None:
    whole = torch.ones(3, dtype=torch.int64)
    made = [
        repeated_calls.call(mode, aten.mul.Tensor, (whole, number), {}).dtype
        for number in (1, 1, 1, 1.0, 1.0, 1.0)
    ]
    assert made == [torch.int64] * 3 + [torch.float32] * 3


def test_tensors_of_another_mode_are_left_to_torch(mode: FakeTensorMode) -> None:
    other = FakeTensorMode()
    with other:
        foreign = torch.empty(2)
    with pytest.raises(AssertionError, match=r"fake mode|FakeTensor"):
        repeated_calls.call(mode, aten.neg.default, (foreign,), {})
    assert not repeated_calls._KNOWN


@pytest.mark.parametrize(
    "changes",
    [
        {"cuda": True, "quantize": "nf4", "weights": "bf16", "adapter": Lora(4, dropout=0.1)},
        {"optimizer": "adamw_8bit"},
        {"ranks": 2, "cuda": True, "autocast": "bf16", "recompute": True},
        {"ranks": 2, "quantize": "nf4", "weights": "bf16", "adapter": Lora(4, dora=True)},
    ],
)
@pytest.mark.long_but("changes0", "changes1")
def test_a_recording_is_the_same_with_and_without(
    step: MakeStep, changes: JsonDict, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = step("llama", **changes)
    quick = record_training(spec, config_of(spec), 2)
    monkeypatch.setattr(training, "QuickRecorder", Recorder)

    _assert_same(quick, record_training(spec, config_of(spec), 2))


def _assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    for field in dataclasses.fields(one):
        value, another = getattr(one, field.name), getattr(other, field.name)
        if dataclasses.is_dataclass(value):
            _assert_same(value, another)
        elif isinstance(value, np.ndarray):
            assert np.array_equal(value, another), field.name
        else:
            assert value == another, field.name
    assert not isinstance(one, Trace) or len(one.events_E) > 100
