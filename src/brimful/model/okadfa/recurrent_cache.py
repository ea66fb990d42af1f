"""The cache of kernel attention, one sum per layer and the number of positions in it, and
generation with it.
"""

from typing import Any

from torch import Tensor
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedConfig

from brimful.base.types import JsonDict
from brimful.model.cache_name import CACHE_NAME


class RecurrentCache(DynamicCache):  # type: ignore[misc]
    """transformers' cache of recurrent layers, extended by the number of positions read, which
    `generate` needs.

    Args:
        config: The model's.
    """

    is_compileable = False  # the count is a number of Python's

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config=config)
        self.positions = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the positions read, the same for every layer."""
        del layer_idx
        return self.positions

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return the number of positions that a mask covers, and the first of them."""
        del layer_idx
        return self.positions + query_length, 0

    def reset(self) -> None:
        """Forget the text."""
        super().reset()
        self.positions = 0


class RecurrentGenerationMixin(GenerationMixin):  # type: ignore[misc]
    """transformers' `generate` with a cache that knows how many positions it has read."""

    config: PreTrainedConfig

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: JsonDict, *rest: Any, **others: Any
    ) -> None:
        is_given = model_kwargs.get(CACHE_NAME) is not None
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *rest, **others)
        is_recurrent = "linear_attention" in self.config.layer_types
        if is_recurrent and not is_given and model_kwargs.get(CACHE_NAME) is not None:
            model_kwargs[CACHE_NAME] = RecurrentCache(self.config)


def sum_before(cache: Cache, layer: int) -> Tensor | None:
    """Return the sum over the positions that a layer has read, (B, H, M, E); None before the
    first.
    """
    state: Tensor | None = cache.layers[layer].recurrent_states[0]
    return state


def num_read(cache: Cache | None) -> int:
    """Return the number of positions that a cache has read.

    Raises:
        ValueError: it holds a sum but not the number of positions.
    """
    if cache is None:
        return 0
    if isinstance(cache, RecurrentCache) or not cache.layers or hasattr(cache.layers[0], "keys"):
        return int(cache.get_seq_length())
    if sum_before(cache, 0) is not None:
        raise ValueError(
            "this cache does not know how much it has read: give position_ids, or make it a"
            " RecurrentCache"
        )
    return 0
