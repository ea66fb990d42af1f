"""Rows of weights on several ranks: every row lies on exactly one, also where ranks get none."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from brimful.training.memory_errors import lies_in_parts
from brimful.training.sharding import give_up_gathered, like, own_rows, shard, within
from brimful.training.world import World

Ranks = Callable[..., list[Any]]


class _Blocks(nn.Module):
    """Two blocks whose rows do not come out even, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(5, 5) for _ in range(2)])
        self.head = nn.Linear(5, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def test_parts_are_rows_that_come_back_whole(ranks: Ranks) -> None:
    def act(world: World) -> Any:
        model = _Blocks()
        whole = {name: each.detach().clone() for name, each in model.named_parameters()}
        shard(model, world, torch.device("cpu"))
        rows = {
            name: [own_rows(each)[1], own_rows(each)[0].tolist()]
            for name, each in model.named_parameters()
        }
        again = [
            torch.equal(like(each, whole[name]).full_tensor(), whole[name])
            for name, each in model.named_parameters()
        ]
        return [rows, lies_in_parts(model), all(again)]

    parts = ranks(3, act)

    model = _Blocks()
    assert [part[1:] for part in parts] == [[True, True]] * 3
    assert not lies_in_parts(model)
    for name, parameter in model.named_parameters():
        held = [row for rows, *_ in parts for row in rows[name][1]]
        torch.testing.assert_close(torch.tensor(held), parameter)
        firsts = [rows[name][0] for rows, *_ in parts if rows[name][1]]
        counts = [len(rows[name][1]) for rows, *_ in parts]
        assert firsts == [sum(counts[:rank]) for rank, count in enumerate(counts) if count]


def test_a_part_of_the_model_may_be_called_and_gradients_are_sums(ranks: Ranks) -> None:
    inputs = torch.arange(10.0).view(2, 5)

    def act(world: World) -> Any:
        model = _Blocks()
        shard(model, world, torch.device("cpu"))

        def loss() -> torch.Tensor:
            hidden = model.blocks[1](model.blocks[0](inputs[world.rank :][:1]))
            return (hidden @ model.head.weight.T).square().sum()

        with torch.no_grad():
            value = within(model, lambda: loss().item())
        give_up_gathered(model)
        within(model, loss).backward()
        return [value, model.head.weight.grad.full_tensor().tolist()]

    ends = ranks(2, act)

    model = _Blocks()
    losses = [
        (model.blocks[1](model.blocks[0](row[None])) @ model.head.weight.T).square().sum()
        for row in inputs
    ]
    sum(losses).backward()
    torch.testing.assert_close(torch.tensor([value for value, _ in ends]), torch.stack(losses))
    for _, gradient in ends:
        torch.testing.assert_close(torch.tensor(gradient), model.head.weight.grad)
