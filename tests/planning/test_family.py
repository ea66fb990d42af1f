"""Numbers of a family are sums of products of what it leaves open."""

import numpy as np
import pytest

from brimful.planning.architecture import Monomial, widths
from brimful.planning.family import Sums, Term, joined_sums
from brimful.planning.family_key import StepSize


def _sums(*summands: tuple[int, int, int]) -> Sums:
    return Sums(4, *np.array(summands, np.int64).reshape(-1, 3).T)


def test_sums_are_taken_over_their_summands() -> None:
    sums = _sums((0, 2, 1), (3, 1, 0), (0, -1, 0), (3, 4, 1))

    assert sums.at(np.array([10, 3])).tolist() == [-4, 0, 0, 22]
    assert sums.moved(2, np.array([1, 0, 0, 0])).at(np.array([10, 3])).tolist() == [22, -4]
    assert _sums().at(np.array([1])).tolist() == [0, 0, 0, 0]


def test_equal_summands_are_gathered_in_order_and_nothing_is_left_of_zeros() -> None:
    gathered = _sums((3, 1, 0), (0, 2, 1), (3, 5, 0), (1, 4, 0), (1, -4, 0)).gathered()

    assert gathered.places_A.tolist() == [0, 3]
    assert gathered.factors_A.tolist() == [2, 6]
    assert gathered.terms_A.tolist() == [1, 0]


def test_differences_are_those_of_the_numbers() -> None:
    one, other = _sums((0, 2, 1), (3, 5, 0)), _sums((0, 2, 1), (3, 1, 0), (2, 7, 1))
    values = np.array([11, 13])

    assert (one.less(other).at(values) == one.at(values) - other.at(values)).all()
    assert (joined_sums([one, other]).at(values) == one.at(values) + other.at(values)).all()
    assert not len(one.less(one).places_A)


@pytest.mark.parametrize("product", ["", "T", "rBT", "BTT", "V", "BU", "C", "L", "rL", "BG", "E"])
def test_a_term_is_affine_in_the_micro_batch_and_the_pieces_of_the_loss(product: str) -> None:
    network = widths(h=192, d=24, n=12, g=4, f=328, v=777, blocks=8)
    size = StepSize(5, 129, 7, 129, 300)

    constant, sequence, token = Term(product, Monomial("hd", 64)).lines(size, network)

    assert constant + 5 * sequence + 300 * token == 192 * 24 // 64 * size.product(product)
