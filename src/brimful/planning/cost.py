"""The whole run: time of evaluation, checkpoints, compiling and start beside the steps, and its
energy and cost. No torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from brimful.base.text import plural
from brimful.base.types import Numbers
from brimful.base.units import format_duration, format_money
from brimful.hardware import catalog
from brimful.hardware.catalog import Price
from brimful.planning.base_scoring import (
    BaseTimes,
    base_answers_time,
    base_loss_time,
    times_of,
    with_base,
)
from brimful.planning.compiling import compile_s
from brimful.planning.plan import BaseScoring, Plan, Prediction, summed
from brimful.planning.rounds import AnswerRounds
from brimful.planning.spacing import (
    Durations,
    evaluations,
    most_scored,
    saves_between,
    spaced,
    with_spacing,
)
from brimful.recipe import Recipe
from brimful.recipe.preference import reference_passes, scores_per_sample

CHECKPOINT_BYTES_PER_S = (60e6, 200e6, 1e9)
"""Low, expected and high rate at which a checkpoint is copied, written, hashed, synced and read
back. Measured 157 to 240 MB/s (2 cores, checkpoints of 20 to 300 MB, 2026-11-21); the rest is
assumption.
"""
HASH_BYTES_PER_S = 260e6
"""Rate of copying, hashing and reading back without waiting for the disk: bytes over CPU time in
the same measurement.
"""
START_S = {"cpu": (0.1, 0.4, 5.0), "": (0.3, 1.5, 10.0)}
"""From the start of training to its first step, as runs count it, by kind of device, "" for others:
0.13 to 0.6 s of seven runs on a CPU (2026-11-30); the rest is assumption. Loading libraries (7 s
here) and reading data come before.
"""
FORWARD_SHARE = {
    (False, False): 1 / 3,
    (False, True): 1 / 4,
    (True, False): 1 / 2,
    (True, True): 1 / 3,
}
"""Time of a forward pass over that of a training pass, by (frozen base, recomputes products): 2 of
6, 8, 4, 6 FLOPs per parameter and token. For plans that do not know their own evaluation batch's.
"""
FORWARD_SPREAD = 1.3
"""The share may be larger or smaller by this factor (assumption)."""
SHARE_SPREAD = 1.15
"""The same for a share predicted from the operators of the evaluation batch (assumption). Its error
is much like that of the step.
"""
UNREAD_VALIDATION = (0.02, 0.3, 1.5)
"""Low, expected and high size of an epoch over the sequences of the whole run, while the data are
not read: fifty epochs, about three, or less than one (assumption).
"""
POWER_SHARE = (0.35, 0.76, 1.0)
"""Low, expected and high mean power over the board's limit. Expected: 8 x H100 under training loads
drew 76 % of their rating (arXiv 2506.14551, read 2026-11-21); low: an assumption for small models,
which leave the device idle between kernels.
"""
PARTS = ("training_time_s", "evaluation_time_s", "checkpoint_time_s", "start_time_s")
"""Parts of total_time_s in every run."""
OF_ROUNDS = ("sampling_time_s", "verifying_time_s", "scoring_time_s")
"""Further parts of a run that is rewarded for its own answers."""
WHOLE_RUN = (
    *PARTS,
    "base_time_s",
    "reference_time_s",
    *OF_ROUNDS,
    "base_answers_time_s",
    "total_time_s",
    "energy_wh",
    "cost_usd",
    "billion_tokens_s",
    "billion_tokens_usd",
)
"""Names of the predictions of `whole_run`."""


@dataclass(frozen=True)
class Conditions:
    """Optional facts about a run, each better than the guess made without it.

    Attributes:
        price: The price of an hour of the device.
        power_w: The board's power limit.
        validation_sequences: Sequences of the validation split.
        train_sequences: Sequences of one epoch.
        disk_bytes_per_s: Rate at which files are written and synced (`brimful calibrate`).
        evaluate_every: Steps between evaluations of the run that is continued, to be kept.
        base: What is found out about the model before tuning in the run that is continued, to be
            kept.
    """

    price: Price | None = None
    power_w: float | None = None
    validation_sequences: int | None = None
    train_sequences: int | None = None
    disk_bytes_per_s: float | None = None
    evaluate_every: int | None = None
    base: BaseScoring | None = None


def conditions_of(
    device_name: str,
    prices: Numbers | None = None,
    disk_bytes_per_s: float | None = None,
) -> Conditions:
    """Return price and power limit of a device from the catalog; `prices` (see
    `budget.parse_prices`) take precedence.
    """
    return Conditions(
        price=_price_of(device_name, prices or {}),
        power_w=catalog.power_of(device_name),
        disk_bytes_per_s=disk_bytes_per_s,
    )


def _price_of(device_name: str, prices: Numbers) -> Price | None:
    given = prices.get(device_name, prices.get(""))
    if given is not None:
        return Price(given, f"{given:g}", "--price", "")
    return catalog.price_of(device_name) if catalog.find(device_name) else None


def costed(recipe: Recipe, plan: Plan, conditions: Conditions) -> Plan:
    """Return the plan with the interval between evaluations, what is found out about the model
    before tuning, and the predictions of `whole_run`.

    Args:
        recipe: What the plan is for.
        plan: Plan with step_time_s among its predictions.
        conditions: What else is known.
    """
    plan = respaced(recipe, plan, conditions)
    if recipe.kind.draws_answers:
        plan = _rounds(recipe, plan).with_peak()
    kept = {name: entry for name, entry in plan.predicted.items() if name not in WHOLE_RUN}
    return replace(plan, predicted=kept | whole_run(recipe, plan, conditions))


def respaced(recipe: Recipe, plan: Plan, conditions: Conditions) -> Plan:
    """Return the plan with what `costed` decides; predictions stay."""
    steps, step_time = plan.total_steps, plan.predicted.get("step_time_s")
    times = of_base = None
    if steps is not None and step_time is not None:
        times = _durations(recipe, plan, conditions, step_time, steps)
        of_base = _base_times(recipe, plan, conditions, times, steps)
    settled = conditions.validation_sequences is not None or conditions.train_sequences is not None
    plan = with_spacing(recipe, plan, times, settled=settled, keep=conditions.evaluate_every)
    kept = conditions.base
    return with_base(recipe, replace(plan, base=kept), of_base, kept=kept is not None)


def _base_times(
    recipe: Recipe, plan: Plan, conditions: Conditions, times: Durations, steps: int
) -> BaseTimes:
    sequences, _ = _validation_sequences(recipe, conditions, steps)
    return times_of(recipe, plan, times, sequences.value)


def whole_run(
    recipe: Recipe, plan: Plan, conditions: Conditions, steps: int | None = None
) -> dict[str, Prediction]:
    """Predict PARTS, what is scored before the first step and total_time_s, and energy_wh and
    cost_usd where power and price are known.

    For a run of unknown length, predict billion_tokens_s of training alone, and billion_tokens_usd
    where the price is known.

    Args:
        recipe: Says how often the run evaluates and saves.
        plan: Plan with step_time_s among its predictions.
        conditions: What else is known.
        steps: Optimizer steps in place of the plan's.

    Returns:
        Nothing where the step time is unknown.
    """
    step_time = plan.predicted.get("step_time_s")
    steps = steps or plan.total_steps
    if step_time is None:
        return {}
    if steps is None:
        billion = _times(step_time, 1e9 / (plan.tokens_per_step), "training alone")
        predicted = {"billion_tokens_s": billion}
        if conditions.price:
            predicted["billion_tokens_usd"] = cost(billion, conditions.price)
        return predicted
    training = _times(step_time, steps, plural(steps, "step"))
    each, sequences = _evaluation(recipe, plan, conditions, step_time, steps)
    count = evaluations(_interval(recipe, plan, conditions, steps), steps)
    predicted = {
        "training_time_s": training,
        "evaluation_time_s": _times(each, count, f"{count:,} x {sequences}"),
        "checkpoint_time_s": _checkpoints(recipe, plan, conditions, training, steps, count),
        "start_time_s": _start(recipe, plan),
    }
    times = _durations(recipe, plan, conditions, step_time, steps)
    of_base = _base_times(recipe, plan, conditions, times, steps)
    predicted |= base_loss_time(plan.base, of_base, each)
    predicted |= _reference(recipe, plan, conditions, step_time, steps)
    if recipe.kind.draws_answers:
        predicted |= _rounds(recipe, plan).times(steps)
    total = total_time(predicted)
    predicted["total_time_s"] = total
    if conditions.power_w:
        predicted["energy_wh"] = energy(total, conditions.power_w)
    if conditions.price is not None:
        predicted["cost_usd"] = cost(total, conditions.price)
    return predicted | base_answers_time(plan.base, of_base)


def _durations(
    recipe: Recipe, plan: Plan, conditions: Conditions, step_time: Prediction, steps: int
) -> Durations:
    """Return what the parts of a run are expected to take."""
    each, _ = _evaluation(recipe, plan, conditions, step_time, steps)
    return Durations(
        training_s=step_time.value * steps,
        start_s=_start(recipe, plan).value,
        evaluation_s=each.value,
        checkpoint_s=checkpoint_seconds(recipe, plan, conditions).value,
    )


def _interval(recipe: Recipe, plan: Plan, conditions: Conditions, steps: int) -> int:
    """Return the steps between evaluations: the plan's, or what another number of steps gets."""
    if plan.evaluate_every is not None and steps == plan.total_steps:
        return plan.evaluate_every
    times = _durations(recipe, plan, conditions, plan.predicted["step_time_s"], steps)
    return spaced(recipe, steps, times).every


