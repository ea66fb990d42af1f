"""What a recipe's rounds ask and draw, for their plan."""

from dataclasses import replace

import pytest
from tests.planning.test_chain import PLAN

from brimful.chains.chain_plan import phases_of
from brimful.recipe import load
from brimful.report.plan.chain import chain_lines


def test_the_rounds_of_a_shipped_recipe_are_told_phase_by_phase() -> None:
    phases = phases_of(load("unit-rft-smollm2"), PLAN)
    told = "\n".join(chain_lines(phases))
    assert "1 x 2,400 answers to 600 questions" in told
    assert "3 models, the base among them, x 420 answers to unit-conversion" in told
    assert told.count("%") == 4
    assert "in all" in told


def test_without_a_limit_a_built_in_corpus_is_asked_as_a_whole() -> None:
    changes = ["rft.questions.max_questions=null", "evaluation.max_examples=null"]
    told = "\n".join(chain_lines(phases_of(load("unit-rft-smollm2", changes), PLAN)))
    assert "80,000 answers to 20,000 questions" in told
    assert "x 600 answers to unit-conversion" in told
    changes = ["rft.questions.path=questions.jsonl", *changes]
    told = "\n".join(chain_lines(phases_of(load("unit-rft-smollm2", changes), PLAN)))
    assert "not known before the questions are read" in told


def test_other_recipes_have_no_phases() -> None:
    assert phases_of(load("lora"), replace(PLAN, recipe="lora")) == []


@pytest.mark.parametrize("verifier", ["number", "mbpp"])
def test_programs_take_longer_to_verify_than_numbers(verifier: str) -> None:
    phases = phases_of(load("unit-rft-smollm2", [f"rft.verifier={verifier}"]), PLAN)
    [verifying] = [phase for phase in phases if phase.name == "verifying"]
    assert verifying.time_s is not None
    assert (verifying.time_s.value > 60) == (verifier == "mbpp")
