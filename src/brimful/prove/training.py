"""Short trainings: does each run through, and do its memory and time come out as planned?"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from brimful.prove.record import HELD, Measured, Outcome
from brimful.prove.workplace import TrialFailed, Workplace
from brimful.report.predictions import comparisons
from brimful.report.quantities import listed
from brimful.runs.folder import RunFolder
from brimful.runs.measurements import compile_failed
from brimful.runs.measurements import measured as figures_of

QUANTITIES = ("allocated_memory_bytes", "peak_memory_bytes", "device_memory_bytes", "step_time_s")
"""What is compared; a CPU measures the second and the last."""
SPEEDS = ("tokens_per_s", "mfu", "energy_wh")
"""What is measured beside them, as far as the device tells it."""
ON_THE_DEVICE = "device_memory_bytes"


def trains_as_planned(place: Workplace, name: str, recipe: Mapping[str, Any]) -> Outcome:
    """Train a recipe for its few steps.

    Raises:
        TrialFailed: it ended with an error, memory ran out, or the peak was above its interval.
    """
    return judged(place.run_recipe(name, recipe))


def judged(run: RunFolder) -> Outcome:
    """Return what came of a run.

    Raises:
        TrialFailed: memory ran out, the peak was above its interval, or what was to be compiled was
            not.
    """
    outcome = outcome_of(run)
    if run.out_of_memory:
        raise TrialFailed("memory ran out: the plan had said that it fits", outcome)
    if compile_failed(run):
        raise TrialFailed("torch.compile failed: the run went on without it", outcome)
    above = [each for each in outcome.measured if _is_above(each)]
    if above:
        names = listed([_words(each.key) for each in above])
        raise TrialFailed(f"{names} above the predicted interval", outcome)
    return replace(outcome, what=f"{run.last_step} steps {outcome.what}")


def outcome_of(run: RunFolder) -> Outcome:
    """Return what a run measured beside its plan."""
    plan = run.plan
    if plan is None:
        raise TrialFailed("the run kept no plan")
    chosen = {
        "micro_batch": plan.micro_batches[0],
        "batch": plan.effective_batch,
        "precision": plan.precision,
        "recompute": plan.recompute,
        "compile": plan.compile,
    }
    figures = figures_of(run)
    speeds = {key: figures[key] for key in SPEEDS if key in figures}
    batch = f"of {plan.effective_batch} x {plan.sequence_length} tokens"
    words = f"{batch} in micro-batches of {plan.micro_batches[0]}, {plan.precision}"
    words += ", recomputed" * bool(plan.recompute) + ", compiled" * plan.compile
    return Outcome(status=HELD, what=words, measured=_measured(run), facts=chosen | speeds)


def _measured(run: RunFolder) -> tuple[Measured, ...]:
    """Return predictions that were met by a measurement. What other programs hold of a device
    counts as used: a proof is for a device that one has to oneself.
    """
    found = []
    for each in comparisons(run):
        value = each.measured
        if each.key == ON_THE_DEVICE:
            value = run.monitored.peak(ON_THE_DEVICE)
        if each.key in QUANTITIES and each.interval is not None and value is not None:
            low, high = each.interval
            found.append(
                Measured(key=each.key, predicted=each.predicted, low=low, high=high, measured=value)
            )
    return tuple(found)


def _is_above(each: Measured) -> bool:
    return each.key.endswith("_memory_bytes") and each.measured > each.high


def _words(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ")
