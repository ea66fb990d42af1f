"""What a plan says that it keeps and changes."""

from dataclasses import replace

import pytest
from fixture_types import MakeRecipe
from small_plans import PLAINEST
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.planning.equivalence import statement
from brimful.recipe import load


def test_the_plainest_plan_keeps_everything(tiny: MakeRecipe, snapshot: SnapshotAssertion) -> None:
    said = statement(PLAINEST, tiny())
    assert said.changes == ()
    assert said.keeps[0] == snapshot
    assert said.keeps[2] == snapshot


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"precision": "bf16"}, "8 significant bits"),
        ({"precision": "fp16"}, "skipped"),
        ({"micro_batches": (3, 3, 2)}, "3 micro-batches"),
        ({"loss_chunk": 64}, "64 tokens at a time"),
        ({"attention": "sdpa"}, "fused kernel"),
        ({"attention": "brimful_blocks"}, "block by block"),
        ({"recompute": True}, "computed twice"),
        ({"recompute": "selective"}, "but for the outputs of matrix products"),
        ({"compile": True}, "compilation"),
    ],
)
def test_every_choice_that_changes_rounding_is_said(
    tiny: MakeRecipe, choice: JsonDict, told: str
) -> None:
    (change,) = statement(replace(PLAINEST, **choice), tiny()).changes
    assert told in change


def test_recomputed_dropout_is_said_to_draw_the_same_numbers(
    tiny: MakeRecipe, snapshot: SnapshotAssertion
) -> None:
    recipe = tiny("model.architecture=gpt2", "model.dropout=0.1")
    assert statement(replace(PLAINEST, recompute=True), recipe).changes[0] == snapshot


def test_a_frozen_base_is_said_to_be_held_in_16_bits(snapshot: SnapshotAssertion) -> None:
    recipe = load("tiny-gpt", ["model=meta-llama/Llama-3.1-8B", "tokenizer=null", "adapter.rank=8"])
    said = statement(replace(PLAINEST, precision="bf16"), recipe)
    assert said.changes == snapshot
    assert said.keeps[2] == snapshot


def test_states_of_8_bits_are_the_recipes_own_update(
    tiny: MakeRecipe, snapshot: SnapshotAssertion
) -> None:
    said = statement(replace(PLAINEST, optimizer="8bit"), tiny("optimizer.kind=adamw_8bit"))
    assert said.keeps[2] == snapshot
    assert said.changes == statement(PLAINEST, tiny()).changes
