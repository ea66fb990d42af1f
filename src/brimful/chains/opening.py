"""What a run says before its first step: few lines of the width of the terminal, more if asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.text import plural, wrapped
from brimful.base.warning_codes import is_always_told
from brimful.recipe import Recipe
from brimful.training.world import World

MOST_LINES = 12
"""Lines before the first step."""
LATER_LINES = {"data": 8, "plan": 5, "steps": 2}
"""Lines that are kept free for what is said from here on: by the data, the plan, and the loop,
which says that it starts and may score the model first.
"""


class RunOptions(TypedDict, total=False):
    """How a command wants its runs to be trained.

    Attributes:
        fresh: Start over; unfinished work is moved aside.
        accept: Keys whose changed values a continued run accepts.
        plan_file: A saved plan to use as it is.
        part: The whole recipe that a run is part of, and its variant there.
        explain: Print the whole plan before the first step.
        world: Ranks that train and score together; all but the first follow, and return folders.
    """

    fresh: bool
    accept: Sequence[str]
    plan_file: Path | None
    part: tuple[Recipe, str] | None
    explain: bool
    world: World


class Opening:
    """Prints what a run says before its first step, in at most `MOST_LINES` lines beside those
    that are always told.

    Args:
        console: Where to print; its width is respected.
        explain: Print everything, however long.
    """

    def __init__(self, console: Console, *, explain: bool = False) -> None:
        self._say = console_printer(console)
        self.width, self.explain = console.width, explain
        self._left = MOST_LINES

    def say(self, lines: Sequence[str], before: str) -> None:
        """Print lines, first those that are always told, then as many of the others as leave room
        for what is said from `before`, a key of `LATER_LINES`, on. A last line says how many are
        left out.
        """
        room = max(2, self._left - LATER_LINES[before])
        told = [*filter(is_always_told, lines)]
        whole = [self._wrapped(line) for line in lines if line and line not in told]
        shown = sum(map(len, whole))
        left_out = 0
        while not self.explain and whole and shown + bool(left_out) > room:
            shown -= len(whole.pop())
            left_out += 1
        printed = [part for line in whole for part in line]
        if left_out:
            printed.append(f"({plural(left_out, 'more line')} with --explain)")
        self._left -= len(printed)
        printed[:0] = [part for line in told for part in self._wrapped(line)]
        if printed:
            self._say("\n".join(printed))

    def _wrapped(self, line: str) -> list[str]:
        return wrapped(line, self.width, 2)

    def remark(self, text: str) -> None:
        """Print a message that comes before the data are read."""
        self.say(text.splitlines(), "data")
