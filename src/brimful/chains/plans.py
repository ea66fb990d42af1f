"""Planning as a whole: a recipe on one device or on many. Nothing here imports torch unless a trace
has to be made or this machine is asked.
"""

from collections.abc import Mapping, Sequence

from brimful.base.console import Say, silent
from brimful.base.errors import PlanError, RequestError
from brimful.chains.devices import conditions, facts_of, groups_of, here
from brimful.chains.surveyed_devices import (
    cost_surveyed,
    survey_closely,
    survey_each,
    survey_group,
)
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.hardware.groups import Group
from brimful.planning.cost import costed
from brimful.planning.derive import derive
from brimful.planning.plan import Plan
from brimful.planning.specs import ModelFacts, model_facts
from brimful.planning.survey import Tracer
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import Recipe
from brimful.rehearsal.kept_traces import kept_traces
from brimful.rehearsal.shipped_skeletons import obstacle
from brimful.report.plan.answer import time_and_cost, verdict_of


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
    prices: Mapping[str, float] | None = None,
    compiles: bool = False,
    up_to: int | None = None,
    progress: Say = silent,
    ahead: bool = False,
) -> list[Surveyed | Unplanned]:
    """A recipe on the devices that `on` names.

    Args:
        recipe: What to train.
        on: "here", "all" (the whole catalog), or names separated by commas, "here" among them;
            `8 x NAME` are several devices that share the job.
        trust_custom_code: Consent to run code that comes with a published model.
        prices: US dollars an hour by device name, "" for every device, in place of the catalog's.
        compiles: Steps that the plan compiles are traced as such, some ten seconds for each kind.
        up_to: Each device also in groups of 2, 4, ... up to so many.
        progress: Is told what is being done.
        ahead: Steps that will probably be asked for next are recorded meanwhile by processes that
            are forked from this one, where there are cores.

    Raises:
        DeviceError: no such device.
        RequestError: more devices than sequences in a step.
        PlanError: the only device asked for cannot be planned for; or the model is no model.
    """
    doing = _Progress(progress)
    doing("looking at the device")
    groups = groups_of(recipe, on, up_to)
    doing("looking up the model")
    model = model_facts(recipe, trust_custom_code=trust_custom_code)
    single = [group.device for group in groups if group.count == 1]
    with kept_traces(doing, compiles=compiles, ahead=ahead) as traces:
        surveyed = {
            entry.device.name: cost_surveyed(entry, prices or {})
            if isinstance(entry, Surveyed)
            else entry
            for entry in _survey_all(
                recipe, single, traces, model, doing, prices or {}, is_only=len(groups) == 1
            )
        }
        for group in groups:
            if group.count > 1:
                doing(group.name)
                surveyed[group.name] = _survey_group(
                    recipe, group, traces, model, prices, is_only=len(groups) == 1
                )
    return [surveyed[group.name] for group in groups]


def note_on_recordings(surveyed: Sequence[Surveyed | Unplanned]) -> str | None:
    """Return why recordings that come with brimful were of no use for these plans; None where
    nothing stood in the way.
    """
    for entry in surveyed:
        if isinstance(entry, Surveyed):
            step = entry.derived.prepared.spec(recompute=False)
            return obstacle(str(step.config.get("model_type")))
    return None


def _survey_group(
    recipe: Recipe,
    group: Group,
    traces: Tracer,
    model: ModelFacts,
    prices: Mapping[str, float] | None,
    *,
    is_only: bool,
) -> Surveyed | Unplanned:
    try:
        return survey_group(recipe, group, traces, model, prices, closely=is_only)
    except (PlanError, RequestError) as error:
        if is_only:
            raise
        return Unplanned(group.named_device, str(error))


def survey_groups(
    recipe: Recipe,
    groups: Sequence[Group],
    traces: Tracer,
    *,
    model: ModelFacts,
    prices: Mapping[str, float] | None = None,
    closely: bool = False,
) -> list[Surveyed | Unplanned]:
    """A recipe on several groups of devices, with traces that the caller keeps from one question to
    the next.

    Args:
        recipe: What to train.
        groups: Of catalog rows, or this machine alone.
        traces: Of declared steps.
        model: The recipe's model, looked up.
        prices: As in `survey`.
        closely: Where several devices do not surely hold it, look for the number that does.
    """
    surveyed: list[Surveyed | Unplanned] = []
    for group in groups:
        if group.count > 1:
            try:
                entry = survey_group(recipe, group, traces, model, prices, closely=closely)
                surveyed.append(entry)
            except (PlanError, RequestError) as error:
                surveyed.append(Unplanned(group.named_device, str(error)))
            continue
        (alone,) = survey_each(recipe, [group.device], traces, model)
        surveyed.append(
            cost_surveyed(alone, prices or {}) if isinstance(alone, Surveyed) else alone
        )
    return surveyed


class _Progress:
    """Says what is being done, behind the answer once that is known."""

    def __init__(self, say: Say) -> None:
        self._say, self._answer = say, ""

    def __call__(self, text: str) -> None:
        self._say(self._answer + text)

    def answered(self, surveyed: Surveyed) -> None:
        """Say the answer, and from now on before all else that is done."""
        amounts = time_and_cost(surveyed.derived.plan.predicted, intervals=False)
        self._answer = f"{verdict_of(surveyed)}{amounts}; "
        fits = surveyed.verdict == "fits"
        self("comparing recomputation" if fits else "looking for what would make it fit")

    @property
    def is_heard(self) -> bool:
        """Whether anybody is told."""
        return self._say is not silent


def _survey_all(
    recipe: Recipe,
    devices: list[Device],
    traces: Tracer,
    model: ModelFacts,
    progress: _Progress,
    prices: Mapping[str, float],
    *,
    is_only: bool,
) -> list[Surveyed | Unplanned]:
    if is_only and devices:
        facts = facts_of(devices[0], measures=True, model=model)

        def answered(entry: Surveyed) -> None:
            progress.answered(cost_surveyed(entry, prices))

        tell = answered if progress.is_heard else None
        return [survey_closely(recipe, devices[0], traces, facts, tell)]
    return survey_each(recipe, devices, traces, model, progress, remedied=True)
