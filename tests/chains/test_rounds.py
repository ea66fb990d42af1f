"""Rejection-sampling fine-tuning from end to end: one chain of two rounds that all tests look
at.
"""

import json
import math
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import Refuses
from json_lines import write_rows
from rich.console import Console
from small_models import write_base_model
from syrupy.assertion import SnapshotAssertion

from brimful.base import watchdog
from brimful.base.errors import BrimfulError, DataError, Interrupted, RequestError, RunFolderError
from brimful.base.rundir import read_json
from brimful.base.types import JsonDict
from brimful.chains import calls, rounds, sampling, sampling_session
from brimful.chains.plan_options import save_surveyed
from brimful.chains.plans import survey
from brimful.chains.sampling_questions import gather_questions
from brimful.generation.author import Author, tuned_author
from brimful.generation.engine import Engine
from brimful.recipe import Recipe, load
from brimful.selection.journal import is_sample
from brimful.training.world import ALONE, World

pytestmark = pytest.mark.filterwarnings("ignore")  # peft and bitsandbytes warn about themselves

RFT = """
name: rounds
method: sft
model: {base}
sequence_length: 64
batch: {{sequences: 4}}
training: {{tokens: 3000}}
data: {{path: {examples}, validation: 0.2}}
optimizer: {{learning_rate: 1e-2, warmup: 2}}
evaluation: {{every: 30, tasks: [bleu], max_examples: 4}}
sample: {{prompt: "Say red twice.", tokens: 8, temperature: 0.0}}
plan: {{device: cpu, precision: fp32, threads: 1, compile: false}}
run: {{folder: {runs}}}
rft:
  questions: {{path: {questions}}}
  verifier: regex
  distinct_by: text
  samples_per_prompt: 6
  keep_per_prompt: 2
  max_new_tokens: 24
  rounds: 2
"""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Chain:
    """A finished chain of two rounds."""

    root: Path
    recipe_file: Path
    folder: Path
    told: str

    def recipe(self, *overrides: str) -> Recipe:
        return load(str(self.recipe_file), overrides)

    def draw(
        self,
        folder: Path,
        *overrides: str,
        author: Callable[[], Author] | None = None,
        world: World = ALONE,
    ) -> JsonDict:
        """Into a folder of its own, by the tuned student."""
        recipe = self.recipe(*overrides)
        load_author = author or (lambda: tuned_author(self.folder / "sft", CPU))
        questions = gather_questions(recipe)
        named = {"seed": 3, "author_id": "student", "world": world}
        return sampling.draw(recipe, questions, load_author, folder, _console(), **named)


def _console(told: StringIO | None = None) -> Console:
    return Console(file=told or StringIO(), width=160)


