"""Tokens that a published model does not know yet, as rows of its embedding and output head that
are trained.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.model.quiet import without_progress_bars


def ids_of_tokens(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[str]) -> list[int]:
    """Return the ids of tokens that were added, in order."""
    return sorted({int(tokenizer.convert_tokens_to_ids(token)) for token in tokens})


def make_room(model: PreTrainedModel, ids: Sequence[int]) -> None:
    """Give embedding and head a row for each id, in place. New rows are the mean of the others, so
    that they do not depend on chance.
    """
    num_rows = model.get_input_embeddings().weight.shape[0]
    if max(ids, default=0) < num_rows:
        return
    with without_progress_bars():
        model.resize_token_embeddings(max(ids) + 1, mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            weight = layer.weight
            weight[num_rows:] = weight[:num_rows].float().mean(dim=0).to(weight.dtype)


def rows_to_train(model: nn.Module, ids: Sequence[int]) -> dict[str, list[int]] | None:
    """Return `trainable_token_indices` of a PEFT configuration: the rows of embedding and head by
    the name of the layer; None where there are none. A head that shares the embedding's weights
    follows it.
    """
    if not ids:
        return None
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[operator]
    layers = {embedding} if head.weight is embedding.weight else {embedding, head}
    return {
        name.rsplit(".", 1)[-1]: [*ids]
        for name, module in model.named_modules()
        if module in layers
    }


def head_weight_of(model: PreTrainedModel) -> torch.Tensor:
    """Return the weight of the output head (V, D), with trained rows unless adapters are
    disabled.
    """
    head = model.get_output_embeddings()
    rows = getattr(head, "token_adapter", None)
    if rows is not None and rows.disable_adapters:
        head = rows.get_base_layer()
    weight: torch.Tensor = head.weight
    return weight
