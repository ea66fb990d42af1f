"""What is refused before a run or an evaluation begins."""

from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.libraries import refuse_unfit_adapters
from brimful.evaluation.lm_eval import require_lm_eval
from brimful.evaluation.task import checked_tasks, task_changes
from brimful.evaluation.task_data import load_examples
from brimful.evaluation.task_run import refuse_unjudgeable
from brimful.hardware.device import Device
from brimful.hardware.probe import torch_device
from brimful.kinds.run_data import AnyRunData
from brimful.model.published import require_nf4
from brimful.planning.choices import EIGHT_BIT_VARIANTS
from brimful.recipe import Recipe
from brimful.runs.deciding import read_deciding
from brimful.runs.files import DATA_FILE
from brimful.training import eight_bit


def refuse_unknown_tasks(recipe: Recipe) -> None:
    """Raise RequestError for an unknown task in evaluation.tasks, or among the keys of
    evaluation.data.
    """
    checked_tasks(recipe.evaluation.tasks, task_changes(recipe.evaluation))
    checked_tasks([*recipe.evaluation.data])


def refuse_unreadable_tasks(recipe: Recipe) -> None:
    """Read the data of tasks that do not use the run's own, so that missing data are reported
    before the training and not after it.

    Raises:
        RequestError: no such task, or its harness is not installed; DataError: its data cannot be
            read.
    """
    own, foreign = checked_tasks(recipe.evaluation.tasks)
    if foreign:
        require_lm_eval(foreign)
    for task in own:
        if task.data.run is None:
            load_examples(task, paths=recipe.evaluation.data, own={})


def refuse_unfit(recipe: Recipe, data: AnyRunData, run_folder: Path | None) -> None:
    """Raise if data do not fit what a recipe evaluates, or, given one, the run that goes on."""
    _refuse_unscorable(recipe, data)
    if run_folder is not None:
        refuse_changed_data(run_folder, data)


def _refuse_unscorable(recipe: Recipe, data: AnyRunData) -> None:
    """Raise if a task asks the run's own examples, and none of them can be asked and judged.

    Raises:
        RequestError: there are none; DataError: the answer of one cannot be judged.
    """
    own, _ = checked_tasks(recipe.evaluation.tasks)
    for task in own:
        if task.data.run is not None:
            refuse_unjudgeable(task, load_examples(task, paths={}, own=data.examples))


def refuse_changed_data(run_folder: Path, data: AnyRunData) -> None:
    """Raise RunFolderError if data or tokenizer are not those that the run was trained on."""
    has_data = (run_folder / DATA_FILE).exists()
    stored = read_deciding(run_folder, DATA_FILE).get("fingerprints", {}) if has_data else {}
    for name, now in data.fingerprints.items():
        if stored.get(name, now) != now:
            raise RunFolderError(
                f"the {name} of {run_folder} changed since it was trained on (fingerprint"
                f" {stored[name]}, now {now}). Put the old one back, start over with --fresh, or"
                " start a new run with run.name=NAME."
            )


def refuse_unsupported(recipe: Recipe, device: Device) -> None:
    """Raise before anything is read if this machine cannot train the recipe, or if it names a task
    or model that does not exist.

    Raises:
        LibraryError: it tunes adapters, and the installed libraries do not fit each other;
        RequestError: no such task; RecipeError: a fresh model that is not described; DeviceError:
            no kernels for the quantisation or the optimizer.
    """
    if recipe.adapter is not None:
        refuse_unfit_adapters()
    refuse_unknown_tasks(recipe)
    if recipe.kind.starts_from == "fresh":
        _ = recipe.fresh_model
    if recipe.quantize == "nf4":
        require_nf4(torch_device(device))
    if recipe.optimizer.kind in EIGHT_BIT_VARIANTS:
        eight_bit.require(EIGHT_BIT_VARIANTS[recipe.optimizer.kind][0], device.kind)
