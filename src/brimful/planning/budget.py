"""Whether a run keeps to a time, a sum of money or the length of a session, by how much it does
not, and how many steps would. No torch.
"""

import bisect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from brimful.base.errors import RequestError
from brimful.base.units import format_duration, format_money, parse_duration
from brimful.hardware import catalog
from brimful.planning.memory import Verdict
from brimful.planning.plan import Prediction

_MONEY = re.compile(r"\$\s*(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\s*(?:\$|usd)", re.IGNORECASE)
_SHELL = "Within double quotes a shell replaces $5: write '$5' in single quotes, or 5usd."


@dataclass(frozen=True)
class Budget:
    """What a run may take: seconds or US dollars."""

    kind: Literal["time", "money"]
    limit: float

    @property
    def name(self) -> str:
        """Of the prediction that it limits."""
        return "total_time_s" if self.kind == "time" else "cost_usd"

    @property
    def phrase(self) -> str:
        """`in 3h 00m` or `for $5.00`."""
        return f"{'in' if self.kind == 'time' else 'for'} {self.told(self.limit)}"

    def told(self, amount: float) -> str:
        """An amount of what is limited, as people read it."""
        return format_duration(amount) if self.kind == "time" else format_money(amount)

    def verdict(self, prediction: Prediction) -> Verdict:
        """Whether the run surely keeps to it, may or may not, or surely does not."""
        if prediction.high <= self.limit:
            return "fits"
        return "uncertain" if prediction.low <= self.limit else "does not fit"


def session_seconds(text: str) -> float:
    """The length of a session, as `--session` says it.

    Raises:
        RequestError: not a time above zero.
    """
    try:
        return parse_duration(text)
    except ValueError as error:
        raise RequestError(f"--session {error}") from error


def parse_budget(text: str) -> Budget:
    """A time as in `parse_duration`, or money: `$5`, `5usd`.

    Raises:
        RequestError: neither, or nothing.
    """
    money = _MONEY.fullmatch(text.strip())
    if money:
        limit = float(money[1] or money[2])
        if limit > 0:
            return Budget("money", limit)
    elif not text.strip() or re.fullmatch(r"[\d.]+", text.strip()):
        said = "is empty" if not text.strip() else f"{text!r} has no unit"
        raise RequestError(
            f"--budget {said}. Write a time such as 90m, 3h or 1.5d, or money such as '$5' or 5usd."
            f" {_SHELL}"
        )
    try:
        return Budget("time", parse_duration(text))
    except ValueError as error:
        raise RequestError(
            f"--budget {text!r} is neither a time nor money above zero. Write a time such as 90m,"
            " 3h or 1.5d, or money such as '$5' or 5usd."
        ) from error