def total_time(parts: Mapping[str, Prediction]) -> Prediction:
    """Return the sum of a run's parts. Training and scoring have the error of one rate."""
    rated = ("training_time_s", "evaluation_time_s", "reference_time_s", "scoring_time_s")
    together = dict.fromkeys(rated, "rate")
    return summed(
        ((together.get(name, name), part) for name, part in parts.items()),
        f"{'rounds of answers, ' * ('sampling_time_s' in parts)}training, evaluation, checkpoints,"
        " start and compiling",
    )


def energy(total: Prediction, power_w: float) -> Prediction:
    """Return the watt hours of the device alone, from the time of the run and its power limit."""
    low, expected, high = (share * power_w / 3600 for share in POWER_SHARE)
    basis = (
        f"{POWER_SHARE[1]:.0%} of {power_w:g} W on average ({POWER_SHARE[0]:.0%} to"
        f" {POWER_SHARE[2]:.0%}), the device alone"
    )
    return Prediction(total.value * expected, total.low * low, total.high * high, basis)


def cost(total: Prediction, price: Price) -> Prediction:
    """Return the US dollars of renting the device for a time."""
    hourly = price.usd_per_hour / 3600
    source = f"{price.source}, read {price.read}" if price.read else f"given by {price.source}"
    return Prediction(
        total.value * hourly,
        total.low * hourly,
        total.high * hourly,
        f"{format_money(price.usd_per_hour)} an hour ({source})",
    )


