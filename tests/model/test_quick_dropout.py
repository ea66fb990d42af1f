"""Dropout that draws 16 bits an element: the probability asked for, nothing lost on average, and
the gradient of what was kept.
"""

import pytest
import torch
from torch import nn

from brimful.model.quick_dropout import QuickDropout, drop_quickly, kept_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("dropout", [0.05, 0.1, 0.5])
def test_it_drops_with_the_probability_that_is_asked_for(dropout: float) -> None:
    torch.manual_seed(0)
    count = 400_000

    kept, factor = kept_of(torch.Size([count // 4 - 1, 4]), dropout, CPU)

    spread = (dropout * (1 - dropout) / count) ** 0.5
    assert kept.float().mean().item() == pytest.approx(1 - dropout, abs=4 * spread)
    assert factor == pytest.approx(1 / (1 - dropout), rel=2e-5)


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = kept_of(torch.Size([400_000]), 0.5, CPU)[0].float() - 0.5

    for distance in (1, 2, 3, 4, 5):
        both = (kept[distance:] * kept[:-distance]).mean().item()
        assert abs(both) < 4 * 0.25 / 400_000**0.5


def test_the_gradient_is_that_of_what_was_kept() -> None:
    layer, values = QuickDropout(0.25), torch.randn(40, 50, requires_grad=True)

    dropped = layer(values)
    dropped.sum().backward()

    assert values.grad is not None
    torch.testing.assert_close(dropped, values * values.grad)
    assert values.grad.unique().tolist() == pytest.approx([0, 4 / 3])


def test_only_training_drops_and_one_seed_drops_the_same() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2), nn.Dropout(0.0))
    values = torch.ones(1000)
    drop_quickly(model)
    torch.manual_seed(1)
    first = model[0](values)
    torch.manual_seed(1)

    assert torch.equal(model[0](values), first)
    assert torch.equal(model[2](values), values)
    assert torch.equal(model.eval()[0](values), values)
