"""TensorBoard files hold the run's scalars once each, and trouble with them never stops a run."""

import resource
import sys
from pathlib import Path

import pytest
from fixture_types import Captured
from syrupy.assertion import SnapshotAssertion
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from brimful.base.types import JsonDict
from brimful.report.live.logger import LoggedRun, logging_listener


def step(number: int, loss: float = 3.0) -> JsonDict:
    return {
        "kind": "step",
        "step": number,
        "loss": loss,
        "learning_rate": 0.25,
        "grad_norm": 1.5,
        "tokens_per_second": 100.0,
        "time": 5.0 + number,
    }


def start(at: int, resumed: bool) -> JsonDict:
    return {"kind": "start", "step": at, "total_steps": 9, "resumed": resumed}


def write(run_folder: Path, records: list[JsonDict]) -> list[str]:
    notes: list[str] = []
    run = LoggedRun(run_folder, "0" * 32)
    with logging_listener(["tensorboard"], run, notes.append) as listen:
        for record in records:
            listen(record)
    return notes


def points(run_folder: Path, tag: str) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(run_folder / "tensorboard"))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_a_session_within_the_second_of_another_is_read_after_it(tmp_path: Path) -> None:
    """The first one's file has the name that a process with a high number would give it."""
    write(tmp_path, [start(0, False), step(1), step(2)])
    (first,) = (tmp_path / "tensorboard").iterdir()
    kind, of, events, second, host, _, number = first.name.split(".")
    first.rename(first.with_name(".".join([kind, of, events, second, host, "99999999", number])))

    write(tmp_path, [start(1, True), step(2), step(3)])

    assert [number for number, _ in points(tmp_path, "train/loss")] == [1, 2, 3]


def test_training_and_evaluation_scalars_are_written_under_their_split(tmp_path: Path) -> None:
    evaluation = {
        "kind": "evaluation",
        "step": 2,
        "split": "validation",
        "loss": 2.5,
        "bits_per_byte": 1.25,
        "f1": 0.75,
    }
    assert write(tmp_path, [start(0, False), step(1), step(2), evaluation]) == []
    assert points(tmp_path, "train/loss") == [(1, 3.0), (2, 3.0)]
    assert points(tmp_path, "train/learning_rate") == [(1, 0.25), (2, 0.25)]
    assert points(tmp_path, "train/grad_norm")[0] == (1, 1.5)
    assert points(tmp_path, "train/tokens_per_second")[0] == (1, 100.0)
    assert points(tmp_path, "validation/loss") == [(2, 2.5)]
    assert points(tmp_path, "validation/bits_per_byte") == [(2, 1.25)]
    assert points(tmp_path, "validation/f1") == [(2, 0.75)]


def test_steps_that_a_resumed_run_repeats_are_not_doubled(tmp_path: Path) -> None:
    write(tmp_path, [start(0, False), *[step(number, loss=9.0) for number in range(1, 6)]])
    write(tmp_path, [start(3, True), *[step(number, loss=1.0) for number in range(4, 7)]])
    assert points(tmp_path, "train/loss") == [
        (1, 9.0),
        (2, 9.0),
        (3, 9.0),
        (4, 1.0),
        (5, 1.0),
        (6, 1.0),
    ]


def test_a_value_that_is_missing_leaves_only_its_own_point_out(tmp_path: Path) -> None:
    write(tmp_path, [start(0, False), step(1) | {"loss": None}, step(2)])
    assert points(tmp_path, "train/loss") == [(2, 3.0)]
    assert len(points(tmp_path, "train/grad_norm")) == 2


def test_without_the_package_one_note_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    notes = write(tmp_path, [start(0, False), step(1), step(2)])
    assert len(notes) == 1
    assert notes[0] == snapshot


def test_a_folder_that_cannot_be_made_is_told_once_and_the_run_goes_on(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    notes = write(tmp_path, [start(0, False), step(1), step(2)])
    assert len(notes) == 1
    assert notes[0] == snapshot


def test_a_listener_that_hears_nothing_writes_nothing(tmp_path: Path) -> None:
    assert write(tmp_path, []) == []
    assert not (tmp_path / "tensorboard").exists()


def test_a_full_disk_is_told_once_and_shows_no_traceback(
    tmp_path: Path, capfd: Captured, snapshot: SnapshotAssertion
) -> None:
    """TensorBoard's own thread meets it first."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    steps = [step(number) for number in range(500)]
    flushed = {"kind": "checkpoint", "step": 500}
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        notes = write(tmp_path, [start(0, False), *steps, flushed, step(501), step(502)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(notes) == 1
    assert notes[0] == snapshot
    assert capfd.readouterr().err == ""