def checkpoint_bytes(recipe: Recipe, plan: Plan) -> int:
    """Return the size of one checkpoint: trained weights and optimizer states."""
    trained = "weights" if recipe.adapter is None else "adapters"
    return sum(plan.memory_terms.get(term, 0) for term in ("optimizer states", trained))


def checkpoint_seconds(recipe: Recipe, plan: Plan, conditions: Conditions) -> Prediction:
    """Return the time of one checkpoint."""
    low, expected, high = CHECKPOINT_BYTES_PER_S
    if conditions.disk_bytes_per_s:
        expected = 1 / (1 / conditions.disk_bytes_per_s + 1 / HASH_BYTES_PER_S)
        low, high = expected / 2, expected * 1.5
    num_bytes = checkpoint_bytes(recipe, plan)
    return Prediction(
        num_bytes / expected,
        num_bytes / high,
        num_bytes / low,
        f"{num_bytes / 1e6:,.0f} MB at {expected / 1e6:,.0f} MB/s",
    )


def _times(each: Prediction, count: float, basis: str) -> Prediction:
    return Prediction(each.value * count, each.low * count, each.high * count, basis)


def _spread(low_expected_high: tuple[float, float, float], basis: str) -> Prediction:
    low, expected, high = low_expected_high
    return Prediction(expected, low, high, basis)


def _start(recipe: Recipe, plan: Plan) -> Prediction:
    outside = "loading libraries and reading data come before"
    start_s = START_S.get(str(plan.device["kind"]), START_S[""])
    if not plan.compile:
        return _spread(start_s, f"to the first step; {outside}")
    compiling_s = compile_s(recipe, plan.device["name"], plan.precision)
    low, expected, high = (
        start + compiling for start, compiling in zip(start_s, compiling_s, strict=True)
    )
    return Prediction(
        expected,
        low,
        high,
        f"to the first step, {format_duration(compiling_s[1])} of it for compiling; {outside}",
    )


