"""What a session decides between steps: when it saves and when it stops, by the clock, by signals
and by the end of the machine's time, and the drawing of what is learned next, where that depends on
the weights. Several ranks decide it together.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Self

import torch

from brimful.base.errors import Interrupted, SessionOver
from brimful.base.types import Numbers
from brimful.base.units import format_bytes
from brimful.hardware import host
from brimful.hardware.process_memory import unmapped_bytes
from brimful.planning.spacing import checkpoint_interval_s
from brimful.training.divergence import kept_where_it_fails
from brimful.training.loop import Parts, evaluation_is_due
from brimful.training.meter import Meter
from brimful.training.pace import CHECKPOINT, DRAWING, EVALUATION, STEP
from brimful.training.setup import Setup
from brimful.training.state import Progress
from brimful.training.world import Agreement

_ASKING = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """While entered, both signals only set `signal_number`. Repeated signals change nothing, so
    that a checkpoint is never interrupted.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, signal.Handlers | object] = {}
        self._arrived: int | None = None
        self._pipe: tuple[int, int] | None = None
        self._previous_descriptor = -1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._pipe = os.pipe()
            for descriptor in self._pipe:
                os.set_blocking(descriptor, False)
            self._previous_descriptor = signal.set_wakeup_fd(
                self._pipe[1], warn_on_full_buffer=False
            )
            for number in _ASKING:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._pipe is not None:
            signal.set_wakeup_fd(self._previous_descriptor)
            for descriptor in self._pipe:
                os.close(descriptor)
            self._pipe = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number

    def has_arrived(self) -> int | None:
        """Return the number of the signal that asked to stop, or None. Another thread may ask, also
        while the main one is stuck in a call and cannot take the signal.
        """
        if self.signal_number is None and self._pipe is not None:
            with suppress(BlockingIOError):
                arrived = os.read(self._pipe[0], 64)
                self._arrived = next((each for each in arrived if each in _ASKING), self._arrived)
        return self.signal_number or self._arrived


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
        return time.perf_counter() - self._saved_s >= checkpoint_interval_s(self.save_took_s)

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


def drawn(setup: Setup, stop: StopRequest, parts: Parts, progress: Progress) -> bool:
    """Draw what the next batch is made of, with nothing of the last step in memory, and record it;
    return False where the run was asked to stop meanwhile.

    Args:
        setup: Says how it is drawn, if at all.
        stop: Heeded while drawing goes on, unless ranks draw together.
        parts: Parts of the loop.
        progress: Progress before the batch.

    Raises:
        TrainingStopped: it cannot be drawn or judged; a checkpoint is written.
    """
    if setup.draw is None:
        return True
    parts.meter.flush()
    parts.doing(DRAWING)
    for parameter in parts.parameters:
        parameter.grad = None
    with (
        kept_where_it_fails(parts, progress, f"after step {progress.step}"),
        torch.compiler.set_stance("force_eager" if setup.plan.compile else "default"),
    ):
        found = setup.draw(
            progress.samples_consumed,
            lambda: parts.world.is_alone and stop.signal_number is not None,
        )
    record = dict(found or {})
    for message in record.pop("messages", ()):
        parts.meter.note_event(progress, message)
    if record:
        parts.meter.note({"kind": "round", "step": progress.step, **record})
    return found is not None
