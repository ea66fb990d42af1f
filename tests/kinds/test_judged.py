"""Runs on judged answers, from rows to a scored model: planned to the byte, resumed bit for bit."""

import json
import random
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from finished_runs import records_of
from fixture_types import MakeRecipe
from preference_runs import (
    assert_same_tensors,
    assert_stopped_ends_like_undisturbed,
    planned_and_real,
    run,
    step_of,
    steps_of,
)
from rich.console import Console

from brimful.base.rundir import read_json
from brimful.base.warning_codes import is_always_told
from brimful.chains import pipeline, plans
from brimful.kinds.judged import JudgedRunData, mismatched
from brimful.kinds.run_data import gather
from brimful.planning.work import PHASES, Work
from brimful.recipe import Recipe
from brimful.rehearsal.models import config_of
from brimful.rehearsal.training import record_training

ANSWERS = 3
"""In a micro-batch."""
WAYS = {
    "in passes": ["preference.reference=in_passes"],
    "kept": ["preference.reference=kept"],
    "no point": ["preference.loss=apo_zero_unpaired"],
    "full": ["adapter=null", "optimizer.learning_rate=1e-3"],
}


@pytest.fixture
def judging(tuning: MakeRecipe, pairs_file: Path) -> MakeRecipe:
    """`judging("key=value", ...)` gives a recipe on the answers of pairs, with overrides."""
    usual = ["method=kto", "evaluation.base=never", f"data.path={pairs_file}"]
    return lambda *overrides: tuning(*usual, *overrides)


@pytest.mark.long_but("in passes", "no point")
@pytest.mark.parametrize("way", WAYS)
def test_a_run_is_planned_trained_scored_and_reported(judging: MakeRecipe, way: str) -> None:
    recipe = judging("training.steps=12", *WAYS[way])

    folder = run(recipe)

    steps = steps_of(folder)
    assert [record["step"] for record in steps] == [*range(1, 13)]
    assert steps[0]["loss"] == pytest.approx(0.5, abs=1e-3)
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert steps[-1]["named"]["reward_chosen"] > steps[-1]["named"]["reward_rejected"]
    assert ("kl" in steps[-1]["named"]) == (way != "no point")
    scores = read_json(folder / "scores.json")["validation"]
    assert scores["windows"] == gather(recipe, str(recipe.model)).validation_count
    assert 0 <= scores["named"]["accuracy"] <= 1
    best = [each for each in records_of(folder, "evaluation") if each["best"]][-1]
    assert best["loss"] == pytest.approx(scores["loss"], rel=1e-4)
    page = (folder / "report.html").read_text()
    assert "held-out answers" in page
    assert "held-out pairs" not in page


@pytest.mark.parametrize(
    ("way", "packing"), [("in passes", "padded"), ("kept", "packed"), ("full", "padded")]
)
@pytest.mark.long_but("in passes-padded")
def test_a_stopped_run_ends_bit_for_bit_like_an_undisturbed_one(
    judging: MakeRecipe, monkeypatch: pytest.MonkeyPatch, way: str, packing: str
) -> None:
    shared = [*WAYS[way], f"plan.packing={packing}"]
    assert_stopped_ends_like_undisturbed(judging, shared, monkeypatch)


@pytest.mark.parametrize(("desired", "others"), [(8, 32), (32, 8)])
def test_weights_of_unequal_numbers_of_answers_are_advised(
    judging: MakeRecipe, tmp_path: Path, desired: int, others: int
) -> None:
    recipe = judging(f"data.path={write_judged(tmp_path, desired, others)}")

    (told,) = unbalanced_in(recipe)

    (advice,) = re.findall(r"preference[.]\w+=[\d.]+", told)
    assert not unbalanced_in(judging(f"data.path={tmp_path / 'judged.jsonl'}", advice))


