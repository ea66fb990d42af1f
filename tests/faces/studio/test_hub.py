"""A model that may be on the hub is known or refused soon, whatever the hub does."""

import threading
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import PlanError, RequestError
from brimful.faces.studio import hub
from brimful.model import catalog


def test_what_is_known_here_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(catalog, "config_of_model", None)

    hub.refuse_unless_known("meta-llama/Llama-3.1-8B")
    hub.refuse_unless_known(str(tmp_path))


def test_what_the_hub_says_is_passed_on(monkeypatch: pytest.MonkeyPatch, refuses: Refuses) -> None:
    def unknown(name: str) -> None:
        raise PlanError(f"no {name}")

    monkeypatch.setattr(catalog, "config_of_model", unknown)

    with refuses(PlanError, names=["no owner/name"]):
        hub.refuse_unless_known("owner/name")
    monkeypatch.setattr(catalog, "config_of_model", lambda name: None)
    hub.refuse_unless_known("owner/name")


def test_a_hub_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    never = threading.Event()
    monkeypatch.setattr(catalog, "config_of_model", lambda name: never.wait())
    monkeypatch.setattr(hub, "PATIENCE_S", 0.1)

    with refuses(RequestError, names=["meta-llama/Llama-3.1-8B", "0.1"]):
        hub.refuse_unless_known("meta-lama/Llama-3.1-8B")
    never.set()
