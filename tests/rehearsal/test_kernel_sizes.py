"""Operations and shapes of products, and kernels of operators on lists."""

import pytest
import torch

from brimful.planning.work import LIST_ELEMENTS
from brimful.rehearsal.kernel_sizes import NO_LIST, attention_product, launches, lists_of, product


def test_a_product_counts_two_operations_for_every_pair_of_elements() -> None:
    left, right = torch.empty(3, 5), torch.empty(5, 7)

    assert product("matrix", "mm", (left, right), left @ right) == (210, 1, 3, 7, 5)


def test_a_batched_product_counts_every_product_of_the_batch() -> None:
    left, right = torch.empty(2, 3, 5), torch.empty(2, 5, 7)

    assert product("batched matrix", "bmm", (left, right), None) == (420, 2, 3, 7, 5)
    assert product("batched matrix", "baddbmm", (None, left, right), None) == (420, 2, 3, 7, 5)


def test_other_operators_are_no_products() -> None:
    assert product("pointwise", "add", (torch.empty(3), torch.empty(3)), None) == (0, 1, 0, 0, 0)


def test_causal_attention_computes_half_of_the_scores() -> None:
    whole = attention_product((2, 4, 16, 8), 32, causal=False, backward=False)
    causal = attention_product((2, 4, 16, 8), 32, causal=True, backward=False)

    assert whole == (4 * 8 * 16 * 32 * 8, 8, 16, 32, 8)
    assert 2 * causal[0] == whole[0]


@pytest.mark.parametrize(
    ("limit", "tensors", "elements", "count"),
    [(30, 30, 1, 1), (30, 31, 1, 2), (30, 1, LIST_ELEMENTS + 1, 2), (*NO_LIST, 1)],
)
def test_a_kernel_takes_so_many_tensors_and_elements(
    limit: int, tensors: int, elements: int, count: int
) -> None:
    assert launches(limit, tensors, elements) == count


def test_only_operators_on_lists_have_lists() -> None:
    three = [torch.empty(4) for _ in range(3)]

    assert lists_of("_foreach_add", [three, three]) == (64, 3, 12)
    assert lists_of("cat", [three]) == NO_LIST
