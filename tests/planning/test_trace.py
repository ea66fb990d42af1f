import dataclasses

import numpy as np
import pytest

from brimful.planning.trace import KINDS, Names, Trace, in_one_pass, same_events
from brimful.planning.work import GLOBAL


def _trace(events: list[int], sizes: list[int]) -> Trace:
    zeros = np.zeros(len(sizes), np.int32)
    return Trace(
        events_E=np.array(events, np.int32),
        event_layers_E=np.full(len(events), GLOBAL, np.int32),
        sizes_S=np.array(sizes, np.int64),
        kinds_S=zeros,
        places_S=zeros,
        layers_S=zeros + GLOBAL,
        places=("somewhere",),
    )


def test_live_bytes_follow_births_and_deaths() -> None:
    assert _trace([1, 2, -1, 3, -2], [10, 5, 7]).live_E().tolist() == [10, 15, 5, 12, 7]


def test_what_is_alive_stands_in_the_order_of_births() -> None:
    trace = _trace([1, 2, -1, 3, -2], [10, 5, 7])

    assert trace.alive_at(1).tolist() == [0, 1]
    assert trace.alive_at(3).tolist() == [1, 2]


def test_a_step_in_one_pass_has_no_second_micro_batch() -> None:
    """Storages: a weight; inputs and gradient of the first micro-batch, inputs and activation of
    the second one; a temporary of the update.
    """
    accumulating = dataclasses.replace(
        _trace([1, 2, 3, -2, 4, 5, -4, -5, 6, -6, -3], [1, 2, 4, 8, 16, 32]),
        marks={"inputs 2": 1, "inputs 3": 3, "forward 3": 5, "optimizer 2": 8, "between steps": 10},
    )

    alone = in_one_pass(accumulating)

    assert alone.events_E.tolist() == [1, 2, 3, -2, 6, -6, -3]
    assert alone.live_E().tolist() == [1, 3, 7, 5, 37, 5, 1]
    assert alone.marks == {"inputs 2": 1, "optimizer 2": 4, "between steps": 6}
    assert in_one_pass(alone) is alone


def test_sizes_may_exceed_what_32_bits_hold() -> None:
    assert _trace([1, 2], [3_000_000_000, 3_000_000_000]).live_E().max() == 6_000_000_000


def test_traces_that_differ_in_sizes_have_the_same_events_and_those_of_other_kinds_have_not() -> (
    None
):
    one = _trace([1, -1], [10])

    assert same_events(one, _trace([1, -1], [20]))
    assert not same_events(one, _trace([1], [10]))
    assert not same_events(
        one, dataclasses.replace(one, kinds_S=np.array([KINDS.index("gradients")], np.int32))
    )


def test_names_are_made_when_they_are_asked_for() -> None:
    made = []

    def name_of(index: int) -> str:
        made.append(index)
        return f"name {index}"

    names = Names(4, name_of)

    assert len(names) == 4
    assert not made
    assert (names[1], names[-1]) == ("name 1", "name 3")
    assert made == [1, 3]
    assert names[1:3] == ["name 1", "name 2"]
    assert list(names) == [f"name {index}" for index in range(4)]
    with pytest.raises(IndexError):
        names[4]
