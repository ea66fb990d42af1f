"""What a changed effective batch asks of the rest of the recipe, and what a rule made of its
learning rate, is said.
"""

import pytest
from fixture_types import MakeRecipe
from syrupy.assertion import SnapshotAssertion

from brimful.planning.scaling import notes
from brimful.recipe import load


def test_four_times_the_batch_doubles_the_learning_rate_and_quarters_the_steps(
    tiny: MakeRecipe,
    snapshot: SnapshotAssertion,
) -> None:
    told = "\n".join(
        notes(
            tiny("optimizer.warmup=8", "training.steps=100"),
            tiny("optimizer.warmup=8", "training.steps=100", "batch.sequences=32"),
        )
    )
    assert told == snapshot


def test_a_smaller_batch_is_the_same_rule_backwards(
    tiny: MakeRecipe, snapshot: SnapshotAssertion
) -> None:
    told = "\n".join(notes(tiny(), tiny("batch.sequences=2")))
    assert told == snapshot


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("optimizer.learning_rate=1e-3",),
        ("batch.tokens=256",),
        ("sequence_length=64", "batch.sequences=4"),
    ],
)
def test_a_step_of_as_many_tokens_as_before_needs_no_note(
    tiny: MakeRecipe, changes: tuple[str, ...]
) -> None:
    assert notes(tiny(), tiny(*changes)) == []


def test_another_model_has_a_learning_rate_of_its_own(tiny: MakeRecipe) -> None:
    assert notes(tiny(), tiny("batch.sequences=32", "model.width=64")) == []


def test_what_the_user_set_is_not_suggested(tiny: MakeRecipe) -> None:
    changed = tiny(
        "batch.sequences=32",
        "optimizer.learning_rate=1e-3",
        "optimizer.warmup=2",
        "training.tokens=100000",
    )
    told = "\n".join(notes(tiny(), changed))
    assert "optimizer.learning_rate=" not in told
    assert "optimizer.warmup=" not in told
    assert "training.steps=" not in told
    assert "optimizer.beta1=0.6" in told


def test_a_warm_up_that_is_a_share_of_the_steps_stays_one(tiny: MakeRecipe) -> None:
    assert "optimizer.warmup" not in "\n".join(
        notes(tiny("optimizer.warmup=0.1"), tiny("optimizer.warmup=0.1", "batch.sequences=32"))
    )


def test_a_minimum_that_was_written_is_scaled_with_the_peak(tiny: MakeRecipe) -> None:
    minimum = "optimizer.min_learning_rate=1e-4"
    assert "optimizer.min_learning_rate=0.0002" in "\n".join(
        notes(tiny(minimum), tiny(minimum, "batch.sequences=32"))
    )


def test_a_step_too_far_for_the_rule_is_said_to_be_one(tiny: MakeRecipe) -> None:
    told = "\n".join(notes(tiny(), tiny("batch.sequences=128")))
    assert "optimizer.beta1=" not in told
    assert "too far" in told


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("sqrt", "0.01 x sqrt(k) = 0.02: the square-root rule"),
        ("linear", "0.01 x k = 0.04: the linear rule"),
    ],
)
def test_a_rule_says_what_it_made_of_the_learning_rate(
    tiny: MakeRecipe, rule: str, told: str, snapshot: SnapshotAssertion
) -> None:
    first, *rest = notes(
        tiny(), tiny("batch.sequences=32", f"optimizer.scale_learning_rate={rule}")
    )
    assert "1,024 tokens instead of 256, k = 4; optimizer.learning_rate " + told in first
    assert rest == snapshot


def test_a_rule_leaves_the_learning_rate_that_the_user_set_and_says_so(
    tiny: MakeRecipe,
    snapshot: SnapshotAssertion,
) -> None:
    changed = tiny(
        "batch.sequences=32", "optimizer.scale_learning_rate=sqrt", "optimizer.learning_rate=0.003"
    )
    assert notes(tiny(), changed)[0] == snapshot


def test_fine_tuning_counts_examples_whose_length_varies(snapshot: SnapshotAssertion) -> None:
    tuned = ["model=somewhere/model", "tokenizer=null", "method=sft", "batch={sequences: 8}"]
    original, changed = (
        load("tiny-gpt", [*tuned, *more])
        for more in ([], ["batch.sequences=16", "sequence_length=128"])
    )
    assert notes(original, changed)[0] == snapshot
