"""The whole run: time of evaluation, checkpoints, compiling and start beside the steps, and its
energy and cost. No torch.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

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
from brimful.planning.plan import BaseScoring, Plan, Prediction, Predictions, summed
from brimful.planning.rounds import rounds_of
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
        plan = rounds_of(recipe, plan).with_peak()
    kept = {name: entry for name, entry in plan.predicted.items() if name not in WHOLE_RUN}
    return replace(plan, predicted=kept | whole_run(recipe, plan, conditions))


def respaced(recipe: Recipe, plan: Plan, conditions: Conditions) -> Plan:
    """Return the plan with what `costed` decides; predictions stay."""
    times = of_base = None
    if plan.total_steps is not None and "step_time_s" in plan.predicted:
        run = _RunCosts(recipe, plan, conditions, plan.total_steps)
        times, of_base = run.durations, run.base_times
    settled = conditions.validation_sequences is not None or conditions.train_sequences is not None
    plan = with_spacing(recipe, plan, times, settled=settled, keep=conditions.evaluate_every)
    return with_base(recipe, replace(plan, base=conditions.base), of_base)


def whole_run(
    recipe: Recipe, plan: Plan, conditions: Conditions, steps: int | None = None
) -> Predictions:
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
        billion = step_time.times(1e9 / (plan.tokens_per_step), "training alone")
        predicted = {"billion_tokens_s": billion}
        if conditions.price:
            predicted["billion_tokens_usd"] = cost(billion, conditions.price)
        return predicted
    run = _RunCosts(recipe, plan, conditions, steps)
    predicted = run.parts()
    total = total_time(predicted)
    predicted["total_time_s"] = total
    if conditions.power_w:
        predicted["energy_wh"] = energy(total, conditions.power_w)
    if conditions.price is not None:
        predicted["cost_usd"] = cost(total, conditions.price)
    return predicted | base_answers_time(plan.base, run.base_times)


@dataclass(frozen=True)
class _RunCosts:
    """A run of so many steps by a plan with step_time_s among its predictions."""

    recipe: Recipe
    plan: Plan
    conditions: Conditions
    steps: int

    def parts(self) -> Predictions:
        """Return the parts of the total time."""
        recipe, plan, step_time = self.recipe, self.plan, self.plan.predicted["step_time_s"]
        training = step_time.times(self.steps, plural(self.steps, "step"))
        each, what = self.evaluation
        every = plan.evaluate_every
        if every is None or self.steps != plan.total_steps:
            every = spaced(recipe, self.steps, self.durations).every
        count = evaluations(every, self.steps)
        predicted = {
            "training_time_s": training,
            "evaluation_time_s": each.times(count, f"{count:,} x {what}"),
            "checkpoint_time_s": self._checkpoints(training, count),
            "start_time_s": _start(recipe, plan),
        }
        predicted |= base_loss_time(plan.base, self.base_times, each)
        predicted |= self._reference()
        if recipe.kind.draws_answers:
            predicted |= rounds_of(recipe, plan).times(self.steps)
        return predicted

    @cached_property
    def durations(self) -> Durations:
        """What the parts of the run are expected to take."""
        return Durations(
            training_s=self.plan.predicted["step_time_s"].value * self.steps,
            start_s=_start(self.recipe, self.plan).value,
            evaluation_s=self.evaluation[0].value,
            checkpoint_s=checkpoint_seconds(self.recipe, self.plan, self.conditions).value,
        )

    @property
    def base_times(self) -> BaseTimes:
        """What the model before tuning is expected to take."""
        return times_of(self.recipe, self.plan, self.durations, self._validation_sequences.value)

    @cached_property
    def evaluation(self) -> tuple[Prediction, str]:
        """The time of one evaluation, and in words what it scores."""
        recipe, sequences = self.recipe, self._validation_sequences
        what = f"{round(sequences.value):,} validation sequences{self._sizes[2]}"
        if recipe.kind.draws_answers:
            questions = max(1, round(sequences.value))
            written = rounds_of(recipe, self.plan).held_out(questions).time_s
            if written is not None:
                return written, what
        return self._scoring.by(sequences.times(scores_per_sample(recipe)), what), what

    @property
    def _scoring(self) -> Prediction:
        """The time of one pass over a sequence without gradients."""
        recipe, plan = self.recipe, self.plan
        share, spread = plan.evaluation_share, SHARE_SPREAD
        if not share:
            share = FORWARD_SHARE[recipe.adapter is not None, plan.recompute is True]
            spread = FORWARD_SPREAD
        each = Prediction(share, share / spread, share * spread, "")
        return plan.predicted["step_time_s"].by(each).times(1 / recipe.effective_batch)

    def _reference(self) -> Predictions:
        """Return reference_time_s, the scores of the untrained model that preferences are compared
        with; nothing where there are none.
        """
        of_train, of_held_out = reference_passes(self.recipe)
        if not of_held_out:
            return {}
        train, held_out, note = self._sizes
        rows = summed([("", train.times(of_train)), ("", held_out.times(of_held_out))], "")
        what = "to train on and held out" if of_train else "held out"
        if of_held_out > 1:
            what += ", with their own answers and with others"
        basis = f"{round(rows.value):,} sequences {what}, before the first step{note}"
        return {"reference_time_s": self._scoring.by(rows, basis)}

    @property
    def _validation_sequences(self) -> Prediction:
        """How many sequences an evaluation scores."""
        _, held_out, note = self._sizes
        is_guess = bool(note)
        of_split = math.inf if is_guess else held_out.value
        most = most_scored(self.recipe, self.steps, of_split) or math.inf
        least = 1.0 if is_guess else 0.0
        ends = (held_out.value, held_out.low, held_out.high)
        value, low, high = (max(least, min(end, most)) for end in ends)
        return Prediction(value, low, high, "")

    @property
    def _sizes(self) -> tuple[Prediction, Prediction, str]:
        """The sequences of one epoch and of the validation split, and a note where the latter is a
        guess.
        """
        data, conditions = self.recipe.data, self.conditions
        share = data.validation / (1 - data.validation - data.test)
        train, held_out = conditions.train_sequences, conditions.validation_sequences
        seen = self.steps * self.recipe.effective_batch
        low, expected, high = (factor * seen for factor in UNREAD_VALIDATION)
        epoch = Prediction(expected, low, high, "")
        if train is not None:
            epoch = Prediction(train, train, train, "")
        known = held_out or (train and share * train)
        if known is not None:
            return epoch, Prediction(known, known, known, ""), ""
        return epoch, epoch.times(share), ", a guess: the data are not read yet"

    def _checkpoints(self, training: Prediction, evaluated: int) -> Prediction:
        """Return the time of all checkpoints; there is one beside each of the evaluations."""
        each = checkpoint_seconds(self.recipe, self.plan, self.conditions)

        def count(training_s: float) -> int:
            between = saves_between(self.recipe, self.steps, training_s, each.value)
            return min(self.steps, evaluated + between)

        number = count(training.value)
        low, high = each.low * count(training.low), each.high * count(training.high)
        return Prediction(each.value * number, low, high, f"{number:,} of {each.basis}")


def total_time(parts: Predictions) -> Prediction:
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
    return total.by(Prediction(expected, low, high, ""), basis)


def cost(total: Prediction, price: Price) -> Prediction:
    """Return the US dollars of renting the device for a time."""
    source = f"{price.source}, read {price.read}" if price.read else f"given by {price.source}"
    hourly = f"{format_money(price.usd_per_hour)} an hour ({source})"
    return total.times(price.usd_per_hour / 3600, hourly)


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


def _start(recipe: Recipe, plan: Plan) -> Prediction:
    low, expected, high = START_S.get(str(plan.device["kind"]), START_S[""])
    compiling = ""
    if plan.compile:
        compiling_s = compile_s(recipe, plan.device["name"], plan.precision)
        low, expected, high = low + compiling_s[0], expected + compiling_s[1], high + compiling_s[2]
        compiling = f", {format_duration(compiling_s[1])} of it for compiling"
    outside = "loading libraries and reading data come before"
    return Prediction(expected, low, high, f"to the first step{compiling}; {outside}")
