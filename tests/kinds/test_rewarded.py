"""Runs that learn from rewards, from questions to a scored model: planned to the byte, killed and
gone on with bit for bit.
"""

import gc
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finished_runs import records_of, train
from killed import in_a_child, kill_at
from preference_runs import (
    assert_ends_alike,
    assert_same_tensors,
    assert_timed_with_few_scored,
    drawn_in,
    messages_of,
    planned_and_real,
    run,
    step_of,
    steps_of,
    weights_of,
)
from quick_models import needs_bf16

from brimful.base.errors import (
    BrimfulError,
    DataError,
    RecipeError,
    RunFolderError,
    TrainingStopped,
)
from brimful.base.rundir import read_journal, read_json
from brimful.generation import copied_weights
from brimful.generation.backends import choice
from brimful.generation.engine import Engine
from brimful.generation.export import export_merged
from brimful.generation.quick_blocks import quick_blocks
from brimful.kinds.rewarded import RewardedRunData
from brimful.kinds.run_data import gather
from brimful.planning.choices import PACKED_ATTENTION
from brimful.recipe import Recipe
from brimful.recipe.rewards import RewardsRecipe
from brimful.recipe.rft import PROGRAM_VERIFIERS
from brimful.report.kinds import report_kind
from brimful.report.page.plots import curves
from brimful.report.predictions import comparisons
from brimful.report.time_spent import time_spent
from brimful.runs.folder import read_run
from brimful.runs.measurements import stage_times_s
from brimful.runs.records import RoundRecord
from brimful.selection import answer_rounds
from brimful.selection.answer_journal import ANSWERS_FILE, AnswerJournal, DrawnAnswer
from brimful.selection.answer_rounds import Round
from brimful.selection.rewarded import AnswerWriter, Judges, RewardedQuestion
from brimful.training import loop
from brimful.training.world import World
from brimful.verify.verifier import load_verifier, verifier_names

ANSWERS = 3
"""In a micro-batch."""
WAYS = {
    "one update": [],
    "several": ["rewards.batches=2", "rewards.passes=2", "rewards.loss=dapo"],
    "kl": ["rewards.kl=0.1", "rewards.weight_cap=2", "rewards.temperature=1"],
    "better ones": ["rewards.negative_weight=0"],
    "full": ["adapter=null", "rewards.loss=gspo", "optimizer.learning_rate=1e-3"],
}


def _live_bytes() -> int:
    """Of all tensors that are alive."""
    gc.collect()
    held = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
    return sum({each.data_ptr(): each.untyped_storage().nbytes() for each in held}.values())


