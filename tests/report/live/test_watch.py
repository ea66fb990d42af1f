"""Watching a run: lines for a pipe, one view on a terminal, a start that is waited for, an end that
is noticed, a study's member that is written.
"""

import json
from typing import Any

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.base.rundir import Journal, Lease


def test_a_pipe_gets_the_state_then_lines_then_the_end(
    world: Any, snapshot: SnapshotAssertion
) -> None:
    world.begin()
    world.write(world.step(1), world.step(2))
    world.acts = [
        lambda: world.write(
            world.step(3), {"kind": "evaluation", "step": 3, "loss": 3.5, "best": True}
        ),
        lambda: world.write(world.step(100)),
        lambda: world.end("finished"),
    ]
    assert world.watch_lines() == snapshot


def test_a_run_that_starts_is_waited_for(world: Any, snapshot: SnapshotAssertion) -> None:
    world.acts = [
        lambda: None,
        world.begin,
        lambda: world.write(world.step(1)),
        lambda: world.end("finished"),
    ]
    assert world.watch_lines() == snapshot


def test_a_run_that_only_prepares_is_followed_to_its_first_step(
    world: Any, snapshot: SnapshotAssertion
) -> None:
    world.folder.mkdir(parents=True)
    world.lease = Lease.acquire(world.folder)
    lease = world.lease

    def starts() -> None:
        lease.release()
        world.begin()

    world.acts = [
        lambda: None,
        starts,
        lambda: world.write(world.step(1)),
        lambda: world.end("stopped"),
    ]
    assert world.watch_lines() == snapshot


def test_a_run_that_never_comes_is_an_error_after_a_while(world: Any, refuses: Refuses) -> None:
    world.acts = [world.waits(30), world.waits(30), world.waits(30)]
    with refuses(RunFolderError):
        world.watch_lines()
    world.folder.mkdir(parents=True)
    world.acts = [world.waits(61)]
    with refuses(RunFolderError):
        world.watch_lines()
    with refuses(RunFolderError):
        world.watch_lines(once=True)


def test_ctrl_c_leaves_quietly_and_the_run_goes_on(world: Any, snapshot: SnapshotAssertion) -> None:
    world.begin()
    world.write(world.step(1))
    assert world.watch_lines()[-1] == snapshot
    assert (world.folder / Lease.FILE_NAME).exists()


def test_once_shows_the_present_state_and_returns(world: Any, snapshot: SnapshotAssertion) -> None:
    world.begin()
    world.write(world.step(1))
    assert world.watch_lines(once=True) == snapshot


def test_a_silence_is_told_once_and_again_when_it_comes_back(
    world: Any, snapshot: SnapshotAssertion
) -> None:
    world.begin()
    world.write(world.step(1))
    world.acts = [
        world.waits(60),
        world.waits(60),
        lambda: world.write(world.step(2)),
        world.waits(60),
        lambda: world.write(world.step(3)),
        lambda: world.end("stopped"),
    ]
    assert world.watch_lines() == snapshot


def test_a_run_that_is_trained_and_still_scored_says_so(
    world: Any, snapshot: SnapshotAssertion
) -> None:
    world.begin()
    world.write(world.step(1))
    (world.folder / "environment.json").write_text('{"command": "brimful run quickstart"}')
    world.acts = [lambda: world.end("finished")]
    assert world.watch_lines()[-1] == snapshot


def test_a_killed_run_is_told_with_how_to_go_on(world: Any, snapshot: SnapshotAssertion) -> None:
    world.folder.mkdir(parents=True)
    world.begin()
    world.write(world.step(7))
    holder = json.loads((world.folder / Lease.FILE_NAME).read_text())

    def dies() -> None:
        (world.folder / Lease.FILE_NAME).write_text(json.dumps(holder | {"process_started": 1.0}))

    world.acts = [dies]
    assert world.watch_lines() == snapshot


def test_a_resumed_run_is_followed_from_where_it_goes_on(
    world: Any, snapshot: SnapshotAssertion
) -> None:
    world.begin()
    world.write(*map(world.step, range(1, 21)))
    keep_bytes = sum(
        map(len, (world.folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:11])
    )

    def resumes() -> None:
        Journal(world.folder / "metrics.jsonl", keep_bytes=keep_bytes).close()
        world.write(world.start | {"step": 10, "resumed": True}, world.step(11))

    world.acts = [resumes, lambda: world.end("finished")]
    assert world.watch_lines() == snapshot


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_terminal_has_one_view_and_keeps_evaluations_above_it(world: Any, width: int) -> None:
    world.begin()
    world.write(world.step(1))
    world.acts = [
        lambda: world.write(
            world.step(50), {"kind": "evaluation", "step": 50, "loss": 3.25, "perplexity": 25.8}
        ),
        lambda: world.write(world.step(51)),
        lambda: world.end("finished"),
    ]
    screen = world.watch_screen(width)
    assert "validation loss 3.2500" in screen
    assert "51/100 (51 %)" in screen
    rows = [row for row in screen.splitlines() if "perplexity" not in row]
    assert max(map(len, rows)) <= width
