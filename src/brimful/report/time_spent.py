"""Where the time of a run went: every second of it under one heading, from what its sessions
measured.
"""

import math
from dataclasses import dataclass

from brimful.runs.folder import RunFolder
from brimful.runs.measurements import (
    round_times_s,
    stage_times_s,
    step_spans,
    training_time_s,
    warm_up_s,
)
from brimful.runs.sessions import once_per_run

NAMES = {
    "compute_s": "Compute",
    "loader_s": "Waiting for data",
    "evaluation_s": "Evaluation",
    "base_s": "Scoring the base",
    "reference_s": "Scoring by the reference",
    "sampling_s": "Drawing answers",
    "verifying_s": "Verifying answers",
    "scoring_s": "Scoring answers",
    "checkpoint_s": "Checkpoints",
    "compile_s": "Compiling and warming up",
    "start_s": "Starting and saving the model",
    "lost_s": "Lost to interruptions",
}
"""The parts, in order."""


@dataclass(frozen=True)
class TimeSpent:
    """Seconds over all sessions; the parts add up to `total_s`.

    Attributes:
        compute_s: Optimizer steps without waiting for batches; with it where the waiting was not
            measured.
        loader_s: Waiting of the host for batches; None in runs from before it was measured.
        evaluation_s, checkpoint_s: Sums over their records.
        compile_s: How much longer the first steps of every session took than usual ones.
        start_s: The rest: loading checkpoints, building the optimizer, writing the model,
            measuring the loader.
        lost_s: Work of killed sessions that no checkpoint kept, as the monitor saw it; 0 without a
            monitor.
        base_s: Held-out loss of the model before tuning, and of the tuned one beside it.
        reference_s: Log-probabilities of answers by the model from before training.
        sampling_s, verifying_s, scoring_s: Seconds that rounds of rewarded answers took.
        device_idle_share: Share of the monitored time in which no kernel ran on the device, across
            all parts; None where it cannot be read.
    """

    compute_s: float
    loader_s: float | None
    evaluation_s: float
    checkpoint_s: float
    compile_s: float
    start_s: float
    lost_s: float
    device_idle_share: float | None
    base_s: float = 0.0
    reference_s: float = 0.0
    sampling_s: float = 0.0
    verifying_s: float = 0.0
    scoring_s: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(seconds for _, seconds in self.parts)

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """(what, seconds) of the parts that took any time."""
        return tuple(
            (label, seconds) for name, label in NAMES.items() if (seconds := getattr(self, name))
        )

    def share(self, seconds: float) -> float:
        """Of the total, 0 to 1."""
        return seconds / self.total_s if self.total_s else 0.0

    @property
    def waiting_share(self) -> float | None:
        """Of the time of the steps, waiting for batches; None where it was not measured."""
        stepping_s = self.compute_s + (self.loader_s or 0.0)
        return None if self.loader_s is None or not stepping_s else self.loader_s / stepping_s


@once_per_run
def time_spent(run: RunFolder) -> TimeSpent | None:
    """Return where the time went; None where no step was timed."""
    training_s, times = training_time_s(run), stage_times_s(run)
    if training_s is None or training_s < 0:
        return None
    if not all(math.isfinite(seconds) for seconds in times.values() if seconds is not None):
        return None
    evaluation_s, checkpoint_s, total_s = (
        max(0.0, times[name] or 0.0)
        for name in ("evaluation_time_s", "checkpoint_time_s", "total_time_s")
    )
    base_s = times["base_time_s"] or 0.0
    reference_s = times["reference_time_s"] or 0.0
    of_rounds = {name.replace("_time", ""): took for name, took in round_times_s(run).items()}
    known_s = training_s + evaluation_s + base_s + reference_s + checkpoint_s
    known_s += sum(of_rounds.values())
    # The records of a killed session do not say how long it was.
    rest_s = max(0.0, total_s - known_s)
    compile_s = min(warm_up_s(run), rest_s)
    loader_s = _loader_s(run, training_s)
    busy_share = run.monitored.mean("device_utilization")
    return TimeSpent(
        compute_s=training_s - (loader_s or 0.0),
        loader_s=loader_s,
        evaluation_s=evaluation_s,
        checkpoint_s=checkpoint_s,
        compile_s=compile_s,
        start_s=rest_s - compile_s,
        lost_s=_lost_s(run, known_s + rest_s),
        device_idle_share=None if busy_share is None else 1 - busy_share,
        base_s=base_s,
        reference_s=reference_s,
        **of_rounds,
    )


def _loader_s(run: RunFolder, training_s: float) -> float | None:
    waits = [
        count * min(max(step.loader_wait_s, 0.0), step.step_time_s or 0.0)
        for count, step in step_spans(run)
        if step.loader_wait_s is not None
    ]
    return min(sum(waits), training_s) if waits else None


def _lost_s(run: RunFolder, known_s: float) -> float:
    """Return the time that the monitor saw beyond `known_s`, which the journal accounts for; 0
    where every session ended by itself.
    """
    was_killed = any(not session.is_ended for session in run.monitored.sessions[:-1])
    return max(0.0, run.monitored.covered_s - known_s) if was_killed else 0.0
