"""A step computed twice shows a machine that computes wrongly, and nothing where kernels differ."""

import pytest
import torch
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion
from torch import Tensor, nn

from brimful.base.errors import TrainingStopped
from brimful.training.replay import ReplayCheck

CPU = torch.device("cpu")


class Work:
    """Gradients of a layer, to the first of which `added[call]` is added."""

    def __init__(self, added: tuple[float, ...]) -> None:
        self.layer, self.added, self.calls = nn.Linear(3, 2), added, 0
        self.parameters = dict(self.layer.named_parameters())

    def gradients(self) -> Tensor:
        self.layer.zero_grad()
        loss = (self.layer(torch.rand(4, 3)) ** 2).sum()  # a draw, as of dropout
        loss.backward()
        assert self.layer.weight.grad is not None
        self.layer.weight.grad[0, 0] += self.added[self.calls]
        self.calls += 1
        return loss.detach()


@pytest.mark.parametrize(("step", "calls"), [(0, 1), (1, 1), (4, 2), (5, 1), (8, 2)])
def test_every_so_many_steps_are_computed_twice_and_the_generator_ends_where_it_would(
    step: int, calls: int
) -> None:
    work, check = Work((0.0,) * 2), ReplayCheck(4, CPU, pytest.fail)
    torch.manual_seed(0)
    work.gradients()
    expected, work.calls = torch.get_rng_state(), 0
    torch.manual_seed(0)
    check.compute(step, work.parameters, work.gradients)
    assert work.calls == calls
    assert torch.equal(torch.get_rng_state(), expected)


def test_without_a_number_of_steps_nothing_is_computed_twice() -> None:
    work = Work((0.0,))
    ReplayCheck(None, CPU, pytest.fail).compute(4, work.parameters, work.gradients)
    assert work.calls == 1


@pytest.mark.parametrize("wrong", [0, 1])
def test_one_computation_of_three_that_differs_is_a_fault(wrong: int, refuses: Refuses) -> None:
    added = [0.0] * 5
    added[2 + wrong] = 1e-3
    work, check = Work(tuple(added)), ReplayCheck(2, CPU, pytest.fail)
    check.compute(2, work.parameters, work.gradients)
    with refuses(TrainingStopped, names=["step 5", "(weight)", "alike is 3"]):
        check.compute(4, work.parameters, work.gradients)


def test_a_device_that_never_gives_the_same_bits_is_told_once_and_left_alone(
    snapshot: SnapshotAssertion,
) -> None:
    said: list[str] = []
    work, check = Work((0.0, 1.0, 2.0, 0.0)), ReplayCheck(2, CPU, said.append)
    check.compute(2, work.parameters, work.gradients)
    check.compute(4, work.parameters, work.gradients)
    assert work.calls == 4
    assert len(said) == 1
    assert said[0] == snapshot
