"""Sections feedback and orthogonality: where they belong, and the penalty's schedule in optimizer
updates.
"""

import pytest
from fixture_types import MakeRecipe, Refuses

from brimful.base.errors import RecipeError
from brimful.recipe import FeedbackRecipe, OrthogonalityRecipe

OKADFA = "model={architecture: okadfa, layers: 1, heads: 2, width: 16}"


def test_the_error_is_fed_back_behind_every_block_through_a_uniform_matrix_unless_told_otherwise(
    tiny: MakeRecipe,
) -> None:
    assert tiny("method=feedback").feedback_rules == FeedbackRecipe(
        points="block", matrix="uniform"
    )
    told = tiny("method=feedback", OKADFA, "feedback.points=sublayer", "feedback.matrix=identity")
    assert told.feedback_rules == FeedbackRecipe(points="sublayer", matrix="identity")


@pytest.mark.parametrize(
    "overrides",
    [
        ("feedback.points=none",),
        ("method=feedback", "feedback.points=sublayer"),
        ("method=feedback", "model=gpt2", "tokenizer=null"),
        ("method=feedback", OKADFA, "feedback.points=none", "orthogonality={}"),
        ("method=feedback", "feedback.points=head"),
        ("method=feedback", "feedback.matrix=random"),
        ("orthogonality.weight=1e-4",),
        (OKADFA, "orthogonality.weight=0"),
        (OKADFA, "orthogonality.weight=.inf"),
        (OKADFA, "orthogonality.warmup=-1"),
        (OKADFA, "orthogonality.warmup=2.5"),
    ],
    ids=" ".join,
)
def test_a_section_where_it_does_not_belong_is_refused(
    tiny: MakeRecipe, overrides: tuple[str, ...], refuses: Refuses
) -> None:
    with refuses(RecipeError):
        tiny(*overrides)


@pytest.mark.parametrize(
    ("warmup", "steps", "expected"),
    [
        (0.1, 40, [0.25, 0.5, 0.75, 1, 1, 1]),
        (4, 6, [0.25, 0.5, 0.75, 1, 1, 1]),
        (0, 6, [1, 1, 1, 1, 1, 1]),
        (0.1, 4, [1, 1, 1, 1]),  # less than half a step
        (10, 3, [0.1, 0.2, 0.3]),
    ],
)
def test_the_weight_grows_linearly_and_stays(
    warmup: float, steps: int, expected: list[float]
) -> None:
    rules = OrthogonalityRecipe(weight=2e-4, warmup=warmup)

    assert [rules.weight_at(step, steps) for step in range(len(expected))] == pytest.approx(
        [2e-4 * share for share in expected]
    )


def test_the_weight_is_never_above_its_largest_nor_zero() -> None:
    rules = OrthogonalityRecipe(weight=3e-4)

    weights = [rules.weight_at(step, 1000) for step in range(1000)]
    assert weights == sorted(weights)
    assert (weights[0], weights[99], weights[-1]) == pytest.approx((3e-6, 3e-4, 3e-4))
