"""Budgets: whether a run stays within a time, a sum of money or the length of a session, and how
many steps do. No torch.
"""

import bisect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from brimful.base.errors import RequestError
from brimful.base.types import JsonDict, Numbers
from brimful.base.units import format_duration, format_money, parse_duration
from brimful.hardware import catalog
from brimful.planning.plan import Prediction, Predictions, Verdict, summed, verdict_on

_MONEY = re.compile(r"\$\s*(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\s*(?:\$|usd)", re.IGNORECASE)
_SHELL = "Within double quotes a shell replaces $5: write '$5' in single quotes, or 5usd."


@dataclass(frozen=True)
class Budget:
    """The most that a run may take, in seconds or US dollars."""

    kind: Literal["time", "money"]
    limit: float

    @property
    def name(self) -> str:
        """The name of the limited prediction."""
        return "total_time_s" if self.kind == "time" else "cost_usd"

    @property
    def other(self) -> "Budget":
        """A budget in the other unit, without a limit."""
        return Budget("money" if self.kind == "time" else "time", math.inf)

    @property
    def phrase(self) -> str:
        """`in 3h 00m` or `for $5.00`."""
        preposition = "in" if self.kind == "time" else "for"
        return f"{preposition} {self.format(self.limit)}"

    def format(self, amount: float) -> str:
        """Return an amount in the unit of the budget, for people."""
        return format_duration(amount) if self.kind == "time" else format_money(amount)

    def verdict(self, prediction: Prediction) -> Verdict:
        """Return whether the run surely, perhaps or surely not stays within the budget."""
        return verdict_on(prediction, self.limit)


def session_seconds(text: str) -> float:
    """Parse the argument of `--session` and return seconds.

    Raises:
        RequestError: not a time above zero.
    """
    try:
        return parse_duration(text)
    except ValueError as error:
        raise RequestError(f"--session {error}") from error


def parse_budget(text: str) -> Budget:
    """Parse a time as in `parse_duration`, or money such as `$5` or `5usd`.

    Raises:
        RequestError: the text is neither.
    """
    money = _MONEY.fullmatch(text.strip())
    if money:
        limit = float(money[1] or money[2])
        if limit > 0:
            return Budget("money", limit)
    elif not text.strip() or re.fullmatch(r"[\d.]+", text.strip()):
        problem = f"{text!r} has no unit" if text.strip() else "is empty"
        raise RequestError(
            f"--budget {problem}. Write a time such as 90m, 3h or 1.5d, or money such as '$5' or"
            " 5usd."
            f" {_SHELL}"
        )
    try:
        return Budget("time", parse_duration(text))
    except ValueError as error:
        raise RequestError(
            f"--budget {text!r} is neither a time nor money above zero. Write a time such as 90m,"
            " 3h or 1.5d, or money such as '$5' or 5usd."
        ) from error


def parse_prices(texts: Sequence[str]) -> Numbers:
    """Parse prices such as `2.5` (for every device) and `NAME=0.8`. Return US dollars an hour by
    exact device name, with "" for every device.

    Raises:
        RequestError: not a price, or a device is named twice.
        DeviceError: no device of the catalog has this name.
    """
    prices: dict[str, float] = {}
    for text in texts:
        named, _, number = text.rpartition("=")
        name = catalog.get(named).name if named else ""
        try:
            usd_per_hour = float(number.strip().removeprefix("$"))
        except ValueError:
            usd_per_hour = math.nan
        if not (usd_per_hour >= 0 and math.isfinite(usd_per_hour)):
            raise RequestError(
                f"--price {text!r} is not a price. Write US dollars an hour, such as --price 2.5,"
                ' or for one device --price "NVIDIA L4=0.8".'
            )
        if name in prices:
            raise RequestError(
                f"--price is given twice for {name or 'every device'!r}: {prices[name]:g} and"
                f" {usd_per_hour:g}. Give it once."
            )
        prices[name] = usd_per_hour
    return prices


@dataclass(frozen=True)
class Offer:
    """Time and cost of a run on another device; no cost where its price is unknown."""

    device: str
    time: Prediction
    money: Prediction | None

    def amount(self, budget: Budget) -> Prediction | None:
        """Return the prediction that the budget limits."""
        return self.time if budget.kind == "time" else self.money

    def keeps_to(self, budget: Budget) -> bool:
        """Return whether the run surely stays within the budget."""
        amount = self.amount(budget)
        return amount is not None and budget.verdict(amount) == "fits"


@dataclass(frozen=True)
class BudgetCheck:
    """A budget compared with a run on one device.

    Attributes:
        budget: The limit.
        verdict: Verdict as in Budget.verdict.
        amount: Prediction for the run, in the unit of the budget.
        beside: The same in money for a budget of time, in time for one of money; None where that is
            not known.
        total_steps: Number of steps of the run.
        steps: Number of steps that surely stay within the budget; 0 for none.
        others: Other devices, ranked.
    """

    budget: Budget
    verdict: Verdict
    amount: Prediction
    total_steps: int
    steps: int
    others: tuple[Offer, ...] = ()
    beside: Prediction | None = None

    @property
    def over(self) -> float:
        """Expected amount above the budget; negative where some is left."""
        return self.amount.value - self.budget.limit

    def to_json(self) -> JsonDict:
        """Plain values for JSON."""
        return {**asdict(self), "over": self.over}