@pytest.mark.parametrize(("desired", "which"), [(40, "desired"), (0, "not desired")])
def test_answers_of_one_kind_only_are_told_with_their_number(
    judging: MakeRecipe, tmp_path: Path, desired: int, which: str
) -> None:
    recipe = judging(f"data.path={write_judged(tmp_path, desired, 40 - desired)}")

    (told,) = unbalanced_in(recipe)

    count = gather(recipe, str(recipe.model)).splits["train"].num_examples
    assert f"all {count} answers to train on are {which}," in told


def write_judged(folder: Path, desired: int, others: int) -> Path:
    """Judged answers, each to a prompt of its own, the desired ones among the others."""
    rows = [
        {"prompt": f"Say red, number {number}: ", "completion": "red", "label": number < desired}
        for number in range(desired + others)
    ]
    random.Random(1).shuffle(rows)
    path = folder / "judged.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def unbalanced_in(recipe: Recipe) -> list[str]:
    """What is said of the numbers of answers of each kind, however much there is to say."""
    data = gather(recipe, str(recipe.model))
    told = [line for line in data.lines() if "B327" in line]
    assert [*filter(is_always_told, told)] == told
    return told


def test_desired_answers_that_become_less_likely_are_told(
    judging: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.kinds.pairs.MOST_DISPLACED", -1.0)
    console = StringIO()
    pipeline.train(judging("training.steps=12"), Console(file=console, width=4000))

    (told,) = (line for line in console.getvalue().splitlines() if "B326" in line)
    assert "of the desired held-out answers have become less likely" in told
    assert "sft_weight" not in told


@pytest.mark.long_but("in passes")
@pytest.mark.parametrize("way", WAYS)
def test_what_is_planned_is_what_a_real_step_takes_to_the_byte(
    judging: MakeRecipe, way: str
) -> None:
    """With the passes in which a step is measured before."""
    spec = step_of(judging(*WAYS[way], "plan.loss_chunk=100"))

    planned, _, _ = planned_and_real(judging(*WAYS[way]), spec, ANSWERS)

    assert ("measure 3" in planned.marks) == (way != "no point")
    assert planned.work is not None
    passes = {"in passes": 4, "kept": 2, "full": 2, "no point": 2}[way]
    plain = replace(spec, method="sft", options_json="{}")
    of_sft = record_training(plain, config_of(plain), ANSWERS).work
    assert of_sft is not None
    # A little less, where adapters are off.
    assert round(_forward_flop(planned.work) / _forward_flop(of_sft)) == passes


def _forward_flop(work: Work) -> float:
    """Of the first block in the first micro-batch of a step."""
    part = work.part("micro-batch")
    return part.only((part.phases_W == PHASES.index("forward")) & (part.layers_W == 0)).flop()


def test_a_real_micro_batch_has_the_tensors_of_the_planned_one(
    judging: MakeRecipe,
) -> None:
    for way in WAYS.values():
        recipe = judging(*way)
        data = gather(recipe, str(recipe.model))
        planned = JudgedRunData.blank(step_of(recipe), ANSWERS)
        assert isinstance(data, JudgedRunData)
        data._take({name: [0.0] * each.num_examples for name, each in data.compared.items()})
        batch = data.sequences(plans.plan(data.planned, "T4")).batch(0, ANSWERS)
        (micro,) = batch.micro_batches((ANSWERS,))

        assert_same_tensors(micro, planned)


def test_answers_move_on_to_another_prompt_and_are_cut_to_the_sequence(
    judging: MakeRecipe,
) -> None:
    recipe = judging()
    data = gather(recipe, str(recipe.model))
    split = data.splits["train"]

    others = mismatched(split, 5)

    assert sorted(each.completion for each in others.examples) == sorted(
        each.completion for each in split.examples
    )
    for own, other in zip(split.examples, others.examples, strict=True):
        assert own.prompt == other.prompt
    assert others.lengths_E.max() == 6
    assert data.splits["train"].examples[2].completion == (
        mismatched(split, 99).examples[4].completion
    )
