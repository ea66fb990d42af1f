"""How often a run evaluates: evaluations and checkpoints that nobody asked for take at most a tenth
of it. No torch.
"""

import math
from dataclasses import dataclass, replace

from brimful.base.text import plural
from brimful.planning.plan import Choice, Plan
from brimful.recipe import Recipe

EVALUATIONS_PER_RUN = 10
"""Approximate number of evaluations with `evaluation.every: auto` where they are cheap; see
`usual_interval`.
"""
MOST_SHARE = 1 / 10
"""Of a run's time, for evaluations and checkpoints whose intervals the recipe leaves open."""
CHECKPOINT_AFTER_S = 60.0
MOST_CHECKPOINT_SHARE = 1 / 20
"""`checkpoint.every: auto`: about one checkpoint a minute, but at most this share of the time for
writing them.
"""
SAMPLE_TOKENS_PER_STEP = 32
"""The sample of a short run is so long: writing this many tokens takes about as long as a step."""
EVALUATION = "evaluation"
"""Name of the plan's choice that gives the interval and its reason."""


@dataclass(frozen=True)
class Durations:
    """Expected seconds of a run's parts.

    Attributes:
        training_s: All steps together.
        start_s: Time before the first step.
        evaluation_s: One evaluation.
        checkpoint_s: One checkpoint. One is written beside every evaluation.
    """

    training_s: float
    start_s: float
    evaluation_s: float
    checkpoint_s: float


@dataclass(frozen=True)
class Spacing:
    """How often a run evaluates.

    Attributes:
        every: Optimizer steps between evaluations; the last comes at the end of the run.
        reason: Why; empty where the usual interval costs little.
    """

    every: int
    reason: str = ""


