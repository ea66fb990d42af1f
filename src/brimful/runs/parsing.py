"""Read values of JSON files into frozen dataclasses, leniently.

A field that is missing or of another type has the default of the dataclass, else it is None where
the type allows it, else empty: "", 0, False, () or {}. Numbers that no float holds count as
missing. An object in a file that lacks a `float` without a default counts as missing. An interval
may be written as [low, high] or as {"low": low, "high": high}. A field that stands under another
key in the file has the metadata {"key": KEY}.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from brimful.base.rundir import finite
from brimful.base.types import Bounds, Json, JsonDict

Reader = Callable[[object], Any]
T = TypeVar("T")
WHOLE = {"whole": True}
"""Metadata of a dataclass field that holds the whole mapping that the dataclass is read from."""
LARGEST_INTEGER = 2**53
"""The largest whole number up to which a float holds every one."""


def parse(kind: type[T], values: Json, /, **known: Any) -> T:
    """Return a dataclass whose fields are read from the entries of a mapping.

    Args:
        kind: The dataclass.
        values: Values as the file has them; keys without a field are left out.
        known: Fields that are not read from `values`.
    """
    arguments = dict(known)
    for each in _fields_of(cast(Any, kind)):
        if each.name not in known:
            value = values if each.is_whole else each.read(values.get(each.key))
            if value is not None:
                arguments[each.name] = value
            elif each.empty is not None:
                arguments[each.name] = each.empty()
    return kind(**arguments)


def parse_value(hint: Any, value: object) -> Any:
    """Return `value` as the type that `hint` names, None where it is of another type."""
    return _reader(hint)(value)


def mapping(value: object) -> JsonDict:
    """Return a mapping as it is, an empty one for any other value."""
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class _Field:
    """How a field is read.

    Attributes:
        empty: Makes the value of a field that is missing and has no default.
        is_needed: Whether an object in a file does not count where this field is missing.
    """

    name: str
    key: str
    read: Reader
    empty: Callable[[], Any] | None
    is_whole: bool
    is_needed: bool


@functools.cache
def _fields_of(kind: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(kind)
    return tuple(_field(each, hints[each.name]) for each in fields(kind))


def _field(each: Field[Any], hint: Any) -> _Field:
    has_default = each.default is not MISSING or each.default_factory is not MISSING
    empty = None if has_default else functools.partial(_empty, hint)
    key, is_whole = each.metadata.get("key", each.name), "whole" in each.metadata
    is_needed = hint is float and not has_default
    return _Field(each.name, key, _reader(hint), empty, is_whole, is_needed)


def _empty(hint: Any) -> Any:
    origin = get_origin(hint)
    if hint is Any or _is_optional(hint):
        return None
    if origin in (Union, UnionType):
        return _empty(get_args(hint)[0])
    if origin in _EMPTY:
        return _EMPTY[origin]()
    if is_dataclass(hint):
        return parse(cast(Any, hint), {})
    return hint()


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)


@functools.cache
def _reader(hint: Any) -> Reader:
    """Return a function that gives a value of the hinted type, and None for any other value."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        readers = {each: _reader(each) for each in arguments if each is not NoneType}
        return functools.partial(_one_of, readers)
    if origin is Literal:
        return functools.partial(_known_value, arguments)
    if hint == Bounds:
        return _bounds
    if origin in (tuple, list):
        keeps_none = _is_optional(arguments[0])
        return functools.partial(_entries, origin, _reader(arguments[0]), keeps_none)
    if origin in (Mapping, dict):
        keeps_none = arguments[1] is Any
        return functools.partial(_by_key, _KEYS[arguments[0]], _reader(arguments[1]), keeps_none)
    return _PLAIN.get(hint) or _object_reader(hint)


def _object_reader(kind: Any) -> Reader:
    """Return the reader of a dataclass: its own `from_json`, else one by its fields."""
    own: Reader | None = getattr(kind, "from_json", None)
    return own or functools.partial(_object, kind)


def _one_of(readers: dict[Any, Reader], value: object) -> Any:
    """Read a value as the type that it has, else as the first of the types that fits."""
    if type(value) in readers:
        return readers[type(value)](value)
    results = (read(value) for read in readers.values())
    return next((result for result in results if result is not None), None)


def _object(kind: Any, value: object) -> Any:
    if not isinstance(value, dict):
        return None
    needed = (each for each in _fields_of(kind) if each.is_needed)
    if any(each.read(value.get(each.key)) is None for each in needed):
        return None
    return parse(kind, value)


def _entries(kind: type, read: Reader, keeps_none: bool, value: object) -> Any:
    """Return the entries of a list or tuple as `kind`; those of another type are None or left
    out.
    """
    if not isinstance(value, list | tuple):
        return None
    entries = map(read, value)
    return kind(entry for entry in entries if keeps_none or entry is not None)


def _by_key(
    read_key: Reader, read: Reader, keeps_none: bool, value: object
) -> dict[Any, Any] | None:
    """Return the entries of a mapping; those of another type are left out."""
    if not isinstance(value, dict):
        return None
    entries = ((read_key(key), read(entry)) for key, entry in value.items())
    known = ((key, entry) for key, entry in entries if key is not None)
    return {key: entry for key, entry in known if keeps_none or entry is not None}


def _bounds(value: object) -> Bounds | None:
    ends = [value.get("low"), value.get("high")] if isinstance(value, dict) else value
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        return None
    low, high = map(finite, ends)
    return None if low is None or high is None else (low, high)


def _known_value(known: tuple[Any, ...], value: object) -> Any:
    return next((each for each in known if type(each) is type(value) and each == value), None)


def _whole_number(value: object) -> int | None:
    number = finite(value)
    return int(number) if number is not None and abs(number) < LARGEST_INTEGER else None


def _text(value: object) -> str | None:
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value) if is_plain else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


_EMPTY: dict[Any, Callable[[], Any]] = {tuple: tuple, list: list, Mapping: dict, dict: dict}
_PLAIN: dict[Any, Reader] = {
    Any: lambda value: value,
    float: finite,
    int: _whole_number,
    str: _text,
    bool: _flag,
}


def _number_key(key: object) -> int | None:
    """Return a key that is a whole number, which JSON writes as text."""
    return int(key) if isinstance(key, str) and key.isdecimal() else None


_KEYS: dict[Any, Reader] = {str: str, int: _number_key}
