"""Activation offloading in a plan: memory by trace, time by bytes, and what excludes it."""

import pytest
from fixture_types import MakePlan, MakeRecipe, Refuses

from brimful.base.errors import PlanError, RecipeError
from brimful.base.types import JsonDict
from brimful.hardware import catalog
from brimful.hardware.fitted import rates_of
from brimful.planning.derive import Facts, derive
from brimful.planning.offload import LINK_BYTES_PER_S, TERM, offloaded_bytes
from brimful.planning.spread import refuse_unshardable
from brimful.planning.step import StepSpec
from brimful.planning.survey import Tracer, prepare

CARD = catalog.get("NVIDIA A100-SXM4-80GB")
OFFLOAD = "plan.offload=activations"


def test_the_plan_recomputes_does_not_compile_and_says_so(
    adapted: MakeRecipe, planned: MakePlan
) -> None:
    plan = planned(adapted(OFFLOAD), CARD)

    assert (plan.offload, plan.recompute, plan.compile) == (True, True, False)
    reasons = {choice.name: choice.reason for choice in plan.choices}
    assert "plan.offload" in reasons["recompute"]
    assert "plan.offload" in reasons["compile"]
    assert "offload" in reasons
    assert not planned(adapted(), CARD).offload


def test_only_a_step_that_recomputes_is_traced_with_it(adapted: MakeRecipe) -> None:
    prepared = prepare(adapted(OFFLOAD), CARD)

    assert prepared.spec(recompute=True).offload
    assert not prepared.spec(recompute=False).offload


def test_copies_are_a_term_of_the_time(adapted: MakeRecipe, cheap_tracer: Tracer) -> None:
    recipe, facts = adapted(OFFLOAD, "plan.micro_batch=4"), Facts(rates=rates_of(CARD))
    spec = prepare(recipe, CARD).spec(recompute=True)

    plan = derive(recipe, CARD, cheap_tracer, facts)

    copies_s = 2 * offloaded_bytes(spec, 16) / LINK_BYTES_PER_S
    assert plan.time_terms[TERM] == pytest.approx(copies_s, rel=0.01)
    assert offloaded_bytes(spec, 16) == 24 * 16 * 2048 * 2048 * 2


@pytest.mark.parametrize("other", ["plan.recompute=false", "plan.compile=true"])
def test_what_it_excludes_is_refused(adapted: MakeRecipe, other: str) -> None:
    with pytest.raises(RecipeError, match=f"leave {other} out"):
        adapted(OFFLOAD, other)


def test_a_model_in_parts_is_refused_with_it(adapted: MakeRecipe, refuses: Refuses) -> None:
    with refuses(PlanError):
        refuse_unshardable(adapted(OFFLOAD), "sharded")


def test_older_steps_keep_their_names(llama_values: JsonDict) -> None:
    spec = StepSpec("{}", 8)

    assert "offload" not in spec.key()
    assert "offload" in StepSpec("{}", 8, recompute=True, offload=True).key()
