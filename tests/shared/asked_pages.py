"""A page that asks the studio for something, and what it was told."""

from typing import Any

from brimful.faces.studio.asked import Act, PageRequest, Update


class Page:
    """A page with these values of its controls."""

    def __init__(self, **values: Any) -> None:
        self.told: list[Update] = []
        self.asked = PageRequest(values, self.told.append)

    def after(self, act: Act) -> "Page":
        """The page, after an act."""
        act(self.asked)
        return self

    def all(self, slot: str) -> list[str]:
        """Everything that a place or a control was given, in order."""
        return [
            update.get("html", update.get("value", ""))
            for update in self.told
            if update.get("slot") == slot
        ]

    def has(self, slot: str) -> str:
        """What a place or a control holds at the end; "" where it was told nothing."""
        return ["", *self.all(slot)][-1]
