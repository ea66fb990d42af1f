"""Plain values as bytes, and frames of bytes over descriptors: all that may cross between untrusted
code and its judge.

What is decoded has exactly the built-in types and so no behaviour of its own: no `__eq__`, no
methods, nothing to call.
"""

import contextlib
import json
import os
import select
import time
from collections.abc import Callable
from typing import Any

MAX_FRAME_BYTES = 8 << 20
"""Largest frame that is sent or read."""
_HEADER_BYTES = 4
_JSON_INTEGER_BITS = 63
"""Longer integers travel in base 16: Python refuses to read more than 4,300 decimal digits
(sys.set_int_max_str_digits).
"""


class NotPlainError(ValueError):
    """A value, or bytes that should hold one, is not plain data."""


class ClosedError(Exception):
    """The other side is gone, or sent something that is no frame."""


def encode(value: object) -> bytes:
    """Return a value as bytes, from which `decode` makes it again in another process.

    It may be or hold None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset and
    dict, and these types themselves. A value of a subclass becomes one of the built-in type, an
    iterator one over what it had left.

    Raises:
        NotPlainError: another type, a value that holds itself, or more than `MAX_FRAME_BYTES`.
    """
    try:
        data = json.dumps(_pack(value)).encode("ascii")
    except (RecursionError, ValueError) as error:
        is_ours = isinstance(error, NotPlainError)
        raise NotPlainError(str(error) if is_ours else "a value nested too deeply") from None
    if len(data) > MAX_FRAME_BYTES:
        raise NotPlainError(f"a value of {len(data)} bytes; at most {MAX_FRAME_BYTES} are taken")
    return data


def decode(data: bytes) -> Any:
    """The value that `encode` wrote.

    Raises:
        NotPlainError: Anything else.
    """
    try:
        return _unpack(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise NotPlainError(f"not plain data ({type(error).__name__})") from None


def _pack(value: object) -> object:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__int__(value)
        return _packed_integer(number)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, list):
        return [_pack(item) for item in list.__iter__(value)]
    return {_name_of(value): _parts(value)}


def _packed_integer(number: int) -> object:
    if number.bit_length() > _JSON_INTEGER_BITS:
        return {"int": hex(number)}
    return number


def _name_of(value: object) -> str:
    if isinstance(value, type) and value in _PLAIN_TYPES:
        return "type"
    for kind in _UNPACKERS:
        if isinstance(value, kind):
            return kind.__name__
    if hasattr(type(value), "__next__"):
        return "iterator"
    raise NotPlainError(f"a value of type {type(value).__name__}")


def _parts(value: Any) -> object:
    if isinstance(value, dict):
        return [[_pack(key), _pack(item)] for key, item in dict.items(value)]
    if isinstance(value, complex):
        return [float(value.real), float(value.imag)]
    if isinstance(value, bytes):
        return bytes.hex(value)
    if isinstance(value, type):
        return value.__name__
    return [_pack(item) for item in value]


def _unpack(packed: Any) -> Any:
    if isinstance(packed, list):
        return [_unpack(item) for item in packed]
    if not isinstance(packed, dict):
        return packed
    ((name, parts),) = packed.items()
    if name == "int":
        return int(parts, 16)
    if name == "iterator":
        return iter([_unpack(item) for item in parts])
    if name == "type":
        return _TYPES[parts]
    return _BY_NAME[name](parts)


_UNPACKERS: dict[type, Callable[[Any], Any]] = {
    tuple: lambda parts: tuple(_unpack(item) for item in parts),
    set: lambda parts: {_unpack(item) for item in parts},
    frozenset: lambda parts: frozenset(_unpack(item) for item in parts),
    dict: lambda parts: {_unpack(key): _unpack(item) for key, item in parts},
    complex: lambda parts: complex(*map(float, parts)),
    bytes: bytes.fromhex,
}
_BY_NAME = {kind.__name__: unpack for kind, unpack in _UNPACKERS.items()}


_PLAIN_TYPES: tuple[type, ...] = (bool, int, float, str, list, type(None), *_UNPACKERS)
_TYPES = {kind.__name__: kind for kind in _PLAIN_TYPES}


def channel() -> tuple[int, int]:
    """Return, in a process that answers over its standard streams, the descriptors of what is asked
    and of what it answers; what it reads and prints otherwise goes nowhere.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    return incoming, outgoing


def send(descriptor: int, data: bytes) -> None:
    """Write one frame.

    Raises:
        ClosedError: Nobody reads the other end.
    """
    view = memoryview(len(data).to_bytes(_HEADER_BYTES, "big") + data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except OSError as error:
            raise ClosedError from error


def receive(descriptor: int, deadline_s: float | None = None) -> bytes:
    """Read one frame; nothing behind it is read.

    Args:
        descriptor: A pipe.
        deadline_s: Time at which to give up, on time.monotonic()'s clock; None waits for ever.

    Raises:
        ClosedError: The other end closed, or announced more than `MAX_FRAME_BYTES`.
        TimeoutError: The deadline passed.
    """
    size = int.from_bytes(_exactly(descriptor, _HEADER_BYTES, deadline_s), "big")
    if size > MAX_FRAME_BYTES:
        raise ClosedError
    return _exactly(descriptor, size, deadline_s)


def _exactly(descriptor: int, size: int, deadline_s: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if deadline_s is not None:
            _wait_until_readable(descriptor, deadline_s)
        part = b""
        with contextlib.suppress(OSError):
            part = os.read(descriptor, size - len(data))
        if not part:
            raise ClosedError
        data += part
    return bytes(data)


def _wait_until_readable(descriptor: int, deadline_s: float) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
        raise TimeoutError