def usual_interval(steps: int) -> int:
    """Return the steps between evaluations where they are cheap: about ten evaluations."""
    return max(1, steps // EVALUATIONS_PER_RUN)


def interval(recipe: Recipe, plan: Plan, steps: int) -> int:
    """Return the steps between evaluations of a run: the recipe's number, else the plan's interval.

    A plan without one, such as that of an earlier version, has the usual interval.
    """
    if recipe.evaluation.every != "auto":
        return recipe.evaluation.every
    return plan.evaluate_every or usual_interval(steps)


def evaluations(every: int, steps: int) -> int:
    """Return the number of evaluations of a run, the one at its end included."""
    return math.ceil(steps / every)


def most_scored(recipe: Recipe, steps: int | None, held_out: float) -> int | None:
    """Return how many validation sequences an evaluation while training scores at most: as the
    recipe says, and from fresh weights no more than the run trains on; None: all.

    Args:
        recipe: The recipe of the run.
        steps: The steps of the whole run; None where they are not known.
        held_out: Sequences of the validation split.
    """
    most = recipe.evaluation.max_sequences
    if steps is None or isinstance(recipe.model, str):
        return most
    trained = steps * recipe.effective_batch
    return trained if trained < min(held_out, most or held_out) else most


def most_sampled(recipe: Recipe, steps: int | None) -> int:
    """Return the most tokens of the sample at the end of a run: as the recipe says, and from fresh
    weights no more than `SAMPLE_TOKENS_PER_STEP` for each of its steps.
    """
    tokens = recipe.sample.tokens
    if steps is None or isinstance(recipe.model, str):
        return tokens
    return min(tokens, SAMPLE_TOKENS_PER_STEP * steps)


def short_run_notes(recipe: Recipe, steps: int | None, held_out: int) -> list[str]:
    """Return a line that says what `most_scored` and `most_sampled` leave out; none where they
    leave out nothing.
    """
    scored, tokens, told = most_scored(recipe, steps, held_out), most_sampled(recipe, steps), []
    if scored != recipe.evaluation.max_sequences:
        told.append(f"evaluations of {plural(scored or 0, 'sequence')}, as many as are trained on")
    if tokens < recipe.sample.tokens and recipe.kind.writes_text:
        told.append(f"a sample of {tokens:,} tokens")
    return [f"short run: {'; '.join(told)}"] if told else []


def saves_between(recipe: Recipe, steps: int, training_s: float, checkpoint_s: float) -> int:
    """Return the number of checkpoints of a run that do not belong to an evaluation."""
    if recipe.checkpoint.every != "auto":
        return steps // recipe.checkpoint.every
    return int(training_s // checkpoint_interval_s(checkpoint_s))


def checkpoint_interval_s(checkpoint_s: float) -> float:
    """Return the seconds between checkpoints with `checkpoint.every: auto`, one of which takes
    `checkpoint_s`.
    """
    return max(CHECKPOINT_AFTER_S, checkpoint_s / MOST_CHECKPOINT_SHARE)


def spaced(recipe: Recipe, steps: int, times: Durations) -> Spacing:
    """Return how often a run evaluates, from what its parts are expected to take.

    A number in the recipe stands. `auto` is about ten evaluations, or as many as fit into a tenth
    of the run together with the checkpoints, at least the one at the end. With
    `evaluation.patience` it stays at ten, because the recipe asks to stop by them.
    """
    usual, asked = usual_interval(steps), recipe.evaluation.every
    most = _affordable(recipe, steps, times)
    fewer = max(usual, math.ceil(steps / most))
    if asked != "auto":
        return Spacing(asked, _reason_of_asked(recipe, asked, fewer, steps, times))
    share = _share(recipe, evaluations(usual, steps), steps, times)
    if fewer == usual:
        return Spacing(usual)
    if recipe.evaluation.patience is not None:
        reason = (
            f"{evaluations(usual, steps)} over the run, for evaluation.patience; with checkpoints"
            f" {share:.0%} of the time"
        )
        return Spacing(usual, reason)
    count = evaluations(fewer, steps)
    number = "only the one at the end" if count == 1 else f"{count} over the run"
    return Spacing(
        fewer,
        f"{number}: {evaluations(usual, steps)} would take {share:.0%} of the time, checkpoints"
        f" included; for more: evaluation.every={usual}",
    )


def with_spacing(
    recipe: Recipe,
    plan: Plan,
    times: Durations | None,
    *,
    settled: bool,
    keep: int | None = None,
) -> Plan:
    """Return the plan with the interval between evaluations, and its reason where there is one.

    Args:
        recipe: What the plan is for.
        plan: Plan with its number of steps.
        times: Expected; None where no time is predicted.
        settled: Whether the sizes of the data are known, so that the interval is final.
        keep: The interval of the run that goes on.
    """
    spacing, steps = None, plan.total_steps
    if steps is not None and keep is not None and recipe.evaluation.every == "auto":
        reason = "" if keep == usual_interval(steps) else "as when this run began"
        spacing = Spacing(keep, reason)
    elif steps is not None:
        spacing = Spacing(interval(recipe, replace(plan, evaluate_every=None), steps))
        if times is not None:
            spacing = spaced(recipe, steps, times)
    choices = tuple(choice for choice in plan.choices if choice.name != EVALUATION)
    if spacing is not None and spacing.reason:
        reason = spacing.reason + ("" if settled else "; settled when the data are read")
        choices += (Choice(EVALUATION, f"every {spacing.every}", reason),)
    every = spacing.every if spacing is not None and settled else None
    return replace(plan, choices=choices, evaluate_every=every)


def _affordable(recipe: Recipe, steps: int, times: Durations) -> int:
    """Return how many evaluations, each with its checkpoint, fit into MOST_SHARE of the run beside
    the checkpoints between them; at least 1.
    """
    between = 0
    if recipe.checkpoint.every == "auto":
        between = saves_between(recipe, steps, times.training_s, times.checkpoint_s)
    each_s = times.evaluation_s + times.checkpoint_s
    rest_s = times.training_s + times.start_s
    # count x each + saves <= MOST_SHARE x (rest + count x each + saves)
    room_s = MOST_SHARE / (1 - MOST_SHARE) * rest_s - between * times.checkpoint_s
    return max(1, min(steps, int(room_s / each_s))) if each_s > 0 else steps


def _share(recipe: Recipe, count: int, steps: int, times: Durations) -> float:
    """Return the share of the run that its evaluations and checkpoints take."""
    between = saves_between(recipe, steps, times.training_s, times.checkpoint_s)
    saves_s = min(steps, count + between) * times.checkpoint_s
    cost_s = count * times.evaluation_s + saves_s
    return cost_s / (times.training_s + times.start_s + cost_s)


def _reason_of_asked(recipe: Recipe, every: int, fewer: int, steps: int, times: Durations) -> str:
    """Return what an interval that the recipe asks for costs; empty where it is less than a tenth
    of the run, or no longer interval would change that.
    """
    count = evaluations(every, steps)
    if every >= fewer or count == 1:
        return ""
    share = _share(recipe, count, steps, times)
    return (
        f"as the recipe asks: {count} evaluations take {share:.0%} of the time, checkpoints"
        " included; evaluation.every=auto keeps to a tenth"
    )
