"""Outputs of operators on fake tensors that were called before with tensors of the same shapes.
They are made quickly: to ask torch for each of them is most of the time of a recording.

An output is known once torch's own cache of fake tensors holds it. It is made as that cache makes
it, from a key that is quicker to compute.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from brimful.base.types import JsonDict

MOST_KNOWN = 100_000
"""Calls, some 500 bytes each; a recording has a few hundred of its own."""
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
_FIXED = (torch.layout, torch.memory_format)

_RESHAPED = torch.ops.aten._unsafe_view.default
"""The one operator that torch's cache leaves out because it shares a storage without saying so."""


class _Unknown(Exception):
    """What decides the output of this call is not known here."""


@dataclass(frozen=True, slots=True)
class _Made:
    """One tensor that an operator returns; `view_of` is the argument whose storage it looks at."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int
    view_of: int | None

    def on(self, mode: FakeTensorMode, args: tuple[Any, ...]) -> FakeTensor:
        """Return such a tensor."""
        with torch._C._DisableTorchDispatch():
            made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
            if self.view_of is not None:
                storage = args[self.view_of].untyped_storage()
                made.set_(storage, self.offset, self.shape, self.stride)
            return _fake(mode, made, self.device)


def _fake(mode: FakeTensorMode, made: Tensor, device: torch.device) -> FakeTensor:
    """Return `FakeTensor(mode, made, device)`, whose constructor takes as long as all else here:
    its attributes are those of another one on this device.
    """
    if device not in _ATTRIBUTES:
        like = FakeTensor(mode, torch.empty(0, device="meta"), device)
        _ATTRIBUTES[device] = {key: each for key, each in vars(like).items() if each is not mode}
    fake: FakeTensor = Tensor._make_subclass(
        FakeTensor, made, False, dispatch_device=True, device_for_backend_keys=device
    )
    if not mode._allow_unsafe_data_ptr_access:
        torch._C._set_throw_on_mutable_data_ptr(fake)
    vars(fake).update(_ATTRIBUTES[device], fake_mode=mode)
    return fake


_ATTRIBUTES: dict[torch.device, JsonDict] = {}
_Output = _Made | int
"""An output that is made, or the argument that is returned."""
_KNOWN: dict[Any, tuple[type | None, tuple[_Output, ...]]] = {}
"""By operator and all that decides its outputs; like torch's cache, of the whole process."""


def call(mode: FakeTensorMode, func: Any, args: tuple[Any, ...], kwargs: JsonDict) -> Any:
    """Return what an operator returns on fake tensors of this mode."""
    if type(func) is not OpOverload or mode.shape_env is not None:
        return func(*args, **kwargs)
    try:
        with torch._C.DisableTorchFunction():
            key = _key_of(mode, func, args, kwargs)
            known = _KNOWN.get(key)
            if known is not None:
                return _outputs(known, mode, args)
    except _Unknown:
        return func(*args, **kwargs)
    cached = FakeTensorMode.cache_hits + FakeTensorMode.cache_misses
    out = func(*args, **kwargs)
    if FakeTensorMode.cache_hits + FakeTensorMode.cache_misses == cached + 1 or func is _RESHAPED:
        with torch._C.DisableTorchFunction():
            _learn(key, mode, func, args, out)
    return out


def _outputs(
    known: tuple[type | None, tuple[_Output, ...]], mode: FakeTensorMode, args: tuple[Any, ...]
) -> Any:
    container, outputs = known
    made = [each.on(mode, args) if type(each) is _Made else args[each] for each in outputs]  # type: ignore[index]
    return made[0] if container is None else container(made)


def _key_of(
    mode: FakeTensorMode, func: OpOverload, args: tuple[Any, ...], kwargs: JsonDict
) -> tuple[Any, ...]:
    """Return all that decides the outputs of a call.

    Raises:
        _Unknown: an argument is of another kind than those that are described here.
    """
    described: list[Any] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
    _describe(described, mode, args)
    for name, value in kwargs.items():
        described.append(name)
        _describe(described, mode, (value,))
    return tuple(described)


def _describe(described: list[Any], mode: FakeTensorMode, values: Any) -> None:
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            described.append(kind)  # 1 is 1.0, but makes another tensor
            described.append(value)
        elif isinstance(value, FakeTensor):
            described.append(_description(mode, value))
        elif kind is list or kind is tuple:
            described.append(len(value))
            _describe(described, mode, value)
        elif isinstance(value, _FIXED):
            described.append(value)
        else:
            raise _Unknown


def _description(mode: FakeTensorMode, tensor: FakeTensor) -> tuple[Any, ...]:
    dtype = tensor.dtype
    if (
        tensor.fake_mode is not mode
        or tensor.constant is not None
        or dtype.is_complex
        or tensor.layout is not torch.strided
        or tensor.is_quantized
    ):
        raise _Unknown
    return (
        tuple(tensor.shape),
        tensor.stride(),
        dtype,
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
        tensor.fake_device,
        tensor.requires_grad,
        tensor.is_inference(),
    )


def _learn(
    key: tuple[Any, ...],
    mode: FakeTensorMode,
    func: OpOverload,
    args: tuple[Any, ...],
    out: Any,
) -> None:
    """Remember the outputs of a call, if they are all made anew, views of an argument or an
    argument itself.
    """
    container = type(out) if type(out) in {list, tuple} else None
    outputs = (out,) if container is None else tuple(out)
    if len(_KNOWN) >= MOST_KNOWN or not all(type(each) is FakeTensor for each in outputs):
        return
    storages = {
        each.untyped_storage()._cdata: index
        for index, each in enumerate(args)
        if isinstance(each, FakeTensor)
    }
    described = [_described_output(mode, func, args, storages, each) for each in outputs]
    if all(each is not None for each in described):
        _KNOWN[key] = container, tuple(described)  # type: ignore[arg-type]


def _described_output(
    mode: FakeTensorMode,
    func: OpOverload,
    args: tuple[Any, ...],
    storages: dict[int, int],
    out: FakeTensor,
) -> _Output | None:
    for index, each in enumerate(args):
        if each is out:
            return index
    source = storages.get(out.untyped_storage()._cdata)
    looks_at_it = func.is_view or func is _RESHAPED
    if looks_at_it != (source is not None) or func._schema.is_mutable or out.requires_grad:
        return None
    try:
        shape, stride, dtype, offset, *_ = _description(mode, out)
    except _Unknown:
        return None
    return _Made(shape, stride, dtype, out.fake_device, offset, source)
