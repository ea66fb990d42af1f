"""What a recipe's job consists of, in the order in which it is done: trainings, drawings of samples
and scores of the untuned model. Plans sum these phases, and chains run them. No torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from brimful.base.env import runs_folder
from brimful.base.types import JsonDict
from brimful.recipe import BASE, OF_RECIPE, DataRecipe, Recipe, RftRecipe, load, with_changes
from brimful.recipe.labels import recipe_of_encoder

DEMONSTRATIONS_FILE = "demonstrations.jsonl"
SFT = "sft"
"""Name of the variant that is trained on demonstrations alone."""
_READ_AS = {"text_column", "file_type", "header", "encoding", "config_name"}


@dataclass(frozen=True)
class Member:
    """A run of a job: trained, and scored on what its recipe asks for.

    Attributes:
        variant: Its name in a study; of rounds SFT or `rft-N`; of a base that is trained first its
            recipe's name; empty where the job is one run.
        recipe: The recipe of this run alone, with its seed, in a folder inside the job's.
    """

    variant: str
    recipe: Recipe

    @property
    def folder(self) -> Path:
        return folder_of(self.recipe)


@dataclass(frozen=True)
class RoundSampling:
    """The samples of one round with one seed, drawn and verified.

    Attributes:
        number: The number of the round, from 1.
        folder: Gets the samples.
        student: The run whose model answers; None where the recipe names a teacher.
        before: Folders of earlier rounds; paths kept there are not kept again.
    """

    number: int
    seed: int
    folder: Path
    student: Member | None
    before: tuple[Path, ...] = ()


@dataclass(frozen=True)
class BaseScores:
    """The untuned model, scored like the runs that were tuned from it."""

    folder: Path


JobPart = Member | RoundSampling | BaseScores


def folder_of(recipe: Recipe) -> Path:
    """Return the folder in which a recipe keeps its run, or a study its runs."""
    return (Path(recipe.run.folder) if recipe.run.folder else runs_folder()) / recipe.run_name


def phases_of(recipe: Recipe) -> list[JobPart]:
    """Return the phases of a recipe's job.

    Raises:
        RecipeError: a variant's changes do not make a recipe; all problems of it are listed.
    """
    if recipe.rft is not None:
        return list(_rounds(recipe, recipe.rft))
    if recipe.study is None:
        return [Member("", recipe)]
    folder, baseline = folder_of(recipe), recipe.study.baseline
    variants: list[JobPart] = [
        Member(name, _variant(recipe, name, changes, seed, folder))
        for name, changes in recipe.study.variants.items()
        for seed in recipe.study.seeds
    ]
    # Before training from nothing there was no model that could be scored.
    is_scored = baseline and isinstance(recipe.model, str)
    return [*variants, *([BaseScores(folder / BASE)] if is_scored else [])]


def members(recipe: Recipe) -> list[Member]:
    """Return the runs of a recipe's job; errors as `phases_of`."""
    return [phase for phase in phases_of(recipe) if isinstance(phase, Member)]


def recipes_to_plan(recipe: Recipe) -> dict[str, Recipe]:
    """Return the recipes whose plans are those of all trainings of a job: by variant of a study; of
    other jobs "" is the training, beside the recipe that is trained first, by its name.
    """
    first = trained_first(recipe)
    found = {} if first is None else {first.name: first}
    if recipe.rft is not None and recipe.kind.compares_answers:
        found[SFT] = without_base(on_demonstrations(recipe))
    if recipe.study is None:
        return found | {"": recipe if recipe.rft is None else without_base(recipe)}
    variants: dict[str, Recipe] = {}
    for member in members(recipe):
        variants.setdefault(member.variant, member.recipe)
    return found | variants


def trained_first(recipe: Recipe) -> Recipe | None:
    """Return the recipe of the training that has to come first, where `model` is `recipe:NAME`;
    None where it is not, or that model has been trained.
    """
    from brimful.runs.files import MODEL_FOLDER  # noqa: PLC0415 - plans of other recipes do without

    first = recipe_before(recipe)
    return None if first is None or (folder_of(first) / MODEL_FOLDER).is_dir() else first


def names_recipe(recipe: Recipe) -> bool:
    """Return whether the model is that of another recipe, as `recipe:NAME`."""
    return isinstance(recipe.model, str) and recipe.model.startswith(OF_RECIPE)


def recipe_before(recipe: Recipe) -> Recipe | None:
    """Return the recipe that trains the model of this one, where `model` is `recipe:NAME`."""
    if not names_recipe(recipe):
        return None
    # Its texts are counted where the classifier's lie.
    data = recipe.data.model_dump(include=_READ_AS) | {"path": list(recipe.data.paths)}
    named = load(str(recipe.model).removeprefix(OF_RECIPE))
    return beside(recipe_of_encoder(named, recipe, lambda: data), recipe)


