"""Training started, found again and ended, at the boundary of a notebook; real kernels are in
tests/notebooks.
"""

from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.env import runs_folder
from brimful.base.errors import BrimfulError, RunFolderError
from brimful.base.rundir import Lease
from brimful.notebook import follow
from brimful.notebook.cell import Board
from brimful.notebook.job import CommandFailed, Job, ProcessResult
from brimful.recipe import load


def test_a_recipe_is_taken_as_it_is_or_at_the_size_of_a_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BRIMFUL_NOTEBOOK", raising=False)
    assert follow.sized("tiny-gpt") == "tiny-gpt"
    assert follow.sized_changes("model=gpt2") == ["model=gpt2"]
    monkeypatch.setenv("BRIMFUL_NOTEBOOK", "small")
    assert follow.sized("tiny-gpt") == "small/tiny-gpt.yaml"
    assert follow.sized_changes("model=gpt2") == []


def test_a_run_is_where_its_recipe_says(recipe_file: Path) -> None:
    assert follow.place_of(load(str(recipe_file))) == runs_folder() / "tiny"
    assert follow.place_of(
        load(str(recipe_file), ["run.folder=/elsewhere", "run.name=mine"])
    ) == Path("/elsewhere/mine")


@pytest.mark.parametrize(
    ("exit_code", "said", "shown_as", "error", "message"),
    [
        (
            130,
            "stopped at step 3 of 9; a checkpoint is saved. Run the same command to continue.",
            "stopped",
            follow.TrainingEnded,
            "Run this cell again",
        ),
        (
            130,
            "interrupted",
            "stopped",
            follow.TrainingEnded,
            r"^interrupted\. Run this cell again",
        ),
        (
            75,
            "the session ends soon: stopped at step 3 of 9; a checkpoint is saved.",
            "stopped",
            follow.TrainingEnded,
            "the session ends soon",
        ),
        (
            2,
            "the model does not fit",
            "ended with an error",
            CommandFailed,
            "^the model does not fit$",
        ),
        (
            None,
            "",
            "killed",
            follow.TrainingEnded,
            r"tiny was killed\. .*memory.* Run this cell again",
        ),
    ],
)
def test_an_end_before_the_end_is_shown_and_stops_the_notebook(
    exit_code: int | None,
    said: str,
    shown_as: str,
    error: type[BrimfulError],
    message: str,
    shown: Any,
    tmp_path: Path,
) -> None:
    following = follow._TrainingView(Board(), Job(tmp_path / "job"), tmp_path / "tiny")
    with pytest.raises(error, match=message) as caught:
        following._show_result(ProcessResult(exit_code, said))

    assert shown.text.startswith(f"tiny: {shown_as}")
    assert "Run the same command" not in str(caught.value)
    assert following._show_result(ProcessResult(0, "")) == tmp_path / "tiny"


def test_a_run_that_was_finished_before_is_shown_as_it_stands(
    shown: Any, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """Its process has nothing to train and writes no lease."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "end.json").write_text('{"exit_code": 0}')
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "metrics.jsonl").write_text(
        '{"kind": "start", "step": 0, "total_steps": 4}\n{"kind": "end", "step": 4, "reason":'
        ' "finished"}\n'
    )

    assert (
        follow._TrainingView(Board(), Job(tmp_path / "job"), tmp_path / "tiny").show_to_the_end()
        == tmp_path / "tiny"
    )
    assert shown.text == snapshot


def test_what_another_process_writes_is_not_started_a_second_time(
    recipe_file: Path, shown: Any, refuses: Refuses
) -> None:
    place = runs_folder() / "tiny"
    place.mkdir(parents=True)
    with (
        Lease.acquire(place),
        refuses(RunFolderError),
    ):
        follow.train(str(recipe_file))
    assert shown.outputs == []


def test_another_command_for_a_run_that_is_being_trained_is_refused(
    recipe_file: Path, shown: Any, refuses: Refuses
) -> None:
    job = Job(runs_folder() / ".notebook" / "tiny")
    job.start(["recipes"])
    process = job.process()
    assert process is not None
    process.suspend()
    try:
        with refuses(BrimfulError):
            follow.train(str(recipe_file))
    finally:
        process.kill()


def test_watching_shows_how_a_run_stands_and_returns_where_nobody_writes_it(
    shown: Any, refuses: Refuses, snapshot: SnapshotAssertion
) -> None:
    place = runs_folder() / "study" / "lora"
    place.mkdir(parents=True)
    (place / "metrics.jsonl").write_text(
        '{"kind": "start", "step": 0, "total_steps": 4}\n{"kind": "end", "step": 4, "reason":'
        ' "finished"}\n'
    )

    assert follow.watch("study") == runs_folder() / "study"
    assert shown.text == snapshot
    with refuses(RunFolderError):
        follow.watch("studdy")
