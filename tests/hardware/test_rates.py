"""Rates say how fast the closest thing is that was told apart, and never make up what nobody
measured.
"""

import dataclasses
import json

import pytest

from brimful.hardware.rates import CLASSES, MATRIX_CLASSES, SIXTEEN_BIT, THIN, THIN_BELOW, Rates


def _rates() -> Rates:
    return Rates(
        flop_per_s={
            "matrix": {"fp32": 1e11, "bf16": 2e11},
            THIN: {"bf16": 5e10},
            "attention": {"bf16": 3e10},
        },
        bytes_per_s={
            "pointwise": 1e10,
            "copy": 8e9,
            f"copy{SIXTEEN_BIT}": 2e9,
            "silu": 5e9,
            "transcendental": 4e9,
        },
        cached_bytes_per_s={"pointwise": 5e10, "silu": 2e10},
        cache_bytes=1 << 20,
        share=(0.8, 1.3),
        source="by hand",
    )


def test_an_operator_that_was_told_apart_goes_before_its_class() -> None:
    assert _rates().moving("transcendental", "silu", sixteen_bit=False, num_bytes=1 << 30) == 5e9
    assert _rates().moving("transcendental", "exp", sixteen_bit=False, num_bytes=1 << 30) == 4e9


def test_sixteen_bit_operands_have_a_rate_of_their_own_only_where_they_were_told_apart() -> None:
    assert _rates().moving("copy", "clone", sixteen_bit=True, num_bytes=1 << 30) == 2e9
    assert _rates().moving("pointwise", "add", sixteen_bit=True, num_bytes=1 << 30) == 1e10


@pytest.mark.parametrize(("num_bytes", "rate"), [(1 << 20, 5e10), ((1 << 20) + 1, 1e10)])
def test_what_fits_the_cache_moves_at_its_rate(num_bytes: int, rate: float) -> None:
    assert _rates().moving("pointwise", "add", sixteen_bit=False, num_bytes=num_bytes) == rate


def test_what_was_not_told_apart_in_the_cache_moves_as_from_memory() -> None:
    assert _rates().moving("copy", "clone", sixteen_bit=False, num_bytes=64) == 8e9


def test_an_unknown_bandwidth_is_an_error() -> None:
    with pytest.raises(KeyError, match="gather"):
        _rates().moving("gather", "embedding", sixteen_bit=False, num_bytes=64)


@pytest.mark.parametrize(
    ("dtype", "smallest", "rate"),
    [("bf16", THIN_BELOW - 1, 5e10), ("bf16", THIN_BELOW, 2e11), ("fp32", 8, 1e11)],
)
def test_thin_products_have_a_rate_of_their_own_where_they_were_told_apart(
    dtype: str, smallest: int, rate: float
) -> None:
    assert _rates().computing("matrix", dtype, smallest=smallest) == rate


def test_only_products_of_two_matrices_are_thin() -> None:
    assert _rates().computing("attention", "bf16", smallest=1) == 3e10


@pytest.mark.parametrize(
    ("kind", "dtype"), [("attention", "fp32"), ("batched matrix", "bf16"), ("matrix", "fp16")]
)
def test_another_types_rate_is_never_given_instead(kind: str, dtype: str) -> None:
    with pytest.raises(KeyError):
        _rates().computing(kind, dtype, smallest=64)


def test_rates_survive_json() -> None:
    for rates in (_rates(), dataclasses.replace(_rates(), share_unpacking=(0.8, 1.4))):
        assert Rates.from_json(json.loads(json.dumps(rates.to_json()))) == rates


def test_earlier_versions_read_rates_that_do_not_tell_unpacking_apart() -> None:
    assert "share_unpacking" not in _rates().to_json()


def test_a_description_with_another_key_is_an_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        Rates.from_json({**_rates().to_json(), "colour": "red"})


def test_classes_with_arithmetic_are_classes() -> None:
    assert set(MATRIX_CLASSES) < set(CLASSES)
