"""The mirror beside the training: it waits for nothing, fails nothing, and says what changes,
once.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.mirror.files import Files
from brimful.mirror.listener import ASSUMED_BYTES_PER_S, COPY_SPREAD
from brimful.mirror.points import folder_of_step
from brimful.mirror.status import read_status

Run = Any


class _Switched(Files):
    """Works, fails or hangs, as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.error: OSError | None = None
        self.open = threading.Event()
        self.open.set()

    def write(self, descriptor: int, data: bytes) -> None:
        self.open.wait(10)
        if self.error is not None:
            raise self.error
        super().write(descriptor, data)


STEP = {"kind": "step", "step": 5}
"""A record on which nothing depends: what is to be said is said between records."""


def _until(true: Callable[[], bool]) -> None:
    for _ in range(500):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def _checkpoint(run: Run, step: int, best: int | None = None) -> JsonDict:
    run.save(step, best=best)
    return {"kind": "checkpoint", "step": step, "bytes": 500}


@pytest.fixture
def switched() -> Iterator[_Switched]:
    files = _Switched()
    yield files
    files.open.set()


def test_checkpoints_become_durable_beside_the_training_and_the_first_is_said(
    run: Run, snapshot: SnapshotAssertion
) -> None:
    mirror = run.mirror()
    mirror.start(run.run_id)
    for step in (2, 4):
        mirror(_checkpoint(run, step))
        _until(lambda step=step: mirror.status.durable_step == step)  # type: ignore[misc]
    mirror.finish(is_finished=False)

    status = read_status(run.folder)
    assert status is not None
    assert (
        status.state,
        status.local_step,
        status.durable_step,
        status.error,
        status.finished,
    ) == ("ok", 4, 4, None, False)
    assert status.bytes_per_s is not None
    assert status.bytes_per_s > 0
    assert run.said == snapshot
    mirrored = read_status(run.mirrored)
    assert mirrored is not None
    assert (mirrored.state, mirrored.durable_step) == ("ok", 4)


def test_the_mirror_itself_does_not_say_that_it_is_behind_when_it_is_not(run: Run) -> None:
    mirror = run.mirror()
    mirror.start(run.run_id)
    mirror(_checkpoint(run, 2))
    _until(lambda: (told := read_status(run.mirrored)) is not None and told.durable_step == 2)
    told = read_status(run.mirrored)
    assert told is not None
    assert (told.state, told.local_step) == ("ok", 2)
    mirror.finish(is_finished=False)


def test_where_only_the_logs_are_missing_the_step_is_not_said_to_be(
    run: Run, switched: _Switched, snapshot: SnapshotAssertion
) -> None:
    mirror = run.mirror(switched)
    mirror.start(run.run_id)
    mirror(_checkpoint(run, 2))
    _until(lambda: mirror.status.durable_step == 2 and mirror.status.state == "ok")
    switched.error = OSError(28, "No space left on device")
    (run.folder / "metrics.jsonl").write_text("{}\n" * 9)
    mirror.finish(is_finished=False)
    assert run.said[-1] == snapshot


def test_a_failing_mirror_is_said_once_tried_again_and_said_to_work_again(
    run: Run, switched: _Switched, snapshot: SnapshotAssertion
) -> None:
    mirror = run.mirror(switched)
    switched.error = OSError(28, "No space left on device")
    mirror.start(run.run_id)
    mirror(_checkpoint(run, 2))
    _until(lambda: mirror.status.state == "failing")
    mirror(_checkpoint(run, 4))
    time.sleep(0.1)
    mirror(STEP)
    assert run.said == snapshot
    assert (read_status(run.folder) or mirror.status).error == snapshot

    switched.error = None
    _until(lambda: mirror.status.state == "ok")
    assert mirror.status.durable_step == 4
    _until(lambda: mirror(STEP) is None and "mirror: works again; step 4 is durable" in run.said)
    mirror.finish(is_finished=False)


def test_what_it_has_to_say_waits_for_the_training_to_pause(
    run: Run, snapshot: SnapshotAssertion
) -> None:
    mirror = run.mirror()
    mirror.start(run.run_id)
    mirror(_checkpoint(run, 2))
    _until(lambda: mirror.status.durable_step == 2)
    assert run.said == []
    mirror.finish(is_finished=False)
    assert run.said[0] == snapshot


def test_a_hanging_mirror_is_said_from_the_training_which_never_waits(
    run: Run, switched: _Switched
) -> None:
    mirror = run.mirror(switched, stuck_s=0.1)
    switched.open.clear()
    mirror.start(run.run_id)
    mirror(_checkpoint(run, 2))

    def says_so() -> bool:
        mirror(STEP)
        return bool(run.said)

    _until(says_so)
    mirror.finish(is_finished=False)
    assert "gives no answer for" in run.said[0]
    assert "step 2 is NOT in" in run.said[-1]
    assert "Durable there: no recovery point" in run.said[-1]
    switched.open.set()
    time.sleep(0.05)
    assert not folder_of_step(run.mirrored, 2).exists()  # given up is given up


