"""What architectures add to optimizer steps."""

import pytest
import torch
from fixture_types import MakeRecipe

from brimful.model.build import build
from brimful.model.okadfa.modeling import attentions_of
from brimful.model.registered import step_hooks_of
from brimful.model.step_hooks import StepHooks
from brimful.recipe import Recipe

OKADFA = "model={architecture: okadfa, layers: 1, heads: 2, width: 32, redraw: 3}"


def _hooks(recipe: Recipe) -> tuple[torch.nn.Module, StepHooks]:
    model = build(
        recipe, vocabulary=50, end_of_text_id=0, attention="sdpa", device=torch.device("cpu")
    )
    return model, step_hooks_of(model, recipe, total_steps=10)


def test_most_architectures_add_nothing(tiny: MakeRecipe) -> None:
    _, hooks = _hooks(tiny("model.architecture=gpt2"))
    hooks.before_step(0)
    assert hooks.penalty is None


def test_okadfa_redraws_its_features_and_adds_its_penalty(tiny: MakeRecipe) -> None:
    model, hooks = _hooks(tiny(OKADFA, "orthogonality={weight: 2.0, warmup: 4}"))
    projection = attentions_of(model)[0].projection_HMD
    before = projection.clone()
    hooks.before_step(2)
    assert torch.equal(projection, before)
    hooks.before_step(3)
    assert not torch.equal(projection, before)

    assert hooks.penalty is not None
    with torch.no_grad():
        attentions_of(model)[0].q_proj.weight.mul_(1.5)
    assert hooks.penalty(3).item() == pytest.approx(4 * hooks.penalty(0).item())
