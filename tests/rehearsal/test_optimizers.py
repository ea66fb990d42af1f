from typing import Any

import pytest
import torch
from fixture_types import MakeStep
from torch import nn
from torch.profiler import ProfilerActivity, profile

from brimful.recipe import OptimizerRecipe
from brimful.rehearsal.optimizers import optimizer_for, optimizer_of
from brimful.training.optim import build_optimizer, named_states


def _states_bytes(optimizer: Any, parameter: nn.Parameter) -> int:
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    states = optimizer.state[parameter].values()
    return sum(value.nbytes for value in states if isinstance(value, torch.Tensor))


@pytest.mark.parametrize(
    ("optimizer", "rows", "state_bytes"),
    [
        ("fused", 512, 2 * 4 * 512 * 256 + 4),
        ("foreach", 512, 2 * 4 * 512 * 256 + 4),
        ("for_loop", 512, 2 * 4 * 512 * 256 + 4),
        ("rounded", 512, 2 * 4 * 512 * 256),
        ("8bit", 512, 2 * (512 * 256 + 4 * 512)),
        ("rounded_8bit", 512, 2 * (512 * 256 + 4 * 512)),
        ("8bit", 15, 2 * 4 * 15 * 256),
        ("paged_8bit", 512, 2 * 4 * 512),
        ("paged_8bit", 64, 2 * (64 * 256 + 4 * 64)),
    ],
)
def test_states_take_what_the_variant_says(
    step: MakeStep, optimizer: str, rows: int, state_bytes: int
) -> None:
    parameter = nn.Parameter(torch.zeros(rows, 256))

    assert (
        _states_bytes(optimizer_of(step(optimizer=optimizer, cuda=True), [parameter]), parameter)
        == state_bytes
    )


def test_matrices_decay_and_vectors_do_not(step: MakeStep) -> None:
    matrix, vector = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))

    first, second = optimizer_of(step(), [matrix, vector]).param_groups

    assert (first["params"], first["weight_decay"] > 0) == ([matrix], True)
    assert (second["params"], second["weight_decay"]) == ([vector], 0.0)


def test_a_rehearsed_update_by_muon_takes_what_the_real_one_takes(
    step: MakeStep,
) -> None:
    taken, states = [], []
    for rehearsed in (True, False):
        blocks = nn.ModuleList(nn.Linear(128, 256) for _ in range(2))
        model = nn.ModuleDict({"embed": nn.Embedding(8, 128), "blocks": blocks})
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer = (
            optimizer_for(step(optimizer="muon", cuda=False), model)
            if rehearsed
            else build_optimizer(model, OptimizerRecipe(learning_rate=1e-3), variant="muon")
        )
        taken.append([_allocated_bytes(optimizer) for _ in range(2)])
        states.append({name: each.shape for name, each in named_states(model, optimizer).items()})

    assert taken[0] == taken[1]
    assert states[0] == states[1]
    assert "blocks.0.weight:momentum_buffer" in states[0]
    assert "embed.weight:exp_avg_sq" in states[0]


def _allocated_bytes(optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """Peak of an update above what stood before it, and what it leaves."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        optimizer.step()
    rows, nodes = [], list(profiler.profiler.kineto_results.experimental_event_tree())  # type: ignore[union-attr]
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if node.name == "[memory]":
            rows.append((node.start_time_ns, node.extra_fields.alloc_size))
    sizes = torch.tensor([size for _, size in sorted(rows)]).cumsum(0)
    return int(sizes.max()), int(sizes[-1])


@pytest.mark.parametrize(
    ("variant", "dtype", "bytes_of_an_element"),
    [("8bit", torch.float32, 20), ("rounded_8bit", torch.bfloat16, 28)],
)
def test_on_a_cpu_a_rehearsed_update_of_8_bits_takes_what_bitsandbytes_takes(
    step: MakeStep, variant: str, dtype: torch.dtype, bytes_of_an_element: int
) -> None:
    pytest.importorskip("bitsandbytes")
    taken = []
    for rehearsed in (True, False):
        model = torch.nn.Linear(512, 512).to(dtype)
        parameters = list(model.parameters())
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        real = build_optimizer(model, OptimizerRecipe(learning_rate=1e-3), variant=variant)
        optimizer = (
            optimizer_of(step(optimizer=variant, cuda=False), parameters) if rehearsed else real
        )
        taken.append([_allocated_bytes(optimizer) for _ in range(2)])

    assert taken[0] == taken[1]
    assert taken[0][1] == (pytest.approx(bytes_of_an_element * 512 * 512, rel=1e-4), 0)
