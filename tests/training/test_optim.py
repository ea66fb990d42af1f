"""Schedule, decay groups and the guarded update."""

import math

import pytest
import torch
from fixture_types import Refuses
from pydantic import ValidationError
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from brimful.base.errors import CheckpointError
from brimful.model.blocks import hidden_matrices
from brimful.recipe import OptimizerRecipe
from brimful.training.optim import (
    StepGuard,
    build_optimizer,
    guarded_update,
    learning_rate_at,
    load_named_states,
    loss_factor,
    named_states,
)
from brimful.training.precision import FP16_INITIAL_SCALE, Precision

FP32 = Precision("fp32")
CPU = torch.device("cpu")
VARIANTS = ("fused", "foreach", "for_loop")
ALL_VARIANTS = (*VARIANTS, "8bit")


def _settings(**changes: object) -> OptimizerRecipe:
    return OptimizerRecipe.model_validate({"learning_rate": 1.0, "warmup": 4, **changes})


MUON = _settings(learning_rate=0.02, kind="muon")


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "wsd"])
def test_the_first_learning_rate_is_never_zero_and_the_peak_ends_the_warm_up(schedule: str) -> None:
    rates = [learning_rate_at(step, 20, _settings(schedule=schedule)) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0


@pytest.mark.parametrize(
    ("schedule", "last"), [("cosine", 0.1), ("linear", 0.1), ("constant", 1.0), ("wsd", 0.1)]
)
def test_the_last_step_has_the_lowest_rate_of_the_schedule(schedule: str, last: float) -> None:
    rates = [learning_rate_at(step, 20, _settings(schedule=schedule)) for step in range(20)]
    assert rates[-1] == pytest.approx(last)
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_half_way_down_the_cosine_lies_the_mean_of_peak_and_minimum() -> None:
    assert learning_rate_at(10, 21, _settings(warmup=0)) == pytest.approx(0.55)


def test_a_stable_rate_falls_in_a_straight_line_in_the_last_share_of_the_steps() -> None:
    settings = _settings(schedule="wsd", decay=0.25)
    rates = [learning_rate_at(step, 40, settings) for step in range(40)]

    assert rates[4:31] == [1.0] * 27
    assert rates[30:] == pytest.approx([1 - 0.1 * step for step in range(10)])


def test_a_rate_chosen_at_another_width_is_scaled_for_matrices_inside_blocks() -> None:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
        )
    )
    optimizer = build_optimizer(model, _settings(tuned_at_width=16), variant="fused")
    factors = {
        parameter: group["lr_factor"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }

    assert factors.keys() == set(model.parameters())
    inside = hidden_matrices(model)
    assert {factors[each] for each in inside} == {0.25}
    assert {factors[each] for each in factors.keys() - inside} == {1.0}


def test_a_warm_up_below_one_is_a_share_of_all_steps() -> None:
    assert learning_rate_at(0, 100, _settings(warmup=0.1)) == pytest.approx(0.1)


def test_weight_decay_acts_on_matrices_only() -> None:
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2), nn.LayerNorm(2))
    decayed, plain = build_optimizer(
        model, _settings(weight_decay=0.3), variant="fused"
    ).param_groups
    assert (
        [tuple(parameter.shape) for parameter in decayed["params"]],
        decayed["weight_decay"],
    ) == ([(3, 2), (2, 2)], 0.3)
    assert ([tuple(parameter.shape) for parameter in plain["params"]], plain["weight_decay"]) == (
        [(2,), (2,), (2,)],
        0.0,
    )


