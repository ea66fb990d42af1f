"""A line through two numbers of ranks: what lies in parts takes a share of a whole."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fixture_types import Refuses

from brimful.planning.parametric import Irregular, ParametricTrace
from brimful.planning.parts import through

Line = Callable[..., ParametricTrace]


@pytest.fixture
def line(by_hand: Callable[..., Any]) -> Line:
    """`line(4)` is a step whose weights, gradients and states take a quarter of 400 bytes each."""

    def make(ranks: int, whole: int = 400) -> ParametricTrace:
        trace = by_hand().at(1)
        base_S = np.array([whole // ranks] * 3 + [70, 7], np.int64)
        nothing_S = np.zeros(5, np.int64)
        return ParametricTrace(trace, base_S, nothing_S, nothing_S, 32, 64)

    return make


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_any_number_of_ranks_takes_its_share(line: Line, ranks: int) -> None:
    parts = through(line(2), line(4), (2, 4), 16)

    assert parts.serves(ranks)
    assert np.array_equal(parts.at(ranks).base_S, line(ranks).base_S)


@pytest.mark.parametrize("ranks", [1, 3, 32])
def test_ranks_that_do_not_divide_the_rows_are_not_served(line: Line, ranks: int) -> None:
    assert not through(line(2), line(4), (2, 4), 16).serves(ranks)


def test_what_grows_with_the_ranks_or_is_another_step_is_refused(
    line: Line, refuses: Refuses
) -> None:
    with refuses(Irregular):
        through(line(4), line(2), (2, 4), 16)
    with refuses(Irregular):
        other = dataclasses.replace(line(4), base_S=np.zeros(3, np.int64))
        through(line(2), other, (2, 4), 16)
