"""Smaller steps that keep every part of the planned one."""

from dataclasses import replace

from fixture_types import MakeRecipe, Refuses
from small_plans import PLAINEST
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RecipeError
from brimful.recipe import load
from brimful.rehearsal.reduced import LEAST, MOST_POSITIONS, reduced_step

PLAN = replace(PLAINEST, micro_batches=(3, 3, 2), precision="bf16", attention="sdpa", loss_chunk=64)


def test_a_step_that_is_small_enough_is_left_as_it_is(tiny: MakeRecipe) -> None:
    reduced = reduced_step(tiny(), PLAN, 300, 1e12)
    assert (reduced.micro_batches, reduced.loss_chunk, reduced.vocabulary, reduced.differences) == (
        (3, 3, 2),
        64,
        300,
        (),
    )
    assert reduced.recipe.fresh_model == tiny().fresh_model


def test_a_large_step_keeps_accumulation_remainder_pieces_of_the_loss_and_several_blocks(
    snapshot: SnapshotAssertion,
) -> None:
    plan = replace(PLAN, micro_batches=(*(20,) * 25, 12), loss_chunk=1024, sequence_length=1024)
    reduced = reduced_step(load("gpt-124m", ["batch.sequences=512"]), plan, 50257, 1e9)
    assert reduced.micro_batches == (2, 2, 1)
    assert reduced.recipe.effective_batch == 5
    assert (reduced.recipe.fresh_model.layers, reduced.recipe.sequence_length) == (
        LEAST["layers"],
        LEAST["positions"],
    )
    assert reduced.loss_chunk == 2 * LEAST["positions"] // 4
    assert reduced.differences == snapshot


def test_no_more_is_taken_away_than_needed(snapshot: SnapshotAssertion) -> None:
    plan = replace(PLAN, micro_batches=(32,) * 4, sequence_length=256, loss_chunk=2048)
    differences = reduced_step(load("tiny-gpt"), plan, 4096, 3e12).differences
    assert differences == snapshot


def test_grouped_heads_stay_grouped(tiny: MakeRecipe) -> None:
    model = reduced_step(
        tiny("model.heads=8", "model.kv_heads=4", "model.width=128", "model.mlp_width=512"),
        PLAN,
        300,
        1,
    ).recipe.fresh_model
    assert (model.heads, model.kv_heads, model.width, model.mlp_width) == (2, 1, 32, 128)


def test_sequences_too_long_for_stored_scores_are_shortened_whatever_the_device(
    tiny: MakeRecipe,
) -> None:
    reduced = reduced_step(
        tiny("sequence_length=4096"), replace(PLAN, sequence_length=4096), 300, 1e30
    )
    assert reduced.recipe.sequence_length == MOST_POSITIONS


def test_a_published_model_is_refused(refuses: Refuses) -> None:
    recipe = load("tiny-gpt", ["model=meta-llama/Llama-3.1-8B", "tokenizer=null", "adapter.rank=8"])
    with refuses(RecipeError):
        reduced_step(recipe, PLAN, 300, 1e12)
