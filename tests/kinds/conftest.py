"""Runs that are rewarded for their answers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from brimful.recipe import Recipe

SAID = [
    "method=grpo",
    "batch.sequences=8",
    "training.steps=6",
    "rewards.verifiers={regex: 1.0}",
    "rewards.samples_per_prompt=4",
    "rewards.max_new_tokens=6",
    "evaluation.base=never",
    "evaluation.every=3",
]


@pytest.fixture
def asking(tuning: Callable[..., Recipe], tmp_path: Path) -> Callable[..., Recipe]:
    """`asking("key=value", ...)` gives a recipe that rewards answers with an "a", "e" or space in
    them, with overrides.
    """
    path = tmp_path / "questions.jsonl"
    rows = [
        {"prompt": f"Say something, {number}:", "completion": "(?s).*[ae ].*"}
        for number in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return lambda *overrides: tuning(*SAID, f"data.path={path}", *overrides)
