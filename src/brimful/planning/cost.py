"""What a run takes beside its steps (evaluation, checkpoints, compiling, start), and what all of it
takes in energy and money. No torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from brimful.base.units import format_duration, format_money
from brimful.hardware import catalog
from brimful.hardware.catalog import Price
from brimful.planning.choices import COMPILE_SECONDS
from brimful.planning.plan import Plan, Prediction
from brimful.recipe import Recipe

EVALUATIONS_PER_RUN = 10
"""About so many with `evaluation.every: auto`; see `evaluate_every`."""
CHECKPOINT_AFTER_S = 60.0
MOST_CHECKPOINT_SHARE = 1 / 20
"""What `checkpoint.every: auto` means in the loop: about one a minute, but no more than this share
of the time for writing them.
"""
CHECKPOINT_BYTES_PER_S = (60e6, 200e6, 1e9)
"""Low, expected, high rate at which a checkpoint is copied, written, hashed, synced and read back.
Measured here 157 to 240 MB/s (2 cores, checkpoints of 20 to 300 MB, 2026-11-21); the rest is
assumption.
"""
HASH_BYTES_PER_S = 260e6
"""Copying, hashing and reading back without waiting for the disk: bytes over CPU time of the same
measurement.
"""
COMPILE_S = (7.0, COMPILE_SECONDS, 60.0)
"""Low as measured on a CPU (planning.choices); high is an assumption for GPUs that tune their
kernels.
"""
START_S = (0.3, 1.5, 10.0)
"""From the start of training to its first step, as runs count it (1.2 s for quickstart here,
2026-11-21; the rest is assumption). Loading libraries (7 s here) and reading data come before.
"""
FORWARD_SHARE = {
    (False, False): 1 / 3,
    (False, True): 1 / 4,
    (True, False): 1 / 2,
    (True, True): 1 / 3,
}
"""Time of a forward pass over that of a training pass, by (frozen base, recomputes): 2 of 6, 8, 4,
6 FLOPs per parameter and token. For plans that do not know their own evaluation batch's.
"""
FORWARD_SPREAD = 1.3
"""Factor either way on that share (assumption)."""
SHARE_SPREAD = 1.15
"""The same on a share predicted from the evaluation batch's own operators: it errs with the step,
but not quite alike (assumption).
"""
UNREAD_VALIDATION = (0.02, 0.3, 1.5)
"""Where the data are not read, one epoch over what the whole run sees: fifty, about three, or less
than one epoch (assumption).
"""
POWER_SHARE = (0.35, 0.76, 1.0)
"""Mean power over the board's limit. Expected: 8 x H100 under training loads drew 76 % of their
rating (arXiv 2506.14551, read 2026-11-21); low: an assumption for small models that leave the
device idle between kernels; the limit is the most there can be.
"""
PARTS = ("training_time_s", "evaluation_time_s", "checkpoint_time_s", "start_time_s")
"""What total_time_s is made of."""
WHOLE_RUN = (
    *PARTS,
    "total_time_s",
    "energy_wh",
    "cost_usd",
    "billion_tokens_s",
    "billion_tokens_usd",
)
"""Names of predictions that are made here."""


@dataclass(frozen=True)
class Conditions:
    """What is known beside recipe and plan; each better than the guess made without it.

    Attributes:
        price: Of an hour of the device.
        power_w: The board's power limit.
        validation_sequences: In the validation split.
        train_sequences: In one epoch.
        disk_bytes_per_s: At which files are written and synced (`brimful calibrate`).
    """

    price: Price | None = None
    power_w: float | None = None
    validation_sequences: int | None = None
    train_sequences: int | None = None
    disk_bytes_per_s: float | None = None


def conditions_of(
    device_name: str,
    prices: Mapping[str, float] | None = None,
    disk_bytes_per_s: float | None = None,
) -> Conditions:
    """Price and power limit of a device from the catalog; `prices` (see `budget.parse_prices`) go
    first.
    """
    return Conditions(
        price=_price_of(device_name, prices or {}),
        power_w=catalog.power_of(device_name),
        disk_bytes_per_s=disk_bytes_per_s,
    )


def _price_of(device_name: str, prices: Mapping[str, float]) -> Price | None:
    given = prices.get(device_name, prices.get(""))
    if given is not None:
        return Price(given, f"{given:g}", "--price", "")
    return catalog.price_of(device_name) if catalog.find(device_name) else None


def costed(recipe: Recipe, plan: Plan, conditions: Conditions) -> Plan:
    """The plan with `whole_run` among its predictions."""
    kept = {name: entry for name, entry in plan.predicted.items() if name not in WHOLE_RUN}
    return replace(plan, predicted=kept | whole_run(recipe, plan, conditions))


def whole_run(
    recipe: Recipe, plan: Plan, conditions: Conditions, steps: int | None = None
) -> dict[str, Prediction]:
    """PARTS and total_time_s, and where power and price are known energy_wh and cost_usd.

    Where the length of the run is unknown: billion_tokens_s of training alone, and where the price
    is known billion_tokens_usd.

    Args:
        recipe: Says how often the run evaluates and saves.
        plan: With step_time_s among its predictions.
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
        billion = _times(
            step_time, 1e9 / (plan.effective_batch * plan.sequence_length), "training alone"
        )
        return {"billion_tokens_s": billion} | (
            {"billion_tokens_usd": cost(billion, conditions.price)} if conditions.price else {}
        )
    training = _times(step_time, steps, f"{steps:,} steps")
    found = {
        "training_time_s": training,
        "evaluation_time_s": _evaluation(recipe, plan, conditions, step_time, steps),
        "checkpoint_time_s": _checkpoints(recipe, plan, conditions, training, steps),
        "start_time_s": _start(plan),
    }
    total = total_time(found)
    found["total_time_s"] = total
    if conditions.power_w:
        found["energy_wh"] = energy(total, conditions.power_w)
    if conditions.price is not None:
        found["cost_usd"] = cost(total, conditions.price)
    return found


