"""Is the plan's choice the quickest? A recipe as planned, beside the same with other choices."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from brimful.base.text import plural, reason_of
from brimful.base.units import format_duration
from brimful.prove.record import HELD, Outcome
from brimful.prove.speed import plan_and_step_time
from brimful.prove.training import outcome_of
from brimful.prove.workplace import TrialFailed, Workplace

Changes = Mapping[str, Any]
AS_PLANNED = "as planned"
CHOICE = "-choice-"
"""Between the trial's name and a number, in the names of the other runs."""


def beside_a_sweep(
    place: Workplace,
    name: str,
    recipe: Mapping[str, Any],
    shares: Sequence[float],
    others: Mapping[str, Changes],
) -> Outcome:
    """Train as planned, then with each other choice, and compare the times of a step. A choice that
    does not run here, as where memory does not hold it, is left out with the reason.

    Args:
        recipe: Trained each time.
        shares: Other micro-batches, as shares of the planned one.
        others: Keys of `plan` by the words that a reader gets for them.

    Raises:
        TrialFailed: the recipe does not run as planned, or no time was measured.
    """
    run = place.run_recipe(name, recipe)
    plan, step_time_s = plan_and_step_time(run)
    choices = dict(others)
    for share in shares:
        size = math.floor(plan.micro_batches[0] * share)
        if 1 <= size <= plan.effective_batch:
            choices[f"micro-batches of {size}"] = {"micro_batch": size}
    times, left_out = {AS_PLANNED: step_time_s}, []
    for number, (words, changes) in enumerate(choices.items(), 1):
        other = {**recipe, "plan": {**recipe["plan"], **changes}}
        try:
            run_of_choice = place.run_recipe(f"{name}{CHOICE}{number}", other)
            _, times[words] = plan_and_step_time(run_of_choice)
        except TrialFailed as error:
            left_out.append(f"{words}: {reason_of(error)}")
    outcome = outcome_of(run)
    facts = {**outcome.facts, "step_time_s": times, "left_out": left_out}
    return replace(outcome, status=HELD, what=_in_words(times, left_out), facts=facts)


def _in_words(times: Mapping[str, float], left_out: Sequence[str]) -> str:
    if len(times) == 1:
        return f"no other choice ran: {'; '.join(left_out)}"
    fastest = min(times, key=lambda words: times[words])
    found = f"a step takes {format_duration(times[AS_PLANNED])} as planned, "
    if fastest == AS_PLANNED:
        found += f"the least of {plural(len(times), 'choice')}"
    else:
        ratio = times[AS_PLANNED] / times[fastest]
        found += f"{ratio:.2f} times that of {fastest}, the least of {len(times)} choices"
    return "; ".join([found, *left_out])
