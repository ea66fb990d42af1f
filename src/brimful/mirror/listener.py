"""The mirror: recovery points, logs and the finished run, copied beside the training into a folder
that outlives this machine.

One daemon thread copies. Training only reports what happened: it never waits for the mirror and
never fails with it. A newer checkpoint replaces one that still waits. A point is called durable
only after it was read back and matched its hashes.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from brimful.base.console import Say
from brimful.base.types import JsonDict
from brimful.base.units import format_duration
from brimful.mirror.copier import Copier, Patience, TakenOverError
from brimful.mirror.files import Files, as_clause
from brimful.mirror.finished import DamagedHereError
from brimful.mirror.place import Place
from brimful.mirror.points import folder_of_step, local_steps
from brimful.mirror.status import MirrorStatus, StatusBoard

PATIENCE = Patience()
_NOT_WAITED_FOR = "the copy was not waited for"
ASSUMED_BYTES_PER_S = 10e6
"""Rate of a mirror to which nothing was copied yet (assumption)."""
COPY_SPREAD = 2.0
"""Factor on the time of a copy: the next one may take longer (assumption)."""


class Mirror:
    """A listener that keeps a copy of a run.

    Args:
        place: Place that the copy is kept in.
        run_folder: The run, whose lease the caller holds.
        say: Called with each message once, in the thread of the training: between its records,
            never in the middle of what it prints.
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
        self._board = StatusBoard(run_folder, place.folder)
        self._copier = Copier(place, run_folder, self._files, patience, self._board)
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._is_copying = False
        self._point_bytes = 0
        self._damage: str | None = None

    @property
    def status(self) -> MirrorStatus:
        """How far the copy has come."""
        return self._board.status

    def start(self, run_id: str, *, goes_on: bool = True) -> None:
        """Begin to copy the run, taking the mirror over from whoever wrote there before.

        Args:
            goes_on: The run is trained on; False where a finished run is only copied.
        """
        self._copier.run_id, self._copier.goes_on = run_id, goes_on
        newest = max(local_steps(self._run_folder), default=None)
        if newest is not None:
            files = folder_of_step(self._run_folder, newest).iterdir()
            self._point_bytes = sum(path.stat().st_size for path in files)
        self._board.note_local(newest)
        before = self._board.before
        if not goes_on and before is not None:
            self._board.update(durable_step=before.durable_step, durable_time=before.durable_time)
        self._thread = threading.Thread(target=self._run, daemon=True, name="mirror")
        self._thread.start()

    def __call__(self, record: JsonDict) -> None:
        """Take a record of the run; a checkpoint that it reports is copied soon."""
        with suppress(Exception):
            if record.get("kind") == "checkpoint":
                self._point_bytes = int(record["bytes"])
                self._board.note_local(int(record["step"]))
                self._wake.set()
            self._check_whether_it_hangs()
            self._board.deliver(self._say)

    def seconds_to_durable(self) -> float:
        """Estimate how long a recovery point that is written now takes to be durable in the mirror;
        0 if no copy is being made, or none succeeds.
        """
        if self._thread is None or not self._thread.is_alive() or self.status.state == "failing":
            return 0.0
        num_bytes = COPY_SPREAD * self._point_bytes
        if self.status.state != "ok":
            num_bytes += self._point_bytes
        return num_bytes / (self.status.bytes_per_s or ASSUMED_BYTES_PER_S)

    @contextmanager
    def finishing(self, is_finished: Callable[[], bool]) -> Iterator[None]:
        """Around a run's session: however it ends, what is not in the mirror yet is copied then,
        unless the user pressed Ctrl-C.
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
        is in the mirror and what is not.

        Args:
            is_finished: The run reached its end, so its model, scores and report are copied, too.
        """
        if self._thread is None:
            return
        self._copier.is_finished = is_finished
        self._files.restart_clock()
        self._ending.set()
        self._wake.set()
        try:
            if (reason := self._wait_for(self._thread)) is not None:
                self._give_up(reason)
        except KeyboardInterrupt:
            self._give_up(_NOT_WAITED_FOR)
        self._thread = None
        if (message := self._final_message(is_finished)) is not None:
            self._board.tell(f"mirror: {message}")
        self._board.deliver(self._say)

    def _wait_for(self, thread: threading.Thread) -> str | None:
        """Wait as long as there is progress; return why there was none, None if all was done."""
        started_s, has_hinted = time.monotonic(), False
        while thread.is_alive():
            thread.join(0.05)
            self._board.deliver(self._say)
            now_s = time.monotonic()
            silent_s, waited_s = now_s - self._files.answered_s, now_s - started_s
            if silent_s > self._patience.stuck_s:
                self._board.tell(
                    f"mirror: the system waits for {self.place.root}, so this process may not end"
                    " before that answers or is unmounted (umount -f); the run itself has ended"
                )
                return f"no answer for {format_duration(silent_s)}"
            if waited_s > self._patience.end_s:
                return f"not done {format_duration(waited_s)} after the run ended"
            if not has_hinted and waited_s > self._patience.hint_s:
                self._board.tell(f"mirror: copying to {self.place.folder} what is not there yet")
                has_hinted = True
        return None

    def _give_up(self, reason: str) -> None:
        self._copier.abandoned = True
        self._board.update(state="failing", error=self.status.error or reason)

    def _final_message(self, is_finished: bool) -> str | None:
        """Return what is in the mirror at the end and what is not; None if nothing was copied."""
        status = self.status
        durable = _step(status.durable_step)
        if status.state == "ok" and status.finished == is_finished:
            if is_finished and not self._copier.copied_finished:
                return None
            content = "the finished run" if is_finished else durable or "a new run"
            return f"{content} is in {status.path}, read back and whole"
        if self._damage is not None:
            return f"{self._damage}."
        next_step = (
            f"Mend that and run the same command again to copy it; keep {self._run_folder} until"
            " then."
        )
        if not is_finished and durable is not None and status.durable_step == status.local_step:
            return (
                f"{durable} is durable in {status.path}, but the logs there are NOT up to date:"
                f" {status.error}. {next_step}"
            )
        missing = "this run"
        if is_finished:
            missing = "the finished run"
        elif status.local_step:
            missing = f"the recovery point of step {status.local_step}"
        return (
            f"{missing} is NOT in {status.path}: {status.error or 'it was not copied'}."
            f" Durable there: {durable or 'no recovery point'}. {next_step}"
        )

    def _run(self) -> None:
        """Copy until the run ends, or another process has taken the mirror over."""
        final_retries, failures = iter(self._patience.final_retries_s), 0
        while True:
            ending = self._ending.is_set()
            try:
                self._files.restart_clock()
                self._is_copying = True
                self._copier.bring_up_to_date(ending=ending)
                self._note_success(ending)
            except DamagedHereError as error:
                self._damage = str(error)
                self._note_failure(self._damage, then="Nothing is copied")
                return
            except TakenOverError as error:
                self._note_failure(str(error), then="This process copies no more; training goes on")
                return
            except Exception as error:  # training goes on whatever fails, and it is tried again
                self._is_copying, failures = False, failures + 1
                self._note_failure(as_clause(error))
                if not ending:
                    # The end of the run cuts this wait short.
                    self._ending.wait(self._retry_s(failures))
                elif (wait_s := next(final_retries, None)) is not None:
                    time.sleep(wait_s)
                else:
                    return
                continue
            self._is_copying, failures = False, 0
            if ending:
                return
            if self._wake.wait(self._copier.idle_s):
                self._wake.clear()

    def _retry_s(self, failures: int) -> float:
        return min(
            self._patience.first_retry_s * 2.0 ** (failures - 1), self._patience.last_retry_s
        )

    def _note_success(self, ending: bool) -> None:
        # The points of a finished run were not read again.
        stored_step = None if self._copier.goes_on else self._copier.stored_step
        has_end = ending and self._copier.is_finished
        before = self._board.note_success(finished=has_end, stored_step=stored_step)
        was_failing = before.state == "failing"
        if ending or was_failing:
            self._copier.publish()
        if was_failing and not ending:
            durable = _step(self.status.durable_step)
            suffix = f"; {durable} is durable" if durable else ""
            self._board.tell(f"mirror: works again{suffix}")

    def _note_failure(
        self, reason: str, then: str = "Training goes on; the copy is tried again"
    ) -> None:
        before = self._board.update(state="failing", error=reason)
        if before.state != "failing" and not self._ending.is_set():
            self._board.tell(f"mirror: {reason}. {then}")

    def _check_whether_it_hangs(self) -> None:
        silent_s = time.monotonic() - self._files.answered_s
        is_silent = self._is_copying and silent_s > self._patience.stuck_s
        if is_silent and self.status.state != "failing":
            self._note_failure(f"{self.place.root} gives no answer for {format_duration(silent_s)}")


def _step(step: int | None) -> str | None:
    return None if step is None else f"step {step}"
