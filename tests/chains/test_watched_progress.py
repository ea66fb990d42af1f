"""Scoring that moves on is shown; scoring that hangs ends the process."""

import os
from io import StringIO
from pathlib import Path

from fixture_types import MakeRecipe
from rich.console import Console

from brimful.base.watchdog import EXIT_CODE, FILE_NAME
from brimful.chains.watched_progress import watched_progress


def test_progress_is_shown_until_there_is_none(tiny: MakeRecipe, tmp_path: Path) -> None:
    shown = StringIO()
    with watched_progress(Console(file=shown), tmp_path, tiny()) as progress:
        progress("evaluate", 1, 2)
        progress("evaluate", 2, 2)
    assert "evaluate" in shown.getvalue()

    child = os.fork()
    if child == 0:
        with watched_progress(Console(quiet=True), tmp_path, tiny("run.patience=2s")) as progress:
            progress("evaluate", 1, 2)
            os.read(os.pipe()[0], 1)  # for ever
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == EXIT_CODE
    report = (tmp_path / FILE_NAME).read_text()
    assert "scoring made no progress for" in report
    assert "test_progress_is_shown_until_there_is_none" in report
