"""The record of a model's layers."""

import json

import pytest
import torch
from fixture_types import MakeRecipe

from brimful.evaluation.layers import has_layers_to_look_at, measure_layers
from brimful.model.build import build


@pytest.mark.parametrize(
    ("method", "model", "expected"),
    [
        ("feedback", {}, {"alignment", "attention"}),
        ("pretrain", {"attention": "softmax"}, {"attention"}),
        ("feedback", {"architecture": "llama"}, {"alignment"}),
    ],
)
def test_what_there_is_is_measured(
    okadfa_recipe: MakeRecipe, splits, method: str, model: dict[str, object], expected: set[str]
) -> None:
    recipe = okadfa_recipe(method=method, **model)
    assert has_layers_to_look_at(recipe)
    network = build(
        recipe, vocabulary=50, end_of_text_id=0, attention="sdpa", device=torch.device("cpu")
    )
    record = json.loads(
        json.dumps(
            measure_layers(network, recipe, splits.random(1009), loss_chunk=64).to_json(),
            allow_nan=False,
        )
    )

    assert set(record) == {"tokens", *expected}
    assert record["tokens"] == 16 * 16  # 16 windows of the sequence length, of all there are
    if "alignment" in expected:
        assert record["alignment"]["segments"][0]["name"] == "embedding"
        assert -1 < record["alignment"]["mean_cosine"] < 1


def test_weights_that_diverged_are_null_in_the_record(okadfa_recipe: MakeRecipe, splits) -> None:
    recipe = okadfa_recipe()
    network = build(
        recipe, vocabulary=50, end_of_text_id=0, attention="sdpa", device=torch.device("cpu")
    )
    with torch.no_grad():
        network.model.layers[0].attention_part.attention.q_proj.weight.fill_(torch.nan)
    record = measure_layers(network, recipe, splits.random(100), loss_chunk=64).to_json()

    assert (
        json.loads(json.dumps(record, allow_nan=False))["attention"]["layers"][0]["cosine"] is None
    )


def test_other_models_have_nothing_to_look_at(okadfa_recipe: MakeRecipe) -> None:
    assert not has_layers_to_look_at(okadfa_recipe(method="pretrain", architecture="gpt2"))
