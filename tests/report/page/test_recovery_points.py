"""Recovery points here and in the mirror are told apart, and a mirror in trouble says so."""

import json
from pathlib import Path
from typing import Any

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.recovery_points import RecoveryView, recovery_view
from brimful.runs import read_run


def with_points(folder: Path, *steps: int, mirror: Any = None) -> RecoveryView | None:
    for step in steps:
        point = folder / "checkpoints" / f"step-{step:08d}"
        point.mkdir(parents=True)
        (point / "model.safetensors").write_bytes(b"x" * 2048)
    if mirror is not None:
        (folder / "mirror.json").write_text(
            mirror if isinstance(mirror, str) else json.dumps(mirror)
        )
    return recovery_view(read_run(folder))


def test_points_here_are_listed_newest_first(new_run: MakeRun, snapshot: SnapshotAssertion) -> None:
    view = with_points(new_run(), 450, 500)
    assert view is not None
    assert view.sentence == snapshot
    assert [row[:3] for row in view.table.text_rows] == snapshot


def test_a_mirror_behind_says_what_would_be_lost(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    mirror = {
        "path": "/drive/x",
        "state": "failing",
        "durable_step": 40,
        "durable_time": 1_790_000_000.0,
        "error": "no space left",
    }
    view = with_points(new_run(last_step=60), 60, mirror=mirror)
    assert view is not None
    assert view.sentence == snapshot
    assert view.table.text_rows[-1] == (
        "Step 40",
        "mirror: /drive/x",
        "",
        "2026-09-21 14:13:20 UTC",
    )
    assert view.trouble == snapshot


def test_a_mirror_without_a_durable_point_says_so(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    view = with_points(new_run(last_step=60), 60, mirror={"path": "/drive/x", "state": "behind"})
    assert view is not None
    assert view.sentence == snapshot


def test_no_points_and_no_or_a_damaged_mirror_have_no_section(new_run: MakeRun) -> None:
    assert with_points(new_run()) is None
    assert with_points(new_run("damaged"), mirror="[") is None


def test_a_run_that_goes_on_is_told_of_mirrors_and_a_finished_one_what_its_mirror_holds(
    new_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    going, finished = (
        with_points(new_run("a", last_step=60), 60),
        with_points(new_run("b"), mirror={"path": "/drive/b", "finished": True}),
    )
    assert going is not None
    assert finished is not None
    assert going.sentence == snapshot
    assert finished.sentence == snapshot
    assert finished.table.text_rows == ()


def test_a_date_that_is_none_is_left_out(new_run: MakeRun) -> None:
    view = with_points(
        new_run(), mirror={"path": "/drive/b", "durable_step": 4, "durable_time": 1e30}
    )
    assert view is not None
    assert view.table.text_rows == (("Step 4", "mirror: /drive/b", "", ""),)
