"""What adapters of a published model reach: linear layers that they would fail on, or learn nothing
in, are left out; tokens that it does not know yet get rows of its embedding and output head that
are trained.
"""

import functools
import inspect
import re
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


_TAKEN = re.compile(r"self\.(\w+)\.weight\b(?!\.(?:dtype|device|shape))")
_HANDED_ON = re.compile(r"self\.(\w+)\.weight\s*[,)@]")
_CALLED = re.compile(r"self\.(\w+)\(")


def out_of_reach(model: nn.Module) -> list[str]:
    """Return the names of the linear layers of a transformers model that get no adapter:

    - layers that compute something else than a product of their input, as a router that returns
      scores, or a product for each group (Llama 4, Phi-MoE, DeepSeek-V4);
    - layers whose weight the block above hands to a fused kernel, or that it never calls, so that
      an adapter is left out of the computation (projections of Mamba and Mamba-2, the router of
      LongCat-Flash). Mamba's blocks call some of them where the kernel is absent; which weights an
      adapter has must not depend on what is installed.
    """
    names = []
    for prefix, parent in model.named_modules():
        taken = _taken_weights(type(parent))  # type: ignore[arg-type]
        for name, module in parent.named_children():
            if isinstance(module, nn.Linear) and (name in taken or not _is_product(module)):
                names.append(f"{prefix}.{name}".lstrip("."))
    return names


@functools.cache
def _taken_weights(block: type[nn.Module]) -> set[str]:
    if not block.__module__.startswith("transformers.models."):
        return set()
    code = inspect.getsource(block.forward)
    taken, handed_on, called = (set(each.findall(code)) for each in (_TAKEN, _HANDED_ON, _CALLED))
    return handed_on | (taken - called)


def _is_product(layer: nn.Module) -> bool:
    """Return whether a layer of a model's own class returns a row of outputs for one of inputs."""
    if not (
        isinstance(layer, nn.Linear) and type(layer).__module__.startswith("transformers.models.")
    ):
        return True
    row = torch.empty((1, layer.in_features), dtype=layer.weight.dtype, device=layer.weight.device)
    try:
        with torch.no_grad():
            return tuple(layer(row).shape) == (1, layer.out_features)
    except (RuntimeError, AttributeError, IndexError):
        return False
