import os
import time
from collections import Counter, OrderedDict, defaultdict, namedtuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.verify import plain
from brimful.verify.plain import ClosedError, NotPlainError, decode, encode

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
)
HASHABLE = st.recursive(
    SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=8,
)


def typed(value: object) -> object:
    """A value with its types, so that 1, 1.0 and True differ."""
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    if isinstance(value, dict):
        return dict, sorted(repr((typed(key), typed(item))) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return type(value), sorted(repr(typed(item)) for item in value)
    return type(value), repr(value)


@settings(max_examples=60, deadline=None)
@given(PLAIN)
def test_plain_values_arrive_as_they_were(value: object) -> None:
    assert typed(decode(encode(value))) == typed(value)


def test_extremes_arrive_as_they_were() -> None:
    for value in (
        10**5000,
        -(2**64),
        2**63 - 1,
        float("inf"),
        "\ud800",
        b"\x00\xff",
        int,
        type(None),
        [],
        {},
        (),
    ):
        assert decode(encode(value)) == value


def test_subclasses_arrive_as_what_they_extend_with_no_behaviour_of_their_own() -> None:
    class Any(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    pair = namedtuple("pair", "a b")

    assert [
        type(decode(encode(value)))
        for value in (Any(3), Counter("a"), OrderedDict(), defaultdict(list), pair(1, 2))
    ] == [
        int,
        dict,
        dict,
        dict,
        tuple,
    ]
    assert decode(encode(Any(3))) != 4


def test_what_is_left_in_an_iterator_arrives_as_an_iterator() -> None:
    assert list(decode(encode(map(str, [1, 2])))) == ["1", "2"]


def test_what_is_not_plain_is_refused() -> None:
    holds_itself: list[object] = []
    holds_itself.append(holds_itself)
    for value in (
        object(),
        print,
        lambda: 1,
        holds_itself,
        NotPlainError,
        "x" * (plain.MAX_FRAME_BYTES + 1),
    ):
        with pytest.raises(NotPlainError):
            encode(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"set": [[1]]}',
        b'{"call": [1]}',
        b'{"int": 3}',
        b'{"a": 1, "b": 2}',
        b"[" * 100_000,
        b'{"type": "Popen"}',
        b"\xff",
        b'{"set": [{"list": []}]}',
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(NotPlainError):
        decode(data)


def test_frames_keep_their_borders_and_what_follows_stays_unread() -> None:
    reading, writing = os.pipe()
    plain.send(writing, b"first")
    plain.send(writing, b"")

    assert (plain.receive(reading), plain.receive(reading, time.monotonic() + 1)) == (b"first", b"")
    with pytest.raises(TimeoutError):
        plain.receive(reading, time.monotonic() + 0.01)
    os.write(writing, b"\xff\xff\xff\xff")
    with pytest.raises(ClosedError):
        plain.receive(reading)
    os.close(writing)
    with pytest.raises(ClosedError):
        plain.receive(reading)
    os.close(reading)


def test_writing_to_nobody_is_told() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(ClosedError):
        plain.send(writing, b"x")
    os.close(writing)
