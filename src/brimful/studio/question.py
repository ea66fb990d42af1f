"""What a person asks of the page *Will it fit?*, and the recipe that it stands for. Nothing of a
pasted text is run, and it is read as plain values.

A model is named or pasted: a shipped recipe, a published model, a folder on this machine, a recipe
as YAML, a config.json. Nothing here imports torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from brimful.base.dotted import format_yaml
from brimful.base.errors import PlanError, RequestError
from brimful.model import catalog
from brimful.planning.specs import ModelFacts, facts_of_values, model_facts
from brimful.planning.survey import Margin
from brimful.recipe import Recipe, load, shipped_names, with_changes
from brimful.studio.pasted import (
    LIMITS,
    looks_like_recipe,
    pasted_config,
    pasted_recipe,
    published_name,
    refuse_long,
)
from brimful.studio.templates import APPROACHES, Method, template

METHODS: tuple[Method, ...] = get_args(Method)

PASTED_CONFIG = "config.json"
"""What the recipe calls a model whose config was pasted."""


@dataclass(frozen=True)
class Question:
    """One question; what is None stays as the recipe has it.

    Attributes:
        model: Name of a shipped recipe, hub id, folder with a config.json, or the text of a recipe
            (YAML) or of a config.json.
        method: "as the recipe" leaves it; "full" trains every weight, "lora" adapters, "qlora"
            adapters on a base in 4 bits, "pretrain" every weight on plain text.
        rank: Of the adapters.
        sequence_length: Tokens per sequence.
        effective_batch: Sequences per optimizer step.
        tokens: Length of training.
        devices: Exact names from the catalog; "here" is this machine.
        margin: How close to the brim.
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


@dataclass(frozen=True)
class Asked:
    """A question as a recipe.

    Attributes:
        recipe: What is to be trained.
        model: What is known of its model.
        title: One line for the page.
        notes: What the page should say beside the answer.
    """

    recipe: Recipe
    model: ModelFacts
    title: str
    notes: tuple[str, ...] = ()

    def to_yaml(self) -> str:
        """The recipe without what is left at its default; loads back to an equal one."""
        return format_yaml(self.recipe.model_dump(mode="json", exclude_defaults=True))


def known_models() -> tuple[list[str], list[str]]:
    """What can be named: shipped recipes, and published models of the catalog."""
    return shipped_names(), catalog.names()


def asked(question: Question, *, local_folders: bool = True) -> Asked:
    """The recipe a question stands for.

    Args:
        question: As the page has it.
        local_folders: Whether a folder of this machine may be named; a page that strangers see says
            no.

    Raises:
        BrimfulError: the model is not known, a text is no recipe and no config, a number breaks a
            rule; all with what to do.
    """
    _refuse_numbers(question)
    text = question.model.strip()
    refuse_long(text)
    config = pasted_config(text)
    if config is not None:
        notes = (
            [f"Not used of the pasted config.json: {', '.join(config.ignored)}."]
            if config.ignored
            else []
        )
        if config.published is not None:
            return _changed(question, template(config.published, question.method), notes)
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
            question, template(PASTED_CONFIG, question.method, config.values), notes, facts
        )
    if looks_like_recipe(text):
        return _changed(question, pasted_recipe(text, local_folders=local_folders), [])
    if text in shipped_names():
        return _changed(question, load(text), [])
    return _changed(
        question, template(published_name(text, local_folders=local_folders), question.method), []
    )


def _refuse_numbers(question: Question) -> None:
    least = {"rank": 1, "sequence_length": 2, "effective_batch": 1, "tokens": 1}
    problems = []
    for name, low in least.items():
        value = getattr(question, name)
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
    choices: dict[str, tuple[str, Sequence[str]]] = {"method": (question.method, METHODS)}
    if question.margin is not None:
        choices["margin"] = (question.margin, get_args(Margin))
    for name, (chosen, offered) in choices.items():
        if chosen not in offered:
            problems.append(f"{name} {chosen!r} must be one of {', '.join(offered)}")
    if problems:
        raise RequestError("; ".join(problems) + ".")


def _changed(
    question: Question, recipe: Recipe, told: list[str], model: ModelFacts | None = None
) -> Asked:
    """The recipe with what the question changes."""
    if recipe.study is not None:
        told.append(
            f"{recipe.name} is a study of {len(recipe.study.variants)} variants; this is the recipe"
            " that they vary."
        )
        recipe = with_changes(recipe, ["study=null"], recipe.name)
    changes = _method_changes(question.method, recipe)
    has_adapter = (
        recipe.adapter is not None or "adapter={}" in changes
    ) and "adapter=null" not in changes
    if question.rank is not None and has_adapter:
        changes.append(f"adapter.rank={question.rank}")
    elif question.rank is not None:
        told.append("The rank is not used: no adapters are trained.")
    changes += _size_changes(question, recipe, told)
    if question.margin is not None:
        changes.append(f"plan.margin={question.margin}")
    changed = with_changes(recipe, changes, recipe.name) if changes else recipe
    if model is None:
        model = model_facts(changed)
    elif model.context is not None and changed.sequence_length > model.context:
        raise PlanError(
            f"sequence_length {changed.sequence_length} is above the {model.context} positions that"
            " the pasted config.json has; shorten it."
        )
    return Asked(changed, model, _title(changed), tuple(told))


def _size_changes(question: Question, recipe: Recipe, told: list[str]) -> list[str]:
    changes = []
    length = question.sequence_length or recipe.sequence_length
    if question.sequence_length is not None:
        changes.append(f"sequence_length={length}")
    if question.effective_batch is not None:
        changes.append(f"batch.sequences={question.effective_batch}")
    elif recipe.batch.tokens is not None and recipe.batch.tokens % length:
        sequences = max(1, round(recipe.batch.tokens / length))
        changes.append(f"batch.sequences={sequences}")
        told.append(
            f"{recipe.batch.tokens:,} tokens a step are no whole number of {length:,} tokens:"
            f" {sequences:,} sequences in their place."
        )
    if question.tokens is not None:
        changes.append(f"training.tokens={question.tokens}")
    return changes


def _method_changes(method: Method, recipe: Recipe) -> list[str]:
    """What makes a recipe one of a method. The recipe's own rules say what does not go together."""
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


def _title(recipe: Recipe) -> str:
    """`LoRA of rank 16 on google/gemma-2-2b, 16 x 768 tokens a step`."""
    batch = f"{recipe.effective_batch:,} x {recipe.sequence_length:,} tokens a step"
    if not isinstance(recipe.model, str):
        return f"{recipe.name}: a fresh {recipe.model.architecture} model, {batch}"
    training = "Pretraining of"
    if recipe.adapter is not None:
        name = "QLoRA" if recipe.quantize == "nf4" else "LoRA"
        training = f"{name} of rank {recipe.adapter.rank} on"
    elif recipe.kind.gives_labels:
        training = "Classifier on"
    elif recipe.kind.answers_prompts:
        training = "Full fine-tuning of"
    return f"{training} {recipe.model}, {batch}"
