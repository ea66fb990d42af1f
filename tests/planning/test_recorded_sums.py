"""Sums are believed only where one of them, of whole numbers, is what was recorded."""

import numpy as np
import pytest

from brimful.planning.family import SUMMANDS, values_at
from brimful.planning.family_key import StepSize, TraceFamilyKey, family_keys_of
from brimful.planning.parametric import Irregular
from brimful.planning.recorded_sums import TooFew, constant_and_part, constants_of, sums_of
from brimful.planning.step import Lora, StepSpec


def _size(ranks: int, rank: int) -> StepSize:
    return StepSize(4, 128, rank, 128, 384, ranks, 256 // ranks)


SIZES = (_size(4, 4), _size(2, 6), _size(8, 10))


def _key(*, ranks: int = 2) -> TraceFamilyKey:
    return family_keys_of(
        StepSpec(config_json="{}", sequence_length=1024, adapter=Lora(4), ranks=ranks)
    )[0]


def test_what_is_sent_is_a_sum_of_parts_and_what_is_received_of_wholes() -> None:
    sent = [
        7 * size.product("P") + 3 * size.product("rP") + 5 * size.product("A") for size in SIZES
    ]
    received = [11 + 2 * size.product("r") + 4 * size.product("RA") for size in SIZES]

    sums = sums_of(_key(), SIZES, np.array([sent, received]).T)

    assert sums.T.tolist() == [[7, 3, 5, 0, 0, 0], [0, 0, 0, 11, 2, 4]]


def test_what_is_no_sum_of_whole_numbers_is_refused() -> None:
    with pytest.raises(Irregular):
        sums_of(_key(), SIZES, np.array([[1], [5], [2]]))


def test_two_recordings_are_too_few_for_three_numbers() -> None:
    with pytest.raises(TooFew):
        sums_of(_key(), SIZES[:2], np.array([[1], [5]]))


def test_updates_are_sums_of_what_is_trained() -> None:
    numbers = np.array([[3], [0], [0], [0], [2], [9]])
    values = np.stack([values_at(numbers, size) for size in SIZES])

    assert np.array_equal(constants_of(_key(), ("", "rP", "A"), SIZES, values), numbers)
    with pytest.raises(Irregular):
        constants_of(_key(), ("", "rP", "A"), SIZES, values + np.array([[0], [0], [1]]))


def test_a_whole_model_has_no_parts_among_its_constants() -> None:
    found = constants_of(_key(ranks=1), ("", "r"), SIZES, np.array([[14], [16], [20]]))

    assert found.ravel().tolist() == [10, 1, 0]
    assert len(found) == SUMMANDS.index("P")


def test_two_checks_tell_a_constant_from_a_share() -> None:
    checks = (_size(2, 16), _size(8, 5))
    values = np.array([[6 + 3 * size.part] for size in checks])

    assert constant_and_part(_key(), checks, values) == (6, 3)
    assert constant_and_part(_key(ranks=1), checks[:1], values[:1]) == (values[0], 0)
    with pytest.raises(Irregular):
        constant_and_part(_key(), checks, values + np.array([[0], [1]]))
