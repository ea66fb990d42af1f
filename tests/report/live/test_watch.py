"""Watching a run: lines for a pipe, one view on a terminal, a start that is waited for, an end that
is noticed, a study's member that is written.
"""

import io
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from brimful.base.errors import RunFolderError
from brimful.base.rundir import Journal, Lease
from brimful.recipe import shipped_text
from brimful.report.live.watch import watch

NOW = 2_000_000_000.0
START = {
    "kind": "start",
    "step": 0,
    "total_steps": 100,
    "tokens_per_step": 4096,
    "run": "quickstart",
    "resumed": False,
}
Act = Callable[[], object]


def step(number: int) -> dict[str, Any]:
    record = {
        "kind": "step",
        "step": number,
        "loss": 4.0,
        "learning_rate": 1e-3,
        "tokens_per_second": 8192.0,
        "step_time_s": 0.5,
    }
    return record | {"memory_bytes": 2 * 1024**3, "skipped": 0, "time": NOW + number * 0.5}


class World:
    """A run folder whose writer does one thing while the watcher sleeps; after the last one Ctrl-C
    comes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, NOW
        self.acts: list[Act] = []
        self.lease: Lease | None = None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if not self.acts:
            raise KeyboardInterrupt
        self.acts.pop(0)()

    def begin(self) -> None:
        """Claim the folder and write what a session writes first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lease = Lease.acquire(self.folder)
        (self.folder / "recipe.yaml").write_text(shipped_text("quickstart"))
        self.set_status("running")
        self.write(START)

    def set_status(self, word: str) -> None:
        (self.folder / "run.json").write_text(json.dumps({"schema_version": 1, "status": word}))

    def write(self, *records: dict[str, Any]) -> None:
        path = self.folder / "metrics.jsonl"
        with Journal(path) as journal:
            for record in records:
                journal.append(record)
        os.utime(path, (self.now, self.now))

    def end(self, word: str) -> None:
        self.write({"kind": "end", "step": 100, "seconds": 50.0, "reason": word})
        if word == "finished":
            (self.folder / "model").mkdir()
        self.set_status(word)
        assert self.lease is not None
        self.lease.release()

    def waits(self, seconds: float) -> Act:
        def act() -> None:
            self.now += seconds

        return act

    def told(self, *, once: bool = False) -> list[str]:
        file = io.StringIO()
        watch(
            self.folder,
            Console(file=file, force_terminal=False, width=80),
            once,
            clock=self.clock,
            sleep=self.sleep,
        )
        return file.getvalue().splitlines()

    def on_terminal(self, width: int = 80) -> str:
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, width=width, height=30, color_system=None)
        watch(self.folder, console, clock=self.clock, sleep=self.sleep)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "\n")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "runs" / "quickstart")
    yield made
    if made.lease is not None:
        made.lease.release()


def test_a_pipe_gets_the_state_then_lines_then_the_end(world: World) -> None:
    world.begin()
    world.write(step(1), step(2))
    world.acts = [
        lambda: world.write(step(3), {"kind": "evaluation", "step": 3, "loss": 3.5, "best": True}),
        lambda: world.write(step(100)),
        lambda: world.end("finished"),
    ]
    lines = world.told()
    assert lines[0] == "quickstart: step 2/100  49 s left"
    assert any(line.startswith("running: process ") for line in lines[:4])
    assert [line.split("  ")[0] for line in lines if line.startswith("step ")] == [
        "step 3/100 (3 %)",
        "step 3/100",
        "step 100/100 (100 %)",
        "step 100/100",
    ]
    assert lines[-1].startswith("finished: 100 steps")
    assert sum(line.startswith("finished") for line in lines) == 1


def test_a_run_that_starts_is_waited_for(world: World) -> None:
    world.acts = [
        lambda: None,
        world.begin,
        lambda: world.write(step(1)),
        lambda: world.end("finished"),
    ]
    lines = world.told()
    assert lines[0].startswith(f"there is no run in {world.folder} yet: waiting up to 60 s")
    assert lines[-1].startswith("finished")


