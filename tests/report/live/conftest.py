"""A run that is watched while it is written."""

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from run_records import NOW, START, watched_step

from brimful.base.rundir import Journal, Lease
from brimful.base.types import JsonDict
from brimful.recipe import shipped_text
from brimful.report.live.watch import watch

Act = Callable[[], object]


class WatchedRun:
    """A run folder and what happens to it: each time the watcher sleeps the next of `acts` is done;
    after the last one Ctrl-C comes.
    """

    start = START

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, NOW
        self.acts: list[Act] = []
        self.lease: Lease | None = None

    step = staticmethod(watched_step)

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

    def set_status(self, status: str) -> None:
        (self.folder / "run.json").write_text(json.dumps({"schema_version": 1, "status": status}))

    def write(self, *records: JsonDict) -> None:
        path = self.folder / "metrics.jsonl"
        with Journal(path) as journal:
            for record in records:
                journal.append(record)
        os.utime(path, (self.now, self.now))

    def end(self, status: str) -> None:
        self.write({"kind": "end", "step": 100, "seconds": 50.0, "reason": status})
        if status == "finished":
            (self.folder / "model").mkdir()
        self.set_status(status)
        assert self.lease is not None
        self.lease.release()

    def waits(self, seconds: float) -> Act:
        def act() -> None:
            self.now += seconds

        return act

    def watch_lines(self, *, once: bool = False) -> list[str]:
        file = io.StringIO()
        watch(
            self.folder,
            Console(file=file, force_terminal=False, width=80),
            once,
            clock=self.clock,
            sleep=self.sleep,
        )
        return file.getvalue().splitlines()

    def watch_screen(self, width: int = 80) -> str:
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, width=width, height=30, color_system=None)
        watch(self.folder, console, clock=self.clock, sleep=self.sleep)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "\n")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WatchedRun]:
    made = WatchedRun(tmp_path / "runs" / "quickstart")
    yield made
    if made.lease is not None:
        made.lease.release()


@pytest.fixture
def watched_run() -> Callable[[Path], WatchedRun]:
    """Return a factory of further runs."""
    return WatchedRun


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the packages keep what they write; MLflow takes seconds to make a database."""
    return tmp_path_factory.mktemp("logged")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """Keep what the packages write away from the user's folders and accounts."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(place))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(place))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(place))
    monkeypatch.setenv("NETRC", str(place / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _event_files_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard reads event files by the order of their names, which end in a counter of the
    process: of two sessions in one second and one process, the tenth file would come before the
    ninth. Sessions of a real run are processes of their own.
    """
    writer = sys.modules.get("tensorboard.summary.writer.event_file_writer")
    if writer is not None:
        monkeypatch.setattr(writer, "_global_uid", writer.AtomicCounter(0))