def beside(base: Recipe, recipe: Recipe) -> Recipe:
    """Return a recipe that is trained before this one, on the same device, in a folder beside."""
    place = {"device": recipe.plan.device, "threads": recipe.plan.threads}
    changes = {"run": recipe.run.beside(base.run.name), "plan": base.plan.model_copy(update=place)}
    return base.model_copy(update=changes)


def _variant(recipe: Recipe, name: str, changes: list[str], seed: int, folder: Path) -> Recipe:
    alone = recipe.model_copy(update={"study": None})
    changed = with_changes(alone, changes, f"variant {name} of {recipe.name}")
    has_seeds = recipe.study is not None and len(recipe.study.seeds) > 1
    run = recipe.run.member(f"{name}-seed{seed}" if has_seeds else name, folder)
    return without_base(changed.model_copy(update={"seed": seed, "run": run}))


def _rounds(recipe: Recipe, rft: RftRecipe) -> Iterator[JobPart]:
    """Tune on demonstrations; then sample and tune anew, round after round, with every seed."""
    folder = folder_of(recipe)
    for place, seed in enumerate(rft.seeds):
        suffix = f"-seed{seed}" * (len(rft.seeds) > 1)
        run = partial(_of_rounds, recipe, rft, folder, suffix, seed)
        first = student = run(SFT, ())
        yield student
        if place == 0:
            yield BaseScores(folder / BASE)
        drawn: list[Path] = []
        for number in range(1, rft.rounds + 1):
            samples = folder / f"samples-{number}{suffix}"
            author = student if rft.teacher is None else None
            yield RoundSampling(number, seed, samples, author, tuple(drawn))
            drawn.append(samples)
            student = run(round_name(recipe, number), drawn, first)
            yield student


def _of_rounds(
    recipe: Recipe,
    rft: RftRecipe,
    folder: Path,
    suffix: str,
    seed: int,
    variant: str,
    samples: Sequence[Path],
    first: Member | None = None,
) -> Member:
    """Return a run that is tuned on demonstrations and on samples; one that learns from pairs of
    samples goes on with the `first`. Samples that exceed its sequence length are dropped, so that a
    night of drawing does not end in an error.
    """
    from brimful.runs.files import MODEL_FOLDER  # noqa: PLC0415 - for rounds alone
    from brimful.selection.journal import PAIRS_FILE, TRAINING_FILE  # noqa: PLC0415 - for rounds

    compares = recipe.kind.compares_answers
    files = [each / (PAIRS_FILE if compares else TRAINING_FILE) for each in samples]
    if not samples or (rft.with_demonstrations and not compares):
        files.insert(0, folder / DEMONSTRATIONS_FILE)
    if compares and first is not None:
        recipe = _going_on(recipe, (first.folder / MODEL_FOLDER).resolve())
    elif compares:
        recipe = on_demonstrations(recipe)
    changes: JsonDict = {
        "path": [str(file.resolve()) for file in files],
        "format": "prompt",
        "columns": {},
        "config_name": None,
        "max_documents": None,
    }
    if samples and recipe.data.long_documents == "error":
        changes["long_documents"] = "drop"
    data = DataRecipe.model_validate({**recipe.data.model_dump(), **changes})
    run = recipe.run.member(f"{variant}{suffix}", folder)
    update = {"rft": None, "seed": seed, "data": data, "run": run}
    return Member(variant, without_base(recipe.model_copy(update=update)))


def on_demonstrations(recipe: Recipe) -> Recipe:
    """Return the recipe of the first training of a chain that learns from pairs: supervised
    fine-tuning on demonstrations, with the changes of rft.tuned_first.
    """
    changes = [] if recipe.rft is None else recipe.rft.tuned_first
    alone = recipe.model_copy(update={"rft": None})
    first = ["method=sft", "preference=null", *changes]
    return with_changes(alone, first, f"rft.tuned_first of {recipe.name}")


def _going_on(recipe: Recipe, model: Path) -> Recipe:
    """Return the recipe with a run's model, or its adapters, to start from."""
    if recipe.adapter is None:
        return recipe.model_copy(update={"model": str(model)})
    said = {"start": str(model), "alpha": recipe.adapter.resolved_alpha}  # as it is read again
    adapter = recipe.adapter.model_copy(update=said)
    return recipe.model_copy(update={"adapter": adapter})


def without_base(recipe: Recipe) -> Recipe:
    """Return a member's recipe without the base of its own, which is scored once for all members,
    unless the recipe asks for it.
    """
    if recipe.evaluation.base == "always":
        return recipe
    evaluation = recipe.evaluation.model_copy(update={"base": "never"})
    return recipe.model_copy(update={"evaluation": evaluation})


def round_name(recipe: Recipe, number: int) -> str:
    """Return the variant that is tuned on the samples of so many rounds."""
    return f"{recipe.method if recipe.kind.compares_answers else 'rft'}-{number}"