def test_at_the_end_it_is_tried_again_and_what_is_not_there_is_said_with_what_to_do(
    run: Run, switched: _Switched, snapshot: SnapshotAssertion
) -> None:
    mirror = run.mirror(switched)
    mirror.start(run.run_id)
    mirror(_checkpoint(run, 2))
    _until(lambda: mirror.status.durable_step == 2)
    switched.error = PermissionError(13, "Permission denied")
    mirror(_checkpoint(run, 4))
    mirror.finish(is_finished=False)

    assert run.said[-1] == snapshot


def test_a_slow_mirror_is_waited_for_as_long_as_bytes_move_and_no_longer_than_that(
    run: Run, switched: _Switched, snapshot: SnapshotAssertion
) -> None:
    mirror = run.mirror(switched, hint_s=0.02, stuck_s=5)
    run.save(2)
    switched.open.clear()
    mirror.start(run.run_id)

    def open_when_it_is_waited_for() -> None:
        _until(lambda: bool(run.said))
        switched.open.set()

    threading.Thread(target=open_when_it_is_waited_for).start()
    mirror.finish(is_finished=False)
    assert mirror.status.durable_step == 2
    assert run.said[0] == snapshot

    late = run.mirror(switched, end_s=0.1, stuck_s=5)
    run.save(4)
    switched.open.clear()
    late.start(run.run_id)
    late.finish(is_finished=False)
    assert "not done" in run.said[-1]


def test_a_mirror_that_another_process_took_over_is_given_up_with_a_word(run: Run) -> None:
    mirror = run.mirror()
    mirror.start(run.run_id)
    mirror(_checkpoint(run, 2))
    _until(
        lambda: (told := read_status(run.mirrored)) is not None and told.durable_step == 2
    )  # not just about to write that
    run.copy()
    mirror(_checkpoint(run, 4))

    def says_so() -> bool:
        mirror(STEP)
        return any(
            "was taken over by process" in told and "copies no more; training goes on" in told
            for told in run.said
        )

    _until(says_so)
    mirror.finish(is_finished=False)
    assert mirror.status.state == "failing"


def test_the_end_of_a_session_is_copied_however_it_ends_but_not_while_the_user_hurries(
    run: Run,
) -> None:
    for step, error in ((2, ValueError), (4, KeyboardInterrupt)):
        mirror = run.mirror()

        def session(
            step: int = step, error: type[BaseException] = error, mirror: Any = mirror
        ) -> None:
            with mirror.finishing(lambda: False):
                mirror.start(run.run_id)
                run.save(step)
                raise error

        with pytest.raises(error):
            session()
        assert (mirror.status.durable_step == step) is (error is ValueError)


def test_a_session_that_ends_before_the_run_is_described_leaves_nothing_in_its_folder(
    run: Run,
) -> None:
    before = sorted(run.folder.iterdir())
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), run.mirror().finishing(lambda: False):
            raise error
    assert sorted(run.folder.iterdir()) == before
    assert run.said == []


def test_a_finished_run_is_said_to_be_there(run: Run, snapshot: SnapshotAssertion) -> None:
    run.save(2)
    run.finish()
    assert run.copy(is_finished=True).status.finished
    assert run.said == snapshot
    run.copy(is_finished=True)
    assert len(run.said) == 1  # nothing was copied, nothing to say


def test_the_time_to_be_durable_follows_the_size_and_what_waits(
    run: Run, switched: _Switched
) -> None:
    mirror = run.mirror(switched)
    assert mirror.seconds_to_durable() == 0
    switched.open.clear()
    mirror.start(run.run_id)
    run.save(2)
    mirror({"kind": "checkpoint", "step": 2, "bytes": 10**9})
    assert mirror.seconds_to_durable() == (COPY_SPREAD + 1) * 10**9 / ASSUMED_BYTES_PER_S
    switched.open.set()
    _until(lambda: mirror.status.state == "ok")
    assert mirror.status.bytes_per_s is not None
    assert mirror.seconds_to_durable() == COPY_SPREAD * 10**9 / mirror.status.bytes_per_s
    mirror.finish(is_finished=False)
    assert mirror.seconds_to_durable() == 0


def test_odd_records_and_a_run_folder_that_cannot_be_written_do_not_reach_the_training(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = run.mirror()
    mirror.start(run.run_id)
    monkeypatch.setattr(
        "brimful.mirror.status.write_json_atomically",
        lambda path, value, **_: Path("/proc/x").mkdir(),
    )
    mirror({})
    mirror({"kind": "checkpoint"})
    mirror(_checkpoint(run, 2))
    mirror.finish(is_finished=False)
    assert mirror.status.durable_step == 2
