"""A study or chain that is watched: the member that is written, what goes on between two of them,
and when it is over.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from syrupy.assertion import SnapshotAssertion

from brimful.base.rundir import Lease
from brimful.report.live.scene import Several, Single, is_awaited, is_watchable, scene_of

NOW = 2_000_000_000.0


def test_a_study_shows_the_member_that_is_written_and_moves_on(
    world: Any, tmp_path: Path, watched_run: Any, snapshot: SnapshotAssertion
) -> None:
    study = tmp_path / "runs" / "s"
    study.mkdir(parents=True)
    (study / "study.yaml").write_text("name: s\nstudy:\n  variants: {a: [], b: []}\n")
    (study / "study.json").write_text('{"recipe": "s"}')
    first, second = watched_run(study / "a"), watched_run(study / "b")
    first.begin()
    first.write(world.step(1))
    world.folder = study

    def moves_on() -> None:
        first.end("finished")
        second.now = world.now
        second.begin()
        second.write(world.step(1))

    def ends() -> None:
        second.end("finished")
        (study / "study.json").write_text('{"recipe": "s", "comparison": {"runs": []}}')

    world.acts = [moves_on, lambda: second.write(world.step(2)), ends]
    assert world.watch_lines() == snapshot


def test_a_study_whose_first_run_is_still_planned_is_waited_for(
    world: Any, tmp_path: Path, watched_run: Any, snapshot: SnapshotAssertion
) -> None:
    study = tmp_path / "runs" / "s"
    study.mkdir(parents=True)
    for name, text in (
        ("study.yaml", "name: s\nstudy:\n  variants: {a: []}\n"),
        ("study.json", '{"recipe": "s"}'),
    ):
        (study / name).write_text(text)
        os.utime(study / name, (NOW, NOW))
    member = watched_run(study / "a")
    world.folder = study

    def ends() -> None:
        member.end("finished")
        (study / "study.json").write_text('{"recipe": "s", "comparison": {"runs": []}}')

    world.acts = [world.waits(60), member.begin, lambda: member.write(world.step(1)), ends]
    assert world.watch_lines() == snapshot


def test_between_two_runs_of_a_study_its_process_is_waited_for(
    world: Any, tmp_path: Path, watched_run: Any, snapshot: SnapshotAssertion
) -> None:
    study = tmp_path / "runs" / "s"
    study.mkdir(parents=True)
    (study / "study.json").write_text('{"recipe": "s"}')
    member = study / "a"
    code = (
        "import sys\nfrom pathlib import Path\nfrom brimful.base.rundir import Lease\nlease ="
        " Lease.acquire(Path(sys.argv[1]))\nprint('held',"
        " flush=True)\nsys.stdin.readline()\nlease.release()\nprint('released',"
        " flush=True)\nsys.stdin.readline()\n"
    )
    first = watched_run(member)
    first.begin()
    first.end("finished")
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(member)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"

    def says(line: str) -> None:
        process.stdin.write("\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        assert process.stdout.readline() == line  # type: ignore[union-attr]

    world.folder = study
    world.acts = [
        lambda: None,
        lambda: says("released\n"),
        world.waits(3600),
        lambda: None,
        lambda: process.communicate("\n"),
        lambda: None,
    ]
    lines = world.watch_lines()
    assert (
        len(world.acts) == 1
    )  # it left when the process had ended, not an hour after the last change
    assert lines[-1] == snapshot


def test_while_a_chain_draws_samples_their_number_is_told(
    world: Any, tmp_path: Path, watched_run: Any, snapshot: SnapshotAssertion
) -> None:
    chain = tmp_path / "runs" / "chain"
    drawing = chain / "samples-1"
    drawing.mkdir(parents=True)
    (chain / "study.yaml").write_text("name: chain\nrft: {rounds: 1, seeds: [1]}\n")
    (chain / "study.json").write_text('{"recipe": "chain"}')
    first = watched_run(chain / "sft")
    first.begin()
    first.end("finished")
    (drawing / "drawn.jsonl").write_text('{"decides": {}}\n{"id": "a"}\n')
    scene = scene_of(chain, world.clock)
    with Lease.acquire(drawing):
        scene.poll()
        assert scene.is_over is False
        assert scene.of_several == snapshot
        with (drawing / "drawn.jsonl").open("a") as file:
            file.write('{"id": "b"}\n')
        scene.poll()
        assert scene.of_several == snapshot
    scene.poll()
    assert scene.watched.folder == chain / "sft"
    assert scene.of_several == snapshot


def test_a_folder_is_watched_as_what_it_is(world: Any, tmp_path: Path) -> None:
    world.begin()
    (tmp_path / "study.json").write_text("{}")
    assert isinstance(scene_of(world.folder, world.clock), Single)
    assert isinstance(scene_of(tmp_path, world.clock), Several)


def test_a_folder_of_runs_is_watched_by_the_one_that_is_written(
    world: Any, tmp_path: Path, watched_run: Any, snapshot: SnapshotAssertion
) -> None:
    other = watched_run(tmp_path / "runs" / "other")
    other.begin()
    other.write(world.step(1))
    other.end("finished")
    world.begin()
    world.write(world.step(7))
    world.folder = tmp_path / "runs"
    assert [is_watchable(folder) for folder in (world.folder, tmp_path, tmp_path / "absent")] == [
        True,
        False,
        False,
    ]
    assert world.watch_lines(once=True)[:2] == snapshot


def test_a_name_is_waited_for_where_it_can_be_a_run_and_is_none_that_was_typed_wrong(
    tmp_path: Path,
) -> None:
    assert is_awaited("quickstart", tmp_path / "runs")
    (tmp_path / "runs" / "quickstart").mkdir(parents=True)
    assert [
        is_awaited(name, tmp_path / "runs")
        for name in ("quickstrt", "code-lora", "/mnt/drive", "-x")
    ] == [False, True, False, False]
