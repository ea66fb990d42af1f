"""Work outside of a training session, which ends the process where nothing moves any more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from brimful.base.watchdog import Watchdog
from brimful.recipe import Recipe
from brimful.report.live.progress import DataProgress, data_progress

_EXPECTED_S = 180.0
"""Until a batch is scored or a text is written, many at once with some back ends; the model may be
loaded before the first (assumption).
"""


@contextmanager
def watched(run_folder: Path, recipe: Recipe, work: str) -> Iterator[Callable[[], None]]:
    """End the process if what is returned is not called for too long (`run.patience`)."""
    patience_s = recipe.run.patience_s
    with Watchdog(run_folder, {work: _EXPECTED_S}, patience_s=patience_s) as watchdog:
        moved = partial(watchdog.begin, work)
        moved()
        yield moved


@contextmanager
def watched_progress(console: Console, run_folder: Path, recipe: Recipe) -> Iterator[DataProgress]:
    """Show progress as `data_progress` does; end the process if there is none (`run.patience`)."""
    with data_progress(console) as progress, watched(run_folder, recipe, "scoring") as moved:

        def show(what: str, done: int, total: int | None) -> None:
            moved()
            progress(what, done, total)

        yield show
