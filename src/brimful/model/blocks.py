"""The transformer blocks of a model, and the depth of each of its parameters."""

import re

from torch import nn

from brimful.base.errors import PlanError
from brimful.base.types import Counts

_EMBEDDING = re.compile(r"(^|[._])(embed\w*|wte|wpe)(\.|$)")


def named_blocks_of(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return the name and the modules of the transformer blocks: the longest list of modules of one
    class, or of as many classes where the config says that the model has so many blocks.

    Raises:
        PlanError: there is none.
    """
    config = getattr(model, "config", None)
    count = getattr(config, "num_hidden_layers", None)
    lists = [
        (name, child)
        for name, child in model.named_modules()
        if isinstance(child, nn.ModuleList)
        and (len({type(block) for block in child}) == 1 or len(child) == count)
    ]
    if not lists:
        raise PlanError(
            f"{type(model).__name__} has no list of transformer blocks, so brimful cannot tell its"
            " layers apart."
        )
    return max(lists, key=lambda entry: (len(entry[1]), -len(entry[0])))


def body_of(model: nn.Module) -> nn.Module:
    """Return the part of a transformers model that makes hidden states; another module is returned
    as it is.
    """
    body: nn.Module = getattr(model, "base_model", model)
    if body is model:  # Llama 4's text part names a body that it does not have
        body = getattr(model, "model", model)
    return body


def depth_of_parameters(model: nn.Module) -> Counts:
    """Return each parameter's depth by name: 0 for embeddings, 1 to L for the blocks, L + 1 for
    everything after them.
    """
    prefix, blocks = named_blocks_of(model)

    def depth(name: str) -> int:
        if name.startswith(f"{prefix}."):
            return 1 + int(name.removeprefix(f"{prefix}.").split(".")[0])
        return 0 if _EMBEDDING.search(name) else len(blocks) + 1

    return {name: depth(name) for name, _ in model.named_parameters()}


def hidden_matrices(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters of two dimensions inside the transformer blocks: neither embeddings nor
    the output layer.
    """
    _, blocks = named_blocks_of(model)
    return {parameter for parameter in blocks.parameters() if parameter.ndim == 2}
