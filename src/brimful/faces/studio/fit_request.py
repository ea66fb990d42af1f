"""A request of the page *Will it fit?*, and the recipe that it stands for. Pasted texts are read as
plain values; nothing in them is run.

A model is named or pasted: a shipped recipe, a published model, a folder on this machine, a recipe
as YAML, a config.json. Nothing here imports torch.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from brimful.base.dotted import format_yaml
from brimful.base.errors import PlanError, RequestError
from brimful.faces.studio.hub import refuse_unless_known
from brimful.faces.studio.pasted import (
    LIMITS,
    PastedConfig,
    looks_like_recipe,
    pasted_config,
    pasted_recipe,
    published_name,
    refuse_long,
)
from brimful.faces.studio.templates import APPROACHES, Method, template
from brimful.model import catalog
from brimful.planning.specs import ModelFacts, facts_of_values, model_facts
from brimful.planning.survey import Margin
from brimful.recipe import OF_RECIPE, Recipe, load, shipped_names, with_changes
from brimful.recipe.summary import summary_of
from brimful.report.views import Command

METHODS: tuple[Method, ...] = get_args(Method)

TOGETHER = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of devices that may share a job."""
PASTED_CONFIG = "config.json"
"""What the recipe calls a model whose config was pasted."""
SAVED = "recipe.yaml"
"""Where the recipe of a request is to be saved, in commands."""


@dataclass(frozen=True)
class FitRequest:
    """A recipe and what to change in it; None leaves a value as the recipe has it.

    Attributes:
        model: Name of a shipped recipe, hub id, folder with a config.json, or the text of a recipe
            (YAML) or of a config.json.
        method: "as the recipe" leaves it; "full" trains every weight, "lora" adapters, "qlora"
            adapters on a base in 4 bits, "pretrain" every weight on plain text.
        rank: Rank of the adapters.
        sequence_length: Tokens per sequence.
        effective_batch: Sequences per optimizer step.
        tokens: Length of training.
        devices: Exact names from the catalog; "here" is this machine.
        margin: How close to the brim.
        together: How many of each device share the job.
        data: File, folder or id of the data to train on; "" leaves those of the recipe.
        changes: Further `dotted.key=value`, as on the command line.
    """

    model: str
    method: Method = "as the recipe"
    rank: int | None = None
    sequence_length: int | None = None
    effective_batch: int | None = None
    tokens: int | None = None
    devices: tuple[str, ...] = (
        "Tesla T4",
        "NVIDIA L4",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H200",
    )
    margin: Margin | None = None
    together: int = 1
    data: str = ""
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FitRecipe:
    """The recipe of a request.

    Attributes:
        recipe: What is to be trained.
        model: What is known of its model.
        title: One line for the page.
        notes: What the page should say beside the answer.
        words: What names it in a command: a shipped recipe and changes, or the file in which it is
            to be saved.
    """

    recipe: Recipe
    model: ModelFacts
    title: str
    notes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def to_yaml(self) -> str:
        """Return the recipe as `yaml_of` does."""
        return yaml_of(self.recipe)


def in_a_shell(verb: str, words: Sequence[str], *options: str) -> Command:
    """What asks a verb about a recipe in a shell.

    Args:
        words: What names the recipe, as in `FitRecipe`.
    """
    saved = f", with the recipe saved as {SAVED}" * (SAVED in words)
    return Command(f"In a shell{saved}", shlex.join(["brimful", verb, *words, *options]))


def yaml_of(recipe: Recipe) -> str:
    """Return a recipe without its defaults; it loads back to an equal one."""
    return format_yaml(recipe.model_dump(mode="json", exclude_defaults=True))


def known_models() -> tuple[list[str], list[str]]:
    """Return the names of shipped recipes, and of published models in the catalog."""
    return shipped_names(), catalog.names()


def recipe_for(request: FitRequest, *, local_folders: bool = True) -> FitRecipe:
    """Return the recipe that a request stands for.

    Args:
        request: What the page asks for.
        local_folders: Whether a folder of this machine may be named; a page that strangers see says
            no.

    Raises:
        BrimfulError: the model is not known, a text is no recipe and no config, a number breaks a
            rule; all with what to do.
    """
    _refuse_numbers(request)
    if (request.data or request.changes) and not local_folders:
        raise RequestError(
            "data and further keys can be given on the machine alone that brimful runs on."
        )
    text = request.model.strip()
    refuse_long(text)
    config = pasted_config(text)
    if config is not None:
        return _recipe_for_config(request, config)
    if looks_like_recipe(text):
        recipe = pasted_recipe(text, local_folders=local_folders)
        if isinstance(recipe.model, str) and not recipe.model.startswith(OF_RECIPE):
            refuse_unless_known(recipe.model)
    elif text in shipped_names():
        recipe = load(text)
    else:
        name = published_name(text, local_folders=local_folders)
        refuse_unless_known(name)
        recipe = template(name, request.method, data=request.data)
    return _changed(request, recipe, [])