def test_the_reward_of_a_small_model_rises_and_what_is_in_memory_does_not(
    asking: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, held = RewardedRunData.draw, list[int]()

    def draw(data: RewardedRunData, *arguments: Any) -> Any:
        held.append(_live_bytes())
        return real(data, *arguments)

    monkeypatch.setattr(RewardedRunData, "draw", draw)
    said = ["adapter=null", "optimizer.learning_rate=1e-2", "optimizer.schedule=constant"]
    recipe = asking(*said, "training.steps=20", "batch.sequences=32")

    folder = run(recipe)

    # A second round finds optimizer states, and what of an update is still referred to.
    assert max(held[2:]) <= 1.01 * held[1]

    rounds, steps = records_of(folder, "round"), steps_of(folder)
    rewards = [each["reward"] for each in rounds]
    assert len(rounds) == len(steps) == 20
    assert np.mean(rewards[-4:]) > np.mean(rewards[:4]) + 0.3
    assert [each["named"]["reward"] for each in steps] == pytest.approx(rewards, rel=1e-6)
    assert {"entropy", "clipped", "tokens", "cut", "equal"} <= steps[0]["named"].keys()
    told = messages_of(folder)
    certificate = next(each for each in told if each.startswith("sampler and trainer"))
    assert float(certificate.split("at most ")[1].split()[0]) < 1e-4
    scores = read_json(folder / "scores.json")["validation"]
    assert scores["windows"] == gather(recipe, str(recipe.model)).validation_count
    assert scores["loss"] == pytest.approx(1 - scores["named"]["reward"])
    run_folder = read_run(folder)
    drawn = {each.key: each for each in curves(run_folder)}
    assert next(iter(drawn)) == "named-reward"
    assert [key for key, each in drawn.items() if each.is_main] == ["named-reward"]
    told_reward = f"gets {1 - scores['loss']:.0%} of the reward"
    assert told_reward in report_kind(run_folder).verdict(run_folder)
    assert [card.name for card in report_kind(run_folder).score_cards(run_folder)] == ["Reward"]


@pytest.mark.parametrize("way", WAYS)
def test_log_probs_of_sampler_and_trainer_are_those_of_the_weights_that_drew(
    asking: Callable[..., Recipe], way: str
) -> None:
    """The first update's ratio is 1: nothing is clipped, whatever was scored before."""
    steps = steps_of(train(asking(*WAYS[way], "training.steps=2")))

    assert steps[0]["named"]["clipped"] == 0
    assert steps[0]["loss"] == pytest.approx(0, abs=0.6)
    if way == "kl":
        assert steps[0]["named"]["kl"] == pytest.approx(0, abs=1e-6)
        assert steps[0]["named"]["weight"] == pytest.approx(1, abs=1e-4)


KILLS: dict[str, tuple[object, str, int]] = {
    "sampling": (AnswerJournal, "append", 21),
    "verifying": (Judges, "rewards", 2),
    "an update": (loop, "guarded_update", 4),
    "between answers and their use": (AnswerJournal, "found", 2),
}


def _killing(target: object, name: str, call: int, recipe: Recipe) -> None:
    kill_at(target, name, call)
    train(recipe)


def test_killed_anywhere_it_ends_bit_for_bit_like_an_undisturbed_run(
    asking: Callable[..., Recipe],
) -> None:
    """With several updates in a round."""
    shared = [*WAYS["several"], "checkpoint.every=1", "evaluation.every=6"]
    whole = train(asking(*shared, "run.name=whole"))
    for place, (name, kill) in enumerate(KILLS.items()):
        recipe = asking(*shared, f"run.name=killed{place}")

        killed = in_a_child(lambda kill=kill, recipe=recipe: _killing(*kill, recipe))  # type: ignore[misc]
        assert killed == signal.SIGKILL, name
        gone_on = train(recipe)

        assert_ends_alike(whole, gone_on)
        named = [[each["named"] for each in steps_of(folder)] for folder in (whole, gone_on)]
        assert named[0] == named[1], name
        assert drawn_in(whole) == drawn_in(gone_on), name


@pytest.mark.parametrize(("updates", "is_lost"), [(1, False), (2, True)])
def test_an_answer_whose_line_was_damaged_is_drawn_again_or_missed(
    asking: Callable[..., Recipe], tmp_path: Path, updates: int, is_lost: bool
) -> None:
    """Again by the weights that drew it; after an update they are no longer there."""
    shared = [
        *WAYS["several"],
        "checkpoint.every=1",
        "evaluation.every=6",
        f"run.folder={tmp_path}",
    ]
    recipe = asking(*shared, "run.name=damaged")
    assert in_a_child(lambda: _killing(loop, "guarded_update", updates, recipe)) == signal.SIGKILL
    path = tmp_path / "damaged" / ANSWERS_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0].replace(b"text", b"tixt"), *lines[1:]]))

    if is_lost:
        with pytest.raises(RunFolderError, match="does not hold the answers of round 1"):
            train(recipe)
        return
    ours, theirs = weights_of(train(asking(*shared, "run.name=whole"))), weights_of(train(recipe))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_what_was_drawn_before_a_kill_is_not_drawn_again(
    asking: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = asking("training.steps=1", "evaluation.every=99")
    assert in_a_child(lambda: _killing(AnswerJournal, "append", 6, recipe)) == signal.SIGKILL
    asked: list[int] = []
    real = Engine.stream

    def stream(engine: Engine, requests: Any, *args: Any, **values: Any) -> Any:
        asked.append(len(requests))
        return real(engine, requests, *args, **values)

    monkeypatch.setattr(Engine, "stream", stream)
    train(recipe)

    assert asked[0] == 8 - 5


@pytest.mark.parametrize("way", WAYS)
def test_what_is_planned_is_what_a_real_step_takes_to_the_byte(
    asking: Callable[..., Recipe], way: str
) -> None:
    spec = step_of(asking(*WAYS[way], "plan.loss_chunk=100"))

    planned_and_real(asking(*WAYS[way]), spec, ANSWERS)


def test_a_question_that_answers_share_is_planned_once_on_a_cpu(
    asking: Callable[..., Recipe],
) -> None:
    recipe = asking()
    data = gather(recipe, str(recipe.model))
    assert isinstance(data, RewardedRunData)
    group = data.rules.samples_per_prompt
    prompts = [len(each.prompt_ids) for each in data.questions["train"]]
    again = sum(prompts) / len(prompts) * (1 - 1 / group)

    share = data.computed_share("cpu")

    assert share * data.mean_positions == pytest.approx(data.mean_positions - again)
    assert data.tokens_computed("cpu") == round(share * data.tokens_per_step)
    assert data.computed_share("cuda") == 1
    padded = asking("plan.packing=padded")
    assert gather(padded, str(padded.model)).computed_share("cpu") == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_real_micro_batch_has_the_tensors_of_the_planned_one(
    asking: Callable[..., Recipe], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = asking(*WAYS[way], "training.steps=1")
    planned = RewardedRunData.blank(step_of(recipe), ANSWERS)
    seen: list[Any] = []
    real = answer_rounds.AnswerBatch.micro_batches

    def micro_batches(batch: Any, sizes: tuple[int, ...]) -> Any:
        for micro in real(batch, sizes):
            seen.append(micro)
            yield micro

    monkeypatch.setattr(answer_rounds.AnswerBatch, "micro_batches", micro_batches)
    train(recipe)

    assert_same_tensors(seen[0], planned, shapes=False)


def test_equal_rewards_are_told_and_stop_the_run_where_the_recipe_says_so(
    asking: Callable[..., Recipe],
) -> None:
    never = ["rewards.verifiers={exact: 1.0}", "training.steps=3", "rewards.patience=2"]
    folder = train(asking(*never, "run.name=told"))
    told = messages_of(folder)
    assert [each for each in told if "equal rewards" in each and "B328" in each]

    with pytest.raises(TrainingStopped, match=r"rewards\.stop"):
        train(asking(*never, "run.name=stopped", "rewards.stop=true"))


@pytest.mark.parametrize("way", ["one update", "several", "kl", "better ones"])
def test_groups_of_equal_rewards_take_no_pass_and_change_nothing(
    asking: Callable[..., Recipe], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[int] = []
    real_batch, real_round = RewardedRunData.batch, Round.of

    def batch(data: RewardedRunData, first_sample: int, count: int) -> Any:
        found = real_batch(data, first_sample, count)
        answers.append(len(found.pairs))
        return found

    monkeypatch.setattr(RewardedRunData, "batch", batch)
    said = [*WAYS[way], "training.steps=1", "batch.sequences=32", "plan.precision=fp32"]
    left_out = train(asking(*said, "run.name=left-out"))

    def everything(*arguments: Any) -> Round:
        drawn = real_round(*arguments)
        return replace(drawn, teaches_A=np.ones_like(drawn.teaches_A))

    monkeypatch.setattr(Round, "of", everything)
    learned = train(asking(*said, "run.name=learned"))

    (round_,) = records_of(learned, "round")
    assert 0 < round_["equal"] < 1
    assert (answers[0] < answers[1]) == (way not in {"kl", "several"})  # dapo leaves them out, too
    (mine,), (theirs,) = steps_of(left_out), steps_of(learned)
    assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
    assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
    assert mine["named"]["entropy"] == pytest.approx(theirs["named"]["entropy"], rel=1e-5)


def test_two_ranks_learn_from_the_same_answers_as_one_process(
    asking: Callable[..., Recipe], ranks: Callable[..., list[Any]]
) -> None:
    """One of them draws and judges for both."""
    said = [*WAYS["several"], "plan.micro_batch=2", "training.steps=3"]
    alone = train(asking(*said, "run.name=alone"))
    recipe = asking(*said, "run.name=both", "plan.spread=replicated")

    def act(world: World) -> str:
        return str(train(recipe, world=world))

    (both, _) = map(Path, ranks(2, act))

    assert drawn_in(alone) == drawn_in(both)
    for mine, theirs in zip(steps_of(alone), steps_of(both), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4, abs=1e-5)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3, abs=1e-5)
        assert mine["named"]["reward"] == pytest.approx(theirs["named"]["reward"], rel=1e-6)
    ours, theirs_too = weights_of(alone), weights_of(both)
    for name, each in ours.items():
        torch.testing.assert_close(each, theirs_too[name], rtol=1e-3, atol=1e-5)


OWN = """
def reward(answer, row):
    if len(answer) % 2:
        raise ValueError("odd")
    return -len(answer) / 10 if row["prompt"] else 0
"""


def test_rewards_of_a_file_are_added_and_its_failures_are_told_and_stop_the_run(
    asking: Callable[..., Recipe], tmp_path: Path
) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    said = ["training.steps=2", f"rewards.verifiers={{regex: 1.0, {path}: 2.0}}"]
    said += ["rewards.patience=1", "rewards.most_failed=0"]

    folder = train(asking(*said, "run.name=told"))

    rounds = records_of(folder, "round")
    answers = [each for each in read_journal(folder / ANSWERS_FILE) if "found" not in each]
    found = [each["found"] for each in read_journal(folder / ANSWERS_FILE) if "found" in each]
    first = sorted(
        (each for each in answers if each["round"] == 0), key=lambda each: int(each["number"])
    )
    failing = [len(each["text"].strip()) % 2 for each in first]
    assert 0 < sum(failing) < len(failing)
    assert rounds[0]["failed"] == pytest.approx(np.mean(failing))
    texts = [each["text"].strip() for each in first]
    for reward, text in zip(found[0]["rewards"], texts, strict=True):
        assert reward == pytest.approx(
            float(bool(set("ae ") & set(text))) - (0 if len(text) % 2 else 2 * len(text) / 10)
        )
    told = messages_of(folder)
    assert [each for each in told if "got no reward from a verifier" in each and "odd" in each]
    with pytest.raises(TrainingStopped, match="most_failed"):
        train(asking(*said, "run.name=stopped", "rewards.stop=true"))


ENVIRONMENT = """
from datasets import Dataset
import verifiers as vf

async def vowels(parser, prompt, completion, answer):
    assert prompt[0]["content"] == "Sing."
    text = parser.parse_answer(completion)
    if len(text) % 2:
        raise ValueError("odd")
    return float(any(each in text for each in answer))

def length(completion):
    return len(completion[-1]["content"]) / 10

def load_environment(vowels_of="ae "):
    rows = [{"question": f"Say something, {n}:", "answer": vowels_of} for n in range(40)]
    rubric = vf.Rubric(funcs=[vowels, length], weights=[1.0, -0.5])
    dataset = Dataset.from_list(rows)
    return vf.SingleTurnEnv(dataset=dataset, rubric=rubric, system_prompt="Sing.")
"""


def test_an_environment_asks_its_questions_and_rewards_their_answers(
    asking: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("verifiers", reason="extra verifiers is not installed")
    path, questions = tmp_path / "saying_vowels.py", tmp_path / "asked.jsonl"
    path.write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = import_module("saying_vowels").load_environment("ae")
    asked = environment.get_dataset()
    right = [{"role": "assistant", "content": "ae"}]
    asked.map(lambda row: {"messages": [*row["prompt"], *right]}).to_json(questions)
    said = [f"data.path={questions}", "training.steps=2", "rewards.arguments={vowels_of: ae}"]
    said += [f"rewards.verifiers={{environment:{path}: 2.0}}"]
    said += ["rewards.patience=1", "rewards.most_failed=0"]

    folder = train(asking(*said, "run.name=told"))

    kept = [*read_journal(folder / ANSWERS_FILE)]
    found = [each["found"] for each in kept if "found" in each]
    answers = [each for each in kept if "found" not in each and each["round"] == 0]
    texts = [each["text"].strip() for each in sorted(answers, key=lambda each: int(each["number"]))]
    failing = [len(text) % 2 for text in texts]
    assert 0 < sum(failing) < len(failing)
    assert records_of(folder, "round")[0]["failed"] == pytest.approx(np.mean(failing))
    for reward, text in zip(found[0]["rewards"], texts, strict=True):
        worth = float(bool(set("ae") & set(text))) - len(text) / 20
        assert reward == pytest.approx(0 if len(text) % 2 else 2 * worth)
    told = messages_of(folder)
    assert [each for each in told if "vowels: ValueError: odd" in each or "vowels: odd" in each]
    with pytest.raises(TrainingStopped, match="most_failed"):
        train(asking(*said, "run.name=stopped", "rewards.stop=true"))


def test_a_reward_that_is_not_finite_is_counted_as_a_failure_and_none_is_given(
    tmp_path: Path,
) -> None:
    path = tmp_path / "own.py"
    path.write_text("def reward(answer, row):\n    return float(answer)\n")
    judges = Judges(RewardsRecipe(verifiers={str(path): 2.0}))
    question = RewardedQuestion("q", "How much?", (), "", {}, "here")
    answers = ["nan", "inf", "-inf", "1e308", "0.5"]
    assert judges.rewards([(question, each) for each in answers]) == [0, 0, 0, 0, 1.0]
    said = ["nan", "inf", "-inf", "inf"]
    assert judges.odd["failed"] == [f"{path}: {each}" for each in said]


def test_a_run_does_not_go_on_with_another_file_of_rewards(
    asking: Callable[..., Recipe], tmp_path: Path
) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    recipe = asking(f"rewards.verifiers={{{path}: 1.0}}", "training.steps=2", "checkpoint.every=1")
    assert in_a_child(lambda: _killing(loop, "guarded_update", 2, recipe)) == signal.SIGKILL
    path.write_text(OWN.replace("10", "20"))
    with pytest.raises(BrimfulError, match="objective"):
        train(recipe)


CHEATS = (
    "def add(a, b):\n    raise SystemExit(0)",
    "class Any:\n    def __eq__(self, other):\n        return True\n\n"
    "def add(a, b):\n    return Any()",
    "import builtins\nbuiltins.AssertionError = type('A', (Exception,), {})\n"
    "def add(a, b):\n    return 0",
    "def add(a, b):\n    while True:\n        pass",
)


def test_answers_that_game_the_tests_of_programs_are_not_rewarded() -> None:
    row = {"code": "def add(a, b):\n    return a + b", "test_list": ["assert add(1, 2) == 3"]}
    question = RewardedQuestion("q", "Add.", (), "", row, "here")
    judges = Judges(RewardsRecipe(verifiers={"mbpp": 1.0}))
    answers = [row["code"], *CHEATS]
    assert judges.rewards([(question, str(each)) for each in answers]) == [1.0, 0, 0, 0, 0]
    assert not judges.odd["failed"]
    assert judges.odd["gamed"] == [
        "mbpp: SystemExit: 0",
        "mbpp: the assertion in line 2 of the tests does not hold; it returned a value that equals"
        " everything, which is not plain data",
    ]
    marked = Judges(RewardsRecipe(verifiers={"number": 1.0}))
    number = RewardedQuestion("q", "2 + 1?", (), "3", {}, "here")
    many = "".join(f"<answer>{each}</answer>" for each in range(10))
    assert marked.rewards([(number, many), (number, "<answer>3</answer>")]) == [0, 1]


@needs_bf16
def test_answers_are_drawn_by_quick_blocks_and_learned_from_in_packed_rows(
    asking: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention of packed rows would keep the quicker blocks away."""
    real, seen, kept = AnswerWriter.write, list[tuple[str, int]](), list[str]()

    def quick(model: Any, weights: Any) -> Any:
        found = quick_blocks(model, weights)
        seen.append((model.config._attn_implementation, len(found)))
        return found

    def write(writer: AnswerWriter, *arguments: Any) -> bool:
        before = writer.model.config._attn_implementation
        finished = real(writer, *arguments)
        assert writer.model.config._attn_implementation == before
        kept.append(before)
        return finished

    monkeypatch.setattr(copied_weights, "quick_blocks", quick)
    monkeypatch.setattr(choice, "products_for", lambda *_: "bf16")
    monkeypatch.setattr(AnswerWriter, "write", write)
    train(asking("training.steps=1", "plan.precision=bf16", "plan.packing=packed"))
    assert PACKED_ATTENTION in kept
    assert seen
    assert {how for how, _ in seen} == {"sdpa"}


def test_long_answers_lose_reward_near_the_most_tokens() -> None:
    drawn = [DrawnAnswer("q", 0, [1] * length, [], "length", "") for length in (2, 6, 8, 10)]
    rules = RewardsRecipe(max_new_tokens=10, overlong=4)
    assert answer_rounds.without_overlong(rules, [1.0] * 4, drawn) == [1.0, 1.0, 0.5, 0.0]
    assert answer_rounds.without_overlong(RewardsRecipe(), [1.0] * 4, drawn) == [1.0] * 4


def test_verifiers_that_run_programs_are_known_without_loading_them() -> None:
    needing = {name for name in verifier_names() if load_verifier(name).needs_sandbox}
    assert needing == PROGRAM_VERIFIERS


def test_times_of_a_round_are_planned_measured_and_counted_once(
    asking: Callable[..., Recipe],
) -> None:
    shared = [*WAYS["several"], "checkpoint.every=1", "training.steps=6"]
    recipe = asking(*shared, "run.name=killed")
    assert in_a_child(lambda: _killing(loop, "guarded_update", 4, recipe)) == signal.SIGKILL
    found = read_run(run(recipe))

    times = stage_times_s(found)
    phases = ("sampling_time_s", "verifying_time_s", "scoring_time_s")
    assert all(times[name] for name in phases)
    rounds = [each for each in found.records if isinstance(each, RoundRecord)]
    assert sum(each.sampling_s > 0 for each in rounds) == 2
    assert len(rounds) == 3
    compared = {each.key: each.measured for each in comparisons(found)}
    assert all(compared[name] == times[name] for name in phases)
    spent = time_spent(found)
    assert spent is not None
    assert {"Drawing answers", "Verifying answers", "Scoring answers"} <= dict(spent.parts).keys()
    assert found.plan is not None
    total = found.plan.predicted["total_time_s"].value
    assert total > sum(found.plan.predicted[name].value for name in phases)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("rewards.overlong=7", "overlong 7 is more than max_new_tokens 6"),
        ("rewards.samples_per_prompt=3", "multiple of rewards.samples_per_prompt 3"),
        ("rewards.max_new_tokens=64", "leaves no room"),
        ("rewards.verifiers={nubmer: 1.0}", "unknown verifier"),
        ("plan.loader_workers=2", "loader_workers"),
        ("plan.sampling=transformers", "log-probabilities"),
        ("rewards={kl: 0.1, samples_per_prompt: 4, max_new_tokens: 6}", ""),
    ],
)
def test_bad_settings_are_refused(asking: Callable[..., Recipe], said: str, named: str) -> None:
    if not named:
        with pytest.raises(RecipeError, match="adapters off"):
            asking(said, "adapter=null")
        return
    with pytest.raises(RecipeError, match=named):
        asking(said)


def test_the_reference_may_be_a_model_with_trained_adapters_merged_into_it(
    asking: Callable[..., Recipe], tmp_path: Path
) -> None:
    """What is advised where adapters go on, whose start nothing holds any more."""
    compared = ("rewards.kl=0.1", "training.steps=1", "adapter.rank=2")
    start = train(asking("training.steps=1", "adapter.rank=4", "run.name=start"))
    with pytest.raises(RecipeError, match=r"brimful export RUN --merge"):
        asking(*compared, f"adapter.start={start / 'model'}")
    merged = tmp_path / "merged"

    export_merged(start, merged)

    folder = train(asking(*compared, f"model={merged}"))
    assert steps_of(folder)[0]["named"]["kl"] == pytest.approx(0, abs=1e-6)


def test_questions_that_leave_no_room_are_told_and_references_are_checked(
    asking: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = asking("sequence_length=40", "rewards.max_new_tokens=30")
    with pytest.raises(DataError, match="too long"):
        gather(recipe, str(recipe.model))
    path = tmp_path / "long.jsonl"
    rows = [{"prompt": f"Say {number}:", "completion": "a" * 500} for number in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for policy in ("error", "drop", "truncate"):  # such an answer is never learned
        long = asking(f"data.path={path}", f"data.long_documents={policy}")
        data = gather(long, str(long.model))
        assert isinstance(data, RewardedRunData)
        assert sum(map(len, data.questions.values())) == 20
        assert {each.reference for each in data.questions["train"]} == {"a" * 500}
    path = tmp_path / "bad.jsonl"
    rows = [{"prompt": f"a {number}", "completion": "("} for number in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bad = asking(f"data.path={path}")
    with pytest.raises(DataError, match=r"rewards\.verifiers"):
        gather(bad, str(bad.model))


def test_passes_are_timed_with_a_loss_of_the_answers_only(
    asking: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_timed_with_few_scored(asking(), monkeypatch)
