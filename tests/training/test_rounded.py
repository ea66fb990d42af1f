"""AdamW for bf16 weights: rounding that is right on average, draws that repeat, and the steps of
AdamW in fp32 up to rounding.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from brimful.recipe import OptimizerRecipe
from brimful.training.optim import (
    StepGuard,
    build_optimizer,
    guarded_update,
    load_named_states,
    named_states,
)
from brimful.training.precision import Precision
from brimful.training.rounded import round_at_random_

BF16, CPU = Precision("bf16"), torch.device("cpu")
SETTINGS = OptimizerRecipe(learning_rate=1e-3)
VARIANTS = ("rounded", "rounded_8bit")


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def _optimizer(model: nn.Module, variant: str, seed: int = 7) -> torch.optim.Optimizer:
    if "8bit" in variant:
        pytest.importorskip("bitsandbytes")
    return build_optimizer(model, SETTINGS, variant=variant, seed=seed)


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    """Guarded updates towards a fixed function; the batch of a step follows from its number."""
    guard, dtype = StepGuard.fresh(BF16, CPU), next(model.parameters()).dtype
    for number in numbers:
        inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(number)).to(dtype)
        model.zero_grad()
        loss = (model(inputs) - inputs.roll(1, 1)).float().square().mean()
        loss.backward()
        guarded_update(optimizer, guard, BF16, loss=loss.detach(), clip_norm=1.0)


def _weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])


def _round(values: Tensor, seed: int) -> Tensor:
    rounded = torch.empty(values.shape, dtype=torch.bfloat16)
    round_at_random_(rounded, values.clone(), torch.Generator().manual_seed(seed))
    return rounded.float()


def test_values_become_one_of_their_two_neighbours_and_are_right_on_average() -> None:
    """A quarter of the way from 1 to the next bf16 number, 1 + 1/128, and the same below zero."""
    value = 1 + 0.25 / 128
    for sign in (1, -1):
        rounded = _round(torch.full((100_000,), sign * value), seed=1)

        assert set(rounded.tolist()) == {sign * 1.0, sign * (1 + 1 / 128)}
        # The share of the upper neighbour: its standard error is 0.0014.
        assert (rounded != sign).float().mean() == pytest.approx(0.25, abs=0.007)


def test_numbers_of_bf16_stay_as_they_are() -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -3.5, 2.0**-130, float("inf"), -float("inf")])

    assert torch.equal(_round(values, seed=3), values)
    assert _round(torch.tensor([float("nan")]), seed=3).isnan().all()


def test_updates_below_half_the_distance_of_two_numbers_are_not_lost() -> None:
    """200 updates of about 1e-4 on weights of 1, whose neighbour is 1/128 away: to the nearest,
    nothing would ever happen.
    """
    weight = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    model = nn.ParameterDict({"weight": weight})
    settings = SETTINGS.model_copy(update={"learning_rate": 1e-4, "weight_decay": 0.0})
    optimizer = build_optimizer(model, settings, variant="rounded")
    guard = StepGuard.fresh(BF16, CPU)
    for _ in range(200):
        weight.grad = torch.ones_like(weight)
        guarded_update(optimizer, guard, BF16, loss=torch.zeros(()), clip_norm=1.0)

    assert weight.float().mean().item() == pytest.approx(1 - 200 * 1e-4, abs=2e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_few_steps_stay_near_those_of_adamw_in_fp32(variant: str) -> None:
    start, plain, rounded = _model(), _model(), _model().bfloat16()
    _steps(plain, build_optimizer(plain, SETTINGS, variant="fused"), range(30))
    _steps(rounded, _optimizer(rounded, variant), range(30))

    moved = [_weights(each) - _weights(start) for each in (plain, rounded)]
    assert torch.cosine_similarity(*moved, dim=0) > 0.97
    assert {parameter.dtype for parameter in rounded.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stored_optimizer_goes_on_bit_for_bit(variant: str) -> None:
    whole = _model().bfloat16()
    optimizer = _optimizer(whole, variant)
    _steps(whole, optimizer, range(5))
    weights = {name: value.clone() for name, value in whole.state_dict().items()}
    states = {name: value.clone() for name, value in named_states(whole, optimizer).items()}
    _steps(whole, optimizer, range(5, 10))

    again = _model().bfloat16()
    again.load_state_dict(weights)
    other = _optimizer(again, variant)
    load_named_states(again, other, states)
    _steps(again, other, range(5, 10))

    assert torch.equal(_weights(again), _weights(whole))


def _ends(variant: str) -> Iterator[Tensor]:
    for seed in (7, 7, 8):
        model = _model().bfloat16()
        _steps(model, _optimizer(model, variant, seed), range(3))
        yield _weights(model)


@pytest.mark.parametrize("variant", VARIANTS)
def test_draws_depend_on_the_seed_alone(variant: str) -> None:
    one, same, other = _ends(variant)

    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_norm_of_16_bit_gradients_has_the_digits_of_fp32() -> None:
    model = _model().bfloat16()
    optimizer = _optimizer(model, "rounded")
    for number, parameter in enumerate(model.parameters()):
        drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        parameter.grad = drawn.bfloat16()
    exact = torch.cat([parameter.grad.double().flatten() for parameter in model.parameters()])

    norm = guarded_update(
        optimizer, StepGuard.fresh(BF16, CPU), BF16, loss=torch.zeros(()), clip_norm=1.0
    )

    assert norm.item() == pytest.approx(exact.norm().item(), rel=1e-5)
