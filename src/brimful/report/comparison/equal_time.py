"""The validation loss of runs after the same time of training, whatever they had seen by then."""

from collections.abc import Sequence
from dataclasses import replace

from brimful.base.units import format_duration
from brimful.report.comparison.results import EQUAL_TIME, Figure, Result


def at_equal_time(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """Language models trained from nothing with their loss at the time when the fastest of them had
    its last evaluation; and what to know of it.

    Unchanged where there is nothing to compare: a single run, or one without evaluations while
    training.
    """
    if len(results) < 2 or not all(result.curve for result in results):
        return list(results), []
    fastest = min(results, key=lambda result: result.curve[-1][0])
    seconds = fastest.curve[-1][0]
    found = [(result, loss_at(result.curve, seconds)) for result in results]
    notes = [
        f"{EQUAL_TIME}: after {format_duration(seconds)} of optimizer steps, when {fastest.name}"
        " ended; of what evaluations while training read, linear in time between them"
    ]
    if late := [result.name for result, loss in found if loss is None]:
        notes.append(
            f"not evaluated by that time: {', '.join(late)}; evaluate more often (evaluation.every)"
        )
    return [result if loss is None else _with_loss(result, loss) for result, loss in found], notes


def _with_loss(result: Result, loss: float) -> Result:
    return replace(result, figures={**result.figures, EQUAL_TIME: Figure(loss, "nats/token")})


def loss_at(curve: Sequence[tuple[float, float]], seconds: float) -> float | None:
    """Linear between the points (seconds, loss); None before the first and after the last."""
    for (earlier, before), (later, after) in zip(curve, [*curve[1:], curve[-1]], strict=True):
        if earlier <= seconds <= later:
            share = (seconds - earlier) / (later - earlier) if later > earlier else 0.0
            return before + share * (after - before)
    return None
