"""A notebook without a kernel: what is displayed is kept, at IPython's own boundary."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from brimful.notebook import cell


@dataclass
class Shown:
    """The outputs of a cell as a notebook would hold them, and how often one was replaced."""

    outputs: list[dict[str, str]] = field(default_factory=list)
    updates: int = 0

    def __call__(self, data: dict[str, str], *, raw: bool, display_id: str = "") -> Any:
        assert raw
        self.outputs.append(data)
        return _Handle(self, len(self.outputs) - 1) if display_id else None

    @property
    def text(self) -> str:
        """All plain texts."""
        return "\n".join(data["text/plain"] for data in self.outputs)

    @property
    def html(self) -> str:
        return "\n".join(data.get("text/html", "") for data in self.outputs)


@dataclass
class _Handle:
    shown: Shown
    place: int

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.outputs[self.place] = data
        self.shown.updates += 1


class _Shell:
    kernel = object()
    exit_now = False


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """A notebook: what cells display."""
    pytest.importorskip("IPython")
    shell, display = _Shell(), Shown()
    monkeypatch.setattr(cell, "_shell", lambda: shell)
    monkeypatch.setattr("IPython.display.display", display)
    return display
