"""What follows from a batch is known beside tensors without values; what a layer computes is not."""

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from brimful.base.errors import PlanError
from brimful.integrations.hf_trainer.known_values import MOST_ELEMENTS, KnownValues

IDS = torch.tensor([[5, 6, 7, 0], [5, 6, 7, 8]])


@pytest.fixture
def values() -> Iterator[KnownValues]:
    with FakeTensorMode(allow_non_fake_inputs=True), KnownValues() as values:
        yield values


def _ids(values: KnownValues) -> torch.Tensor:
    ids_BT = torch.empty(IDS.shape, dtype=IDS.dtype)
    with _disable_current_modes():
        values.know(ids_BT, IDS.clone())
    return ids_BT


def test_counts_and_masks_of_a_batch_can_be_read(values: KnownValues) -> None:
    ids_BT = _ids(values)
    mask_BT = ids_BT != 0

    assert not bool(mask_BT.all())
    assert bool(mask_BT[1].all())
    assert int(mask_BT.sum()) == 7
    assert float(mask_BT.float().mean()) == 7 / 8


def test_what_is_written_in_place_is_followed_through_views(values: KnownValues) -> None:
    ids_BT = _ids(values)
    row_T = ids_BT[0]
    row_T.add_(1)

    assert int(ids_BT.sum()) == int(IDS.sum()) + 4


def test_a_tensor_that_took_an_unknown_value_is_unknown_and_so_are_its_views(
    values: KnownValues,
) -> None:
    ids_BT = _ids(values)
    view_T = ids_BT[0]
    ids_BT.copy_(torch.randn(2, 4))

    assert values.value_of(ids_BT) is None
    assert values.value_of(view_T) is None


def test_random_and_empty_and_very_large_tensors_are_unknown(values: KnownValues) -> None:
    assert values.value_of(torch.randint(3, (4,))) is None
    assert values.value_of(torch.empty(4)) is None
    assert values.value_of(torch.zeros(MOST_ELEMENTS + 1)) is None
    assert values.value_of(torch.zeros(4)) is not None


def test_a_number_that_the_model_computed_may_be_logged_but_not_decide(
    values: KnownValues,
) -> None:
    computed = torch.nn.functional.embedding(_ids(values), torch.randn(10, 3)).sum()

    assert computed.item() == 0.0
    values.in_model = True
    with pytest.raises(PlanError):
        computed.item()


def test_what_a_known_mask_selects_has_a_known_size(values: KnownValues) -> None:
    mask_BT = _ids(values) != 0
    hidden_BTD = torch.randn(2, 4, 3)

    assert hidden_BTD[mask_BT].shape == (7, 3)
    assert mask_BT.nonzero().shape == (7, 2)
    assert int(mask_BT.nonzero().sum()) == int((IDS != 0).nonzero().sum())
