"""A study or chain that is watched: the member that is written, what goes on between two of them,
and when it is over.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from brimful.base.rundir import Journal, Lease
from brimful.recipe import shipped_text
from brimful.report.live.scene import Several, Single, is_awaited, is_watchable, scene_of
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


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "runs" / "quickstart")
    yield made
    if made.lease is not None:
        made.lease.release()


def test_a_study_shows_the_member_that_is_written_and_moves_on(
    world: World, tmp_path: Path
) -> None:
    study = tmp_path / "runs" / "s"
    study.mkdir(parents=True)
    (study / "study.yaml").write_text("name: s\nstudy:\n  variants: {a: [], b: []}\n")
    (study / "study.json").write_text('{"recipe": "s"}')
    first, second = World(study / "a"), World(study / "b")
    first.begin()
    first.write(step(1))
    world.folder = study

    def moves_on() -> None:
        first.end("finished")
        second.now = world.now
        second.begin()
        second.write(step(1))

    def ends() -> None:
        second.end("finished")
        (study / "study.json").write_text('{"recipe": "s", "comparison": {"runs": []}}')

    world.acts = [moves_on, lambda: second.write(step(2)), ends]
    lines = world.told()
    assert lines[0] == "s: 0 of 2 runs finished; a"
    assert "s: 1 of 2 runs finished; b" in lines
    assert lines[-1].startswith("finished and compared")


def test_a_study_whose_first_run_is_still_planned_is_waited_for(
    world: World, tmp_path: Path
) -> None:
    study = tmp_path / "runs" / "s"
    study.mkdir(parents=True)
    for name, text in (
        ("study.yaml", "name: s\nstudy:\n  variants: {a: []}\n"),
        ("study.json", '{"recipe": "s"}'),
    ):
        (study / name).write_text(text)
        os.utime(study / name, (NOW, NOW))
    member = World(study / "a")
    world.folder = study

    def ends() -> None:
        member.end("finished")
        (study / "study.json").write_text('{"recipe": "s", "comparison": {"runs": []}}')

    world.acts = [world.waits(60), member.begin, lambda: member.write(step(1)), ends]
    lines = world.told()
    assert lines[:2] == ["s: 0 of 1 runs finished", "none of its runs has begun yet"]
    assert lines[-1].startswith("finished and compared")


def test_between_two_runs_of_a_study_its_process_is_waited_for(
    world: World, tmp_path: Path
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
    first = World(member)
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
    lines = world.told()
    assert (
        len(world.acts) == 1
    )  # it left when the process had ended, not an hour after the last change
    assert lines[-1].startswith("finished: 100 steps")


def test_while_a_chain_draws_samples_their_number_is_told(world: World, tmp_path: Path) -> None:
    chain = tmp_path / "runs" / "chain"
    drawing = chain / "samples-1"
    drawing.mkdir(parents=True)
    (chain / "study.yaml").write_text("name: chain\nrft: {rounds: 1, seeds: [1]}\n")
    (chain / "study.json").write_text('{"recipe": "chain"}')
    first = World(chain / "sft")
    first.begin()
    first.end("finished")
    (drawing / "drawn.jsonl").write_text('{"decides": {}}\n{"id": "a"}\n')
    scene = scene_of(chain, world.clock)
    with Lease.acquire(drawing):
        scene.poll()
        assert (scene.of_several, scene.is_over) == (
            "chain: 1 of 2 runs finished; samples-1: 1 sample drawn",
            False,
        )
        with (drawing / "drawn.jsonl").open("a") as file:
            file.write('{"id": "b"}\n')
        scene.poll()
        assert scene.of_several.endswith("samples-1: 2 samples drawn")
    scene.poll()
    assert (scene.of_several, scene.watched.folder) == (
        "chain: 1 of 2 runs finished; sft",
        chain / "sft",
    )


def test_a_folder_is_watched_as_what_it_is(world: World, tmp_path: Path) -> None:
    world.begin()
    (tmp_path / "study.json").write_text("{}")
    assert isinstance(scene_of(world.folder, world.clock), Single)
    assert isinstance(scene_of(tmp_path, world.clock), Several)


def test_a_folder_of_runs_is_watched_by_the_one_that_is_written(
    world: World, tmp_path: Path
) -> None:
    other = World(tmp_path / "runs" / "other")
    other.begin()
    other.write(step(1))
    other.end("finished")
    world.begin()
    world.write(step(7))
    world.folder = tmp_path / "runs"
    assert [is_watchable(folder) for folder in (world.folder, tmp_path, tmp_path / "absent")] == [
        True,
        False,
        False,
    ]
    assert world.told(once=True)[:2] == [
        f"{tmp_path / 'runs'}: 1 run finished; quickstart",
        "quickstart: step 7/100  46 s left",
    ]


def test_a_name_is_waited_for_where_it_can_be_a_run_and_is_none_that_was_typed_wrong(
    tmp_path: Path,
) -> None:
    assert is_awaited("quickstart", tmp_path / "runs")
    (tmp_path / "runs" / "quickstart").mkdir(parents=True)
    assert [
        is_awaited(name, tmp_path / "runs")
        for name in ("quickstrt", "code-lora", "/mnt/drive", "-x")
    ] == [False, True, False, False]
