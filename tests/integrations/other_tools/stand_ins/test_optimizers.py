"""Optimizers of other trainers: what stays of a parameter after an update, as on CUDA."""

import pytest
import torch
from torch import nn

from brimful.integrations.other_tools.optimizers import KEPT
from brimful.integrations.other_tools.stand_ins.optimizers import KeptStates, optimizer_in_torch

ROWS, COLUMNS = 64, 4096
COUNT = ROWS * COLUMNS


def _kept_bytes(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> int:
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    states = optimizer.state[parameter].values()
    return sum(each.nbytes for each in states if isinstance(each, torch.Tensor) and each.ndim)


def _of_matrix(name: str, *, embeds: bool = False) -> float:
    """Bytes of the states of a 16-bit matrix, by its elements."""
    matrix = nn.Parameter(torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16))
    optimizer = KeptStates([matrix], KEPT[name], {id(matrix)} if embeds else (), cuda=True)
    return _kept_bytes(optimizer, matrix) / COUNT


@pytest.mark.parametrize(
    ("name", "element_bytes"),
    [
        ("bnb_8bit", 2 * (1 + 4 / 256)),
        ("bnb_paged_8bit", 2 * 4 / 256),
        ("paged_32bit", 0),
        ("adamw_torch_8bit", 2 * (1 + 4 / 256)),
        ("adamw_torch_4bit", 2 * (0.5 + 4 / 128)),
        ("lion_32bit", 4),
        ("lion_8bit", 1 + 4 / 256),
        ("ademamix", 12),
        ("ademamix_8bit", 3 * (1 + 4 / 256)),
    ],
)
def test_an_optimizer_keeps_so_many_bytes_of_an_element(name: str, element_bytes: float) -> None:
    assert _of_matrix(name) == pytest.approx(element_bytes)


@pytest.mark.parametrize(
    ("name", "element_bytes"), [("bnb_8bit", 8), ("adamw_torch_8bit", 2.03125)]
)
def test_the_trainer_keeps_embeddings_of_bitsandbytes_in_fp32(
    name: str, element_bytes: float
) -> None:
    assert _of_matrix(name, embeds=True) == element_bytes


def test_small_tensors_have_states_in_fp32() -> None:
    vector = nn.Parameter(torch.zeros(4095))

    assert _kept_bytes(KeptStates([vector], KEPT["lion_8bit"], (), cuda=True), vector) == 4 * 4095


@pytest.mark.parametrize(
    ("name", "number"),
    [("sgd", 0), ("adagrad", 2 * COUNT), ("rmsprop", 2 * COUNT), ("adafactor", 4 * 4160)],
)
def test_the_code_of_torch_and_transformers_keeps_its_own(name: str, number: int) -> None:
    matrix = nn.Parameter(torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16))

    assert _kept_bytes(optimizer_in_torch(name, [matrix]), matrix) == number


def test_real_bitsandbytes_keeps_as_much() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    for real, name in (
        (bitsandbytes.optim.Lion, "lion_32bit"),
        (bitsandbytes.optim.AdEMAMix, "ademamix"),
    ):
        matrix = nn.Parameter(torch.zeros(ROWS, COLUMNS))
        assert _kept_bytes(real([matrix], optim_bits=32), matrix) == COUNT * _of_matrix(name)
