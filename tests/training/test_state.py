"""The one state value: what goes into a checkpoint comes back, and of another model nothing
does.
"""

import json
import math

import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from transformers import PreTrainedModel

from brimful.base.errors import CheckpointError
from brimful.model.build import build
from brimful.recipe import OptimizerRecipe, Recipe
from brimful.training.optim import build_optimizer
from brimful.training.precision import Precision
from brimful.training.state import Progress, restore, snapshot_of

CPU = torch.device("cpu")


def _model(recipe: Recipe) -> PreTrainedModel:
    return build(recipe, vocabulary=50, end_of_text_id=0, attention="sdpa", device=CPU)


def _trained(recipe: Recipe, steps: int) -> tuple[PreTrainedModel, torch.optim.AdamW]:
    model = _model(recipe)
    optimizer = build_optimizer(model, OptimizerRecipe(learning_rate=1e-2), variant="fused")
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 8), step), labels=torch.full((2, 8), step)).loss.backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("name", ["fp32", "fp16"])
def test_progress_survives_json(name: str) -> None:
    progress = Progress.fresh(Precision(name), CPU)
    progress.advance(sequences=8, target_tokens=250)
    progress.note_score(2.5, 2.5)
    progress.guard.skipped = torch.tensor(3.0)
    progress.skip_to(16, rollbacks=1)

    again = Progress.from_json(json.loads(json.dumps(progress.to_json())), CPU)

    assert again.to_json() == progress.to_json()
    assert (
        again.step,
        again.samples_consumed,
        again.target_tokens,
        again.best_loss,
        again.best_step,
        again.rollbacks,
    ) == (1, 16, 250, 2.5, 1, 1)


def test_only_a_lower_finite_score_is_the_best() -> None:
    progress = Progress.fresh(Precision("fp32"), CPU)
    verdicts = []
    for loss in (math.nan, 3.0, 3.0, math.inf, 2.0, 2.5):
        progress.advance(sequences=1, target_tokens=1)
        verdicts.append(progress.note_score(loss, loss))

    assert verdicts == [False, True, False, False, True, False]
    assert (progress.best_loss, progress.best_step, progress.evaluated_step) == (2.0, 5, 6)


def test_restoring_brings_weights_optimizer_and_random_generator_back(
    tiny: MakeRecipe,
) -> None:
    model, optimizer = _trained(tiny(), steps=3)
    progress = Progress.fresh(Precision("fp32"), CPU)
    progress.advance(sequences=8, target_tokens=250)
    snapshot = snapshot_of(model, optimizer, progress, identity={"data": "x"}, journal_bytes=123)
    stored = {
        group: {name: tensor.clone() for name, tensor in tensors.items()}
        for group, tensors in snapshot.tensors.items()
    }
    drawn = torch.rand(3)

    other, other_optimizer = _trained(tiny("seed=9"), steps=1)
    restored = restore(snapshot, other, other_optimizer, CPU)

    assert torch.equal(torch.rand(3), drawn)
    again = snapshot_of(other, other_optimizer, restored, identity={}, journal_bytes=0)
    assert restored.to_json() == progress.to_json()
    for group in ("model", "optimizer"):
        assert again.tensors[group].keys() == stored[group].keys()
        assert all(
            torch.equal(again.tensors[group][name], stored[group][name]) for name in stored[group]
        ), group
    assert (snapshot.step, snapshot.state["journal_bytes"], snapshot.identity) == (
        1,
        123,
        {"data": "x"},
    )


def test_tied_weights_are_stored_once(tiny: MakeRecipe) -> None:
    model, optimizer = _trained(tiny(), steps=0)
    snapshot = snapshot_of(
        model, optimizer, Progress.fresh(Precision("fp32"), CPU), identity={}, journal_bytes=0
    )

    assert "lm_head.weight" not in snapshot.tensors["model"]
    assert "model.embed_tokens.weight" in snapshot.tensors["model"]


@pytest.mark.parametrize(
    "override", ["model.layers=1", "model.width=64", "model.tie_embeddings=false"]
)
def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(
    tiny: MakeRecipe, override: str, refuses: Refuses
) -> None:
    model, optimizer = _trained(tiny(), steps=1)
    snapshot = snapshot_of(
        model, optimizer, Progress.fresh(Precision("fp32"), CPU), identity={}, journal_bytes=0
    )
    other, other_optimizer = _trained(tiny(override), steps=0)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}

    with refuses(CheckpointError):
        restore(snapshot, other, other_optimizer, CPU)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())


def test_of_equal_objectives_the_one_with_the_lower_loss_is_better() -> None:
    progress = Progress.fresh(Precision("fp32"), CPU)

    verdicts = [progress.note_score(0.0, loss) for loss in (0.6, 0.5, 0.5, 0.7)] + [
        progress.note_score(-0.1, 0.9)
    ]

    assert verdicts == [True, True, False, False, True]
    assert (progress.best_loss, progress.evaluations_since_best) == (-0.1, 0)