def _evaluation(
    recipe: Recipe, plan: Plan, conditions: Conditions, step_time: Prediction, steps: int
) -> tuple[Prediction, str]:
    """Return the time of one evaluation, and in words what it scores."""
    sequences, note = _validation_sequences(recipe, conditions, steps)
    what = f"{round(sequences.value):,} validation sequences{note}"
    if recipe.kind.draws_answers:
        written = _rounds(recipe, plan).held_out(max(1, round(sequences.value))).time_s
        if written is not None:
            return written, what
    each = _scoring(recipe, plan, step_time)
    passes = scores_per_sample(recipe)
    return _product(each, _times(sequences, passes, ""), what), what


def _rounds(recipe: Recipe, plan: Plan) -> AnswerRounds:
    return AnswerRounds(recipe, plan, int(plan.device.get("memory_bytes") or 0))


def _scoring(recipe: Recipe, plan: Plan, step_time: Prediction) -> Prediction:
    """Return the time of one pass over a sequence without gradients."""
    share, spread, batch = plan.evaluation_share, SHARE_SPREAD, recipe.effective_batch
    if not share:
        share = FORWARD_SHARE[recipe.adapter is not None, plan.recompute is True]
        spread = FORWARD_SPREAD
    each = _spread((share / spread, share, share * spread), "")
    return _times(_product(step_time, each, ""), 1 / batch, "")


def _product(left: Prediction, right: Prediction, basis: str) -> Prediction:
    """Return the product of two positive numbers."""
    return Prediction(left.value * right.value, left.low * right.low, left.high * right.high, basis)


def _reference(
    recipe: Recipe, plan: Plan, conditions: Conditions, step_time: Prediction, steps: int
) -> dict[str, Prediction]:
    """Return reference_time_s, the scores of the untrained model that preferences are compared
    with; nothing where there are none.
    """
    of_train, of_held_out = reference_passes(recipe)
    if not of_held_out:
        return {}
    train, held_out, note = _sizes(recipe, conditions, steps)
    rows = summed([("", _times(train, of_train, "")), ("", _times(held_out, of_held_out, ""))], "")
    what = "to train on and held out" if of_train else "held out"
    if of_held_out > 1:
        what += ", with their own answers and with others"
    basis = f"{round(rows.value):,} sequences {what}, before the first step{note}"
    return {"reference_time_s": _product(_scoring(recipe, plan, step_time), rows, basis)}


def _validation_sequences(
    recipe: Recipe, conditions: Conditions, steps: int
) -> tuple[Prediction, str]:
    """Return how many sequences an evaluation scores, and a note where that is a guess."""
    _, held_out, note = _sizes(recipe, conditions, steps)
    is_guess = bool(note)
    most = most_scored(recipe, steps, math.inf if is_guess else held_out.value) or math.inf
    least = 1.0 if is_guess else 0.0
    ends = (held_out.low, held_out.value, held_out.high)
    low, expected, high = (max(least, min(end, most)) for end in ends)
    return _spread((low, expected, high), ""), note


def _sizes(
    recipe: Recipe, conditions: Conditions, steps: int
) -> tuple[Prediction, Prediction, str]:
    """Return the sequences of one epoch and of the validation split, and a note where the latter is
    a guess.
    """
    share = recipe.data.validation / (1 - recipe.data.validation - recipe.data.test)
    train, held_out = conditions.train_sequences, conditions.validation_sequences
    seen = steps * recipe.effective_batch
    low, expected, high = (factor * seen for factor in UNREAD_VALIDATION)
    epoch = _spread((low, expected, high) if train is None else (train,) * 3, "")
    known = held_out or (train and share * train)
    if known is not None:
        return epoch, _spread((known,) * 3, ""), ""
    return epoch, _times(epoch, share, ""), ", a guess: the data are not read yet"


def _checkpoints(
    recipe: Recipe,
    plan: Plan,
    conditions: Conditions,
    training: Prediction,
    steps: int,
    evaluated: int,
) -> Prediction:
    """Return the time of all checkpoints; there is one beside each of the evaluations."""
    each = checkpoint_seconds(recipe, plan, conditions)

    def count(training_s: float) -> int:
        return min(steps, evaluated + saves_between(recipe, steps, training_s, each.value))

    number = count(training.value)
    low, high = each.low * count(training.low), each.high * count(training.high)
    return Prediction(each.value * number, low, high, f"{number:,} of {each.basis}")
