"""The published model that a recipe starts from: named, or made by another recipe first."""

from pathlib import Path

from brimful.base.console import Say, silent
from brimful.base.errors import RequestError
from brimful.base.strict_json import load_json
from brimful.base.types import Progress
from brimful.base.warning_codes import as_note
from brimful.chains.phases import beside, folder_of, names_recipe
from brimful.model.catalog import needs_folder, require_weights
from brimful.recipe import OF_RECIPE, Recipe, load
from brimful.runs.files import MODEL_FOLDER


def named_model(recipe: Recipe, say: Say = silent) -> str:
    """Return the hub id or absolute folder that a recipe names; empty for a fresh model. A GGUF
    file, or a model in a package, is made a folder first. `say` is told where it is from, and what
    of a Trainer's checkpoint is not taken.

    Raises:
        PlanError: it cannot be had.
    """
    if not isinstance(recipe.model, str):
        return ""
    if needs_folder(recipe.model):
        from brimful.model.obtained import folder_of_model, origin_of  # noqa: PLC0415 - few runs do

        folder = folder_of_model(recipe.model, say)
        if origin := origin_of(folder):
            say(f"model: {origin.line()}")
        return str(folder.resolve())
    start = recipe.adapter.start if recipe.adapter is not None else None
    for folder in [Path(recipe.model), *([Path(start)] if start else [])]:
        if left_out := what_is_left_out(folder):
            say(as_note(left_out, "B213"))
    if Path(recipe.model).is_dir():
        return str(Path(recipe.model).resolve())
    require_weights(recipe.model)
    return recipe.model


def recipe_of_base(recipe: Recipe, progress: Progress | None = None) -> Recipe:
    """Return the recipe that trains the model named by `recipe:NAME`, on the same device and beside
    this run.
    """
    # Brings torch, which a named model does not need.
    from brimful.kinds.run_data import run_data_class  # noqa: PLC0415

    named = load(str(recipe.model).removeprefix(OF_RECIPE))
    return beside(run_data_class(recipe.kind).base_recipe(named, recipe, progress), recipe)


def source_at_hand(recipe: Recipe, say: Say = silent) -> str:
    """Return the hub id or absolute folder of the published model that a recipe names; empty for a
    fresh model. Nothing is trained.

    Raises:
        RequestError: another recipe trains it, and has not yet; PlanError: it cannot be had.
    """
    if not names_recipe(recipe):
        return named_model(recipe, say)
    base = recipe_of_base(recipe)
    folder = folder_of(base) / MODEL_FOLDER
    if not folder.is_dir():
        raise RequestError(
            f"{recipe.name} tunes the model of {base.name}, which is not trained yet, so"
            " there is no tokenizer to show tokens with. Training this recipe trains it first; or"
            " name another model: model=NAME or model=FOLDER."
        )
    return str(folder.resolve())


STATE = "trainer_state.json"
PICKLED = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "training_args.bin")
"""Files of a checkpoint that are pickled, and the random states (`rng_state*.pth`)."""


def what_is_left_out(folder: Path) -> str:
    """Return, for a checkpoint of a Trainer, what a run that starts from it takes and what it
    cannot; empty for another folder.
    """
    if not (folder / STATE).is_file():
        return ""
    step = _step(folder / STATE)
    at = "" if step is None else f" at its step {step:,}"
    pickled = [name for name in PICKLED if (folder / name).exists()]
    pickled += sorted(path.name for path in folder.glob("rng_state*.pth"))
    left_out = ""
    if pickled:
        left_out = (
            f" {', '.join(pickled)}: not read, since pickle files can run code when they are"
            " opened."
        )
    return (
        f"{folder} is a checkpoint of a Trainer{at}. Its weights are the start of this run;"
        f" optimizer states, schedule and order of the data begin anew.{left_out}"
    )


def _step(path: Path) -> int | None:
    try:
        step = load_json(path.read_bytes())["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None
