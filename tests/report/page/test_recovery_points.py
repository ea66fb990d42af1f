"""Recovery points here and in the mirror are told apart, and a mirror in trouble says so."""

import json
from pathlib import Path
from typing import Any

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.recovery_points import recovery_section
from brimful.report.terminal import told
from brimful.runs.folder import read_run


def with_points(folder: Path, *steps: int, mirror: Any = None) -> str:
    """What is told of a run with these points; "" without a section."""
    for step in steps:
        point = folder / "checkpoints" / f"step-{step:08d}"
        point.mkdir(parents=True)
        (point / "model.safetensors").write_bytes(b"x" * 2048)
    if mirror is not None:
        (folder / "mirror.json").write_text(
            mirror if isinstance(mirror, str) else json.dumps(mirror)
        )
    section = recovery_section(read_run(folder))
    return told(section.blocks).plain if section else ""


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
    sentence, trouble, *_, last = with_points(new_run(last_step=60), 60, mirror=mirror).splitlines()
    assert (sentence, trouble) == snapshot
    assert last.split() == ["Step", "40", "mirror:", "/drive/x", "2026-09-21", "14:13:20", "UTC"]


def test_a_mirror_without_a_durable_point_says_so(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    told = with_points(
        new_run(last_step=60),
        60,
        mirror={"path": "/drive/x", "state": "behind", "durable_step": None},
    )
    assert told.splitlines()[0] == snapshot


def test_no_points_and_no_or_a_damaged_mirror_have_no_section(new_run: MakeRun) -> None:
    assert with_points(new_run()) == with_points(new_run("damaged"), mirror="[") == ""


def test_a_run_that_goes_on_is_told_of_mirrors_and_a_finished_one_what_its_mirror_holds(
    new_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    assert with_points(new_run("a", last_step=60), 60).splitlines()[0] == snapshot
    mirror = {"path": "/drive/b", "durable_step": None, "finished": True}
    assert with_points(new_run("b"), mirror=mirror) == snapshot


def test_a_date_that_is_none_is_left_out(new_run: MakeRun) -> None:
    mirror = {"path": "/drive/b", "durable_step": 4, "durable_time": 1e30}
    assert with_points(new_run(), mirror=mirror).splitlines()[-1].endswith("mirror: /drive/b")
