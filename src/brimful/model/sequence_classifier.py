"""Published encoders and causal models with a fresh head for labels."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from brimful.base.errors import PlanError
from brimful.model.catalog import config_of_model
from brimful.model.published import absent_weights, reading, refuse_missing, unreadable
from brimful.model.quiet import quiet_logger, without_progress_bars
from brimful.model.registered import register

_HEADS = ("pooler.",)
"""Parts of a body that only a head uses, so that models trained without one lack them."""


def load_with_fresh_head(
    source: str | Path,
    names: Sequence[str],
    *,
    multiple: bool,
    pad_id: int,
    attention: str,
    device: torch.device,
    seed: int,
) -> PreTrainedModel:
    """A published body in fp32 with a classification head whose weights depend on `seed` only; in
    eval mode.

    Args:
        source: Hub id or folder of an encoder or a causal model.
        names: The labels in their order, kept in the model's config.
        multiple: A text may have any number of labels.
        pad_id: Token that fills rows; causal models look for the last other one.
        attention: transformers' attention implementation.
        device: Where it goes.
        seed: Of the head.

    Raises:
        PlanError: not found, not readable, no classification head for this kind of model, or
            weights that do not belong to its config.
    """
    register()
    config_of_model(str(source))  # says what is wrong with the name before anything is read
    settings: dict[str, Any] = {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "multi_label_classification" if multiple else "single_label_classification",
        "pad_token_id": pad_id,
    }
    quietly = quiet_logger("transformers", logging.ERROR)
    with (
        reading(lambda error: unreadable("model", source, error)),
        without_progress_bars(),
        quietly,
        torch.random.fork_rng(devices=[]),
    ):
        torch.manual_seed(seed)
        model, info = AutoModelForSequenceClassification.from_pretrained(
            source,
            dtype=torch.float32,
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **settings,
        )
    body = f"{model.base_model_prefix}."
    refuse_missing(
        [
            name
            for name in absent_weights(info)
            if name.startswith(body) and not name.removeprefix(body).startswith(_HEADS)
        ],
        source,
    )
    loaded: PreTrainedModel = model.to(device)
    return loaded.eval()


def refuse_more_positions(tokens: int, model: PreTrainedModel, source: str | Path) -> None:
    """Raises PlanError where texts of so many tokens are longer than the body can read."""
    most = text_positions(model)
    if most is not None and tokens > most:
        raise PlanError(
            f"sequence_length {tokens} is above the {most} tokens that {source} reads at once; use"
            f" sequence_length={most} or less."
        )


def text_positions(model: PreTrainedModel) -> int | None:
    """Tokens that a body with learned positions can read at most; None where it has none. RoBERTa's
    begin behind the padding token's.
    """
    positions = next(
        (
            module
            for name, module in model.base_model.named_modules()
            if name.endswith("position_embeddings")
        ),
        None,
    )
    weight = getattr(positions, "weight", None)
    if weight is None:
        return None
    padding = getattr(positions, "padding_idx", None)
    return int(weight.shape[0]) - (0 if padding is None else int(padding) + 1)
