"""Surfaces that are attacked with values drawn from a seed, and a trial that goes wrong is seen."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import surfaces


@pytest.mark.parametrize(
    "name", ["start again", "forked", "notebook", "PEFT keys", "escapes", "export --push"]
)
def test_attacks_of_a_seed_come_to_nothing(name: str) -> None:
    assert [surfaces.outcome_of(name, 1, number) for number in range(3)] == [""] * 3


def test_a_trial_that_goes_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def follows_links(folder: Path) -> Iterator[Path]:
        yield from (path for path in folder.rglob("*") if path.is_file())

    def raises(*_: Any) -> str:
        raise ValueError("a traceback")

    monkeypatch.setattr(surfaces.takeaway, "_files", follows_links)
    told = {surfaces.outcome_of("notebook", 1, number) for number in range(12)}
    assert "link: a file from outside was packed" in told
    monkeypatch.setitem(surfaces.SURFACES, "escapes", raises)
    assert surfaces.outcome_of("escapes", 1, 0) == "ValueError: a traceback"
