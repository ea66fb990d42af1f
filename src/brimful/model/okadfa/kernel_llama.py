"""Llama with kernel attention in place of softmax attention: what a published model is converted
into (Kasai et al. 2021, "Finetuning Pretrained Transformers into RNNs", convert to learned
features; here they are the random ones of Choromanski et al. 2021).

Shapes: B rows, T positions, H heads of queries, G heads of keys and values, M features, D head size
(hidden size where a tensor has no heads).
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Cache, LlamaConfig
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaForCausalLM,
    LlamaModel,
    LlamaPreTrainedModel,
    apply_rotary_pos_emb,
)
from transformers.utils.generic import maybe_autocast

from brimful.base.types import JsonDict
from brimful.model.blocks import CACHE_NAME, takes_cache
from brimful.model.description import KERNEL_LLAMA
from brimful.model.okadfa.chunked_attention import attend_in_chunks
from brimful.model.okadfa.kernel_attention import (
    at_least_fp32,
    attend_by_kernel,
    count_positions,
    draw_projection,
    find_text,
    for_every_query,
    keeps_no_features,
    number_segments,
    refuse_packed_with_cache,
    temperature_of,
)
from brimful.model.okadfa.linear_attention import RecurrentCache, RecurrentGenerationMixin


class KernelLlamaConfig(LlamaConfig):  # type: ignore[misc]
    """Llama's, with the settings of kernel attention.

    Attributes:
        num_features: Random features per head of keys.
        feature_seed: Seed of the random directions.
        initial_temperature: Factor on the cosine of a query and a key at the start; learned per
            head of keys.
    """

    model_type = KERNEL_LLAMA

    num_features: int = 256
    feature_seed: int = 0
    initial_temperature: float = 1.0

    def __post_init__(self, **kwargs: object) -> None:
        kwargs.pop("layer_types", None)
        super().__post_init__(**kwargs)

    @property
    def layer_types(self) -> list[str]:
        """The layer types by which transformers makes caches."""
        return ["linear_attention"] * int(self.num_hidden_layers)


class KernelLlamaAttention(LlamaAttention):  # type: ignore[misc]
    """Llama's attention layer with kernel attention in place of softmax.

    Queries and keys are scaled to norm 1, and the score is the temperature times their cosine, as
    in `OkadfaAttention`. Random directions and temperature belong to a key head, so query heads
    that share one (grouped-query attention) share its features and its running sum.
    """

    projection_GMD: Tensor

    def __init__(self, config: KernelLlamaConfig, layer: int) -> None:
        super().__init__(config, layer)
        groups = config.num_key_value_heads
        self.log_temperature_G = nn.Parameter(torch.empty(groups))
        self.register_buffer(
            "projection_GMD",
            torch.empty(groups, config.num_features, self.head_dim, dtype=torch.float32),
        )

    def directions(self) -> Tensor:
        """Return random directions (G, M, D): a pure function of the config and the layer."""
        return draw_projection(
            self.config.num_key_value_heads,
            self.config.num_features,
            self.head_dim,
            seed=self.config.feature_seed,
            layer=self.layer_idx,
        )

    @takes_cache
    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        *,
        cache: Cache | None = None,
        segments_BT: Tensor | None = None,
        is_text_BT: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """(B, T, D) in and out.

        Args:
            hidden_states: (B, T, D).
            position_embeddings: Cosines and sines of the rotary positions.
            cache: Cache; read, and updated.
            segments_BT: Ascending numbers of packed documents.
            is_text_BT: False at padding.
            others: What transformers passes to attention functions; not used.
        """
        del others
        queries, keys, values = (
            project(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = apply_rotary_pos_emb(queries, keys, *position_embeddings)
        where: JsonDict = {"segments_BT": segments_BT, "is_text_BT": is_text_BT}
        with maybe_autocast(hidden_states.device.type, enabled=False):
            if keeps_no_features(self.config._attn_implementation, cache):
                share_G = temperature_of(self.log_temperature_G).sqrt()
                attended_BHTD = attend_in_chunks(
                    queries, keys, values, self.projection_GMD, share_G, **where
                )
            else:
                attended_BHTD = attend_by_kernel(
                    *self.scaled(queries, keys),
                    at_least_fp32(values),
                    self.projection_GMD,
                    layer=self.layer_idx,
                    past=cache,
                    **where,
                )
        attended_BTD = attended_BHTD.transpose(1, 2).flatten(2).to(values.dtype)
        return self.o_proj(attended_BTD), None

    def scaled(self, queries_BHTD: Tensor, keys_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys scaled to norm 1, each with its share of the temperature."""
        queries, keys = (
            F.normalize(at_least_fp32(each), dim=-1, eps=1e-6) for each in (queries_BHTD, keys_BGTD)
        )
        share_G11 = temperature_of(self.log_temperature_G).sqrt()[:, None, None]
        shared_by = queries.shape[1] // keys.shape[1]
        return queries * for_every_query(share_G11[None], shared_by), keys * share_G11


