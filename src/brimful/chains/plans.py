"""Planning as a whole: a recipe on one device or on many. Nothing here imports torch unless a trace
has to be made or this machine is asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from brimful.base.console import Say, silent
from brimful.base.errors import DeviceError, PlanError, RequestError
from brimful.base.types import Numbers
from brimful.chains.devices import conditions, facts_of, groups_of, here
from brimful.chains.job import as_trained, job_of
from brimful.chains.phases import recipes_to_plan
from brimful.chains.surveyed_devices import (
    Known,
    cost_surveyed,
    survey_closely,
    survey_group,
    with_remedy,
)
from brimful.data.counts import count, num_questions
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.hardware.groups import Group
from brimful.planning.cost import costed
from brimful.planning.derive import derive, derive_with_memory
from brimful.planning.job import ORDER
from brimful.planning.plan import Plan
from brimful.planning.specs import model_facts
from brimful.planning.survey import Tracer
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import Recipe
from brimful.rehearsal.kept_traces import kept_traces
from brimful.rehearsal.shipped import obstacle
from brimful.report.plan.answer import verdict_of
from brimful.report.quantities import time_and_cost


def plan(
    recipe: Recipe, device: Device | str | None = None, *, trust_custom_code: bool = False
) -> Plan:
    """Return how a recipe runs on a device: choices, the micro-batch, the peak memory by term.

    Args:
        recipe: What to train.
        device: A Device, the name of a catalog row ("T4" is enough), or None for the one of this
            machine that the recipe would use.
        trust_custom_code: Consent to run code that comes with a published model.

    Raises:
        PlanError: it does not fit, or cannot be traced.
        DeviceError: no such device.
    """
    if device is None:
        chosen = here(recipe)
    elif isinstance(device, Device):
        chosen = device
    else:
        chosen = catalog.get(device)
    model = model_facts(recipe, trust_custom_code=trust_custom_code)
    facts = facts_of(chosen, measures=True, model=model)
    with kept_traces() as traces:
        return costed(recipe, derive(recipe, chosen, traces, facts), conditions(chosen))


def survey(
    recipe: Recipe,
    on: str = "here",
    *,
    trust_custom_code: bool = False,
    prices: Numbers | None = None,
    compiles: bool = False,
    up_to: int | None = None,
    progress: Say = silent,
) -> list[Surveyed | Unplanned]:
    """A recipe's job on the devices that `on` names. The plan of a study is that of the variant
    that needs most.

    Args:
        recipe: What to train.
        on: "here", "all" (the whole catalog), or names separated by commas, "here" among them;
            `8 x NAME` are several devices that share the job.
        trust_custom_code: Consent to run code that comes with a published model.
        prices: US dollars an hour by device name, "" for every device, in place of the catalog's.
        compiles: Steps that the plan compiles are traced as such, some ten seconds for each kind.
        up_to: Each device also in groups of 2, 4, ... up to so many.
        progress: Is told what is being done.

    Raises:
        DeviceError: no such device.
        RequestError: more devices than sequences in a step.
        PlanError: the only device asked for cannot be planned for; or the model is no model.
    """
    doing = _Progress(progress)
    doing("looking at the device")
    groups = groups_of(recipe, on, up_to)
    doing("looking up the model")
    with kept_traces(doing, compiles=compiles) as traces:
        asked = SurveyRequest(traces, prices or {}, doing, trusts_custom_code=trust_custom_code)
        return survey_jobs(recipe, groups, asked)


def survey_jobs(
    recipe: Recipe, groups: Sequence[Group], asked: "SurveyRequest"
) -> list[Surveyed | Unplanned]:
    """A recipe's job on several groups of devices, a single one looked at closely; errors as
    `survey`.
    """
    recipes, is_only = recipes_to_plan(recipe), len(groups) == 1
    known = {
        name: Known(model_facts(each, trust_custom_code=asked.trusts_custom_code), count(each))
        for name, each in recipes.items()
    }
    questions = num_questions(recipe)
    surveyed: list[Surveyed | Unplanned] = []
    for number, group in enumerate(groups, 1):
        entries: dict[str, Surveyed | Unplanned] = {}
        for name, each in recipes.items():
            told = f"device {number} of {len(groups)}: {group.name}" if not is_only else name
            asked.progress(told or group.name)
            is_variant = recipe.study is not None and name in recipe.study.variants
            measures = is_only and not is_variant  # one of them is looked at closely below
            look = partial(_survey_one, each, group, known[name], asked, measures=measures)
            is_main = not name
            entries[name] = look(closely=is_only and is_main, remedied=is_main and asked.remedied)
        if is_only and "" not in recipes:
            most = _needs_most(entries)
            look = partial(_survey_one, recipes[most], group, known[most], asked, measures=True)
            entries[most] = look(closely=True)
        planned = "" if "" in recipes else _needs_most(entries)
        main = entries[planned]
        if isinstance(main, Surveyed):
            main = replace(main, job=job_of(recipe, as_trained(entries), questions, planned))
        surveyed.append(main)
    return surveyed


def _needs_most(entries: Mapping[str, Surveyed | Unplanned]) -> str:
    """Return the name of the training with the worst verdict, then with most memory."""

    def need(name: str) -> tuple[int, float]:
        entry = entries[name]
        if isinstance(entry, Unplanned):
            return -1, 0.0
        return ORDER.index(entry.verdict), entry.memory[0]

    return max(entries, key=need)


def _survey_one(
    recipe: Recipe,
    group: Group,
    known: Known,
    asked: "SurveyRequest",
    *,
    closely: bool = False,
    measures: bool = False,
    remedied: bool = False,
    more: bool = False,
) -> Surveyed | Unplanned:
    """Plan one training on a device or a group of devices; Unplanned says why it has no plan there.

    Args:
        recipe: The training.
        group: The devices.
        known: What is known of the recipe on any device.
        asked: What all questions have in common.
        closely: Compare recomputation, and look for what would make it fit.
        measures: Time real passes on this machine's CPU where none are kept.
        remedied: Look for the cheapest change that makes it fit.
        more: Where several devices do not surely hold it, look for the number that does.

    Raises:
        PlanError, RequestError: the same of a device that is looked at `closely`.
    """
    traces, prices = asked.traces, asked.prices
    try:
        if group.count > 1:
            return survey_group(recipe, group, traces, known, prices, closely=closely or more)
        facts = known.facts(recipe, group.device, measures=measures)
        if not closely:
            entry = Surveyed(derive_with_memory(recipe, group.device, traces, facts))
            entry = with_remedy(entry, traces) if remedied else entry
            return cost_surveyed(entry, prices, known.data)

        def answered(entry: Surveyed) -> None:
            asked.progress.answered(cost_surveyed(entry, prices, known.data))

        tell = answered if asked.progress.is_heard and not recipe.makes_several_runs else None
        closest = survey_closely(recipe, group.device, traces, facts, tell)
        return cost_surveyed(closest, prices, known.data)
    except (PlanError, RequestError, DeviceError) as error:
        if closely:
            raise
        return Unplanned(group.named_device, str(error))


def note_on_recordings(surveyed: Sequence[Surveyed | Unplanned]) -> str | None:
    """Return why recordings that come with brimful were of no use for these plans; None where
    nothing stood in the way.
    """
    for entry in surveyed:
        if isinstance(entry, Surveyed):
            step = entry.derived.prepared.spec(recompute=False)
            return obstacle(str(step.config.get("model_type")))
    return None


def survey_groups(
    recipe: Recipe,
    groups: Sequence[Group],
    traces: Tracer,
    known: Known,
    *,
    prices: Numbers | None = None,
    closely: bool = False,
) -> list[Surveyed | Unplanned]:
    """A recipe on several groups of devices, with traces that the caller keeps from one question to
    the next.

    Args:
        recipe: What to train.
        groups: The groups of catalog rows, or this machine alone.
        traces: The traces of declared steps.
        known: What is known of the recipe on any device.
        prices: Prices as in `survey`.
        closely: Where several devices do not surely hold it, look for the number that does.
    """
    asked = SurveyRequest(traces, prices or {})
    return [_survey_one(recipe, group, known, asked, more=closely) for group in groups]


class _Progress:
    """Says what is being done, behind the answer once that is known."""

    def __init__(self, say: Say) -> None:
        self._say, self._answer = say, ""

    def __call__(self, text: str) -> None:
        self._say(self._answer + text)

    def answered(self, surveyed: Surveyed) -> None:
        """Say the answer, and from now on before all else that is done."""
        amounts = time_and_cost(surveyed.predicted, intervals=False)
        self._answer = f"{verdict_of(surveyed)}{amounts}; "
        fits = surveyed.verdict == "fits"
        self("comparing recomputation" if fits else "looking for what would make it fit")

    @property
    def is_heard(self) -> bool:
        """Whether anybody is told."""
        return self._say is not silent


@dataclass(frozen=True)
class SurveyRequest:
    """What questions about devices have in common.

    Attributes:
        traces: The traces of declared steps, kept from one question to the next.
        prices: Prices as in `survey`.
        progress: Is told what is being done.
        trusts_custom_code: Whether code that comes with a published model may run.
        remedied: Where a device does not surely hold it, look for the cheapest change that helps.
    """

    traces: Tracer
    prices: Numbers = field(default_factory=dict)
    progress: _Progress = field(default_factory=lambda: _Progress(silent))
    trusts_custom_code: bool = False
    remedied: bool = True
