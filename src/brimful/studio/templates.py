"""The recipe that a model is planned with when only the model is named: data and learning rate are
placeholders to be replaced.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from brimful.base.errors import RequestError
from brimful.model import catalog
from brimful.planning.specs import facts_of_values
from brimful.recipe import Recipe

SEQUENCE_LENGTH, EFFECTIVE_BATCH, RANK, TOKENS = 2048, 16, 16, 10_000_000
LEARNING_RATES = {"lora": 2e-4, "full": 2e-5, "pretrain": 1e-4}
"""By what is trained: usual first tries (Hu et al. 2021 for adapters; the others an assumption);
memory and time do not depend on them.
"""


def template(
    model: str,
    method: Literal["as the recipe", "full", "lora", "qlora", "pretrain"],
    values: Mapping[str, Any] | None = None,
) -> Recipe:
    """A recipe for a published model; without a method, adapters on a language model, all weights
    of an encoder.

    Args:
        model: Hub id, folder or file.
        method: What is trained.
        values: Of its config, where they are known.

    Raises:
        PlanError: the model cannot be found, or is no language model.
        RequestError: an encoder takes no adapters here.
    """
    found = facts_of_values(_values(model) if values is None else values, None)
    length = min(SEQUENCE_LENGTH, found.context or SEQUENCE_LENGTH)
    common = {
        "model": model,
        "batch": {"sequences": EFFECTIVE_BATCH},
        "training": {"tokens": TOKENS},
    }
    if found.attends_both_sides:
        return _encoder_recipe(model, method, common, min(length, 512))
    kind = "lora" if method in {"as the recipe", "lora", "qlora"} else method
    recipe: dict[str, Any] = {
        "name": _name(model, kind if method != "qlora" else "qlora"),
        "method": "pretrain" if method == "pretrain" else "sft",
        "sequence_length": length,
        "data": {"path": "builtin:python-code"},
        "optimizer": {"learning_rate": LEARNING_RATES[kind]},
        **common,
    }
    if kind == "lora":
        recipe["adapter"] = {"rank": RANK}
    return Recipe.model_validate(recipe)


def _encoder_recipe(model: str, method: str, common: Mapping[str, Any], length: int) -> Recipe:
    if method in {"lora", "qlora"}:
        raise RequestError(
            f"{model} is an encoder, and encoders are trained whole here. Choose the method full (a"
            " classifier) or pretrain."
        )
    learns, data = (
        ("mlm", {"path": "builtin:python-docs"})
        if method == "pretrain"
        else ("classify", {"path": "data", "long_documents": "truncate"})
    )
    rate = LEARNING_RATES["pretrain" if method == "pretrain" else "full"]
    values = {
        "name": _name(model, learns),
        "method": learns,
        "sequence_length": length,
        "data": data,
        "optimizer": {"learning_rate": rate},
        **common,
    }
    return Recipe.model_validate(values)


def _values(model: str) -> Mapping[str, Any]:
    row = catalog.find(model)
    values: Mapping[str, Any] = (
        catalog.config_of_model(model).to_dict() if row is None else row.config
    )
    return values


def _name(model: str, kind: str) -> str:
    """`meta-llama/Llama-3.1-8B` -> `llama-3.1-8b-lora`."""
    last = re.sub(r"[^\w.\-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-.").lower()
    return f"{last.removesuffix('.json') or 'model'}-{kind}"
