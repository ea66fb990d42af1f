"""What another process prepares meanwhile is what this one prepares, to the byte, and what that
process cannot do is done here.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fixture_types import Captured, MakeRecipe
from json_lines import write_rows

from brimful.base.errors import DataError
from brimful.base.types import JsonDict, Progress
from brimful.data import prepared_ahead
from brimful.data.cache_places import tokens_are_kept
from brimful.data.prepare import prepare, prepare_tokens
from brimful.data.prepared_ahead import (
    PreparingProcess,
    preparing_ahead,
    preparing_paused,
    wait_for_prepared,
)
from brimful.recipe import Recipe

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="nothing is prepared ahead here"),
    # Only the tests' own process has threads here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]
PHASES = ["reading", "training the tokenizer", "tokenising"]


@pytest.fixture
def wanted(tmp_path: Path, recipe: MakeRecipe) -> Recipe:
    """Of sixty small documents."""
    rows = [
        {"text": f"Story {number}.\n" + "the cat sat on the mat, the dog on the log\n" * 3}
        for number in range(60)
    ]
    path = tmp_path / "stories.jsonl"
    write_rows(path, rows)
    return recipe({"path": path, "validation": 0.2})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, and a machine with a core to spare."""
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prepared_ahead, "_can_fork", lambda: True)
    return tmp_path / "cache"


def _files(cache: Path) -> dict[str, bytes]:
    """Of prepared data, by their path in the cache folder, but for what is not whole."""
    return {
        str(path.relative_to(cache)): path.read_bytes()
        for name in ("tokenizers", "tokens")
        for path in (cache / name).rglob("*")
        if path.is_file() and not path.parent.name.startswith(".")
    }


