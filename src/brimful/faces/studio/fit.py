"""*Will it fit?*: what the recipe of a request takes on each device. Numbers are those of `brimful
plan`.
"""

import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from brimful.base.errors import DeviceError
from brimful.chains.devices import this_machine
from brimful.chains.plans import survey_groups
from brimful.chains.surveyed_devices import Known
from brimful.data.counts import count
from brimful.faces.studio.fit_request import FitRecipe, FitRequest, recipe_for
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.hardware.groups import Group, group_of
from brimful.planning.remedies import remedies
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import PlanChoices, Recipe
from brimful.rehearsal.kept_traces import KeptTraces
from brimful.report.plan.fit_view import fit_view, is_sure
from brimful.report.plan.table import Entries, Entry
from brimful.report.views import Paragraph, View

_ONE_AT_A_TIME = threading.Lock()
"""Traces are made on fake tensors, which the whole process sees."""


@dataclass(frozen=True)
class Fit:
    """What a recipe takes on each device.

    Attributes:
        recipe_yaml: the recipe, for `brimful plan FILE`.
        words: what names the recipe in a command, as in `FitRecipe`.
        view: the answer; where the recipe does not surely fit, still without what would help.
        looks: whether it is worth looking for what would help.
    """

    recipe_yaml: str
    words: tuple[str, ...]
    view: View
    looks: bool


def assess(request: FitRequest, *, with_remedies: bool = False, local_folders: bool = True) -> Fit:
    """Return what the recipe of a request takes on each device, as a view; see `surveyed_for`."""
    found, surveyed = surveyed_for(
        request, with_remedies=with_remedies, local_folders=local_folders
    )
    looks = not with_remedies and any(
        isinstance(entry, Surveyed) and not is_sure(entry) for entry in surveyed
    )
    notes = [Paragraph(each, "note") for each in found.notes]
    view = fit_view(found.title, surveyed, notes, looks_closely=looks)
    return Fit(found.to_yaml(), found.words, view, looks)


def surveyed_for(
    request: FitRequest, *, with_remedies: bool = False, local_folders: bool = True
) -> tuple[FitRecipe, Entries]:
    """Return the recipe of a request, and what it takes on each device, in the order asked for.

    The first answer for a model and a method traces its step, which takes seconds; later ones reuse
    that.

    Args:
        request: what the page asks for.
        with_remedies: also look for changes that would make it fit where it does not; the first
            time this traces more.
        local_folders: whether a folder of this machine may be named; a page that strangers see says
            no.

    Raises:
        BrimfulError: the request cannot be planned for; the message is for the page.
    """
    found = recipe_for(request, local_folders=local_folders)
    with _ONE_AT_A_TIME:
        groups, alone = _groups(request, found.recipe)
        traces = _traces()
        known = Known(found.model, count(found.recipe))
        surveyed = survey_groups(found.recipe, groups, traces, known, closely=with_remedies)
        if with_remedies:
            surveyed = [*_remedied(surveyed, traces)]
        traces.save()
    return found, (*surveyed, *alone)


@functools.cache
def _traces() -> KeptTraces:
    return KeptTraces()


def _groups(request: FitRequest, recipe: Recipe) -> tuple[list[Group], list[Unplanned]]:
    """Return the devices asked about, and those that cannot share a job with others."""
    if not request.devices:
        raise DeviceError("no device is chosen. Choose at least one.")
    groups, alone = [], []
    for name in dict.fromkeys(request.devices):
        device = _this_machine(recipe.plan) if name == "here" else catalog.get(name)
        try:
            groups.append(group_of(device, request.together))
        except DeviceError as error:
            alone.append(Unplanned(device, str(error)))
    return groups, alone


@functools.cache
def _this_machine(plan: PlanChoices) -> Device:
    """Measured once in a process."""
    return this_machine(plan)


def _remedied(surveyed: Entries, traces: KeptTraces) -> Iterator[Entry]:
    """Add what would take less to single devices that do not surely hold the recipe."""
    for entry in surveyed:
        if isinstance(entry, Surveyed) and not is_sure(entry) and not entry.smallest_device:
            derived = entry.derived
            if derived.plan.devices == 1:
                helps = remedies(derived.prepared, traces, recomputes=derived.plan.recompute)
                entry = replace(entry, remedies=tuple(helps))  # noqa: PLW2901
        yield entry