def answer(
    budget: Budget, predicted_at: Callable[[int], Predictions], total_steps: int
) -> BudgetCheck:
    """Compare a run with a budget and find the number of steps that stay within it.

    Args:
        budget: Limits total_time_s or cost_usd.
        predicted_at: Predictions of the whole run with this many steps.
        total_steps: The total steps of the recipe.
    """
    predicted = predicted_at(total_steps)
    amount = predicted[budget.name]
    steps = bisect.bisect_right(
        range(1, total_steps + 1),
        budget.limit,
        key=lambda count: predicted_at(count)[budget.name].high,
    )
    # Not monotonic: with one step more a run can have one evaluation less.
    while steps and predicted_at(steps)[budget.name].high > budget.limit:
        steps -= 1
    beside = predicted.get(budget.other.name)
    return BudgetCheck(budget, budget.verdict(amount), amount, total_steps, steps, beside=beside)


def ranked(offers: Sequence[Offer], budget: Budget) -> list[Offer]:
    """Sort offers: first those that surely stay within the budget, the cheapest first for a time
    and the quickest first for money; then the others by how little they exceed it.
    """

    def order(offer: Offer) -> tuple[bool, float, float]:
        money = offer.money.value if offer.money else math.inf
        keeps = offer.keeps_to(budget)
        if keeps == (budget.kind == "time"):
            return not keeps, money, offer.time.value
        return not keeps, offer.time.value, money

    return sorted((offer for offer in offers if offer.amount(budget)), key=order)


@dataclass(frozen=True)
class Sessions:
    """A run in sessions that are killed at their end.

    Attributes:
        session_s: Length of a session.
        count: Number of sessions: expected, low, high.
        every: Optimizer steps between checkpoints that lose the least time.
        interval_s: The same in seconds.
        checkpoint_s: Time of one checkpoint.
        lost_share: Share of a killed session, after its start, that is spent on checkpoints and on
            work that the next session repeats.
    """

    session_s: float
    count: tuple[int, int, int]
    every: int
    interval_s: float
    checkpoint_s: float
    lost_share: float

    def to_json(self) -> JsonDict:
        """Plain values for JSON."""
        return {**asdict(self), "count": list(self.count)}


def checkpoint_interval_s(checkpoint_s: float, interruption_s: float) -> float:
    """Return the time between checkpoints that loses the least: sqrt(2 x checkpoint x time to the
    interruption).

    Young 1974 (CACM 17:9); Daly 2006 (FGCS 22:3) shows that it holds where a checkpoint takes much
    less than the time to the interruption.
    """
    return math.sqrt(2 * checkpoint_s * interruption_s)


def sessions(
    session_s: float,
    predicted: Predictions,
    checkpoint_s: float,
    work: Prediction | None = None,
) -> Sessions:
    """Return how many sessions a run takes when each is killed at its end, and how often to save.

    Each session starts and compiles again, and repeats on average half of the work between two
    checkpoints.

    Args:
        session_s: Length of a session.
        predicted: step_time_s and the parts of a training.
        checkpoint_s: Time of one checkpoint.
        work: Time of all of a job that is more than one training.

    Raises:
        RequestError: a session ends before it has done a step and saved it, so that no number of
            them finishes the run.
    """
    step_s, anew_s = predicted["step_time_s"].value, predicted["start_time_s"].value
    room_s = session_s - anew_s - checkpoint_s
    best_s = min(checkpoint_interval_s(checkpoint_s, session_s), session_s / 2)
    every = max(1, min(round(best_s / step_s), int(room_s // step_s)))
    interval_s = every * step_s
    share = 1 / (1 + checkpoint_s / interval_s)
    last_s, each_s = (session_s - anew_s) * share, (session_s - anew_s - interval_s / 2) * share
    if interval_s > room_s:
        raise RequestError(
            f"--session {format_duration(session_s)} is too short: start and compiling take about"
            f" {format_duration(anew_s)}, a step {format_duration(step_s)}, a checkpoint"
            f" {format_duration(checkpoint_s)}. Allow longer sessions, a faster device or a smaller"
            " batch."
        )
    if work is None:
        parts = (predicted["training_time_s"], predicted["evaluation_time_s"])
        work = summed((("rate", part) for part in parts), "")

    def count(work_s: float) -> int:
        return 1 + max(0, math.ceil((work_s - last_s) / each_s))

    counts = (count(work.value), count(work.low), count(work.high))
    return Sessions(
        session_s, counts, every, interval_s, checkpoint_s, 1 - each_s / (session_s - anew_s)
    )
