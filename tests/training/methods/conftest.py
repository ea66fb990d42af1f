"""Whole runs of a method: one that is interrupted and goes on, beside one that is not."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from finished_runs import newest_of, records_of
from fixture_types import MakeRecipe
from rich.console import Console

from brimful.base.errors import Interrupted
from brimful.chains import pipeline
from brimful.recipe import Recipe
from brimful.training import loop


@dataclass(frozen=True)
class Ended:
    """A finished run."""

    folder: Path

    @property
    def last(self) -> Any:
        """Its newest checkpoint."""
        return newest_of(self.folder)

    @property
    def losses(self) -> list[float]:
        """Of every step and evaluation."""
        return [record["loss"] for record in records_of(self.folder, "step", "evaluation")]


@pytest.fixture
def train() -> Callable[[Recipe], Path]:
    """`train(recipe)` gives the folder of the run."""
    return lambda recipe: pipeline.train(recipe, Console(file=StringIO())).folder


@pytest.fixture
def interrupted_and_undisturbed(
    tiny: MakeRecipe, train: Callable[[Recipe], Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Ended, Ended]]:
    """`interrupted_and_undisturbed("key=value", ...)`: two runs of one tiny recipe, the first
    stopped in its fifth update and continued.
    """

    def make(*overrides: str) -> tuple[Ended, Ended]:
        recipe, calls, real = tiny(*overrides, "run.name=interrupted"), [0], loop.guarded_update

        def stop_at_the_fifth(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == 5:
                os.kill(os.getpid(), signal.SIGINT)
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "guarded_update", stop_at_the_fifth)
            with pytest.raises(Interrupted):
                train(recipe)
        return Ended(train(recipe)), Ended(train(tiny(*overrides, "run.name=undisturbed")))

    return make
