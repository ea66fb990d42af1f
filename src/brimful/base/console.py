"""The one way to say a line to the user."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Say = Callable[[str], None]
"""Shows a text of one or more lines."""


def console_printer(console: "Console") -> Say:
    """Return a function that prints a text as it is: brackets are no markup, `:name:` is no emoji,
    numbers are not highlighted, and long lines are not broken.
    """

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    return say