def test_a_run_that_only_prepares_is_followed_to_its_first_step(world: World) -> None:
    world.folder.mkdir(parents=True)
    world.lease = Lease.acquire(world.folder)
    lease = world.lease

    def starts() -> None:
        lease.release()
        world.begin()

    world.acts = [lambda: None, starts, lambda: world.write(step(1)), lambda: world.end("stopped")]
    lines = world.told()
    assert "no record yet: it reads data, plans and loads the model" in lines[1]
    assert "quickstart: 100 steps of 4.10k tokens" in lines
    assert lines[-1] == f"to go on: brimful train {world.folder}/recipe.yaml"


def test_a_run_that_never_comes_is_an_error_after_a_while(world: World) -> None:
    world.acts = [world.waits(30), world.waits(30), world.waits(30)]
    with pytest.raises(RunFolderError, match=r"does not exist\. Give the name of a run"):
        world.told()
    world.folder.mkdir(parents=True)
    world.acts = [world.waits(61)]
    with pytest.raises(RunFolderError, match="holds no run"):
        world.told()
    with pytest.raises(RunFolderError, match="holds no run"):
        world.told(once=True)


def test_ctrl_c_leaves_quietly_and_the_run_goes_on(world: World) -> None:
    world.begin()
    world.write(step(1))
    assert world.told()[-1] == "left; what was watched goes on by itself"
    assert (world.folder / Lease.FILE_NAME).exists()


def test_once_shows_the_present_state_and_returns(world: World) -> None:
    world.begin()
    world.write(step(1))
    assert world.told(once=True)[0] == "quickstart: step 1/100  50 s left"
    assert len(world.told(once=True)) < 6


def test_a_silence_is_told_once_and_again_when_it_comes_back(world: World) -> None:
    world.begin()
    world.write(step(1))
    world.acts = [
        world.waits(60),
        world.waits(60),
        lambda: world.write(step(2)),
        world.waits(60),
        lambda: world.write(step(3)),
        lambda: world.end("stopped"),
    ]
    lines = world.told()
    assert sum("no record for" in line for line in lines) == 2
    assert "a step takes 500 ms" in next(line for line in lines if "no record for" in line)


def test_a_run_that_is_trained_and_still_scored_says_so(world: World) -> None:
    world.begin()
    world.write(step(1))
    (world.folder / "environment.json").write_text('{"command": "brimful run quickstart"}')
    world.acts = [lambda: world.end("finished")]
    assert world.told()[-1] == "trained; its process goes on: scores and a report follow"


def test_a_killed_run_is_told_with_how_to_go_on(world: World) -> None:
    world.folder.mkdir(parents=True)
    world.begin()
    world.write(step(7))
    holder = json.loads((world.folder / Lease.FILE_NAME).read_text())

    def dies() -> None:
        (world.folder / Lease.FILE_NAME).write_text(json.dumps(holder | {"process_started": 1.0}))

    world.acts = [dies]
    lines = world.told()
    assert lines[-2].startswith("interrupted at step 7 of 100")
    assert lines[-1] == f"to go on: brimful train {world.folder}/recipe.yaml"


def test_a_resumed_run_is_followed_from_where_it_goes_on(world: World) -> None:
    world.begin()
    world.write(*map(step, range(1, 21)))
    keep_bytes = sum(
        map(len, (world.folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:11])
    )

    def resumes() -> None:
        Journal(world.folder / "metrics.jsonl", keep_bytes=keep_bytes).close()
        world.write(START | {"step": 10, "resumed": True}, step(11))

    world.acts = [resumes, lambda: world.end("finished")]
    lines = world.told()
    assert "quickstart: goes on at step 10 of 100" in lines
    assert sum(line.startswith("step 11/100") for line in lines) == 1
    assert not any(line.startswith("step 5/100") for line in lines)


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_terminal_has_one_view_and_keeps_evaluations_above_it(world: World, width: int) -> None:
    world.begin()
    world.write(step(1))
    world.acts = [
        lambda: world.write(
            step(50), {"kind": "evaluation", "step": 50, "loss": 3.25, "perplexity": 25.8}
        ),
        lambda: world.write(step(51)),
        lambda: world.end("finished"),
    ]
    screen = world.on_terminal(width)
    assert "validation loss 3.2500" in screen
    assert "51/100 (51 %)" in screen
    rows = [row for row in screen.splitlines() if "perplexity" not in row]
    assert max(map(len, rows)) <= width