def parse_prices(texts: Sequence[str]) -> dict[str, float]:
    """`2.5` (every device asked about) and `NAME=0.8` -> US dollars an hour by exact device name,
    "" being every device.

    Raises:
        RequestError: no such number, or a device named twice.
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
    """What a run takes on another device: seconds, and US dollars where its price is known."""

    device: str
    time: Prediction
    money: Prediction | None

    def amount(self, budget: Budget) -> Prediction | None:
        """What the budget limits."""
        return self.time if budget.kind == "time" else self.money

    def keeps_to(self, budget: Budget) -> bool:
        """Surely."""
        amount = self.amount(budget)
        return amount is not None and budget.verdict(amount) == "fits"


@dataclass(frozen=True)
class BudgetCheck:
    """What comes of a budget on one device.

    Attributes:
        budget: Asked for.
        verdict: As in Budget.verdict.
        amount: What the run takes, in the unit of the budget.
        total_steps: Of the run.
        steps: How many surely keep to the budget; 0 for none.
        others: Other devices, ranked.
    """

    budget: Budget
    verdict: Verdict
    amount: Prediction
    total_steps: int
    steps: int
    others: tuple[Offer, ...] = ()

    @property
    def over(self) -> float:
        """How much more than the budget is expected; negative where some is left."""
        return self.amount.value - self.budget.limit

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "over": self.over}


def answer(
    budget: Budget, predicted_at: Callable[[int], Mapping[str, Prediction]], total_steps: int
) -> BudgetCheck:
    """Whether a run keeps to a budget, and how many steps would.

    Args:
        budget: Limits total_time_s or cost_usd.
        predicted_at: Predictions of the whole run with this many steps.
        total_steps: Of the recipe.
    """
    amount = predicted_at(total_steps)[budget.name]
    steps = bisect.bisect_right(
        range(1, total_steps + 1),
        budget.limit,
        key=lambda count: predicted_at(count)[budget.name].high,
    )
    while (
        steps and predicted_at(steps)[budget.name].high > budget.limit
    ):  # a step more can bring an evaluation less
        steps -= 1
    return BudgetCheck(budget, budget.verdict(amount), amount, total_steps, steps)


def ranked(offers: Sequence[Offer], budget: Budget) -> list[Offer]:
    """Those that surely keep to the budget first: to a time, the cheapest first, to money, the
    quickest. Then the others, the nearest first.
    """

    def order(offer: Offer) -> tuple[bool, float, float]:
        money = offer.money.value if offer.money else math.inf
        by_time, by_money = (offer.time.value, money), (money, offer.time.value)
        keeps = offer.keeps_to(budget)
        return (not keeps, *(by_money if keeps == (budget.kind == "time") else by_time))

    return sorted((offer for offer in offers if offer.amount(budget)), key=order)


@dataclass(frozen=True)
class Sessions:
    """A run cut into sessions that are killed at their end.

    Attributes:
        session_s: Length of a session.
        count: Sessions the run takes: expected, low, high.
        every: Optimizer steps between checkpoints that lose least.
        interval_s: The same in seconds.
        checkpoint_s: Time of one checkpoint.
        lost_share: Of a killed session's time after its start, what checkpoints and work to be done
            again take.
    """

    session_s: float
    count: tuple[int, int, int]
    every: int
    interval_s: float
    checkpoint_s: float
    lost_share: float

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "count": list(self.count)}


def checkpoint_interval_s(checkpoint_s: float, interruption_s: float) -> float:
    """Time between checkpoints that loses least: sqrt(2 x checkpoint x time to the interruption).

    Young 1974 (CACM 17:9); Daly 2006 (FGCS 22:3) shows that it holds where a checkpoint takes much
    less than the time to the interruption.
    """
    return math.sqrt(2 * checkpoint_s * interruption_s)


def sessions(
    session_s: float, predicted: Mapping[str, Prediction], checkpoint_s: float
) -> Sessions:
    """How many sessions a run takes when each is killed at its end, and how often to save.

    Each session starts and compiles anew, and repeats on average half of what lies between two
    checkpoints.

    Args:
        session_s: Length of a session.
        predicted: step_time_s and the parts of the whole run.
        checkpoint_s: Time of one checkpoint.

    Raises:
        RequestError: a session ends before it has done a step and saved it, so that no number of
            them finishes the run.
    """
    step_s, anew_s = predicted["step_time_s"].value, predicted["start_time_s"].value
    room_s = session_s - anew_s - checkpoint_s
    every = max(
        1,
        min(
            round(min(checkpoint_interval_s(checkpoint_s, session_s), session_s / 2) / step_s),
            int(room_s // step_s),
        ),
    )
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
    work = [predicted["training_time_s"], predicted["evaluation_time_s"]]

    def count(work_s: float) -> int:
        return 1 + max(0, math.ceil((work_s - last_s) / each_s))

    counts = (
        count(sum(part.value for part in work)),
        count(sum(part.low for part in work)),
        count(sum(part.high for part in work)),
    )
    return Sessions(
        session_s, counts, every, interval_s, checkpoint_s, 1 - each_s / (session_s - anew_s)
    )
