"""When a session saves and when it stops: by the clock, by signals and by the end of the machine's
time. Several ranks decide it together at step boundaries.
"""

import time
from functools import partial

from brimful.base.errors import Interrupted, SessionOver
from brimful.base.types import Numbers
from brimful.base.units import format_bytes
from brimful.hardware import host
from brimful.hardware.process_memory import unmapped_bytes
from brimful.planning.spacing import CHECKPOINT_AFTER_S, MOST_CHECKPOINT_SHARE
from brimful.training.loop import evaluation_is_due
from brimful.training.meter import Meter
from brimful.training.pace import CHECKPOINT, EVALUATION, STEP
from brimful.training.setup import Setup
from brimful.training.signals import StopRequest
from brimful.training.state import Progress
from brimful.training.world import Agreement

LOOK_EVERY_S = 0.2
"""Time between two looks at main memory."""
_LATE, _BRIM = 1, 2
"""Why a session ends: its time, or main memory."""
_ELSEWHERE = "main memory is nearly used up where another rank runs"
_BRIM_REMEDY = "Free memory before, or make plan.micro_batch smaller."


class Decisions:
    """Decides for one session.

    Args:
        setup: Setup of the session.
        stop: Signals that ask to stop.
        meter: Knows how long steps and evaluations take.
        expected: Seconds that work is expected to take before it was measured.
        evaluate_every: Steps between evaluations.
        progress: Where the session begins.

    Attributes:
        saved_mark: Where the last checkpoint was written, or the session began.
        save_took_s: How long it took.
    """

    def __init__(
        self,
        setup: Setup,
        stop: StopRequest,
        meter: Meter,
        expected: Numbers,
        evaluate_every: int,
        progress: Progress,
    ) -> None:
        self._setup, self._stop, self._meter = setup, stop, meter
        self._expected_s, self._evaluate_every = expected, evaluate_every
        self._agreed = Agreement(setup.world)
        self.saved_mark = mark_of(progress)
        self.save_took_s = 0.0
        self._saved_s = time.perf_counter()
        self._memory, self._look_again_s, self._beside_bytes = "", 0.0, 0

    def note_save(self, progress: Progress, took_s: float) -> None:
        """Note that a checkpoint was written just now."""
        self.saved_mark, self.save_took_s = mark_of(progress), took_s
        self._saved_s = time.perf_counter()

    def interruption(self, progress: Progress) -> Interrupted | SessionOver:
        """Return the error that ends a session in the middle of training."""
        message = (
            f"stopped at step {progress.step} of {self._setup.total_steps}; a checkpoint is saved."
            " Run the same command to continue."
        )
        deadline = self._setup.deadline
        if number := self._signal_number():
            return Interrupted(message, number)
        if deadline is None or self._agreed.last("end", self._is_at_brim()) == _BRIM:
            return SessionOver(f"{self._memory or _ELSEWHERE}: {message} {_BRIM_REMEDY}")
        return SessionOver(f"{deadline.describe(self._setup.copy_s())}: {message}")

    def checkpoint_due(self, progress: Progress) -> bool:
        """Return whether a checkpoint is written here."""
        return (
            self._agreed.on("save", mark_of(progress), partial(self._wants_to_save, progress)) > 0
        )

    def _wants_to_save(self, progress: Progress) -> bool:
        if progress.step == 0 or mark_of(progress) == self.saved_mark:
            return False
        if progress.evaluated_step == progress.step:
            return True
        every = self._setup.recipe.checkpoint.every
        if every != "auto":
            return progress.step % every == 0
        wait_s = max(CHECKPOINT_AFTER_S, self.save_took_s / MOST_CHECKPOINT_SHARE)
        return time.perf_counter() - self._saved_s >= wait_s

    def should_stop(self, progress: Progress) -> bool:
        """Return whether the session ends here, by a signal, because its time is over or because
        main memory is nearly used up.
        """
        return bool(self._signal_number(progress)) or bool(
            self._agreed.on("end", mark_of(progress), partial(self._session_ends, progress))
        )

    def _signal_number(self, progress: Progress | None = None) -> int:
        """Return the number of the signal that asked any rank to stop by now, at a step boundary,
        or 0; without a progress, the last answer.
        """
        if progress is None:
            return self._agreed.last("signal", self._stop.signal_number or 0)
        mark = mark_of(progress)
        return self._agreed.on("signal", mark, lambda: self._stop.signal_number or 0)

    def _session_ends(self, progress: Progress) -> int:
        """Return _BRIM where main memory is nearly used up, _LATE where the next step or evaluation
        and a checkpoint after it may end too late, and else 0.

        Durations that were not measured yet are those that the plan predicts.
        """
        deadline = self._setup.deadline
        if deadline is None or self._is_at_brim():
            return self._is_at_brim()
        leaves_room = deadline.leaves_room(
            work_s=self._seconds_of_next(progress),
            save_s=self.save_took_s or self._expected_s[CHECKPOINT],
            copy_s=self._setup.copy_s(),
        )
        return 0 if leaves_room else _LATE

    def _is_at_brim(self) -> int:
        """Return _BRIM once main memory was seen to be nearly used up, else 0: where as much as
        others took since the last look, twice, would leave too little.
        """
        now_s = time.perf_counter()
        if not self._memory and now_s >= self._look_again_s:
            self._look_again_s = now_s + LOOK_EVERY_S
            left_bytes, total_bytes = host.memory_left()
            beside_bytes = left_bytes + unmapped_bytes()
            taken_bytes = max(0, self._beside_bytes - beside_bytes)
            self._beside_bytes = beside_bytes
            if left_bytes - 2 * taken_bytes < host.brim_bytes(total_bytes):
                left, total = format_bytes(left_bytes), format_bytes(total_bytes)
                self._memory = f"only {left} of {total} main memory are left"
        return _BRIM if self._memory else 0

    def _seconds_of_next(self, progress: Progress) -> float:
        work, measured_s = STEP, self._meter.step_time_s
        if evaluation_is_due(self._evaluate_every, self._setup.total_steps, progress):
            work, measured_s = EVALUATION, self._meter.evaluation_s
        return self._expected_s.get(work, 0.0) if measured_s is None else measured_s


def mark_of(progress: Progress) -> tuple[int, int, int]:
    """Return what tells the checkpoint of this point from others of the run."""
    return progress.step, progress.evaluated_step, progress.samples_consumed
