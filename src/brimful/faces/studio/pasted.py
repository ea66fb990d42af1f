"""Texts that strangers paste, read as plain values: a recipe in YAML, a config.json, the name of a
model. Nothing of them is run or loaded by its path.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from brimful.base.discover import did_you_mean
from brimful.base.errors import RecipeError, RequestError
from brimful.base.strict_json import load_json
from brimful.base.types import Counts, Json, JsonDict
from brimful.model import catalog
from brimful.model.gguf_file import is_gguf
from brimful.recipe import OF_RECIPE, Recipe, load_text, shipped_names

MOST_CHARACTERS = 64 * 1024
"""Of a pasted text; a long recipe has three thousand."""
LIMITS: Counts = {
    "sequence_length": 1 << 20,
    "rank": 4096,
    "effective_batch": 1 << 20,
    "tokens": 10**15,
    "plan.micro_batch": 1 << 20,
    "layers": 512,
    "width": 1 << 16,
    "mlp_width": 1 << 18,
    "heads": 1024,
    "vocabulary": 1 << 21,
    "context": 1 << 24,
    "features": 1 << 16,
}
"""Most that is asked for; beyond it nothing is a model that anyone trains on one device."""
CONFIG_LIMITS: Counts = dict.fromkeys(
    ("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 512
) | dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 1024)
LARGEST_CONFIG_NUMBER = 1 << 24
DEEPEST = 20
"""Sections within sections of a pasted recipe; a real one has four."""
_LARGER = "is larger than anything that is planned here"
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True)
class PastedConfig:
    """A config.json that was pasted.

    Attributes:
        values: What describes the network.
        ignored: Keys that transformers does not know for this model type.
        published: The model of the catalog that it describes, if any.
    """

    values: Json
    ignored: tuple[str, ...]
    published: str | None


def refuse_long(text: str) -> None:
    """Raises RequestError for a text that is longer than any recipe."""
    if len(text) > MOST_CHARACTERS:
        raise RequestError(
            f"the text has {len(text):,} characters; a recipe or a config.json has at most"
            f" {MOST_CHARACTERS:,} here. Paste less."
        )


def looks_like_recipe(text: str) -> bool:
    """Whether a text is meant as YAML, not as a name."""
    return "\n" in text or re.match(r"\w+\s*:\s", text) is not None


def published_name(name: str, *, local_folders: bool) -> str:
    """The name of a published model, or of a folder. The hub is asked later, and only about what
    can be one of its names.

    Raises:
        RequestError: it can be neither; names what is nearest.
    """
    if catalog.find(name) is not None:
        return name
    path = Path(name).expanduser()
    if name and local_folders and ((path / "config.json").is_file() or _is_gguf_file(path)):
        return name
    if not _HUB_ID.fullmatch(name) or Path(name).exists():
        known = [*shipped_names(), *catalog.names()]
        by_last = {model.rpartition("/")[2].casefold(): model for model in catalog.names()}
        hint = (
            f" - did you mean {by_last[name.casefold()]!r}?"
            if name.casefold() in by_last
            else did_you_mean(name, known)
        )
        what = f"nothing is called {name!r} here{hint}" if name else "no model is named."
        folder = " or a folder with a config.json" if local_folders else ""
        raise RequestError(
            f"{what} Name a shipped recipe, a hub id (owner/name){folder}, or paste a recipe or a"
            " config.json."
        )
    return name


def _is_gguf_file(path: Path) -> bool:
    return is_gguf(path.name) and path.is_file()


def pasted_recipe(text: str, *, local_folders: bool) -> Recipe:
    """The recipe in a text. It names no files: neither `recipe:FILE` nor a config by its path.

    Raises:
        RecipeError: it is not YAML, breaks rules, or is larger than anything that is planned here.
        RequestError: its model can be no model.
    """
    origin = "the pasted recipe"
    try:
        _refuse_tangles(text, origin)
        recipe = load_text(text, origin)
    except yaml.YAMLError as error:
        raise RecipeError(f"{origin} is not valid YAML: {error}") from error
    refuse_sizes(recipe, origin)
    if isinstance(recipe.model, str) and recipe.model.startswith(OF_RECIPE):
        shipped = recipe.model.removeprefix(OF_RECIPE)
        if shipped not in shipped_names():
            raise RecipeError(
                f"model {recipe.model}: {origin} can name shipped recipes"
                f" only{did_you_mean(shipped, shipped_names())}"
            )
    elif isinstance(recipe.model, str):
        published_name(recipe.model, local_folders=local_folders)
    return recipe


def _refuse_tangles(text: str, origin: str) -> None:
    """Parts that stand for each other can unfold without end, and deep nesting takes long to
    read.
    """
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.events.AliasEvent):
            raise RecipeError(f"{origin} repeats a part of itself (*name). Write it out.")
        depth += isinstance(event, yaml.events.CollectionStartEvent) - isinstance(
            event, yaml.events.CollectionEndEvent
        )
        if depth > DEEPEST:
            raise RecipeError(f"{origin} is nested too deeply.")


def refuse_sizes(recipe: Recipe, origin: str) -> None:
    """Raises RecipeError for numbers that would only keep this machine busy."""
    sizes: JsonDict = {
        "sequence_length": recipe.sequence_length,
        "effective_batch": recipe.effective_batch,
        "plan.micro_batch": recipe.plan.micro_batch,
        "rank": None if recipe.adapter is None else recipe.adapter.rank,
    }
    if not isinstance(recipe.model, str):
        sizes |= {
            name: getattr(recipe.model, name)
            for name in ("layers", "width", "mlp_width", "heads", "context", "features")
        }
        sizes["vocabulary"] = recipe.own_tokenizer.vocabulary
    if wrong := _above(sizes, LIMITS):
        raise RecipeError(f"{origin} {_LARGER}: {wrong}.")


def pasted_config(text: str) -> PastedConfig | None:
    """The config.json in a text; None where it is none.

    Raises:
        RequestError: it begins like one, but is not JSON, has no model_type, or is larger than
            anything that is planned here.
        PlanError: transformers does not know its model type, or not as a language model.
    """
    if not text.startswith("{"):
        return None
    try:
        values = load_json(text)
    except ValueError as error:
        raise RequestError(
            f"the text begins like a config.json, but it is not JSON: {error}"
        ) from error
    origin = "the pasted config.json"
    for part in _parts(values):
        if wrong := _above(part, CONFIG_LIMITS) or _above(
            part, dict.fromkeys(part, LARGEST_CONFIG_NUMBER)
        ):
            raise RequestError(f"{origin} {_LARGER}: {wrong}.")
    sizes, ignored = catalog.checked_values(values, origin)
    rows = [row for name in catalog.names() if (row := catalog.find(name)) is not None]
    stated = {**sizes, **values}
    same = next(
        (
            row.name
            for row in rows
            if all(
                stated.get(key) == value
                for key, value in row.config.items()
                if key != "architectures"
            )
        ),
        None,
    )
    return PastedConfig(sizes, ignored, same)


def _parts(values: Json) -> list[Json]:
    """A config, and the ones within it."""
    return [
        values,
        *(
            part
            for value in values.values()
            if isinstance(value, Mapping)
            for part in _parts(value)
        ),
    ]


def _above(sizes: Json, limits: Counts) -> str:
    wrong = [
        f"{name} {value:,} is above {limits[name]:,}"
        for name, value in sizes.items()
        if isinstance(value, int) and value > limits.get(name, value)
    ]
    return "; ".join(wrong)
