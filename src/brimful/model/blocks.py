"""What a model of transformers shows of itself: its blocks, the depth of each of its parameters,
how much it reads at once, and the name of its cache.

The cache is called `cache` from transformers 5.24 on, `past_key_values` before. Code here calls it
`cache`. Models that brimful defines take it by both names, so that they run inside of either
version's `generate`.
"""

import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

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


_BEFORE_5_24 = "past_key_values"
CACHE_NAME = (
    _BEFORE_5_24 if _BEFORE_5_24 in BaseModelOutputWithPast.__dataclass_fields__ else "cache"
)
"""The name in the installed version: of the parameter, of the output, and of what `generate` hands
from token to token.
"""

_Forward = TypeVar("_Forward", bound=Callable[..., Any])


def takes_cache(forward: _Forward) -> _Forward:
    """Let a `forward` with a parameter `cache` take it as `past_key_values`, too."""

    @functools.wraps(forward)
    def by_either_name(*args: Any, **kwargs: Any) -> Any:
        if _BEFORE_5_24 in kwargs:
            kwargs["cache"] = kwargs.pop(_BEFORE_5_24)
        return forward(*args, **kwargs)

    return by_either_name  # type: ignore[return-value]


def context_of(model: PreTrainedModel) -> int:
    """Return how many positions the model can read at once; sys.maxsize for models without a
    limit, such as recurrent ones.
    """
    config = model.config.get_text_config(decoder=True)
    return int(getattr(config, "max_position_embeddings", None) or sys.maxsize)


@contextmanager
def eval_mode(model: PreTrainedModel) -> Iterator[None]:
    """Put a model in eval mode, and back into the mode it had."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
