"""Every logger keeps the protocol: with the real package, offline, each point once, and trouble
with one never stops a run. A logger whose package is absent is skipped, with the reason.
"""

import importlib
import json
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import BrimfulError
from brimful.base.types import JsonDict, Numbers
from brimful.report.live import logger as logger_module
from brimful.report.live.logger import (
    LoggedRun,
    Logger,
    find_logger,
    known_loggers,
    logging_listener,
    recorded_steps,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the packages' own code
Points = list[tuple[int, float]]


def tensorboard_points(run: LoggedRun, tag: str) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run.folder / "tensorboard"))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def wandb_records(path: Path) -> Iterator[bytes]:
    """Read a W&B file: after 7 bytes, blocks of 32 KiB of pieces (LevelDB's log format), each with
    a checksum (4 bytes), its length (2) and its place in a record (1: all of it, 4: its end).
    """
    data, at, record = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, place = struct.unpack("<HB", data[at + 4 : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if place in {1, 4}:
            yield record
            record = b""


def finished_wandb_records(path: Path) -> list[Any]:
    """W&B's own process writes the file; a run that is finished ends with the record `exit`."""
    from wandb.proto import wandb_internal_pb2

    deadline_s = time.monotonic() + 300
    while True:
        records = [wandb_internal_pb2.Record.FromString(data) for data in wandb_records(path)]
        if any(record.HasField("exit") for record in records):
            return records
        assert time.monotonic() < deadline_s, f"{path} was not finished"
        time.sleep(0.05)


def wandb_points(run: LoggedRun, tag: str) -> Points:
    """From the files that `wandb sync` sends."""
    found = []
    for path in sorted((run.folder / "wandb").glob("offline-run-*/run-*.wandb")):
        assert path.name == f"run-{run.run_id}.wandb"
        for record in finished_wandb_records(path):
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            if tag in items:
                found.append((int(items["_step"]), float(items[tag])))
    return found


def trackio_points(run: LoggedRun, tag: str) -> Points:
    import trackio

    runs = [each for each in trackio.Api().runs("brimful") if each.name == run.unique_name]
    assert len(runs) == 1
    rows = trackio.SQLiteStorage.get_logs("brimful", run.unique_name)
    return [(int(row["step"]), float(row[tag])) for row in rows if tag in row]


def mlflow_points(run: LoggedRun, tag: str) -> Points:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("brimful")
    runs = client.search_runs([experiment.experiment_id], f"tags.`brimful.run` = '{run.run_id}'")
    assert len(runs) == 1
    history = client.get_metric_history(runs[0].info.run_id, tag)
    return sorted((point.step, point.value) for point in history)


READERS: Mapping[str, Callable[[LoggedRun, str], Points]] = {
    "tensorboard": tensorboard_points,
    "wandb": wandb_points,
    "trackio": trackio_points,
    "mlflow": mlflow_points,
}


@pytest.fixture(params=known_loggers())
def name(request: pytest.FixtureRequest, offline: None) -> str:
    package = "torch.utils.tensorboard" if request.param == "tensorboard" else request.param
    pytest.importorskip(package, reason=f"needs the extra {request.param}")
    return str(request.param)


def step(number: int, loss: float = 3.0) -> JsonDict:
    return {"kind": "step", "step": number, "loss": loss, "grad_norm": 1.5, "time": 5.0 + number}


def start(at: int, resumed: bool) -> JsonDict:
    return {"kind": "start", "step": at, "total_steps": 9, "resumed": resumed}


def evaluation(number: int) -> JsonDict:
    return {"kind": "evaluation", "step": number, "split": "validation", "loss": 2.5, "f1": 0.75}


END = {"kind": "end", "step": 6, "reason": "finished"}


def logged_run(tmp_path: Path) -> LoggedRun:
    settings = {"seed": 1, "optimizer": {"learning_rate": 0.5}, "note": "x" * 700}
    return LoggedRun(tmp_path / "run", uuid.uuid4().hex, settings=settings)


def write(names: list[str], run: LoggedRun, records: list[JsonDict]) -> list[str]:
    """Log as a session does, with its journal; return what the user is told."""
    from brimful.base.rundir import Journal

    run.folder.mkdir(exist_ok=True)
    notes: list[str] = []
    with logging_listener(names, run, notes.append) as listen:
        journal = Journal(run.folder / "metrics.jsonl")
        for record in records:
            journal.append(record)
            listen(record)
        journal.close()
    return notes


def test_every_logger_is_read_back_here() -> None:
    """A file that is added to the folder needs a reader above."""
    assert sorted(READERS) == known_loggers()


def test_steps_and_evaluations_are_logged_under_their_group(name: str, tmp_path: Path) -> None:
    run = logged_run(tmp_path)
    notes = write([name], run, [start(0, False), step(1), step(2), evaluation(2), END])
    read = READERS[name]

    assert all("offline" in note for note in notes)
    assert read(run, "train/loss") == [(1, 3.0), (2, 3.0)]
    assert read(run, "train/grad_norm") == [(1, 1.5), (2, 1.5)]
    assert read(run, "validation/loss") == [(2, 2.5)]
    assert read(run, "validation/f1") == [(2, 0.75)]


def test_a_resumed_run_goes_on_in_the_same_log_and_repeats_no_point(
    name: str, tmp_path: Path
) -> None:
    """Killed after step 5, before its evaluation, with a checkpoint of step 3."""
    run = logged_run(tmp_path)
    write([name], run, [start(0, False), step(1), step(2), evaluation(2), *map(step, (3, 4, 5))])
    write([name], run, [start(3, True), *map(step, (4, 5)), evaluation(5), step(6), END])
    read = READERS[name]

    assert read(run, "train/loss") == [(number, 3.0) for number in range(1, 7)]
    assert read(run, "validation/loss") == [(2, 2.5), (5, 2.5)]


def test_a_logger_that_joins_later_gets_all_steps_of_its_session(name: str, tmp_path: Path) -> None:
    run = logged_run(tmp_path)
    write([], run, [start(0, False), *map(step, range(1, 6))])
    write([name], run, [start(3, True), step(4), step(5), step(6), END])

    assert READERS[name](run, "train/loss") == [(4, 3.0), (5, 3.0), (6, 3.0)]


def test_without_its_package_one_note_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: None, snapshot: SnapshotAssertion
) -> None:
    for package in ("torch.utils.tensorboard", "trackio", "wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, package, None)
    for each in known_loggers():
        notes = write([each], logged_run(tmp_path), [start(0, False), step(1), END])
        assert len(notes) == 1
        assert f"pip install {each}" in notes[0] or f"extra {each}" in notes[0]
        assert notes[0] == snapshot


class FailingLog:
    """Takes two values, then raises what the test says."""

    held: Mapping[str, int] = {}

    def __init__(self, error: Exception) -> None:
        self.error, self.added, self.closed = error, 0, 0

    def add(self, group: str, values: Numbers, step: int, unix_s: float | None) -> None:
        if self.added == 2:
            raise self.error
        self.added += 1

    def flush(self) -> None:
        """Nothing to do."""

    def close(self, is_finished: bool) -> None:
        self.closed += 1


@pytest.fixture
def use_logger(monkeypatch: pytest.MonkeyPatch) -> Callable[[Logger], None]:
    return lambda made: monkeypatch.setattr(logger_module, "find_logger", lambda name: made)


@pytest.mark.parametrize("error", [OSError("no space"), ValueError("line one\nline two")])
def test_a_logger_that_fails_is_told_once_closed_and_left_out(
    error: Exception, tmp_path: Path, use_logger: Callable[[Logger], None]
) -> None:
    log = FailingLog(error)
    use_logger(Logger("Ledger", lambda run: log, lambda: "", lambda _: ""))
    notes = write(["x"], logged_run(tmp_path), [start(0, False), *map(step, range(1, 50)), END])

    first_line = str(error).splitlines()[0]
    assert notes == [
        f"B310: Ledger is not written any more: {first_line}. The run goes on; metrics.jsonl has the same"
        " numbers."
    ]
    assert (log.added, log.closed) == (2, 1)


def test_a_logger_that_cannot_be_opened_is_told_once(
    tmp_path: Path, use_logger: Callable[[Logger], None], snapshot: SnapshotAssertion
) -> None:
    def refuse(run: LoggedRun) -> Any:
        raise RuntimeError("the server said no")

    use_logger(Logger("Ledger", refuse, lambda: "", lambda _: ""))
    notes = write(["x"], logged_run(tmp_path), [start(0, False), step(1), END])
    assert notes == snapshot


def test_a_logger_that_hangs_holds_nothing_up_for_long(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    use_logger: Callable[[Logger], None],
    snapshot: SnapshotAssertion,
) -> None:
    answer = threading.Event()

    def wait(run: LoggedRun) -> FailingLog:
        answer.wait()
        return FailingLog(OSError())

    monkeypatch.setattr(logger_module, "OPENING_S", 0.01)
    monkeypatch.setattr(logger_module, "CLOSING_S", 0.01)
    use_logger(Logger("Ledger", wait, lambda: "", lambda _: ""))
    notes = write(["x"], logged_run(tmp_path), [start(0, False), step(1), END])
    answer.set()
    assert len(notes) == 1
    assert notes[0] == snapshot


def test_recorded_steps_are_the_last_of_each_group(tmp_path: Path) -> None:
    run = logged_run(tmp_path)
    write([], run, [start(0, False), step(1), step(2), evaluation(2), step(3)])
    assert recorded_steps(run.folder / "metrics.jsonl") == {"train": 3, "validation": 2}
    assert recorded_steps(tmp_path / "none.jsonl") == {}


def test_an_unknown_logger_lists_the_known_ones(
    refuses: Refuses, snapshot: SnapshotAssertion
) -> None:
    with refuses(BrimfulError, names=["tensorboard"]) as refused:
        find_logger("wandbb")
    assert str(refused.value) == snapshot


def test_each_file_says_how_to_install_its_package() -> None:
    for each in known_loggers():
        module = importlib.import_module(f"brimful.report.live.loggers.{each}")
        assert each in module.LOGGER.install()
