"""Runs to talk to: loaded once, one at a time, stopped between tokens."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from rich.console import Console
from safetensors.torch import load_file, save_file
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.base.manifest import note_hashes
from brimful.chains import pipeline
from brimful.faces.studio import models
from brimful.faces.studio.models import (
    ModelHolder,
    Turn,
    WrittenText,
    describe,
    has_base,
    takes_messages,
    writes_text,
)
from brimful.generation.answers import GenerationRequest
from brimful.generation.sampler import GREEDY
from brimful.runs.deciding import recipe_of_run
from brimful.training.admission import write_status

HOW = GenerationRequest(GREEDY, tokens=6)


@pytest.fixture
def tuned(tuning: MakeRecipe) -> Path:
    """A run that was tuned in two steps."""
    return pipeline.train(tuning("training.steps=2"), Console(quiet=True)).folder


def written(
    desk: ModelHolder, run: Path, side: models.Side, turns: tuple[Turn, ...] = ()
) -> WrittenText:
    return desk.write(run, side, HOW, ("Say red twice.", turns), threading.Event(), str)


def test_a_tuned_run_writes_beside_its_base_with_one_model_in_memory(
    tuned: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    desk, loads = ModelHolder(), []
    load = models.load_run
    monkeypatch.setattr(models, "load_run", lambda *args: loads.append(args) or load(*args))

    run, base, again = (written(desk, tuned, side) for side in ("run", "base", "run"))

    assert run == again
    assert run.text != base.text
    assert len(loads) == 1
    assert run.remarks == snapshot
    assert has_base(tuned)
    assert takes_messages(tuned)
    assert writes_text(tuned)
    assert "message" in describe(tuned)


def test_a_run_that_was_trained_anew_answers_with_its_new_weights(tuned: Path) -> None:
    desk = ModelHolder()
    before = written(desk, tuned, "run")
    (weights,) = (tuned / "model").glob("*.safetensors")
    save_file(
        {name: torch.zeros_like(tensor) for name, tensor in load_file(weights).items()},
        weights,
        {"format": "pt"},
    )
    note_hashes(weights.parent)
    write_status(tuned, "finished", recipe_of_run(tuned))

    after = written(desk, tuned, "run")

    assert after.text == written(desk, tuned, "base").text, "adapters of zeros change nothing"
    assert after.text != before.text


def test_a_conversation_goes_on_from_its_turns_and_from_nobody_elses(tuned: Path) -> None:
    desk, turn = ModelHolder(), Turn("Say green.", {"run": "green"}, {})

    alone = written(desk, tuned, "run")
    after = written(desk, tuned, "run", (turn,))

    assert written(desk, tuned, "run") == alone
    assert written(desk, tuned, "run", (turn,)) == after
    assert written(desk, tuned, "base", (turn,)) == written(desk, tuned, "base")


def test_nothing_to_go_on_from_and_a_model_too_large_are_refused(
    tuned: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    desk = ModelHolder()
    with refuses(RequestError):
        desk.write(tuned, "run", HOW, ("", ()), threading.Event(), str)
    monkeypatch.setattr(models, "FP32_BYTES", 2**50)
    with refuses(RequestError):
        ModelHolder().write(tuned, "run", HOW, ("a", ()), threading.Event(), str)
    assert written(desk, tuned, "run").text, "an error leaves the desk usable"


def test_a_text_is_shown_while_it_is_written_and_ends_when_told(tuned: Path) -> None:
    stop, shown = threading.Event(), list[str]()

    def show(text: str) -> None:
        shown.append(text)
        stop.set()

    ended = ModelHolder().write(tuned, "run", HOW, ("Say red twice.", ()), stop, show)

    assert (ended.remarks, shown) == (("--- stopped",), [ended.text])
    assert written(ModelHolder(), tuned, "run").text.startswith(ended.text)


def test_turns_are_values() -> None:
    turn = Turn("a", {"run": "b"}, {})
    assert replace(turn, texts={**turn.texts, "base": "c"}).texts == {"run": "b", "base": "c"}
    assert turn.texts == {"run": "b"}
