"""Surfaces that are attacked with values drawn from a seed, and a trial that goes wrong is seen."""

from typing import Any

import pytest

import surfaces


@pytest.mark.parametrize("name", ["start again", "export --push"])
def test_attacks_of_a_seed_come_to_nothing(name: str) -> None:
    assert [surfaces.outcome_of(name, 1, number) for number in range(3)] == [""] * 3


def test_a_trial_that_goes_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: Any) -> str:
        raise ValueError("a traceback")

    def sends_it_elsewhere(*_: Any, **__: Any) -> None:
        surfaces.Liar.tokens_elsewhere += 1

    monkeypatch.setattr(surfaces.hub_push, "push", sends_it_elsewhere)
    monkeypatch.setattr(surfaces.takeaway, "send", sends_it_elsewhere)
    assert surfaces.outcome_of("export --push", 1, 0) == "the token went to another host"
    monkeypatch.setitem(surfaces.SURFACES, "start again", raises)
    assert surfaces.outcome_of("start again", 1, 0) == "ValueError: a traceback"
