"""Numbers of a skeleton are sums of products of widths."""

import numpy as np

from brimful.planning.skeleton import Sums


def _sums(*summands: tuple[int, int, int], shape: tuple[int, ...] = (2, 2)) -> Sums:
    return Sums(shape, *np.array(summands, np.int64).reshape(-1, 3).T)


def test_sums_are_taken_over_their_summands() -> None:
    sums = _sums((0, 2, 1), (3, 1, 0), (0, -1, 0), (3, 4, 1))

    assert sums.at(np.array([10, 3])).tolist() == [[-4, 0], [0, 22]]
    assert _sums().at(np.array([1])).tolist() == [[0, 0], [0, 0]]


def test_equal_summands_are_gathered_in_order_and_nothing_is_left_of_zeros() -> None:
    gathered = _sums((3, 1, 0), (0, 2, 1), (3, 5, 0), (1, 4, 0), (1, -4, 0)).gathered()

    assert gathered.places_A.tolist() == [0, 3]
    assert gathered.factors_A.tolist() == [2, 6]
    assert gathered.monomials_A.tolist() == [1, 0]


def test_differences_are_those_of_the_numbers() -> None:
    one, other = _sums((0, 2, 1), (3, 5, 0)), _sums((0, 2, 1), (3, 1, 0), (2, 7, 1))
    values = np.array([11, 13])

    assert (one.less(other).at(values) == one.at(values) - other.at(values)).all()
    assert not len(one.less(one).places_A)
