"""Answers that vLLM draws for a run on rewards. What needs vLLM runs where it is installed (its
build for CPUs will do).
"""

import importlib.util
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from killed import in_a_child, kill_at
from preference_runs import drawn_in, messages_of, run, steps_of, weights_of

from brimful.base.errors import Interrupted
from brimful.base.rundir import read_journal
from brimful.generation.backends.vllm_engine import VllmEngine
from brimful.recipe import Recipe
from brimful.selection.answer_journal import ANSWERS_FILE, AnswerJournal
from brimful.training import loop

HAS_VLLM = importlib.util.find_spec("vllm") is not None
needs_vllm = pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")
SAID = ["plan.sampling=vllm", "plan.precision=fp32", "optimizer.learning_rate=2e-2"]
WAYS = {"adapters": [], "full": ["adapter=null", "optimizer.learning_rate=3e-3"]}


def _apart(folder: Path) -> list[float]:
    """Nats by which sampler and trainer differ at most, of each round that was compared."""
    told = [each for each in messages_of(folder) if "sampler and trainer" in each]
    return [float(re.findall(r"at most (\S+) nats", each)[0]) for each in told]


@needs_vllm
@pytest.mark.parametrize("way", WAYS)
def test_vllm_draws_with_the_weights_that_are_trained(
    asking: Callable[..., Recipe], way: str
) -> None:
    """In the second round log-probabilities agree only by weights that were handed over."""
    folder = run(asking(*SAID, *WAYS[way]))

    assert len(steps_of(folder)) == 6
    assert len(_apart(folder)) == 2
    assert max(_apart(folder)) < 1e-3
    weights = {each["weights"] for each in read_journal(folder / ANSWERS_FILE) if "weights" in each}
    assert len(weights) == 6


@needs_vllm
def test_weights_that_vllm_did_not_take_are_told(
    asking: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, taken = VllmEngine.with_weights_of, list[VllmEngine]()

    def once(engine: VllmEngine, model: Any) -> VllmEngine:
        taken.append(engine)
        return real(engine, model) if len(taken) == 1 else engine

    monkeypatch.setattr(VllmEngine, "with_weights_of", once)
    folder = run(asking(*SAID, "adapter=null", "training.steps=2"))

    first, second = _apart(folder)
    assert first < 1e-3
    assert second > 0.1
    assert any(each.startswith("B329") for each in messages_of(folder))


@needs_vllm
def test_a_run_that_was_killed_goes_on_with_the_answers_that_are_there(
    asking: Callable[..., Recipe], tmp_path: Path
) -> None:
    whole = run(asking(*SAID, "checkpoint.every=1", "run.name=whole"))
    for place, kill in enumerate([(loop, "guarded_update", 3), (AnswerJournal, "append", 20)]):
        recipe = asking(*SAID, "checkpoint.every=1", f"run.name=killed{place}")

        def killed(recipe: Recipe = recipe, kill: tuple[object, str, int] = kill) -> None:
            kill_at(*kill)
            run(recipe)

        assert in_a_child(killed) == signal.SIGKILL
        before = drawn_in(tmp_path / "runs" / f"killed{place}")
        folder = run(recipe)

        after = drawn_in(folder)
        assert len(before) == (24, 19)[place]
        assert before.items() <= after.items()
        assert len(after) == 6 * 8
        if place == 0:  # no round was half drawn
            ours, theirs = weights_of(whole), weights_of(folder)
            assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@needs_vllm
def test_a_run_that_is_stopped_while_vllm_draws_goes_on_in_the_same_process(
    asking: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, calls = AnswerJournal.append, list[int]()

    def append(journal: AnswerJournal, *arguments: Any) -> None:
        real(journal, *arguments)
        calls.append(1)
        if len(calls) == 11:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(AnswerJournal, "append", append)
    recipe = asking(*SAID, "training.steps=3")
    with pytest.raises(Interrupted):
        run(recipe)
    assert len(drawn_in(tmp_path / "runs" / "tuned")) == 11

    assert len(drawn_in(run(recipe))) == 3 * 8
