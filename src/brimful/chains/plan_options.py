"""Options of `brimful plan` for the plan of one device: save it, verify a step of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.base.errors import PlanError, RequestError
from brimful.planning.derive import (
    refuse_what_cannot_fit,
)
from brimful.planning.pinned import save_plans
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import Recipe

if TYPE_CHECKING:
    from brimful.rehearsal.verify import Verification


def refuse_options(recipe: Recipe, on: str, *, saves: bool, verifies: bool) -> None:
    """Say before anything is planned what cannot be saved or verified.

    Raises:
        RequestError: as `refuse_to_verify`; or plans of several devices are to be saved.
    """
    if saves:
        _refuse_several(on, "--save writes")
    if verifies:
        refuse_to_verify(recipe, on)


def _refuse_several(on: str, option: str) -> None:
    if on == "all" or "," in on.strip(" ,"):
        raise RequestError(f"{option} the plan of one device. Name it: --on here, or one name.")


def save_surveyed(path: Path, recipe: Recipe, surveyed: Sequence[Surveyed | Unplanned]) -> None:
    """Write the plans of the only device, for `load_plan`: of every training that fits it.

    Raises:
        PlanError: none of them does.
        RunFolderError: the file cannot be written.
    """
    (entry,) = surveyed
    if isinstance(entry, Unplanned):
        raise PlanError(f"there is no plan to save: {entry.reason}")
    plans = {} if entry.job is None else entry.job.plans
    if not plans:
        refuse_what_cannot_fit(entry.derived)
    save_plans(path, recipe, plans)


def refuse_to_verify(recipe: Recipe, on: str) -> None:
    """Say before anything is planned what cannot be verified.

    Raises:
        RequestError: several devices, of which each has another plan; or the recipe tunes a
            published model.
    """
    _refuse_several(on, "--verify runs")
    if isinstance(recipe.model, str):
        raise RequestError(
            "--verify runs a step of a smaller model with fresh weights, so it is for fresh models"
            f" only; {recipe.name} tunes {recipe.model}. Leave --verify out."
        )


def verified(recipe: Recipe, surveyed: Sequence[Surveyed | Unplanned]) -> "Verification":
    """One optimizer step of the only device's plan beside the plainest one; see
    `brimful.rehearsal.verify`.
    """
    from brimful.rehearsal.verify import verify  # noqa: PLC0415 - brings torch

    (entry,) = (entry for entry in surveyed if isinstance(entry, Surveyed))
    return verify(recipe, entry.derived.plan, entry.device)
