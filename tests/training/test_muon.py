"""Muon for matrices inside blocks, AdamW for the rest: equal to torch's two optimizers, exact after
a restart, and with the memory that is planned.
"""

import pytest
import torch
from fixture_types import Refuses
from pydantic import ValidationError
from torch import Tensor, nn

from brimful.base.errors import CheckpointError
from brimful.model.blocks import hidden_matrices
from brimful.recipe import OptimizerRecipe
from brimful.training.optim import build_optimizer, load_named_states, named_states


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


def _settings(**changes: object) -> OptimizerRecipe:
    return OptimizerRecipe.model_validate({"learning_rate": 0.02, "kind": "muon", **changes})


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
    _train(ours, [build_optimizer(ours, _settings(), variant="muon")], 3)
    _train(plain, [adamw, muon], 3)

    assert {tuple(each.shape) for each in hidden} == {(8, 8)}
    for (name, mine), theirs in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_a_learning_rate_set_on_the_groups_reaches_both_parts() -> None:
    model = _made()
    before = [each.detach().clone() for each in model.parameters()]
    optimizer = build_optimizer(model, _settings(), variant="muon")
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    _train(model, [optimizer], 1)

    assert all(map(torch.equal, before, model.parameters()))


def test_states_put_back_by_name_go_on_as_if_nothing_had_happened() -> None:
    whole, stopped = _made(), _made()
    first = build_optimizer(whole, _settings(), variant="muon")
    _train(whole, [first], 2)
    stopped.load_state_dict(whole.state_dict())
    second = build_optimizer(stopped, _settings(), variant="muon")
    load_named_states(
        stopped, second, {name: each.clone() for name, each in named_states(whole, first).items()}
    )
    for model, optimizer in ((whole, first), (stopped, second)):
        _train(model, [optimizer], 2)

    assert all(map(torch.equal, whole.parameters(), stopped.parameters()))


@pytest.mark.parametrize(("stored", "asked"), [("muon", "fused"), ("fused", "muon")])
def test_states_of_the_other_kind_are_refused(stored: str, asked: str, refuses: Refuses) -> None:
    model = _made()
    first, second = (
        build_optimizer(model, _settings(), variant=variant) for variant in (stored, asked)
    )
    _train(model, [first], 1)

    with refuses(CheckpointError, names=["optimizer.kind", "--fresh"]):
        load_named_states(model, second, named_states(model, first))


@pytest.mark.parametrize("changes", [{"weights": "bf16"}, {"tuned_at_width": 64}])
def test_what_muon_cannot_do_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"leave weights=bf16 out|for AdamW"):
        _settings(**changes)
