"""What a recipe's rounds ask and draw, for their plan."""

from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.planning.test_chain import PLAN

from brimful.chains.chain_plan import phases_of
from brimful.recipe import load
from brimful.report.plan.chain import chain_lines


def test_the_rounds_of_a_shipped_recipe_are_told_phase_by_phase(
    snapshot: SnapshotAssertion,
) -> None:
    phases = phases_of(load("unit-rft-smollm2"), PLAN)
    told = "\n".join(chain_lines(phases))
    assert told == snapshot
    assert told.count("%") == 4


def test_without_a_limit_a_built_in_corpus_is_asked_as_a_whole(snapshot: SnapshotAssertion) -> None:
    changes = ["rft.questions.max_questions=null", "evaluation.max_examples=null"]
    told = "\n".join(chain_lines(phases_of(load("unit-rft-smollm2", changes), PLAN)))
    assert told == snapshot
    changes = ["rft.questions.path=questions.jsonl", *changes]
    told = "\n".join(chain_lines(phases_of(load("unit-rft-smollm2", changes), PLAN)))
    assert told == snapshot


def test_questions_of_a_file_are_counted_beside_those_of_a_corpus(
    snapshot: SnapshotAssertion,
) -> None:
    changes = [
        "evaluation.tasks=[unit-conversion-small, unit-conversion-guide]",
        "evaluation.data={unit-conversion-guide: questions.json}",
    ]
    *_, answers = phases_of(load("unit-rft-smollm2", changes), PLAN)
    assert answers.time_s is not None
    assert answers.about == snapshot


def test_other_recipes_have_no_phases() -> None:
    assert phases_of(load("lora"), replace(PLAN, recipe="lora")) == []


@pytest.mark.parametrize("verifier", ["number", "mbpp"])
def test_programs_take_longer_to_verify_than_numbers(verifier: str) -> None:
    phases = phases_of(load("unit-rft-smollm2", [f"rft.verifier={verifier}"]), PLAN)
    [verifying] = [phase for phase in phases if phase.name == "verifying"]
    assert verifying.time_s is not None
    assert (verifying.time_s.value > 60) == (verifier == "mbpp")
