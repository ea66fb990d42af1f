"""What a run folder is at this moment, whole or half-written: a word, a sentence, what is missing;
never a crash.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from fixture_types import MakeRun, Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.base.rundir import Lease, is_torn, records_lost
from brimful.base.types import JsonDict
from brimful.report.live.status import (
    RunStatus,
    read_run_or_empty,
    recovery_points,
    run_writer,
    status_of,
)

NOW = 2_000_000_000.0


def status(folder: Path, word: str, **changes: Any) -> Path:
    (folder / "run.json").write_text(
        json.dumps({"schema_version": 1, "recipe": "quickstart", "status": word} | changes)
    )
    return folder


def read_status(folder: Path, now: float = NOW) -> RunStatus:
    return status_of(read_run_or_empty(folder), now=now)


def checkpoint(folder: Path, step: int, *, point: bool = False) -> Path:
    path = folder / "checkpoints" / f"step-{step:08d}"
    path.mkdir(parents=True)
    if point:
        (path / "POINT.json").write_text("{}")
    return path


def mirror(folder: Path, **changes: Any) -> None:
    values = {
        "schema_version": 1,
        "path": "/drive/quickstart",
        "state": "behind",
        "since": NOW - 60,
        "local_step": 60,
        "durable_step": 40,
    }
    (folder / "mirror.json").write_text(json.dumps(values | {"durable_time": NOW - 130} | changes))


def test_a_finished_run_says_how_long_it_was(new_run: MakeRun) -> None:
    assert read_status(status(new_run(), "finished")) == RunStatus(
        "finished", "finished: 500 steps"
    )


def test_a_run_that_was_stopped_or_cut_off_says_where(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    assert read_status(status(new_run("a", last_step=340), "stopped")).description == snapshot
    cut_off = read_status(status(new_run("b", last_step=340), "running"))
    assert (cut_off.status, cut_off.description) == snapshot


def test_a_run_that_is_written_says_by_whom(new_run: MakeRun, snapshot: SnapshotAssertion) -> None:
    folder = status(new_run(last_step=340), "running")
    with Lease.acquire(folder):
        found = read_status(folder)
        assert (found.status, found.pid) == ("running", os.getpid())
        assert found.description == snapshot
        assert run_writer(folder) is not None
    assert run_writer(folder) is None


def test_a_run_on_another_machine_is_believed_while_its_heart_beats(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = status(new_run(last_step=340), "running")
    holder = {"host": "elsewhere", "pid": 7, "since": "noon", "token": "t"}
    (folder / Lease.FILE_NAME).write_text(json.dumps(holder))
    assert read_status(folder).description == snapshot
    assert read_status(folder).pid is None
    os.utime(folder / Lease.FILE_NAME, (time.time() - 3600,) * 2)
    assert read_status(folder).status == "interrupted"


def test_a_run_that_hung_says_where_that_is_written_until_it_goes_on(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = status(new_run(last_step=340), "running")
    (folder / "hang.txt").write_text("a step made no progress for 10 min")
    hung = "interrupted at step 340 of 500: it hung, hang.txt says where"
    assert read_status(folder).description == hung

    os.utime(folder / "hang.txt", (time.time() - 3600,) * 2)
    assert read_status(folder).description == snapshot


def test_a_lock_of_a_dead_process_alone_is_a_run_that_never_started(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / Lease.FILE_NAME).write_text(json.dumps({"host": "here", "pid": 0}))
    os.utime(tmp_path / Lease.FILE_NAME, (time.time() - 3600,) * 2)
    assert read_status(tmp_path).description == snapshot


def test_a_run_that_prepares_has_no_step_yet(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    with Lease.acquire(tmp_path):
        assert read_status(tmp_path).description == snapshot


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"status": "finished"}',
        '{"schema_version": 1, "status": "lost"}',
        '{"schema_version": 1, "status": []}',
        '{"schema_version": 99, "status": "finished"}',
    ],
)
def test_a_status_that_cannot_be_read_is_damage(new_run: MakeRun, text: str) -> None:
    folder = new_run()
    (folder / "run.json").write_text(text)
    found = read_status(folder)
    assert found.status == "damaged"
    assert "run.json" in found.description


def test_what_keeps_a_run_from_going_on_is_told_first(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = new_run()
    assert read_status(folder).description == snapshot
    status(folder, "finished")
    (folder / "recipe.yaml").write_text("name: [")
    assert read_status(folder).description == snapshot
    (folder / "recipe.yaml").write_text("name: x\nmethod: magic\n")
    assert read_status(folder).description == snapshot
    (folder / "recipe.yaml").unlink()
    assert read_status(folder).description == snapshot


def test_a_finished_run_without_its_model_is_damaged(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = status(new_run(), "finished")
    (folder / "model").rename(folder / "away")
    assert read_status(folder).description == snapshot


def test_what_is_missing_and_harmless_is_a_problem_and_no_damage(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = status(new_run(last_step=20, plan=None), "stopped")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('\x00\x00\n{"kind": "step", "st')
    found = read_status(folder)
    assert found.status == "stopped"
    assert found.problems == snapshot


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"{}\n", b'{"kind": "step"', b"\xff\xfe\n", b"[" * 100_000 + b"\n"]
)
def test_journals_of_any_content_are_judged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    assert is_torn(path) is (content == b'{"kind": "step"')
    assert records_lost(path) == (content in {b"\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n"})


def test_scores_of_an_untuned_model_are_no_unfinished_run(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: base\nmodel: org/model\nuntuned: true\n")
    assert read_status(tmp_path) == RunStatus("scored", "the model from before tuning, scored")


def test_a_folder_of_nothing_is_told_as_that(
    tmp_path: Path, refuses: Refuses, snapshot: SnapshotAssertion
) -> None:
    assert read_status(tmp_path).description == snapshot
    with refuses(RunFolderError):
        read_run_or_empty(tmp_path / "absent")


def test_points_here_and_in_the_mirror_are_told_apart(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = new_run(last_step=60)
    assert recovery_points(folder).lines(NOW) == []
    for step in (40, 60):
        os.utime(checkpoint(folder, step), (NOW - 12,) * 2)
    (folder / "checkpoints" / "step-00000080.tmp-abc").mkdir()
    mirror(folder)
    assert recovery_points(folder).lines(NOW) == snapshot


@pytest.mark.parametrize(
    "changes", [{"path": 7}, {"since": "noon"}, {"durable_step": "x"}, {"local_step": []}]
)
def test_a_mirror_status_of_odd_values_is_none(new_run: MakeRun, changes: JsonDict) -> None:
    folder = new_run(last_step=60)
    mirror(folder, **changes)
    assert recovery_points(folder).mirror is None
    (folder / "mirror.json").write_bytes(b"\xff")
    assert recovery_points(folder).mirror is None


def test_a_copy_in_a_mirror_runs_as_long_as_it_changes(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = status(new_run(last_step=60), "running")
    checkpoint(folder, 40, point=True)
    mirror(folder, path=str(folder))
    changed = (folder / "mirror.json").stat().st_mtime
    found = read_status(folder, now=changed + 14)
    assert (found.status, found.is_mirrored) == ("running", True)
    assert found.description == snapshot
    assert read_status(folder, now=changed + 3600).description == snapshot
    assert [line.split(":")[0] for line in recovery_points(folder).lines(NOW)] == [
        f"mirror {folder}"
    ]
