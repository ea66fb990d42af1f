"""Runs to talk to: loaded once, one at a time, stopped between tokens."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixture_types import Refuses
from rich.console import Console
from safetensors.torch import load_file, save_file
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.base.manifest import note_hashes
from brimful.chains import pipeline
from brimful.generation.answers import GenerationRequest
from brimful.generation.sampler import GREEDY
from brimful.recipe import Recipe
from brimful.runs.deciding import recipe_of_run
from brimful.studio import models
from brimful.studio.models import (
    ModelHolder,
    TextProgress,
    Turn,
    describe,
    has_base,
    pieces,
    takes_messages,
    writes_text,
)
from brimful.training.admission import write_status

HOW = GenerationRequest(GREEDY, tokens=6)


@pytest.fixture
def tuned(tuning: Callable[..., Recipe]) -> Path:
    """A run that was tuned in two steps."""
    return pipeline.train(tuning("training.steps=2"), Console(quiet=True)).folder


def written(
    desk: ModelHolder, run: Path, side: models.Side, turns: tuple[Turn, ...] = ()
) -> TextProgress:
    return [*desk.write(run, side, HOW, ("Say red twice.", turns), threading.Event())][-1]


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
        [*desk.write(tuned, "run", HOW, ("", ()), threading.Event())]
    monkeypatch.setattr(models, "FP32_BYTES", 2**50)
    with refuses(RequestError):
        [*ModelHolder().write(tuned, "run", HOW, ("a", ()), threading.Event())]
    assert written(desk, tuned, "run").text, "an error leaves the desk usable"


def test_pieces_come_while_they_are_written_and_end_when_told() -> None:
    stop, shown = threading.Event(), []

    def write(show: Callable[[str], None]) -> None:
        for number in range(10_000):
            shown.append(number)
            show(f"{number} ")
            time.sleep(0.0005)

    found = pieces(write, stop)
    assert next(found).startswith("0 1 ")
    stop.set()
    rest = [*found]

    assert len(rest) <= 1
    assert len(shown) < 10_000


def test_a_reader_that_leaves_ends_the_writer_and_errors_arrive(refuses: Refuses) -> None:
    def write(show: Callable[[str], None]) -> None:
        while True:
            show("x")
            time.sleep(0.0005)

    before = threading.active_count()
    left = pieces(write, threading.Event())
    next(left)
    left.close()
    assert threading.active_count() == before

    def fail(show: Callable[[str], None]) -> None:
        show("x")
        raise RequestError("no more")

    with refuses(RequestError, names=["no more"]):
        [*pieces(fail, threading.Event())]


def test_turns_are_values() -> None:
    turn = Turn("a", {"run": "b"}, {})
    assert replace(turn, texts={**turn.texts, "base": "c"}).texts == {"run": "b", "base": "c"}
    assert turn.texts == {"run": "b"}
