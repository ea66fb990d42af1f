"""Published encoders and causal models with a fresh classification head."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from brimful.base.errors import PlanError
from brimful.base.types import JsonDict
from brimful.model import packed_texts
from brimful.model.catalog import config_of_model
from brimful.model.published import (
    absent_weights,
    reading,
    refuse_missing,
    refuse_unsafe_files,
)
from brimful.model.quick_layers import drop_quickly
from brimful.model.quiet import quiet_logger, without_progress_bars
from brimful.model.registered import register
from brimful.model.tokenizer import unreadable

_HEADS = ("pooler.",)
"""Modules of a body that only a classification head uses; models trained without one lack them."""


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
    """Load a published body in fp32 and give it a classification head whose weights depend on
    `seed` only; in eval mode.

    Args:
        source: Hub id or folder of an encoder or a causal model.
        names: The labels in their order, stored in the model's config.
        multiple: A text may have any number of labels.
        pad_id: Padding token; causal models classify at the last token that is not padding.
        attention: transformers' attention implementation.
        device: Where the model is loaded.
        seed: Seed of the head's weights.

    Raises:
        PlanError: not found, not readable, no classification head for this kind of model, or
            weights that do not belong to its config.
    """
    register()
    config_of_model(str(source))  # raises a clear error for a wrong name before anything is read
    refuse_unsafe_files(source)
    settings: JsonDict = {
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
    missing = [name.removeprefix(body) for name in absent_weights(info) if name.startswith(body)]
    refuse_missing([f"{body}{name}" for name in missing if not name.startswith(_HEADS)], source)
    if attention == packed_texts.NAME:
        drop_quickly(model)
    loaded: PreTrainedModel = model.to(device)
    return loaded.eval()


def check_max_positions(tokens: int, model: PreTrainedModel, source: str | Path) -> None:
    """Raise PlanError if texts of so many tokens are longer than the body can read."""
    most = text_positions(model)
    if most is not None and tokens > most:
        raise PlanError(
            f"sequence_length {tokens} is above the {most} tokens that {source} reads at once; use"
            f" sequence_length={most} or less."
        )


def text_positions(model: PreTrainedModel) -> int | None:
    """Return the most tokens that a body with learned positions can read; None without learned
    positions. RoBERTa's positions begin after the padding token's.
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