def _rows(path: Path) -> list[JsonDict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def chain(
    new_cache: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chain]:
    """A tiny base that learns to name colours; every answer of small letters is right."""
    root, drawn = tmp_path_factory.mktemp("rounds"), random.Random(1)
    examples, questions = [], {}
    for number in range(60):
        color, times = drawn.choice(["red", "green", "blue"]), drawn.randint(1, 4)
        examples.append(
            {
                "question": f"Say {color} {times} times, number {number}.",
                "answer": 0,
                "reasoning": " ".join([color] * times),
            }
        )
        questions[f"Say {color} {times} times."] = {
            "question": f"Say {color} {times} times.",
            "answer": "[a-z ]+",
            "kind": color,
        }
    demonstrations = [
        {"prompt": row["question"], "completion": row["reasoning"]} for row in examples
    ]
    file = root / "rounds.yaml"
    asked, shown = (
        write_rows(root / "questions.jsonl", list(questions.values())),
        write_rows(root / "examples.jsonl", demonstrations),
    )
    file.write_text(
        RFT.format(
            base=write_base_model(root / "base", 280),
            examples=shown,
            runs=root / "runs",
            questions=asked,
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        torch.set_num_threads(1)
        patch.setenv("BRIMFUL_CACHE", new_cache())
        told = StringIO()
        page = rounds.run_rounds(load(str(file)), _console(told))
        yield Chain(root, file, page.parent, told.getvalue())


def test_rounds_sample_verify_and_train_and_end_in_one_table(chain: Chain) -> None:
    folder = chain.folder
    table = (folder / "study.md").read_text()

    assert {entry.name for entry in folder.iterdir() if entry.is_dir()} == {
        "base",
        "sft",
        "samples-1",
        "rft-1",
        "samples-2",
        "rft-2",
    }
    assert all(f"| {name} " in table for name in ("base", "sft", "rft-1", "rft-2"))
    assert "Validation loss" not in table, "every variant holds out examples of its own"
    phases = {entry["name"]: entry for entry in read_json(folder / "study.json")["phases"]}
    assert {*phases} == {"training", "sampling", "verifying", "task answers"}
    assert phases["sampling"]["about"].startswith("2 x 72 answers of the student to 12 questions")
    assert phases.pop("verifying")["measured_s"] is None  # it is done beside the sampling
    assert all(entry["measured_s"] > 0 for entry in phases.values())
    assert phases["training"]["low_s"] < phases["training"]["expected_s"]
    assert "predicted beside measured" in (folder / "study.html").read_text()
    assert [
        (entry["round"], entry["folder"]) for entry in read_json(folder / "study.json")["rounds"]
    ] == [(1, "samples-1"), (2, "samples-2")]
    assert [
        Path(path).parent.name for path in load(str(folder / "rft-2" / "recipe.yaml")).data.paths
    ] == ["rounds", "samples-1", "samples-2"]


def test_every_sample_is_kept_with_its_verdict_and_what_is_trained_on_are_distinct_right_ones(
    chain: Chain,
) -> None:
    samples, train = (
        _rows(chain.folder / "samples-1" / "samples.jsonl"),
        _rows(chain.folder / "samples-1" / "train.jsonl"),
    )
    kept = [(row["question"], row["completion"]) for row in samples if row["fate"] == "kept"]

    assert {row["number"] for row in samples} == set(range(6))
    assert {row["status"] for row in samples if row["fate"] == "kept"} == {"correct"}
    assert 0 < len(kept) == len(set(kept)) == len(train)
    assert [(row["prompt"], row["completion"]) for row in train] == kept, (
        "rows of messages, though the demonstrations are text"
    )
    assert max(sum(question == asked for asked, _ in kept) for question, _ in kept) == 2


def test_samples_that_are_too_long_for_training_are_dropped_but_no_demonstrations(
    chain: Chain,
) -> None:
    policies = [
        load(str(chain.folder / name / "recipe.yaml")).data.long_documents
        for name in ("sft", "rft-1")
    ]
    assert policies == ["error", "drop"]


def test_what_one_round_kept_the_next_does_not_keep_again(chain: Chain) -> None:
    """All rounds are trained on together."""
    kept = [
        {
            (row["id"], row["path"])
            for row in _rows(chain.folder / name / "samples.jsonl")
            if row["fate"] == "kept"
        }
        for name in ("samples-1", "samples-2")
    ]
    assert all(kept)
    assert not kept[0] & kept[1]


def test_variants_train_on_equally_many_tokens(chain: Chain) -> None:
    """Read, not only learned; to within one optimizer step."""
    first, second = read_json(chain.folder / "study.json")["rounds"]
    for name, tokens in {**first["trained_tokens"], **second["trained_tokens"]}.items():
        steps = [
            record["step"]
            for record in _rows(chain.folder / name / "metrics.jsonl")
            if record["kind"] == "step"
        ]
        assert tokens == pytest.approx(3000, abs=tokens / max(steps))


def test_the_same_command_again_does_nothing_over(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither training nor sampling, nor loading a model to sample."""
    before = {
        path: path.stat().st_mtime_ns
        for path in [*chain.folder.rglob("*.safetensors"), *chain.folder.rglob("samples.jsonl")]
    }
    monkeypatch.setattr(
        sampling_session, "backend_for", lambda *_, **__: pytest.fail("a model was asked again")
    )
    rounds.run_rounds(chain.recipe(), _console())
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_finished_run_of_a_chain_gets_its_status_back_from_a_checkpoint(chain: Chain) -> None:
    status = chain.folder / "rft-1" / "run.json"
    before = status.read_text()
    status.write_text(before.replace("finished", "finishes"))

    rounds.run_rounds(chain.recipe(), _console(told := StringIO()))

    assert "it was brought back from the checkpoint" in " ".join(told.getvalue().split())
    assert json.loads(status.read_text())["status"] == "finished"


@pytest.mark.long
def test_all_trainings_of_rounds_take_a_saved_plan(chain: Chain, tmp_path: Path) -> None:
    short = ("run.name=pinned", "rft.rounds=1")
    recipe = chain.recipe(*short)
    asked = chain.recipe(*short, "plan.micro_batch=1")
    save_surveyed(tmp_path / "plan.json", asked, survey(asked))

    page = calls.run(recipe, _console(), plan_file=tmp_path / "plan.json")

    plans = [read_json(page.parent / run / "plan.json") for run in ("sft", "rft-1")]
    assert [plan["micro_batch"] for plan in plans] == [1, 1]
    free = read_json(chain.folder / "sft" / "plan.json")
    assert free["micro_batch"] > 1


def test_fresh_leaves_what_is_finished(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sampling_session, "backend_for", lambda *_, **__: pytest.fail("a model was asked again")
    )
    before = (chain.folder / "sft" / "run.json").stat().st_mtime_ns
    assert rounds.sample(chain.recipe(), _console(), fresh=True) == chain.folder / "samples-1"
    assert (chain.folder / "sft" / "run.json").stat().st_mtime_ns == before


def test_a_chain_does_not_mix_scores_and_samples_of_two_choices(
    chain: Chain, refuses: Refuses
) -> None:
    """More are kept now, but the round was tuned on fewer. With the recipe put back, so are the
    samples.
    """
    before = (chain.folder / "samples-1" / "train.jsonl").read_bytes()
    with refuses(RunFolderError, names=["rft-1", "samples-1/train.jsonl"]):
        rounds.run_rounds(chain.recipe("rft.keep_per_prompt=1"), _console())
    rounds.sample(chain.recipe(), _console())
    assert (chain.folder / "samples-1" / "train.jsonl").read_bytes() == before


class Killed(BaseException):
    """What ends a process, as far as a test of its own process can."""


@pytest.mark.parametrize("early", [False, True], ids=["all samples", "stopping early"])
def test_killed_at_ten_points_the_final_set_is_that_of_an_undisturbed_drawing(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    options = (
        f"rft.stop_early={str(early).lower()}",
        "rft.samples_per_prompt=8",
        "plan.sampling_rows=5",
    )
    chain.draw(tmp_path / "whole", *options)
    stream, points = Engine.stream, random.Random(0)

    def killed(self: Engine, *arguments: Any, **others: Any) -> Iterator[Any]:
        results = stream(self, *arguments, **others)
        for _ in range(points.randint(0, 9)):
            if (result := next(results, None)) is None:
                return
            yield result
        raise Killed

    monkeypatch.setattr(Engine, "stream", killed)
    for _ in range(10):
        try:
            chain.draw(tmp_path / "killed", *options)
        except Killed:
            continue
    monkeypatch.setattr(Engine, "stream", stream)
    chain.draw(tmp_path / "killed", *options)

    drawn = sum(map(is_sample, _rows(tmp_path / "killed" / "drawn.jsonl")))
    assert drawn >= len(_rows(tmp_path / "killed" / "samples.jsonl"))
    for name in ("samples.jsonl", "train.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("early", [False, True], ids=["all samples", "stopping early"])
def test_three_ranks_draw_the_samples_of_one_process_also_after_one_was_killed(
    chain: Chain, tmp_path: Path, ranks: Callable[..., list[Any]], early: bool
) -> None:
    options = (f"rft.stop_early={str(early).lower()}", "plan.sampling_rows=2")
    chain.draw(tmp_path / "alone", *options)
    stream = Engine.stream

    def killed(world: World) -> None:
        def act(self: Engine, *arguments: Any, **others: Any) -> Iterator[Any]:
            for number, result in enumerate(stream(self, *arguments, **others)):
                if number == 3 and world.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield result

        Engine.stream = act  # of this process, which ends with the test
        chain.draw(tmp_path / "shared", *options, world=world)

    (kind, message), end, other = ranks(3, killed)
    assert (kind, end, other) == ("RanksParted", signal.SIGKILL, [kind, message])
    before = sum(map(is_sample, _rows(tmp_path / "shared" / "drawn.jsonl")))

    facts = ranks(3, lambda world: chain.draw(tmp_path / "shared", *options, world=world))

    assert facts[0]["samples_before"] == before > 0
    assert [each["statistics"] for each in facts] == [facts[0]["statistics"]] * 3
    for name in ("samples.jsonl", "train.jsonl"):
        shared, alone = (tmp_path / folder / name for folder in ("shared", "alone"))
        assert shared.read_bytes() == alone.read_bytes()


def test_a_rank_that_is_halted_while_drawing_ends_the_one_that_waits_for_it(
    chain: Chain, tmp_path: Path, ranks: Callable[..., list[Any]]
) -> None:
    halted = tmp_path / "halted"

    def halt(world: World) -> None:
        stream = Engine.stream

        def act(self: Engine, *arguments: Any, **others: Any) -> Iterator[Any]:
            for result in stream(self, *arguments, **others):
                if world.rank == 1:
                    halted.touch()
                    os.kill(os.getpid(), signal.SIGSTOP)
                yield result

        Engine.stream = act
        watchdog.longest_wait = lambda *_: 2.0 if halted.exists() else math.inf
        chain.draw(tmp_path / "shared", world=world)

    assert ranks(2, halt) == [["exit", watchdog.EXIT_CODE], signal.SIGKILL]


def test_what_one_rank_cannot_draw_ends_all_with_its_message(
    chain: Chain, tmp_path: Path, ranks: Callable[..., list[Any]]
) -> None:
    def failing(world: World) -> None:
        stream = Engine.stream

        def act(self: Engine, *arguments: Any, **others: Any) -> Iterator[Any]:
            yield next(stream(self, *arguments, **others))
            if world.rank == 1:
                raise RequestError("out of memory with one text")
            yield from stream(self, *arguments, **others)

        Engine.stream = act
        chain.draw(tmp_path / "shared", world=world)

    assert ranks(2, failing) == [["RequestError", "out of memory with one text"]] * 2


@pytest.mark.long
def test_two_ranks_go_through_the_rounds_as_one_process_does(
    chain: Chain, ranks: Callable[..., list[Any]]
) -> None:
    recipe = chain.recipe("run.name=on-ranks", "rft.rounds=1")

    def act(world: World) -> str:
        return str(calls.run_several(recipe, _console(), world=world))

    page, folder = map(Path, ranks(2, act))

    assert page.parent == folder
    plans = [read_json(folder / run / "plan.json") for run in ("sft", "rft-1")]
    assert [plan["devices"] for plan in plans] == [2, 2]
    table = (folder / "study.md").read_text()
    assert all(f"| {run}" in table for run in ("base", "sft", "rft-1"))
    assert _rows(folder / "samples-1" / "samples.jsonl")
    # All is there already: ranks do nothing over, and sampling has nothing to draw.
    before = (folder / "samples-1" / "drawn.jsonl").read_bytes()
    drawn = ranks(2, lambda world: str(calls.sample(recipe, _console(), world=world)))
    assert drawn == [str(folder / "samples-1"), str(folder)]
    assert (folder / "samples-1" / "drawn.jsonl").read_bytes() == before


def test_ctrl_c_keeps_what_was_drawn_and_says_how_to_go_on(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    stream = Engine.stream

    def interrupted(self: Engine, *arguments: Any, **others: Any) -> Iterator[Any]:
        yield from islice(stream(self, *arguments, **others), 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "stream", interrupted)
    with refuses(Interrupted) as caught:
        chain.draw(tmp_path / "samples")
    assert caught.value.exit_code == 130
    assert sum(map(is_sample, _rows(tmp_path / "samples" / "drawn.jsonl"))) == 5


def test_samples_that_do_not_come_are_missed_before_anything_is_chosen(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    stream = Engine.stream
    monkeypatch.setattr(
        Engine, "stream", lambda *arguments, **others: islice(stream(*arguments, **others), 5)
    )
    with refuses(RequestError, names=["67"]):
        chain.draw(tmp_path / "samples")
    assert not (tmp_path / "samples" / "samples.jsonl").exists()


def test_behind_a_prompt_that_is_text_an_answer_keeps_its_white_space(
    chain: Chain, tmp_path: Path
) -> None:
    rows = [
        {"prompt": f"Say red {number} times.", "completion": " red", "answer": r"(?s)\s*[a-z ]+"}
        for number in range(8)
    ]
    chain.draw(
        tmp_path / "samples",
        f"rft.questions.path={write_rows(tmp_path / 'questions.jsonl', rows)}",
        "rft.temperature=1.5",
    )
    samples = _rows(tmp_path / "samples" / "samples.jsonl")
    assert any(row["completion"] != row["completion"].strip() for row in samples)


def test_samples_drawn_with_other_settings_are_not_mixed(
    chain: Chain, tmp_path: Path, refuses: Refuses
) -> None:
    chain.draw(tmp_path / "samples")
    with refuses(RunFolderError):
        chain.draw(tmp_path / "samples", "rft.temperature=1.5")


def test_more_may_be_kept_of_what_is_drawn_without_drawing_again(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = chain.draw(tmp_path / "samples")["statistics"]["fates"]["kept"]
    monkeypatch.setattr(
        sampling_session, "backend_for", lambda *_, **__: pytest.fail("a model was asked again")
    )
    assert (
        chain.draw(tmp_path / "samples", "rft.keep_per_prompt=6")["statistics"]["fates"]["kept"]
        > few
    )


def test_damaged_samples_are_chosen_again_from_what_was_drawn(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain.draw(tmp_path / "samples")
    names = ("samples.jsonl", "train.jsonl", "sampling.json")
    before = {name: (tmp_path / "samples" / name).read_bytes() for name in names}
    monkeypatch.setattr(
        sampling_session, "backend_for", lambda *_, **__: pytest.fail("a model was asked again")
    )
    for name in names:
        path = tmp_path / "samples" / name
        for damaged in (b"", before[name].replace(b"red", b"rad", 1), before[name][:-9]):
            path.write_bytes(damaged)
            chain.draw(tmp_path / "samples")
            again = {each: (tmp_path / "samples" / each).read_bytes() for each in names[:2]}
            assert again == {each: before[each] for each in names[:2]}


def test_where_nothing_is_right_it_stops_with_the_reasons_and_trains_on_nothing(
    chain: Chain, tmp_path: Path
) -> None:
    questions = write_rows(
        tmp_path / "questions.jsonl",
        [{"question": f"Say red {number} times.", "answer": "[0-9]+"} for number in range(4)],
    )
    with pytest.raises(
        DataError,
        match=r"none of 24 samples of 4 questions can be kept(.|\n)*wrong(.|\n)*What helps most",
    ):
        chain.draw(tmp_path / "samples", f"rft.questions.path={questions}")
    assert (tmp_path / "samples" / "samples.jsonl").exists()
    assert not (tmp_path / "samples" / "train.jsonl").exists()


def test_a_chain_that_keeps_nothing_still_shows_the_base_and_what_was_tuned(
    chain: Chain, tmp_path: Path
) -> None:
    """The base is scored before anything is sampled."""
    questions = write_rows(
        tmp_path / "questions.jsonl",
        [{"question": f"Say red {number} times.", "answer": "[0-9]+"} for number in range(4)],
    )
    changes = [f"rft.questions.path={questions}", "run.name=nothing", f"run.folder={tmp_path}"]
    with pytest.raises(DataError, match="none of 24 samples of 4 questions can be kept"):
        rounds.run_rounds(chain.recipe(*changes), _console())
    table = (tmp_path / "nothing" / "study.md").read_text()
    assert "| base " in table
    assert "| sft " in table
    assert "rft-1" not in table


def test_after_a_choice_that_kept_nothing_the_former_one_is_made_again(
    chain: Chain, tmp_path: Path
) -> None:
    chain.draw(tmp_path / "samples")
    before = (tmp_path / "samples" / "train.jsonl").read_bytes()
    with pytest.raises(DataError, match=r"lower rft\.min_answer_tokens"):
        chain.draw(tmp_path / "samples", "rft.min_answer_tokens=24")
    chain.draw(tmp_path / "samples")
    assert (tmp_path / "samples" / "train.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rft.verifier=numbr"], "unknown verifier - did you mean 'number'"),
        (["rft.keep_per_prompt=7"], "keep_per_prompt 7 is above samples_per_prompt 6"),
        (["method=pretrain"], "rft"),
        (["rft.max_new_tokens=64"], "leaves no room for a question in sequence_length 64"),
        (
            ["rft.verifier=number"],
            "questions.jsonl:1: the verifier number cannot hold answers against '[a-z ]+'",
        ),
        (["rft.verifier=mbpp"], "the verifier mbpp cannot hold answers against"),
        (["evaluation.tasks=[unit-conversion-guide]"], "unit-conversion-guide"),
    ],
)
def test_bad_input_is_told_before_anything_is_trained(
    chain: Chain, overrides: list[str], said: str
) -> None:
    with pytest.raises(BrimfulError) as caught:
        rounds.run_rounds(chain.recipe("run.name=bad", *overrides), _console())
    assert said in str(caught.value)
    assert not (chain.root / "runs" / "bad" / "sft").exists()


def test_questions_that_do_not_fit_are_left_out_and_none_that_fits_is_an_error(
    chain: Chain, tmp_path: Path, refuses: Refuses, snapshot: SnapshotAssertion
) -> None:
    long = [{"question": "Say red " * 60, "answer": "[a-z ]+"}]
    short = [{"question": "Say red 2 times.", "answer": "[a-z ]+"}]
    facts = chain.draw(
        tmp_path / "some",
        f"rft.questions.path={write_rows(tmp_path / 'some.jsonl', long + short)}",
    )
    assert facts["statistics"]["questions"] == 1
    assert " ".join(facts["notes"]) == snapshot
    with refuses(RequestError, names=["128", "24"]):
        chain.draw(
            tmp_path / "none", f"rft.questions.path={write_rows(tmp_path / 'none.jsonl', long)}"
        )


def test_questions_and_demonstrations_that_the_evaluation_asks_are_left_out(
    chain: Chain, tmp_path: Path
) -> None:
    scored = [[f"Say red {number} times.", "1"] for number in range(1, 4)] + [
        ["What is 2 plus 2?", 4]
    ]
    guide = tmp_path / "guide.json"
    guide.write_text(json.dumps(scored))
    recipe = chain.recipe(
        "evaluation.tasks=[unit-conversion-guide]",
        f"evaluation.data={{unit-conversion-guide: {guide}}}",
    )
    asked = {question.text for question in gather_questions(recipe).questions.asked}
    assert asked
    assert not asked & {text for text, _ in scored}
    foreign = gather_questions(chain.recipe("evaluation.tasks=[lm-eval:gsm8k]")).notes
    assert foreign == (
        (
            "what lm-eval:gsm8k asks is not known here, so questions and samples are not compared"
            " with it"
        ),
    )


def test_a_teacher_with_another_tokenizer_writes_for_the_student(
    chain: Chain, tmp_path: Path
) -> None:
    """Samples reach the student as text. An untaught teacher is right only by luck, so the pattern
    takes anything.
    """
    questions = write_rows(
        tmp_path / "questions.jsonl",
        [{"question": f"Say red {number} times.", "answer": "(?s).+"} for number in range(6)],
    )
    other = write_base_model(tmp_path / "other", 270, context=256)
    recipe = chain.recipe(
        f"rft.teacher={other}",
        f"rft.questions.path={questions}",
        "rft.shots=1",
        "rft.system=Name colours.",
        "rft.samples_per_prompt=40",
        "rft.max_new_tokens=40",
        "rft.temperature=2.0",
        "run.name=taught",
    )
    told = StringIO()
    folder = rounds.sample(recipe, _console(told))
    assert "shown 1 solved example answers" in told.getvalue()
    assert (folder / "train.jsonl").exists()
    assert not (folder.parent / "sft").exists()


def test_a_chain_that_lost_its_machine_goes_on_from_the_mirror(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drive").mkdir()
    recipe, told = (
        chain.recipe(
            f"run.mirror={tmp_path / 'drive'}",
            f"run.folder={tmp_path / 'here'}",
            "training.tokens=600",
        ),
        StringIO(),
    )
    folder = rounds.sample(recipe, _console())
    drawn = (folder / "drawn.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "here")
    monkeypatch.setattr(Engine, "stream", lambda *_, **__: pytest.fail("nothing is drawn twice"))

    folder = rounds.sample(recipe, _console(told))

    assert (folder / "drawn.jsonl").read_bytes() == drawn
    assert (folder.parent / "sft" / "model" / "model.safetensors").exists()
    assert "sft is finished; nothing to train." in told.getvalue()
    assert (
        f"brought back from the mirror {tmp_path / 'drive' / 'rounds' / 'samples-1'}"
        in told.getvalue()
    )
