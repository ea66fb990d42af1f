"""The recipe that a model is planned with when only the model is named: data and learning rate are
placeholders to be replaced.
"""

import re
from dataclasses import dataclass
from typing import Literal

from brimful.base.errors import RequestError
from brimful.base.types import Json, JsonDict
from brimful.model import catalog
from brimful.planning.specs import facts_of_values
from brimful.recipe import Recipe

SEQUENCE_LENGTH, EFFECTIVE_BATCH, RANK, TOKENS = 2048, 16, 16, 10_000_000
ENCODER_SEQUENCE_LENGTH, EPOCHS = 512, 3

Method = Literal["as the recipe", "full", "lora", "qlora", "pretrain"]
"""What the page offers to train."""


@dataclass(frozen=True)
class Approach:
    """What one choice of the page trains.

    Attributes:
        name: Ends the name of a recipe.
        learning_rate: A usual first try (Hu et al. 2021 for adapters; the others an assumption);
            memory and time do not depend on it.
        has_adapters: Adapters train on a frozen base; else every weight does.
        quantize: How the base is stored.
        on_plain_text: The model learns to continue text; else it is tuned on examples.
    """

    name: str
    learning_rate: float
    has_adapters: bool = False
    quantize: Literal["none", "nf4"] = "none"
    on_plain_text: bool = False


APPROACHES: dict[str, Approach] = {
    "full": Approach("full", 2e-5),
    "lora": Approach("lora", 2e-4, has_adapters=True),
    "qlora": Approach("qlora", 2e-4, has_adapters=True, quantize="nf4"),
    "pretrain": Approach("pretrain", 1e-4, on_plain_text=True),
}
"""By method; the method "as the recipe" has none."""


def template(model: str, method: Method, values: Json | None = None, *, data: str = "") -> Recipe:
    """Return a recipe for a published model; without a method, adapters on a language model, all
    weights of an encoder.

    Args:
        model: Hub id, folder or file.
        method: What is trained.
        values: Values of its config, where they are known.
        data: Where the data are, which are then read `EPOCHS` times; "" for placeholders.

    Raises:
        PlanError: the model cannot be found, or is no language model.
        RequestError: an encoder takes no adapters here.
    """
    facts = facts_of_values(_values(model) if values is None else values, None)
    length = min(SEQUENCE_LENGTH, facts.context or SEQUENCE_LENGTH)
    recipe: JsonDict = {
        "model": model,
        "batch": {"sequences": EFFECTIVE_BATCH},
        "training": {"tokens": TOKENS},
    }
    if facts.attends_both_sides:
        recipe |= _encoder_values(model, APPROACHES.get(method, APPROACHES["full"]))
        recipe["sequence_length"] = min(length, ENCODER_SEQUENCE_LENGTH)
    else:
        recipe |= _decoder_values(model, APPROACHES.get(method, APPROACHES["lora"]))
        recipe["sequence_length"] = length
    if data:
        recipe["training"] = {"epochs": EPOCHS}
        recipe["data"] |= {"path": data, "validation": 0.1}
        if recipe["method"] == "sft":
            recipe["data"] |= {"duplicates": "drop", "long_documents": "drop"}
    return Recipe.model_validate(recipe)


def _decoder_values(model: str, approach: Approach) -> JsonDict:
    values: JsonDict = {
        "name": _name(model, approach.name),
        "method": "pretrain" if approach.on_plain_text else "sft",
        "data": {"path": "builtin:python-code" if approach.on_plain_text else "pairs.jsonl"},
        "optimizer": {"learning_rate": approach.learning_rate},
    }
    if approach.has_adapters:
        values["adapter"] = {"rank": RANK}
    return values


def _encoder_values(model: str, approach: Approach) -> JsonDict:
    if approach.has_adapters:
        raise RequestError(
            f"{model} is an encoder, and encoders are trained whole here. Choose the method full (a"
            " classifier) or pretrain."
        )
    method, data = "classify", {"path": "data", "long_documents": "truncate"}
    if approach.on_plain_text:
        method, data = "mlm", {"path": "builtin:python-docs"}
    return {
        "name": _name(model, method),
        "method": method,
        "data": data,
        "optimizer": {"learning_rate": approach.learning_rate},
    }


def _values(model: str) -> Json:
    row = catalog.find(model)
    values: Json = catalog.config_of_model(model).to_dict() if row is None else row.config
    return values


def _name(model: str, kind: str) -> str:
    """`meta-llama/Llama-3.1-8B` -> `llama-3.1-8b-lora`."""
    last = re.sub(r"[^\w.\-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-.").lower()
    return f"{last.removesuffix('.json') or 'model'}-{kind}"