def test_it_is_equal_to_the_byte_and_its_progress_is_told_here(
    wanted: Recipe, cache: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    with preparing_ahead(wanted):
        wait_for_prepared(lambda what, done, total: told.append(what))

    prepare(wanted, tmp_path / "other")
    assert list(dict.fromkeys(told)) == PHASES
    assert tokens_are_kept(wanted, cache)
    assert _files(cache) == _files(tmp_path / "other") != {}


@pytest.mark.parametrize("phase", PHASES)
def test_killed_at_any_phase_it_leaves_the_rest_to_this_process(
    wanted: Recipe, cache: Path, tmp_path: Path, phase: str
) -> None:
    def prepare_until(progress: Progress) -> None:
        def kill_at(what: str, done: int, total: int | None) -> None:
            progress(what, done, total)
            if what == phase:
                os.kill(os.getpid(), signal.SIGKILL)

        prepare_tokens(wanted, cache, kill_at)

    told: list[str] = []
    PreparingProcess(prepare_until).wait(lambda what, done, total: told.append(what))
    assert told[-1] == phase
    assert not tokens_are_kept(wanted, cache)

    prepare(wanted, cache)
    prepare(wanted, tmp_path / "other")
    assert _files(cache) == _files(tmp_path / "other")


def test_bad_data_are_refused_here_as_without_it(
    tmp_path: Path, recipe: MakeRecipe, cache: Path, capfd: Captured
) -> None:
    rows = [*({"text": f"the cat {number}"} for number in range(50)), {"words": "the cat"}]
    path = tmp_path / "rows.jsonl"
    write_rows(path, rows)
    bad = recipe({"path": path})

    with pytest.raises(DataError) as alone:
        prepare(bad, tmp_path / "other")
    with preparing_ahead(bad):
        wait_for_prepared()
        with pytest.raises(DataError) as after:
            prepare(bad, cache)
    assert str(after.value) == str(alone.value)
    assert capfd.readouterr() == ("", "")


def _is_gone(process: int) -> bool:
    """Wait until a process is gone, a minute at most."""
    for _ in range(6000):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def _sleep(progress: Progress) -> None:
    progress("begun", os.getpid(), None)
    time.sleep(600)


def test_what_nobody_waits_for_ends_with_the_block(wanted: Recipe, cache: Path) -> None:
    with preparing_ahead(wanted):
        (process,) = prepared_ahead._running
        assert process._process is not None
    assert process._process is None
    assert prepared_ahead._running == []


def test_it_ends_when_the_process_that_started_it_is_killed() -> None:
    heard, told = os.pipe()
    parent = os.fork()
    if not parent:
        try:
            started = PreparingProcess(_sleep)
            os.write(told, str(started._process).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    assert _is_gone(int(os.read(heard, 32)))
    os.close(heard)
    os.close(told)


def _state(process: int | None) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]


def test_it_stands_still_while_something_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = PreparingProcess(_sleep)
    monkeypatch.setattr(prepared_ahead, "_running", [process])
    with preparing_paused():
        assert _state(process._process) == "T"
    assert _state(process._process) != "T"
    process.end()
    with preparing_paused():
        process.end()


def test_one_that_ended_before_is_not_waited_for_twice() -> None:
    process = PreparingProcess(lambda progress: None)
    process.wait()
    process.wait()
    ended = PreparingProcess(lambda progress: None)
    while _state(ended._process) != "Z":
        time.sleep(0.01)
    with ended.paused():
        assert ended._process is None
    ended.wait()


def test_more_progress_than_a_pipe_holds_does_not_stop_it() -> None:
    told: list[int] = []

    def work(progress: Progress) -> None:
        for number in range(10_000):
            progress("x", number, None)

    process = PreparingProcess(work)
    while _state(process._process) != "Z":
        time.sleep(0.01)
    process.wait(lambda what, done, total: told.append(done))
    assert 0 < len(told) < 10_000
    assert told == list(range(len(told)))


def test_nothing_is_started_where_the_tokens_are_kept(wanted: Recipe, cache: Path) -> None:
    assert prepared_ahead._gains(wanted)
    prepare(wanted, cache)
    assert not prepared_ahead._gains(wanted)


@pytest.mark.parametrize("option", [{"cache_gib": 1}, {"path": "owner/name"}])
def test_nothing_is_started_for_files_of_their_own_or_the_hub(
    wanted: Recipe, cache: Path, recipe: MakeRecipe, option: JsonDict
) -> None:
    assert not prepared_ahead._gains(recipe({"path": wanted.data.path, **option}))


def test_nothing_is_started_for_large_files(
    wanted: Recipe, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_ahead, "MOST_BYTES", 100)
    assert not prepared_ahead._gains(wanted)


def test_nothing_is_started_for_a_folder_of_many_files(
    cache: Path, tmp_path: Path, recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text("the cat sat on the mat\n" * 9)
    monkeypatch.setattr(prepared_ahead, "MOST_FILES", 3)
    assert prepared_ahead._gains(recipe({"path": folder}))
    (folder / "last.txt").write_text("the dog sat on the log\n")
    assert not prepared_ahead._gains(recipe({"path": folder}))


def test_nothing_is_started_by_one_of_several_ranks(
    wanted: Recipe, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not prepared_ahead._gains(wanted)


ASKED = """
import sys, threading
from brimful.data import prepared_ahead
cores, state = int(sys.argv[1]), sys.argv[2]
prepared_ahead.usable_cores = lambda limits: cores
stop = threading.Event()
if state == "thread":
    threading.Thread(target=stop.wait).start()
if state == "torch":
    sys.modules["torch"] = sys
print(prepared_ahead._can_fork())
stop.set()
"""
"""In a process of its own: the tests' has threads."""


@pytest.mark.parametrize(
    ("cores", "state", "can"),
    [
        (2, "alone", True),
        (1, "alone", False),
        (2, "thread", False),
        (2, "torch", False),
    ],
)
def test_nothing_is_started_on_one_core_beside_threads_or_after_torch(
    cores: int, state: str, can: bool
) -> None:
    asked = [sys.executable, "-c", ASKED, str(cores), state]
    done = subprocess.run(asked, check=True, capture_output=True, text=True)
    assert done.stdout == f"{can}\n"
