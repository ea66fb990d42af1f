"""A model that may be on the hub is known or refused soon, whatever the hub does."""

import threading
from pathlib import Path

import pytest

from brimful.base.errors import PlanError, RequestError
from brimful.model import catalog
from brimful.studio import hub


def test_what_is_known_here_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(catalog, "config_of_model", None)

    hub.refuse_unless_known("meta-llama/Llama-3.1-8B")
    hub.refuse_unless_known(str(tmp_path))


def test_what_the_hub_says_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> None:
        raise PlanError(f"no {name}")

    monkeypatch.setattr(catalog, "config_of_model", unknown)

    with pytest.raises(PlanError, match="no owner/name"):
        hub.refuse_unless_known("owner/name")
    monkeypatch.setattr(catalog, "config_of_model", lambda name: None)
    hub.refuse_unless_known("owner/name")


def test_a_hub_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = threading.Event()
    monkeypatch.setattr(catalog, "config_of_model", lambda name: never.wait())
    monkeypatch.setattr(hub, "PATIENCE_S", 0.1)

    with pytest.raises(
        RequestError, match=r"did you mean 'meta-llama/Llama-3.1-8B'.* within 0\.1 s"
    ):
        hub.refuse_unless_known("meta-lama/Llama-3.1-8B")
    never.set()
