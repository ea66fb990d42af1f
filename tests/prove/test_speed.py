"""A run beside the same work in other programs."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.prove import speed
from brimful.prove.bases import random_base
from brimful.prove.record import HELD
from brimful.prove.speed import samples_beside_others, trains_beside_others
from brimful.prove.workplace import TrialFailed, Workplace

SHORT = {"training": {"steps": 5}, "evaluation": {"every": 5}, "checkpoint": {"every": 5}}


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.long
def test_a_run_is_timed_beside_a_plain_loop_and_the_trainer(
    place: Workplace, toy: Mapping[str, Any]
) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")

    outcome = trains_beside_others(place, "speed", {**toy, **SHORT})

    speeds = outcome.facts["tokens_per_s"]
    assert outcome.status == HELD
    others = ("a plain PyTorch loop", "transformers' Trainer")
    assert set(speeds) == {"brimful", *others}
    assert all(value > 0 for value in speeds.values())
    assert all(f"x {words} (micro-batches of" in outcome.what for words in others)


@pytest.mark.long
@pytest.mark.usefixtures("warm_processes")
def test_what_is_missing_or_fails_is_said(
    place: Workplace, toy: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    outcome = trains_beside_others(place, "speed", {**toy, **SHORT})

    assert outcome.what.endswith(
        "transformers' Trainer not tried, because accelerate is not installed"
    )

    monkeypatch.setattr(speed, "MODEL_FOLDER", "nothing")
    with refuses(TrialFailed):
        trains_beside_others(place, "speed-2", {**toy, **SHORT})
    assert "nothing" in place.output_of("speed-2").read_text()


@pytest.mark.usefixtures("warm_processes")
def test_samples_are_timed_beside_continuous_batching(place: Workplace, base_model: Path) -> None:
    base = random_base(str(base_model), place.folder / "bases")

    outcome = samples_beside_others(place, "sampling", base, prompts=3, samples=2, tokens=8)

    assert outcome.status == HELD
    assert set(outcome.facts["tokens_per_s"]) == {"brimful", "transformers' continuous batching"}
    assert outcome.what.endswith("x transformers' continuous batching")
