"""Runs that are rewarded for their answers and go wrong: each is told, and stopped where the recipe
says so.
"""

import json
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from finished_runs import records_of, train

from brimful.base.errors import TrainingStopped
from brimful.recipe import Recipe
from brimful.report.page.events import event_table
from brimful.runs.folder import read_run
from brimful.selection import rewarded
from brimful.verify.isolation import ProgramLimits
from brimful.verify.sandbox import Sandbox
from canary import canaries

LEARNING = (
    "adapter=null",
    "optimizer.learning_rate=1e-2",
    "optimizer.schedule=constant",
)
TEXT_COSTS = (
    "batch.sequences=256",
    "training.steps=12",
    "rewards.verifiers={regex: -1.0}",
    "rewards.max_new_tokens=2",
    "rewards.most_cut=0.999",
)
LENGTH_PAYS = (
    "batch.sequences=32",
    "training.steps=6",
    "rewards.max_new_tokens=90",
    "sequence_length=120",
    "evaluation.max_sequences=1",
)
COLLAPSES = {
    "least_entropy": (
        "entropy",
        "(?s).+",
        (*TEXT_COSTS, "rewards.least_entropy=2", "rewards.most_empty=0.99"),
    ),
    "most_empty": ("empty", "(?s).+", TEXT_COSTS),
    "most_cut": ("cut", "(?s).{80,}", LENGTH_PAYS),
}
"""By the limit that is passed in the end: what is watched, what is rewarded, and what the recipe
says.
"""
SLOW = """
import time

def reward(answer, row):
    if len(answer) % 2:
        time.sleep(60)
    return 1.0
"""
PROBLEM = {
    "completion": "0",
    "code": "def f(x):\n    return x * x",
    "test_list": ["assert f(2) == 4"],
}
CHEATS = (
    "leaving politely when called",
    "a number that equals everything",
    "the answer found in memory files",
)
WRITTEN = {
    "cheats": [canaries()[name].code for name in CHEATS],
    "wrong programs": [
        "def f(x):\n    return 0",
        "def f(x):\n    return x / 0",
        "def g(x):\n    return x * x",
    ],
}


@pytest.fixture
def asking_for(asking: Callable[..., Recipe], tmp_path: Path) -> Callable[..., Recipe]:
    """`asking_for({"completion": text}, "key=value", ...)` gives a recipe with questions that have
    these columns, with overrides.
    """

    def made(columns: dict[str, Any], *overrides: str) -> Recipe:
        path = tmp_path / "rows.jsonl"
        rows = [{"prompt": f"Say something, {number}:"} | columns for number in range(40)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return asking(f"data.path={path}", *overrides)

    return made


def _told(folder: Path, words: str) -> list[str]:
    """Of what a run told, as its report has it, lines with some words."""
    table = event_table(read_run(folder))
    assert table is not None
    return [str(row[1]) for row in table.rows if words in str(row[1])]


@pytest.mark.parametrize("limit", COLLAPSES)
@pytest.mark.long_but("most_cut")
def test_a_model_that_learns_something_worthless_is_told_and_stopped(
    asking_for: Callable[..., Recipe], limit: str
) -> None:
    watched, pattern, said = COLLAPSES[limit]
    recipe = partial(asking_for, {"completion": pattern}, *LEARNING, *said)
    folder = train(recipe("run.name=told"))

    rounds = records_of(folder, "round")
    values = [each[watched] for each in rounds]
    bound = getattr(recipe().rewards, limit)
    assert (values[0] > bound) == limit.startswith("least")
    assert (values[-1] > bound) != limit.startswith("least")
    (told,) = _told(folder, f"(rewards.{limit})")
    assert told.startswith("B328: in 3 rounds in a row")
    if limit == "most_empty":  # the others stop by the same lines
        with pytest.raises(TrainingStopped, match=r"\(rewards\.most_empty\)"):
            train(recipe("run.name=stopped", "rewards.stop=true"))


def test_a_verifier_that_runs_out_of_time_is_told_and_stops_the_run(
    asking: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "slow.py"
    path.write_text(SLOW)
    monkeypatch.setattr(rewarded, "Sandbox", partial(Sandbox, ProgramLimits(seconds=0.5)))
    said = (f"rewards.verifiers={{{path}: 1.0}}", "rewards.patience=1", "training.steps=1")
    folder = train(asking(*said, "run.name=told"))

    (told,) = _told(folder, "got no reward from a verifier that failed")
    assert "not done after 0.5 s" in told
    assert _told(folder, "(rewards.most_failed)")
    with pytest.raises(TrainingStopped, match=r"\(rewards\.most_failed\)"):
        train(asking(*said, "run.name=stopped", "rewards.stop=true"))


@pytest.mark.parametrize("what", WRITTEN)
def test_answers_that_game_their_tests_are_told_and_stop_the_run(
    asking_for: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Three of four answers are cheats, which no tiny model writes, or wrong programs."""
    answers = cycle([*WRITTEN[what], str(PROBLEM["code"])])
    monkeypatch.setattr(rewarded, "text_behind", lambda *_: next(answers))
    said = ("rewards.verifiers={mbpp: 1.0}", "rewards.patience=1", "training.steps=1")
    folder = train(asking_for(PROBLEM, *said, "run.name=told"))

    (round_,) = records_of(folder, "round")
    assert round_["reward"] == 1 / 4
    games, stopped = what == "cheats", asking_for(PROBLEM, *said, "run.name=x", "rewards.stop=true")
    assert round_["gamed"] == (3 / 4 if games else 0)
    told = [*_told(folder, "tried to pass"), *_told(folder, "(rewards.most_gamed)")]
    assert len(told) == 2 * games
    if games:
        assert told[0].startswith("6 of the 8 answers of round 1 tried to pass without being right")
        with pytest.raises(TrainingStopped, match=r"\(rewards\.most_gamed\)"):
            train(stopped)
    else:
        train(stopped)
