"""What comes of a budget and of sessions on every surveyed device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from brimful.base.errors import RequestError
from brimful.base.types import JsonDict, Numbers
from brimful.chains.plans import SurveyRequest, survey_jobs
from brimful.hardware import catalog
from brimful.hardware.groups import Group
from brimful.planning.budget import (
    Budget,
    BudgetCheck,
    Offer,
    Sessions,
    answer,
    parse_budget,
    parse_prices,
    ranked,
    session_seconds,
    sessions,
)
from brimful.planning.cost import checkpoint_seconds, conditions_of
from brimful.planning.job import WholeJob
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import Recipe
from brimful.rehearsal.kept_traces import kept_traces


@dataclass(frozen=True)
class Limits:
    """What a user sets beside recipe and devices.

    Attributes:
        budget: Time or money the run may take.
        session_s: Length after which a session is killed.
        prices: US dollars an hour by device name; "" is every device.
    """

    budget: Budget | None = None
    session_s: float | None = None
    prices: Numbers = field(default_factory=dict)


def limits_of(budget: str | None, session: str | None, prices: Sequence[str]) -> Limits:
    """Return the limits that a user writes: "3h" or "$5", "12h", and prices of an hour.

    Raises:
        RequestError: one of them cannot be read.
    """
    return Limits(
        budget=None if budget is None else parse_budget(budget),
        session_s=None if session is None else session_seconds(session),
        prices=parse_prices(prices),
    )


@dataclass(frozen=True)
class Answers:
    """What comes of the limits, by device name."""

    budget: Mapping[str, BudgetCheck] = field(default_factory=dict)
    sessions: Mapping[str, Sessions] = field(default_factory=dict)

    def to_json(self) -> JsonDict:
        """Plain values for JSON; nothing where nothing was asked."""
        budget = {device: entry.to_json() for device, entry in self.budget.items()}
        cut = {device: entry.to_json() for device, entry in self.sessions.items()}
        return ({"budget": budget} if budget else {}) | ({"sessions": cut} if cut else {})


def answers(recipe: Recipe, surveyed: Sequence[Surveyed | Unplanned], limits: Limits) -> Answers:
    """What comes of a budget and of sessions on every device that holds the recipe.

    A single device that does not surely keep to the budget is answered with the devices of the
    catalog that do.

    Raises:
        RequestError: the only device's time or price is unknown, or a session is too short; of
            several devices, all of them.
    """
    if limits.budget is None and limits.session_s is None:
        return Answers()
    held = [
        entry
        for entry in surveyed
        if isinstance(entry, Surveyed) and entry.verdict != "does not fit"
    ]
    budget: dict[str, BudgetCheck] = {}
    cut: dict[str, Sessions] = {}
    problems = []
    for entry in held:
        name, plan, job = entry.device.name, entry.derived.plan, entry.job
        assert job is not None  # noqa: S101 - of `survey_jobs`
        try:
            total_steps = _known_length(recipe, entry, job, limits)
            if limits.session_s is not None:
                counted, known = entry.derived.prepared.recipe, entry.conditions
                checkpoint_s = checkpoint_seconds(counted, plan, known).value
                whole = job.predicted["total_time_s"] if entry.chain else None
                cut[name] = sessions(limits.session_s, plan.predicted, checkpoint_s, whole)
            if limits.budget is not None:
                budget[name] = answer(limits.budget, job.predicted_at, total_steps)
        except RequestError as error:
            problems.append(error)
    if held and len(problems) == len(held):
        raise problems[0]
    if (
        limits.budget is not None
        and len(surveyed) == 1
        and held
        and budget[held[0].device.name].verdict != "fits"
    ):
        name = held[0].device.name
        budget[name] = replace(
            budget[name], others=_catalog_offers(recipe, held[0], limits.budget, limits.prices)
        )
    return Answers(budget, cut)


def _known_length(recipe: Recipe, entry: Surveyed, job: WholeJob, limits: Limits) -> int:
    """Steps of the run. RequestError with the way out where that, time or price is not known."""
    device, plan = entry.device, entry.derived.plan
    if "step_time_s" not in plan.predicted:
        raise RequestError(
            f"the time of {recipe.name} on {device.name} cannot be predicted: no rate is known"
            " for it."
        )
    if plan.total_steps is None:
        raise RequestError(
            f"{recipe.name} trains for {recipe.training.epochs:g} epochs of data that are not read"
            " yet, so its length is unknown. Say how long it is with training.steps=N or"
            " training.tokens=N."
        )
    predicted, unknown = job.predicted, [each for each in job.phases if each.time_s is None]
    if not predicted and unknown:
        raise RequestError(
            f"the time of {recipe.name} is not known, because that of its {unknown[0].title} is"
            f" not: {unknown[0].about}."
        )
    if limits.budget and limits.budget.kind == "money" and "cost_usd" not in predicted:
        raise RequestError(
            f"no price is known for {device.name}. Say what an hour costs in US dollars:"
            " --price 2.5"
        )
    return plan.total_steps


def _catalog_offers(
    recipe: Recipe, entry: Surveyed, budget: Budget, prices: Numbers
) -> tuple[Offer, ...]:
    """What the run takes on every other NVIDIA or AMD device of the catalog that surely holds it
    and whose time and price are known.
    """
    named = {name: price for name, price in prices.items() if name}
    devices = [
        device
        for name in catalog.names()
        if (device := catalog.get(name)).kind == "cuda" and device.name != entry.device.name
    ]
    if budget.kind == "money":
        devices = [device for device in devices if conditions_of(device.name, named).price]
    with kept_traces() as traces:
        asked = SurveyRequest(traces, named, remedied=False)
        others = survey_jobs(recipe, [Group(device) for device in devices], asked)
    found = [
        (other.device.name, other.predicted)
        for other in others
        if isinstance(other, Surveyed) and other.verdict == "fits"
    ]
    offers = [
        Offer(name, predicted["total_time_s"], predicted.get("cost_usd"))
        for name, predicted in found
        if "total_time_s" in predicted
    ]
    return tuple(ranked(offers, budget))
