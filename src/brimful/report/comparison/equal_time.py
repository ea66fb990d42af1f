"""The validation loss of runs after the same training time, however many tokens they had seen."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from brimful.base.units import format_duration
from brimful.report.comparison.results import EQUAL_TIME, ComparedRun, Figure


def at_equal_time(runs: Sequence[ComparedRun]) -> tuple[list[ComparedRun], list[str]]:
    """Add to each run the loss it had when the fastest run ended.

    Only language models that were trained from random weights are compared in this way. Runs stay
    as they are where there is only one, or where one has no evaluations while training.

    Returns:
        The runs, and notes on what was compared.
    """
    if len(runs) < 2 or not all(run.curve for run in runs):
        return list(runs), []
    fastest = min(runs, key=lambda run: run.curve[-1][0])
    seconds = fastest.curve[-1][0]
    notes = [
        f"{EQUAL_TIME}: after {format_duration(seconds)} of optimizer steps, when {fastest.name}"
        " ended; by the evaluations while training, interpolated linearly in time"
    ]
    added, late = [], []
    for run in runs:
        loss = loss_at(run.curve, seconds)
        if loss is None:
            late.append(run.name)
            added.append(run)
        else:
            figures = {**run.figures, EQUAL_TIME: Figure(loss, "nats/token")}
            added.append(replace(run, figures=figures))
    if late:
        notes.append(
            f"not evaluated by that time: {', '.join(late)}; evaluate more often (evaluation.every)"
        )
    return added, notes


def loss_at(curve: Sequence[tuple[float, float]], seconds: float) -> float | None:
    """Interpolate linearly between points (seconds, loss); None before the first and after the
    last.
    """
    for (earlier, before), (later, after) in pairwise(curve):
        if earlier <= seconds < later:
            return before + (seconds - earlier) / (later - earlier) * (after - before)
    last_seconds, last_loss = curve[-1]
    return last_loss if seconds == last_seconds else None
