"""What the phases of whole recipes take, for their plan and beside what they took."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.planning.test_writing import PLAN

from brimful.chains.job import PlannedTraining, job_of
from brimful.chains.phases import recipes_to_plan
from brimful.data.counts import num_questions
from brimful.hardware import catalog
from brimful.planning.job import (
    ANSWERS,
    HELD_OUT,
    SAMPLING,
    SCORING,
    TRAINING,
    VERIFYING,
    JobPhase,
    WholeJob,
)
from brimful.planning.plan import BaseScoring, Plan
from brimful.planning.surveyed import Unplanned
from brimful.recipe import load
from brimful.report.plan.job import job_table
from brimful.report.table import terminal_lines


def _job(name: str, *changes: str, plan: Plan = PLAN) -> WholeJob:
    recipe = load(name, list(changes))
    trained = {each: PlannedTraining(recipe, plan) for each in recipes_to_plan(recipe)}
    return job_of(recipe, trained, num_questions(recipe))


def _phase(job: WholeJob, name: str) -> JobPhase:
    [phase] = [phase for phase in job.phases if phase.name == name]
    return phase


def test_the_rounds_of_a_shipped_recipe_are_told_phase_by_phase(
    snapshot: SnapshotAssertion,
) -> None:
    told = "\n".join(terminal_lines(job_table(_job("unit-rft-smollm2"))))
    assert told == snapshot
    assert told.count("%") == 4


def test_every_training_drawing_and_scored_model_counts() -> None:
    """Two rounds after the demonstrations, with three seeds; the base answers the tasks, too."""
    job = _job("unit-rft-smollm2", "rft.rounds=2", "rft.seeds=[1,2,3]")
    assert [phase.name for phase in job.phases] == [TRAINING, SAMPLING, VERIFYING, ANSWERS]
    training = _phase(job, TRAINING)
    assert training.time_s is not None
    assert training.time_s.value == 9 * 900
    assert "6 x 2,800 answers" in _phase(job, SAMPLING).about
    assert "10 models, the base among them" in _phase(job, ANSWERS).about


def test_without_a_limit_a_built_in_corpus_is_asked_as_a_whole() -> None:
    changes = ["rft.questions.max_questions=null", "evaluation.max_examples=null"]
    job = _job("unit-rft-smollm2", *changes)
    assert "1 x 80,000 answers of the student to 20,000 questions" in _phase(job, SAMPLING).about
    unread = _job("unit-rft-smollm2", "rft.questions.path=questions.jsonl", *changes)
    assert "rft.questions.max_questions=N" in _phase(unread, SAMPLING).about
    assert unread.predicted == {}


@pytest.mark.parametrize("changes", [[], ["method=dpo"]], ids=["examples", "pairs"])
def test_questions_of_a_file_are_counted_in_it(tmp_path: Path, changes: list[str]) -> None:
    questions = tmp_path / "questions.jsonl"
    rows = ({"question": f"{number} hours in minutes?", "answer": "60"} for number in range(12))
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [f"rft.questions.path={questions}", *changes]

    job = _job("unit-rft-smollm2", *asked, "rft.questions.max_questions=1000")
    assert "48 answers of the student to 12 questions" in _phase(job, SAMPLING).about
    job = _job("unit-rft-smollm2", *asked, "rft.questions.max_questions=5")
    assert "20 answers of the student to 5 questions" in _phase(job, SAMPLING).about


def test_questions_of_a_file_are_counted_beside_those_of_a_corpus() -> None:
    changes = [
        "evaluation.tasks=[unit-conversion-small, unit-conversion-guide]",
        "evaluation.data={unit-conversion-guide: questions.json}",
    ]
    answers = _phase(_job("unit-rft-smollm2", *changes), ANSWERS)
    assert answers.time_s is not None
    # 420 of 600 known questions, and 200 assumed ones of the file
    assert "x 620 answers to unit-conversion-small, unit-conversion-guide" in answers.about


def test_a_training_alone_is_its_own_job() -> None:
    job = _job("lora")
    assert [phase.name for phase in job.phases] == [TRAINING]
    assert job.predicted["total_time_s"].value == PLAN.predicted["total_time_s"].value


def test_the_answers_of_a_tuned_model_and_its_base_are_phases_of_a_run() -> None:
    scored = replace(PLAN, base=BaseScoring(1.0, samples=True, tasks=True))
    for plan, models in ((PLAN, "1 model x"), (scored, "2 models, the base among them, x")):
        assert models in _phase(_job("code-smollm2", plan=plan), ANSWERS).about


def test_a_teacher_that_nobody_knows_leaves_the_sampling_open() -> None:
    job = _job("unit-rft", "rft.teacher=./nowhere")
    sampling = _phase(job, SAMPLING)
    assert sampling.time_s is sampling.memory is None
    assert "nowhere" in sampling.about


@pytest.mark.parametrize("verifier", ["number", "mbpp"])
def test_programs_take_longer_to_verify_than_numbers(verifier: str) -> None:
    verifying = _phase(_job("unit-rft-smollm2", f"rft.verifier={verifier}"), VERIFYING)
    assert verifying.time_s is not None
    assert (verifying.time_s.value > 60) == (verifier == "mbpp")


def test_a_variant_without_a_plan_is_left_out_with_the_reason() -> None:
    recipe = load("code-smollm2-study")
    trained = {name: PlannedTraining(recipe, PLAN) for name in recipes_to_plan(recipe)}
    job = job_of(
        recipe, {**trained, "qlora-16": Unplanned(catalog.get("T4"), "no kernels here")}, None
    )
    assert (job.worst.title, job.worst.about) == ("training of qlora-16", "no kernels here")
    assert job.verdict == "does not fit"
    assert "5 models, the base among them" in _phase(job, ANSWERS).about
    trainings = [phase.time_s for phase in job.phases if phase.name == TRAINING]
    assert [time and time.value for time in trainings] == [900, 900, 900, None, 900]


def test_other_numbers_of_steps_change_the_trainings_alone() -> None:
    job = _job("unit-rft-smollm2", "rft.rounds=1")
    fewer = job.with_steps(1) if job.with_steps else job
    assert _phase(fewer, SAMPLING) == _phase(job, SAMPLING)
    times = [_phase(each, TRAINING).time_s for each in (fewer, job)]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0].value < times[1].value


def test_rounds_of_answers_are_phases_of_each_variant_with_all_its_seeds() -> None:
    study = "study={variants: {a: [], b: [optimizer.learning_rate=1e-5]}, seeds: [1, 2]}"
    own = "model=smollm2-135m-instruct"
    several, one = _job("unit-grpo", own, study), _job("unit-grpo", own)
    assert several.with_steps is not None
    assert one.with_steps is not None
    alone = {phase.name: phase for phase in one.with_steps(40).phases}
    assert {SAMPLING, VERIFYING, SCORING, HELD_OUT} < alone.keys()
    assert "each takes" in alone[SAMPLING].about
    for variant in ("a", "b"):
        found = {
            phase.name: phase for phase in several.with_steps(40).phases if phase.variant == variant
        }
        for name in (SAMPLING, VERIFYING, SCORING, HELD_OUT):
            times = [found[name].time_s, alone[name].time_s]
            assert times[0] is not None
            assert times[1] is not None
            assert times[0].value == pytest.approx(2 * times[1].value)
