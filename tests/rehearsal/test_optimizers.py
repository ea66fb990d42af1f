from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from brimful.planning.step import StepSpec
from brimful.rehearsal.optimizers import optimizer_of


def _states_bytes(optimizer: Any, parameter: nn.Parameter) -> int:
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return sum(value.nbytes for value in optimizer.state[parameter].values())


@pytest.mark.parametrize(
    ("optimizer", "rows", "state_bytes"),
    [
        ("fused", 512, 2 * 4 * 512 * 256 + 4),
        ("foreach", 512, 2 * 4 * 512 * 256 + 4),
        ("for_loop", 512, 2 * 4 * 512 * 256 + 4),
        ("8bit", 512, 2 * (512 * 256 + 4 * 512)),
        ("8bit", 15, 2 * 4 * 15 * 256),
        ("paged_8bit", 512, 2 * 4 * 512),
        ("paged_8bit", 64, 2 * (64 * 256 + 4 * 64)),
    ],
)
def test_states_take_what_the_variant_says(step: Callable[..., StepSpec], optimizer: str, rows: int, state_bytes: int) -> None:
    parameter = nn.Parameter(torch.zeros(rows, 256))

    assert _states_bytes(optimizer_of(step(optimizer=optimizer), [parameter]), parameter) == state_bytes


def test_matrices_decay_and_vectors_do_not(step: Callable[..., StepSpec]) -> None:
    matrix, vector = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))

    first, second = optimizer_of(step(), [matrix, vector]).param_groups

    assert (first["params"], first["weight_decay"] > 0) == ([matrix], True)
    assert (second["params"], second["weight_decay"]) == ([vector], 0.0)