def evaluate_every(recipe: Recipe, steps: int) -> int:
    """Optimizer steps from one evaluation of a run to the next."""
    every = recipe.evaluation.every
    return max(1, steps // EVALUATIONS_PER_RUN) if every == "auto" else every


def evaluations(recipe: Recipe, steps: int) -> int:
    """Of a run: one every so many steps, and one at its end."""
    return math.ceil(steps / evaluate_every(recipe, steps))


def total_time(parts: Mapping[str, Prediction]) -> Prediction:
    """The sum of PARTS. Training and evaluation err together, so their intervals add; with the
    other parts they combine in quadrature.
    """
    together = ("training_time_s", "evaluation_time_s")
    value = sum(part.value for part in parts.values())
    below = [sum(parts[name].value - parts[name].low for name in together)]
    above = [sum(parts[name].high - parts[name].value for name in together)]
    below += [part.value - part.low for name, part in parts.items() if name not in together]
    above += [part.high - part.value for name, part in parts.items() if name not in together]
    return Prediction(
        value,
        value - math.hypot(*below),
        value + math.hypot(*above),
        "training, evaluation, checkpoints, start and compiling",
    )


def energy(total: Prediction, power_w: float) -> Prediction:
    """Watt hours of the device alone, from the time of the whole run and the board's power
    limit.
    """
    low, expected, high = (share * power_w / 3600 for share in POWER_SHARE)
    basis = (
        f"{POWER_SHARE[1]:.0%} of {power_w:g} W on average ({POWER_SHARE[0]:.0%} to"
        f" {POWER_SHARE[2]:.0%}), the device alone"
    )
    return Prediction(total.value * expected, total.low * low, total.high * high, basis)


def cost(total: Prediction, price: Price) -> Prediction:
    """US dollars of renting the device for a time."""
    hourly = price.usd_per_hour / 3600
    source = f"{price.source}, read {price.read}" if price.read else f"given by {price.source}"
    return Prediction(
        total.value * hourly,
        total.low * hourly,
        total.high * hourly,
        f"{format_money(price.usd_per_hour)} an hour ({source})",
    )


def checkpoint_seconds(recipe: Recipe, plan: Plan, conditions: Conditions) -> Prediction:
    """Time of one checkpoint: trained weights and optimizer states."""
    states = plan.memory_terms.get("optimizer states", 0)
    trained = plan.memory_terms.get("weights" if recipe.adapter is None else "adapters", 0)
    low, expected, high = CHECKPOINT_BYTES_PER_S
    if conditions.disk_bytes_per_s:
        expected = 1 / (1 / conditions.disk_bytes_per_s + 1 / HASH_BYTES_PER_S)
        low, high = expected / 2, expected * 1.5
    num_bytes = states + trained
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


def _start(plan: Plan) -> Prediction:
    outside = "loading libraries and reading data come before"
    if not plan.compile:
        return _spread(START_S, f"to the first step; {outside}")
    low, expected, high = (
        start + compiling for start, compiling in zip(START_S, COMPILE_S, strict=True)
    )
    return Prediction(
        expected,
        low,
        high,
        f"to the first step, {format_duration(COMPILE_S[1])} of it for compiling; {outside}",
    )


def _evaluation(
    recipe: Recipe, plan: Plan, conditions: Conditions, step_time: Prediction, steps: int
) -> Prediction:
    count = evaluations(recipe, steps)
    sequences, told = _validation_sequences(recipe, conditions, steps)
    share = plan.evaluation_share or FORWARD_SHARE[recipe.adapter is not None, plan.recompute]
    spread, batch = (
        SHARE_SPREAD if plan.evaluation_share else FORWARD_SPREAD,
        recipe.effective_batch,
    )
    return Prediction(
        count * sequences.value / batch * share * step_time.value,
        count * sequences.low / batch * share / spread * step_time.low,
        count * sequences.high / batch * share * spread * step_time.high,
        f"{count:,} x {round(sequences.value):,} validation sequences{told}",
    )


def _validation_sequences(
    recipe: Recipe, conditions: Conditions, steps: int
) -> tuple[Prediction, str]:
    most = recipe.evaluation.max_sequences or math.inf
    share = recipe.data.validation / (1 - recipe.data.validation - recipe.data.test)
    known = conditions.validation_sequences or (
        conditions.train_sequences and share * conditions.train_sequences
    )
    if known is not None:
        return _spread((min(known, most),) * 3, ""), ""
    seen = share * steps * recipe.effective_batch
    low, expected, high = (max(1.0, min(factor * seen, most)) for factor in UNREAD_VALIDATION)
    return _spread((low, expected, high), ""), ", a guess: the data are not read yet"


def _checkpoints(
    recipe: Recipe, plan: Plan, conditions: Conditions, training: Prediction, steps: int
) -> Prediction:
    each = checkpoint_seconds(recipe, plan, conditions)

    def count(training_s: float) -> int:
        every = recipe.checkpoint.every
        by_interval = (
            int(training_s // max(CHECKPOINT_AFTER_S, each.value / MOST_CHECKPOINT_SHARE))
            if every == "auto"
            else steps // every
        )
        return min(steps, evaluations(recipe, steps) + by_interval)

    number = count(training.value)
    low, high = each.low * count(training.low), each.high * count(training.high)
    return Prediction(each.value * number, low, high, f"{number:,} of {each.basis}")
