"""Tuning by TRL, as a run is timed beside it."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from brimful.prove.bases import random_base
from brimful.prove.material import FUNCTIONS_FILE
from brimful.prove.record import HELD, SKIPPED
from brimful.prove.speed import tunes_beside_trl
from brimful.prove.workplace import Workplace

RECIPE = {
    "method": "sft",
    "sequence_length": 128,
    "batch": {"sequences": 4},
    "training": {"steps": 4},
    "optimizer": {"learning_rate": 1e-4},
    "evaluation": {"every": 4, "max_sequences": 4, "base": "never"},
    "checkpoint": {"every": 4},
    "data": {"path": FUNCTIONS_FILE, "validation": 0.05, "long_documents": "drop"},
    "adapter": {"rank": 2},
}


@pytest.fixture
def base(place: Workplace, base_model: Path) -> Path:
    """A base of one block with a tokenizer."""
    return random_base(str(base_model), place.folder / "bases")


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.long
def test_a_tuning_is_timed_beside_trl(place: Workplace, base: Path) -> None:
    pytest.importorskip("trl", reason="the comparison needs TRL")
    plan: dict[str, Any] = {"precision": "fp32", "threads": 1, "recompute": True}

    outcome = tunes_beside_trl(place, "tuning", {**RECIPE, "plan": plan}, base)

    speeds = outcome.facts["examples_per_s"]
    assert outcome.status == HELD
    assert list(speeds) == ["brimful", "TRL with its defaults"]
    assert all(value > 0 for value in speeds.values())
    assert "x TRL with its defaults (micro-batches of 4)" in outcome.what


def test_without_trl_nothing_is_run(
    place: Workplace, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    outcome = tunes_beside_trl(place, "tuning", RECIPE, base)

    assert outcome.status == SKIPPED
    assert outcome.what.startswith("TRL is not installed. It comes with brimful's extra trl")
    assert not (place.runs / "tuning").exists()
