"""Progress of scoring a finished run, which ends the process where nothing moves any more."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from brimful.base.watchdog import Watchdog
from brimful.recipe import Recipe
from brimful.report.live.progress import DataProgress, data_progress

_WORK, _EXPECTED_S = "scoring", 180.0
"""Until a batch is scored or an answer is written; the model is loaded before the first
(assumption).
"""


@contextmanager
def watched_progress(console: Console, run_folder: Path, recipe: Recipe) -> Iterator[DataProgress]:
    """Show progress as `data_progress` does; end the process if there is none (`run.patience`)."""
    patience_s = recipe.run.patience_s
    with (
        data_progress(console) as progress,
        Watchdog(run_folder, {_WORK: _EXPECTED_S}, patience_s=patience_s) as watchdog,
    ):

        def moved(what: str, done: int, total: int | None) -> None:
            watchdog.begin(_WORK)
            progress(what, done, total)

        watchdog.begin(_WORK)
        yield moved
