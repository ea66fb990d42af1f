"""Gradients of several ranks add up, whatever the buckets, and while others are computed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import nn

from brimful.training import gradient_sum
from brimful.training.gradient_sum import GradientSum
from brimful.training.world import World

Ranks = Callable[..., list[Any]]


class _Network(nn.Module):
    """Three layers, of which one is left out of the sum now and then, and one always."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.sometimes, self.never = nn.Linear(4, 2), nn.Linear(4, 2)

    def loss(self, rank: int, *, sometimes: bool) -> torch.Tensor:
        inputs = torch.arange(6.0).view(2, 3) + rank
        hidden = self.first(inputs).tanh()
        outputs = self.second(hidden) + (self.sometimes(hidden) if sometimes else 0)
        return outputs.square().sum()


def _gradients(network: _Network) -> list[Any]:
    return [None if each.grad is None else each.grad.tolist() for each in network.parameters()]


@pytest.mark.parametrize("bucket_bytes", [1, 64, 1 << 20])
@pytest.mark.parametrize("overlaps", [False, True])
def test_every_rank_holds_the_sum_of_all_gradients_and_what_nobody_used_has_none(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, bucket_bytes: int, overlaps: bool
) -> None:
    monkeypatch.setattr(gradient_sum, "BUCKET_BYTES", bucket_bytes)

    def act(world: World) -> Any:
        network = _Network()
        summed = GradientSum(world, list(network.parameters()))

        def compute() -> torch.Tensor:
            network.zero_grad()
            network.loss(world.rank, sometimes=False).backward()  # a first pass, which adds
            if overlaps:
                summed.begin_last_pass()
            loss = network.loss(world.rank, sometimes=world.is_first)
            loss.backward()
            return loss.detach()

        first = summed.compute(compute).item(), _gradients(network)
        again = summed.compute(compute).item(), _gradients(network)
        return [*first, again == first]

    one, other = ranks(2, act)

    network = _Network()
    for rank in range(2):
        network.loss(rank, sometimes=False).backward()
        network.loss(rank, sometimes=rank == 0).backward()
    assert one == other
    assert one[2]
    expected = network.loss(0, sometimes=True) + network.loss(1, sometimes=False)
    assert one[0] == pytest.approx(expected.item())
    # Ranks differ in what they use, so what nobody used counts as zero.
    wanted = [[0.0]] if overlaps is None else _gradients(network)
    for ours, theirs in zip(one[1], wanted, strict=True):
        if theirs is None:
            assert not torch.tensor(ours).any()
        else:
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))


def test_a_parameter_that_no_rank_used_keeps_having_no_gradient(ranks: Ranks) -> None:
    def act(world: World) -> Any:
        network = _Network()
        summed = GradientSum(world, list(network.parameters()))

        def compute() -> torch.Tensor:
            loss = network.loss(world.rank, sometimes=True)
            loss.backward()
            return loss.detach()

        summed.compute(compute)
        return [name for name, each in network.named_parameters() if each.grad is None]

    assert ranks(2, act) == [["never.weight", "never.bias"]] * 2


@pytest.mark.parametrize("overlaps", [False, True])
def test_all_ranks_learn_that_memory_ran_out_on_one_and_can_go_on(
    ranks: Ranks, overlaps: bool, snapshot: SnapshotAssertion
) -> None:
    def act(world: World) -> Any:
        network, told = _Network(), []
        summed = GradientSum(world, list(network.parameters()))

        def compute(*, fails: bool) -> torch.Tensor:
            if overlaps:
                summed.begin_last_pass()
            if fails:
                raise torch.OutOfMemoryError("out of memory. Tried to allocate 1.00 GiB")
            loss = network.loss(world.rank, sometimes=False)
            loss.backward()
            return loss.detach()

        try:
            summed.compute(lambda: compute(fails=world.rank == 1))
        except torch.OutOfMemoryError as error:
            told.append(str(error))
        network.zero_grad()
        return [*told, summed.compute(lambda: compute(fails=False)).item()]

    one, other = ranks(2, act)

    assert one == other
    assert one[0] == snapshot
    network = _Network()
    expected = sum(network.loss(rank, sometimes=False).item() for rank in range(2))
    assert one[1] == pytest.approx(expected)