def _one_update(
    *, variant: str = "fused", factor: float, clip_norm: float | None, steps: int = 3
) -> tuple[nn.Linear, StepGuard, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer, guard = (
        build_optimizer(model, _settings(learning_rate=0.01), variant=variant),
        StepGuard.fresh(FP32, CPU),
    )
    norm = torch.zeros(())
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum() * (factor if step == 1 else 1.0)
        loss.backward()
        norm = guarded_update(optimizer, guard, FP32, loss=loss.detach(), clip_norm=clip_norm)
    return model, guard, norm


class _Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(3, 2)
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.classifier = nn.Linear(2, 2, bias=False)


def test_layer_decay_lowers_the_learning_rate_with_the_distance_from_the_output() -> None:
    model = _Deep()
    optimizer = build_optimizer(
        model, _settings(layer_decay=0.5, weight_decay=0.1), variant="fused"
    )
    group_of = {
        id(parameter): group for group in optimizer.param_groups for parameter in group["params"]
    }

    factors = {
        name: group_of[id(parameter)]["lr_factor"] for name, parameter in model.named_parameters()
    }
    decays = {
        name: group_of[id(parameter)]["weight_decay"]
        for name, parameter in model.named_parameters()
    }

    assert factors == {
        "embeddings.weight": 0.125,
        "layers.0.weight": 0.25,
        "layers.0.bias": 0.25,
        "layers.1.weight": 0.5,
        "layers.1.bias": 0.5,
        "classifier.weight": 1.0,
    }
    assert {name for name, decay in decays.items() if not decay} == {
        "layers.0.bias",
        "layers.1.bias",
    }


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_every_variant_of_the_update_equals_torchs_own_clipping_and_adamw(
    clip_norm: float | None,
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(
        [
            {"params": [model.weight], "weight_decay": 0.1},
            {"params": [model.bias], "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(0.9, 0.95),
    )
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
    for variant in VARIANTS:
        ours, _, _ = _one_update(variant=variant, factor=1.0, clip_norm=clip_norm)
        torch.testing.assert_close(ours.weight, model.weight)
        torch.testing.assert_close(ours.bias, model.bias)


@pytest.mark.parametrize("variant", ALL_VARIANTS)
@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_a_non_finite_step_changes_nothing_and_is_counted(variant: str, factor: float) -> None:
    skipped, guard, _ = _one_update(variant=variant, factor=factor, clip_norm=1.0, steps=2)
    one_step, _, _ = _one_update(variant=variant, factor=1.0, clip_norm=1.0, steps=1)
    assert torch.equal(skipped.weight, one_step.weight)
    assert (guard.skipped, guard.bad_in_a_row) == (1, 1)


def test_a_good_step_ends_a_row_of_bad_ones() -> None:
    _, guard, norm = _one_update(factor=math.nan, clip_norm=1.0, steps=3)
    assert (guard.skipped, guard.bad_in_a_row) == (1, 0)
    assert torch.isfinite(norm)


def test_fp16_halves_the_scale_on_overflow_without_calling_it_divergence_and_doubles_it_after_enough_good_steps() -> (
    None
):
    fp16 = Precision("fp16")
    guard = StepGuard.fresh(fp16, CPU)
    guard.update(torch.tensor(True), torch.tensor(math.inf), fp16)
    assert (guard.loss_scale, guard.bad_in_a_row, guard.skipped) == (FP16_INITIAL_SCALE / 2, 0, 1)
    for _ in range(2000):
        guard.update(torch.tensor(False), torch.tensor(1.0), fp16)
    assert guard.loss_scale == FP16_INITIAL_SCALE


def test_fp16_skips_a_finite_norm_a_thousand_times_its_average() -> None:
    fp16 = Precision("fp16")
    model = nn.Linear(2, 2)
    optimizer, guard = (
        build_optimizer(model, _settings(), variant="fused"),
        StepGuard.fresh(fp16, CPU),
    )
    guard.loss_scale = torch.tensor(1.0)
    weights = [model.weight.detach().clone()]
    for size in (1.0, 1e5):
        model.weight.grad, model.bias.grad = torch.full((2, 2), size), torch.zeros(2)
        guarded_update(optimizer, guard, fp16, loss=torch.tensor(1.0), clip_norm=None)
        weights.append(model.weight.detach().clone())
    assert guard.skipped == 1
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[1], weights[2])


@pytest.mark.parametrize("variant", VARIANTS)
def test_optimizer_states_survive_a_round_trip_by_name_into_any_variant(variant: str) -> None:
    model, _, _ = _one_update(factor=1.0, clip_norm=None)
    optimizer = build_optimizer(model, _settings(), variant="fused")
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    states = {name: value.clone() for name, value in named_states(model, optimizer).items()}
    other = build_optimizer(model, _settings(), variant=variant)
    load_named_states(model, other, states)
    assert (
        named_states(model, other).keys()
        == states.keys()
        == {
            f"{name}:{key}"
            for name in ("weight", "bias")
            for key in ("step", "exp_avg", "exp_avg_sq")
        }
    )
    assert all(
        torch.equal(value, states[name]) for name, value in named_states(model, other).items()
    )


@pytest.mark.parametrize("tokens", [1, 2, 3, 1000, 1024, 1025, 524_288])
def test_the_factor_on_a_loss_is_a_power_of_two_near_one_over_its_tokens(tokens: int) -> None:
    factor = float(loss_factor(torch.tensor(4.0), tokens))

    assert math.frexp(factor)[0] == 0.5
    assert 0.5 < factor * tokens / 4 <= 1


@pytest.mark.parametrize("variant", ALL_VARIANTS)
def test_gradients_that_carry_a_factor_make_the_update_of_those_that_do_not(variant: str) -> None:
    weights = []
    for carried in (1.0, 0.75):
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer, guard = (
            build_optimizer(model, _settings(learning_rate=0.01), variant=variant),
            StepGuard.fresh(FP32, CPU),
        )
        loss = model(torch.ones(2, 4)).square().sum()
        (loss * carried).backward()
        guarded_update(
            optimizer, guard, FP32, loss=loss.detach(), clip_norm=0.1, carried=torch.tensor(carried)
        )
        weights.append(model.weight.detach())

    torch.testing.assert_close(weights[0], weights[1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("stored", "asked"), [("fused", "8bit"), ("8bit", "fused")])
def test_states_of_another_kind_of_optimizer_are_refused(
    stored: str, asked: str, refuses: Refuses
) -> None:
    model = nn.Linear(4, 4)
    first, second = (
        build_optimizer(model, _settings(), variant=variant) for variant in (stored, asked)
    )
    model(torch.ones(1, 4)).sum().backward()
    first.step()

    with refuses(CheckpointError, names=["optimizer.kind", "--fresh"]):
        load_named_states(model, second, named_states(model, first))


class _Model(nn.Module):
    """An embedding, two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 5)

    def forward(self, ids_N: Tensor) -> Tensor:
        hidden_ND = self.embed(ids_N)
        for block in self.blocks:
            hidden_ND = torch.tanh(block(hidden_ND))
        logits_NV: Tensor = self.head(hidden_ND)
        return logits_NV


def _made() -> _Model:
    torch.manual_seed(3)
    return _Model()


def _train(model: nn.Module, optimizers: list[torch.optim.Optimizer], steps: int) -> None:
    for step in range(steps):
        model(torch.arange(5)).square().sum().mul(1 + step).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def test_it_is_torchs_muon_on_matrices_inside_blocks_and_torchs_adamw_on_the_rest() -> None:
    ours, plain = _made(), _made()
    hidden = hidden_matrices(plain)
    rest = [each for each in plain.parameters() if each not in hidden]
    matrices, vectors = (
        [each for each in rest if (each.ndim >= 2) is wide] for wide in (True, False)
    )
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.95))
    muon = torch.optim.Muon(
        hidden_matrices(plain), lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    _train(ours, [build_optimizer(ours, MUON, variant="muon")], 3)
    _train(plain, [adamw, muon], 3)

    assert {tuple(each.shape) for each in hidden} == {(8, 8)}
    for (name, mine), theirs in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_a_learning_rate_set_on_the_groups_reaches_both_parts() -> None:
    model = _made()
    before = [each.detach().clone() for each in model.parameters()]
    optimizer = build_optimizer(model, MUON, variant="muon")
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    _train(model, [optimizer], 1)

    assert all(map(torch.equal, before, model.parameters()))


def test_states_put_back_by_name_go_on_as_if_nothing_had_happened() -> None:
    whole, stopped = _made(), _made()
    first = build_optimizer(whole, MUON, variant="muon")
    _train(whole, [first], 2)
    stopped.load_state_dict(whole.state_dict())
    second = build_optimizer(stopped, MUON, variant="muon")
    load_named_states(
        stopped, second, {name: each.clone() for name, each in named_states(whole, first).items()}
    )
    for model, optimizer in ((whole, first), (stopped, second)):
        _train(model, [optimizer], 2)

    assert all(map(torch.equal, whole.parameters(), stopped.parameters()))


@pytest.mark.parametrize(("stored", "asked"), [("muon", "fused"), ("fused", "muon")])
def test_states_of_the_other_kind_are_refused(stored: str, asked: str, refuses: Refuses) -> None:
    model = _made()
    first, second = (build_optimizer(model, MUON, variant=variant) for variant in (stored, asked))
    _train(model, [first], 1)

    with refuses(CheckpointError, names=["optimizer.kind", "--fresh"]):
        load_named_states(model, second, named_states(model, first))


@pytest.mark.parametrize("changes", [{"weights": "bf16"}, {"tuned_at_width": 64}])
def test_what_muon_cannot_do_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"leave weights=bf16 out|for AdamW"):
        _settings(learning_rate=0.02, kind="muon", **changes)
