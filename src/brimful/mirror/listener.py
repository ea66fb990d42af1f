"""The mirror: recovery points, logs and the finished run, copied beside the training into a folder
that outlives this machine.

One daemon thread copies. Training only tells it what happened: it never waits for the mirror and
never fails with it. What is newest is copied, what waits is replaced by it. Only what was read back
and found whole is called durable.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from brimful.base.errors import RunFolderError
from brimful.base.rundir import write_json_atomically
from brimful.base.units import format_duration
from brimful.mirror.copier import Copier, Patience, TakenOver
from brimful.mirror.files import Files, in_words
from brimful.mirror.finished import DamagedHere
from brimful.mirror.place import Place
from brimful.mirror.points import Point
from brimful.mirror.sources import folder_of_step, local_steps
from brimful.mirror.status import STATUS, MirrorStatus, read_status

Say = Callable[[str], None]
PATIENCE = Patience()
_NOT_WAITED_FOR = "the copy was not waited for"
ASSUMED_BYTES_PER_S = 10e6
"""Of a mirror to which nothing was copied yet (assumption)."""
COPY_SPREAD = 2.0
"""Factor on the time of a copy: the next one may take longer (assumption)."""


class Mirror:
    """A listener that keeps a copy of a run.

    Args:
        place: Where.
        run_folder: The run, whose lease the caller holds.
        say: Told what changes, once, in the thread of the training: between its records, never in
            the middle of what it prints.
        files: The mirror's file operations.
    """

    def __init__(
        self,
        place: Place,
        run_folder: Path,
        say: Say,
        *,
        files: Files | None = None,
        patience: Patience = PATIENCE,
    ) -> None:
        self.place, self._run_folder, self._say, self._patience = place, run_folder, say, patience
        self._files = files or Files()
        self._copy = Copier(place, run_folder, self._files, patience, self._note_durable)
        self._copy.status = lambda: self._status
        before = read_status(run_folder)
        self._before = before if before is not None and before.path == str(place.folder) else None
        rate = None if self._before is None else self._before.bytes_per_s
        self._status = MirrorStatus(str(place.folder), "ok", time.time(), bytes_per_s=rate)
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._point_bytes = 0
        self._damage: str | None = None
        self._said_durable = False
        self._to_say: deque[str] = deque()

    @property
    def status(self) -> MirrorStatus:
        """How far the copy has come."""
        return self._status

    def start(self, run_id: str, *, goes_on: bool = True) -> None:
        """Begin to copy the run, taking the mirror over from whoever wrote there before.

        Args:
            goes_on: The run is trained on; False where a finished run is only copied.
        """
        self._copy.run_id, self._copy.goes_on = run_id, goes_on
        newest = max(local_steps(self._run_folder), default=None)
        if newest is not None:
            self._point_bytes = sum(
                path.stat().st_size for path in folder_of_step(self._run_folder, newest).iterdir()
            )
        self._put(local_step=newest, state="ok" if newest is None else "behind")
        if not goes_on and self._before is not None:
            self._put(
                durable_step=self._before.durable_step, durable_time=self._before.durable_time
            )
        self._thread = threading.Thread(target=self._run, daemon=True, name="mirror")
        self._thread.start()

    def __call__(self, record: dict[str, Any]) -> None:
        """A record of the run; what came with it is copied soon."""
        with suppress(Exception):
            if record.get("kind") == "checkpoint":
                self._point_bytes = int(record["bytes"])
                state = self._status.state
                self._put(
                    local_step=int(record["step"]), state="behind" if state == "ok" else state
                )
                self._wake.set()
            self._look_whether_it_hangs()
            self._speak()

    def seconds_to_durable(self) -> float:
        """How long a recovery point that is written now takes to be durable in the mirror,
        estimated; 0 where no copy is being made, or none succeeds.
        """
        if self._thread is None or not self._thread.is_alive() or self._status.state == "failing":
            return 0.0
        waiting = self._point_bytes if self._status.state != "ok" else 0
        return (COPY_SPREAD * self._point_bytes + waiting) / (
            self._status.bytes_per_s or ASSUMED_BYTES_PER_S
        )

    @contextmanager
    def finishing(self, is_finished: Callable[[], bool]) -> Iterator[None]:
        """Around a run's session: when it ends, however it ends, what is not in the mirror yet is
        copied, unless the user is in a hurry.
        """
        try:
            yield
        except KeyboardInterrupt:
            if self._thread is not None:
                self._give_up(_NOT_WAITED_FOR)
            raise
        except BaseException:
            self.finish(is_finished=False)
            raise
        self.finish(is_finished=is_finished())

    def finish(self, *, is_finished: bool) -> None:
        """Copy what is not in the mirror yet and wait for it as long as bytes move; then say what
        is there and what is not.

        Args:
            is_finished: The run reached its end, so its model, scores and report are copied, too.
        """
        if self._thread is None:
            return
        self._copy.is_finished = is_finished
        self._files.waiting_begins()
        self._ending.set()
        self._wake.set()
        try:
            if (why := self._wait_for(self._thread)) is not None:
                self._give_up(why)
        except KeyboardInterrupt:
            self._give_up(_NOT_WAITED_FOR)
        self._thread = None
        self._tell_the_end(is_finished)
        self._speak()

    def _wait_for(self, thread: threading.Thread) -> str | None:
        """As long as there is progress; returns why there was none, None when all was done."""
        started_s, hinted = time.monotonic(), False
        while thread.is_alive():
            thread.join(0.05)
            self._speak()
            now_s = time.monotonic()
            silent_s, waited_s = now_s - self._files.answered_s, now_s - started_s
            if silent_s > self._patience.stuck_s:
                return f"no answer for {format_duration(silent_s)}"
            if waited_s > self._patience.end_s:
                return f"not done {format_duration(waited_s)} after the run ended"
            if not hinted and waited_s > self._patience.hint_s:
                self._tell(f"mirror: copying to {self.place.folder} what is not there yet")
                hinted = True
        return None

    def _give_up(self, why: str) -> None:
        self._copy.abandoned = True
        self._put(state="failing", error=self._status.error or why)

    def _tell_the_end(self, is_finished: bool) -> None:
        status = self._status
        if status.state == "ok" and status.finished == is_finished:
            if is_finished and not self._copy.copied_finished:
                return
            there = (
                "the finished run"
                if is_finished
                else "a new run"
                if status.durable_step is None
                else f"step {status.durable_step}"
            )
            self._tell(f"mirror: {there} is in {status.path}, read back and whole")
            return
        if self._damage is not None:
            self._tell(f"mirror: {self._damage}.")
            return
        to_do = (
            f"Mend that and run the same command again to copy it; keep {self._run_folder} until"
            " then."
        )
        if (
            not is_finished
            and status.durable_step is not None
            and status.durable_step == status.local_step
        ):
            self._tell(
                f"mirror: step {status.durable_step} is durable in {status.path}, but the logs"
                f" there are NOT up to date: {status.error}. {to_do}"
            )
            return
        missing = (
            "the finished run"
            if is_finished
            else (
                f"the recovery point of step {status.local_step}"
                if status.local_step
                else "this run"
            )
        )
        kept = "no recovery point" if status.durable_step is None else f"step {status.durable_step}"
        self._tell(
            f"mirror: {missing} is NOT in {status.path}: {status.error or 'it was not copied'}."
            f" Durable there: {kept}. {to_do}"
        )

    def _run(self) -> None:
        """The thread. It ends with the run, or when another process has taken the mirror over."""
        final, failures = iter(self._patience.final_retries_s), 0
        while True:
            ending = self._ending.is_set()
            try:
                self._files.waiting_begins()
                self._busy = True
                self._copy.bring_up_to_date(ending=ending)
                self._succeeded(ending)
                self._busy, failures = False, 0
            except DamagedHere as error:
                self._damage = str(error)
                self._failed(self._damage, then="Nothing is copied")
                return
            except TakenOver as error:
                self._failed(str(error), then="This process copies no more; training goes on")
                return
            except Exception as error:  # whatever it is, training goes on and it is tried again
                self._busy, failures = False, failures + 1
                self._failed(in_words(error))
                wait_s = (
                    next(final, None)
                    if ending
                    else min(
                        self._patience.first_retry_s * 2 ** (failures - 1),
                        self._patience.last_retry_s,
                    )
                )
                if wait_s is None:
                    return
                self._wait(wait_s, ending=ending)
                continue
            if ending:
                return
            if self._wake.wait(self._copy.idle_s):
                self._wake.clear()

    def _wait(self, seconds: float, *, ending: bool) -> None:
        """Before another try; the end of the run cuts it short."""
        if ending:
            time.sleep(seconds)
        else:
            self._ending.wait(seconds)

    def _succeeded(self, ending: bool) -> None:
        with self._lock:
            was_failing = self._status.state == "failing"
            has_end = ending and self._copy.is_finished
            durable_step = self._status.durable_step
            if (
                durable_step is None and not self._copy.goes_on
            ):  # points that are there were not read again
                durable_step = self._copy.stored_step
            is_whole = has_end or self._status.local_step in {None, durable_step}
            self._put(
                state="ok" if is_whole else "behind",
                error=None,
                finished=has_end,
                durable_step=durable_step,
            )
        if ending or was_failing:
            self._copy.publish(self._status)
        if was_failing and not ending:
            durable = self._status.durable_step
            self._tell(
                "mirror: works again" + ("" if durable is None else f"; step {durable} is durable")
            )

    def _failed(self, why: str, then: str = "Training goes on; the copy is tried again") -> None:
        with self._lock:
            was_failing = self._status.state == "failing"
            self._put(state="failing", error=why)
        if not was_failing and not self._ending.is_set():
            self._tell(f"mirror: {why}. {then}")

    def _note_durable(self, point: Point | None, bytes_per_s: float | None) -> None:
        """From the copying thread: this is the newest durable point now; None: there is none any
        more.
        """
        with self._lock:
            state, step = self._status.state, None if point is None else point.step
            is_newest = step is not None and step == self._status.local_step
            self._put(
                durable_step=step,
                durable_time=None if point is None else time.time(),
                bytes_per_s=bytes_per_s or self._status.bytes_per_s,
                state="ok" if state == "behind" and is_newest else state,
            )
        if point is not None and not self._said_durable and self._copy.goes_on:
            self._said_durable = True
            self._tell(
                f"mirror: the recovery point of step {point.step} is durable in {self.place.folder}"
            )
        self._copy.publish(self._status)

    def _look_whether_it_hangs(self) -> None:
        silent_s = time.monotonic() - self._files.answered_s
        if self._busy and silent_s > self._patience.stuck_s and self._status.state != "failing":
            self._failed(f"{self.place.root} gives no answer for {format_duration(silent_s)}")

    def _put(self, **changes: Any) -> None:
        with self._lock:
            before = self._status
            after = replace(before, **changes)
            if after.state != before.state:
                after = replace(after, since=time.time())
            self._status = after
            if after != before or not (self._run_folder / STATUS).exists():
                with suppress(RunFolderError, OSError):
                    write_json_atomically(self._run_folder / STATUS, after.to_json())

    def _tell(self, message: str) -> None:
        """From any thread."""
        self._to_say.append(message)

    def _speak(self) -> None:
        while self._to_say:
            with suppress(Exception):
                self._say(self._to_say.popleft())
