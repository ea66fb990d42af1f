"""One pass of any causal transformers model over token ids, with a cache.

Shapes: B rows, T positions of this pass, S slots of the cache, P positions whose logits are wanted,
V vocabulary.
"""

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from brimful.base.errors import RequestError

_CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""What models call their cache: from transformers 5.24 on, before, and before in state-space models
(Mamba). A model with code of its own may keep an earlier name.
"""


class Forward:
    """Knows how a model wants its cache, positions and mask.

    Args:
        model: A causal LM in eval mode.

    Attributes:
        takes_whole_masks: A mask of four dimensions reaches its attention as it is; else the model
            makes its own from one of two.

    Raises:
        RequestError: it takes no cache of transformers' kind.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._takes = frozenset(inspect.signature(type(model).forward).parameters)
        name = next((name for name in _CACHE_NAMES if name in self._takes), None)
        if name is None:
            raise RequestError(
                f"{type(model).__name__} takes no cache of transformers' kind, so it cannot"
                " generate here. Use its own `generate`."
            )
        self._cache_name = name
        config = model.config.get_text_config(decoder=True)
        self.takes_whole_masks: bool = (
            config._attn_implementation == "sdpa"
            and not getattr(config, "alibi", False)
            and "position_ids" in self._takes
        )

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    @property
    def has_positions(self) -> bool:
        """Whether it can be told the position of each token."""
        return "position_ids" in self._takes

    def __call__(
        self,
        ids_BT: Tensor,
        cache: Cache,
        *,
        positions_BT: Tensor,
        seen_BS: Tensor | None = None,
        at_P: Tensor | None = None,
    ) -> Tensor:
        """Read tokens.

        Args:
            ids_BT: The tokens.
            cache: What was read before; receives theirs.
            positions_BT: Positions of the tokens in their rows.
            seen_BS: Which slots of the cache one token of each row sees, itself included. None: the
                model's own causal mask.
            at_P: Positions whose logits are computed; None: the last one.

        Returns:
            Logits (B, P, V).
        """
        options: dict[str, Any] = {self._cache_name: cache, "use_cache": True}
        if self.has_positions:
            options["position_ids"] = positions_BT
        if "logits_to_keep" in self._takes:
            options["logits_to_keep"] = 1 if at_P is None else at_P
        if seen_BS is not None:
            whole_mask = self.takes_whole_masks
            options["attention_mask"] = seen_BS[:, None, None] if whole_mask else seen_BS.long()
        logits: Tensor = self.model(input_ids=ids_BT, **options).logits
        wanted = 1 if at_P is None else len(at_P)
        if logits.shape[1] > wanted:
            return logits[:, -1:] if at_P is None else logits[:, at_P]
        return logits