class KernelLlamaPreTrainedModel(LlamaPreTrainedModel):  # type: ignore[misc]
    """Class attributes and initialisation that transformers needs."""

    config: KernelLlamaConfig
    config_class = KernelLlamaConfig
    _is_stateful = True
    _keep_in_fp32_modules_strict = ["projection_GMD"]  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, KernelLlamaAttention):
            init.constant_(module.log_temperature_G, math.log(self.config.initial_temperature))
            if not module.projection_GMD.is_meta:
                init.copy_(module.projection_GMD, module.directions())


class KernelLlamaModel(KernelLlamaPreTrainedModel, LlamaModel):  # type: ignore[misc]
    """The body of Llama with kernel attention in every block."""

    def __init__(self, config: KernelLlamaConfig) -> None:
        super().__init__(config)
        for layer, block in enumerate(self.layers):
            block.self_attn = KernelLlamaAttention(config, layer)
        self.post_init()

    @takes_cache
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        packed_lengths: Tensor | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPast:
        """Token ids (B, T) to hidden states after the final norm (B, T, D); arguments as of
        `OkadfaModel`.

        Raises:
            ValueError: packed documents and a cache.
        """
        del others
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if use_cache and cache is None:
            cache = RecurrentCache(self.config)
        refuse_packed_with_cache(cache, packed_lengths)
        if position_ids is None:
            position_ids = count_positions(inputs_embeds, attention_mask, cache)
        how: JsonDict = {
            CACHE_NAME: cache,
            "position_embeddings": self.rotary_emb(inputs_embeds, position_ids=position_ids),
            "segments_BT": number_segments(inputs_embeds, packed_lengths),
            "is_text_BT": find_text(inputs_embeds, attention_mask),
        }
        hidden_BTD = inputs_embeds
        for block in self.layers:
            hidden_BTD = block(hidden_BTD, **how)
        if isinstance(cache, RecurrentCache):
            cache.positions += inputs_embeds.shape[1]
        return BaseModelOutputWithPast(self.norm(hidden_BTD), cache)


class KernelLlamaForCausalLM(
    RecurrentGenerationMixin,
    KernelLlamaPreTrainedModel,
    LlamaForCausalLM,  # type: ignore[misc]
):
    """The body and Llama's head."""

    def __init__(self, config: KernelLlamaConfig) -> None:
        super().__init__(config)
        self.model = KernelLlamaModel(config)
        self.post_init()


def register() -> None:
    """Register the model with transformers' Auto classes."""
    AutoConfig.register(KERNEL_LLAMA, KernelLlamaConfig, exist_ok=True)
    AutoModel.register(KernelLlamaConfig, KernelLlamaModel, exist_ok=True)
    AutoModelForCausalLM.register(KernelLlamaConfig, KernelLlamaForCausalLM, exist_ok=True)