def _recipe_for_config(request: FitRequest, config: PastedConfig) -> FitRecipe:
    notes = []
    if config.ignored:
        notes.append(f"Not used of the pasted config.json: {', '.join(config.ignored)}.")
    if config.published is not None:
        return _changed(
            request, template(config.published, request.method, data=request.data), notes
        )
    notes.append(
        f"Save the pasted text as {PASTED_CONFIG} where you run the recipe. To train, weights"
        " have to lie beside it; or name their hub id."
    )
    facts = facts_of_values(config.values, None)
    if facts.config is not config.values:
        notes.append(
            f"Planned is the part that reads text ({facts.config['model_type']}), without what"
            " reads anything else."
        )
    return _changed(
        request,
        template(PASTED_CONFIG, request.method, config.values, data=request.data),
        notes,
        facts,
    )


def _refuse_numbers(request: FitRequest) -> None:
    least = {"rank": 1, "sequence_length": 2, "effective_batch": 1, "tokens": 1}
    problems = []
    for name, low in least.items():
        value = getattr(request, name)
        if value is None:
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not low <= value <= LIMITS[name]
        ):
            problems.append(
                f"{name.replace('_', ' ')} {value!r} must be a whole number from {low:,} to"
                f" {LIMITS[name]:,}"
            )
    choices: dict[str, tuple[str, Sequence[str]]] = {"method": (request.method, METHODS)}
    if request.together not in TOGETHER:
        problems.append(
            f"devices in one job {request.together!r} must be one of"
            f" {', '.join(map(str, TOGETHER))}"
        )
    if request.margin is not None:
        choices["margin"] = (request.margin, get_args(Margin))
    for name, (chosen, offered) in choices.items():
        if chosen not in offered:
            problems.append(f"{name} {chosen!r} must be one of {', '.join(offered)}")
    if problems:
        raise RequestError("; ".join(problems) + ".")


def _changed(
    request: FitRequest, recipe: Recipe, notes: list[str], model: ModelFacts | None = None
) -> FitRecipe:
    """Return the recipe with the changes of the request."""
    changes = list[str]()
    if recipe.study is not None:
        notes.append(
            f"{recipe.name} is a study of {len(recipe.study.variants)} variants; this is the recipe"
            " that they vary."
        )
        recipe = with_changes(recipe, ["study=null"], recipe.name)
        changes = ["study=null"]
    changes += _method_changes(request.method, recipe)
    is_added, is_removed = "adapter={}" in changes, "adapter=null" in changes
    has_adapter = is_added or (recipe.adapter is not None and not is_removed)
    if request.rank is not None and has_adapter:
        changes.append(f"adapter.rank={request.rank}")
    elif request.rank is not None:
        notes.append("The rank is not used: no adapters are trained.")
    if request.data and recipe.data.path != request.data:
        changes.append(f"data.path={json.dumps(request.data)}")
    changes += _size_changes(request, recipe, notes)
    if request.margin is not None:
        changes.append(f"plan.margin={request.margin}")
    changes += request.changes
    changed = with_changes(recipe, changes, recipe.name) if changes else recipe
    if model is None:
        model = model_facts(changed)
    elif model.context is not None and changed.sequence_length > model.context:
        raise PlanError(
            f"sequence_length {changed.sequence_length} is above the {model.context} positions that"
            " the pasted config.json has; shorten it."
        )
    return FitRecipe(
        changed, model, _title(changed), tuple(notes), _words(request, changes, recipe)
    )


def _title(recipe: Recipe) -> str:
    title = summary_of(recipe)
    if isinstance(recipe.model, str):
        return title[0].upper() + title[1:]
    return f"{recipe.name}: {title}"


def _words(request: FitRequest, changes: Sequence[str], recipe: Recipe) -> tuple[str, ...]:
    """Return what names the recipe in a command."""
    name = request.model.strip()
    return (name, *changes) if name == recipe.name and name in shipped_names() else (SAVED,)


def _size_changes(request: FitRequest, recipe: Recipe, notes: list[str]) -> list[str]:
    changes = []
    length = request.sequence_length or recipe.sequence_length
    if request.sequence_length is not None:
        changes.append(f"sequence_length={length}")
    if request.effective_batch is not None:
        changes.append(f"batch.sequences={request.effective_batch}")
    elif recipe.batch.tokens is not None and recipe.batch.tokens % length:
        sequences = max(1, round(recipe.batch.tokens / length))
        changes.append(f"batch.sequences={sequences}")
        notes.append(
            f"{recipe.batch.tokens:,} tokens a step are no whole number of {length:,} tokens:"
            f" {sequences:,} sequences in their place."
        )
    if request.tokens is not None:
        changes.append(f"training.tokens={request.tokens}")
    return changes


def _method_changes(method: Method, recipe: Recipe) -> list[str]:
    """Return the changes that make a recipe one of a method; the recipe's own rules refuse what
    does not go together.
    """
    approach = APPROACHES.get(method)
    if approach is None:
        return []
    changes = []
    if approach.has_adapters:
        if recipe.adapter is None:
            changes.append("adapter={}")
        return [*changes, f"quantize={approach.quantize}"]
    if recipe.adapter is not None:
        changes = ["quantize=none", "adapter=null"]
    if approach.on_plain_text and recipe.kind.answers_prompts:
        changes += ["method=pretrain", "rft=null"]
    return changes
