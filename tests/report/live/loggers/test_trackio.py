"""Trackio: what it prints does not mix with the output, and runs of one name stay apart."""

import uuid
from pathlib import Path

import pytest
from fixture_types import Captured

from brimful.report.live.logger import LoggedRun, logging_listener

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _log(folder: Path) -> LoggedRun:
    run = LoggedRun(folder, uuid.uuid4().hex, project="apart", settings={"seed": 3})
    folder.mkdir(parents=True)
    notes: list[str] = []
    with logging_listener(["trackio"], run, notes.append) as listen:
        listen({"kind": "start", "step": 0, "resumed": False})
        listen({"kind": "step", "step": 1, "loss": 2.0})
    assert notes == []
    return run


def test_two_runs_of_the_same_name_are_two_and_nothing_is_printed(
    offline: None, tmp_path: Path, capfd: Captured
) -> None:
    trackio = pytest.importorskip("trackio", reason="needs the extra trackio")
    runs = [_log(tmp_path / place / "quickstart") for place in ("here", "there")]
    assert capfd.readouterr().out == ""
    known = {each.name: each for each in trackio.Api().runs("apart")}
    assert set(known) == {each.unique_name for each in runs}
    assert all(each.config["seed"] == 3 for each in known.values())
