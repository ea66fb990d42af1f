"""The OKADFA model, registered with transformers' Auto classes, so that every stage treats it as
any other. Softmax and kernel attention have the same parameters. OKADFA adds to optimizer steps a
penalty on how far the query and key projections of each head are from orthogonal rows, and new
random features.

Shapes: B rows, T positions, H heads, M features, D hidden size (head size where a tensor has
heads), E packed documents, W width.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    Cache,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import maybe_autocast

from brimful.base.types import JsonDict
from brimful.model.blocks import CACHE_NAME, takes_cache
from brimful.model.okadfa.chunked_attention import attend_in_chunks
from brimful.model.okadfa.kernel_attention import (
    at_least_fp32,
    attend_by_kernel,
    count_positions,
    draw_projection,
    find_text,
    keeps_no_features,
    number_segments,
    refuse_packed_with_cache,
    temperature_of,
)
from brimful.model.okadfa.linear_attention import RecurrentCache, RecurrentGenerationMixin
from brimful.model.step_hooks import StepHooks
from brimful.recipe import Recipe

MODEL_TYPE = "okadfa"


class OkadfaConfig(PreTrainedConfig):  # type: ignore[misc]
    """A pre-norm GPT with fixed sinusoidal positions, biases everywhere and normalised queries and
    keys.

    Attributes:
        attention: "softmax", or "kernel": its estimate from positive random features. The
            parameters are the same.
        num_features: Random features per head; None: four times the head size.
        feature_seed: Seed of the random directions.
        initial_temperature: Factor on the cosine of a query and a key at the start; learned per
            head. The estimate's error grows with its exponential.
        activation: Activation of the MLPs.
        max_position_embeddings: Longest text that softmax attention was trained on; None for kernel
            attention, which reads on.
    """

    model_type = MODEL_TYPE
    # Transformers' class attribute.
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012

    vocab_size: int = 50257
    hidden_size: int = 768
    intermediate_size: int | None = None
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    attention: Literal["softmax", "kernel"] = "kernel"
    num_features: int | None = None
    feature_seed: int = 0
    initial_temperature: float = 1.0
    activation: Literal["gelu", "gelu_erf", "relu", "swish"] = "gelu"
    dropout: float = 0.0
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: object) -> None:
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.num_features is None:
            self.num_features = 4 * self.head_size
        kwargs.pop("layer_types", None)
        super().__post_init__(**kwargs)
        if self.attention not in ("softmax", "kernel"):
            raise ValueError(f"attention {self.attention!r} must be 'softmax' or 'kernel'")
        if self.num_features < 1:
            raise ValueError(
                f"num_features {self.num_features} must be at least 1; None means four times the"
                " head size"
            )
        if not self.initial_temperature > 0:
            raise ValueError(
                f"initial_temperature {self.initial_temperature} must be above 0; 1 is a good first"
                " value"
            )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of num_attention_heads"
                f" {self.num_attention_heads}"
            )

    @property
    def layer_types(self) -> list[str]:
        """The layer types by which transformers makes caches; they follow `attention` even if that
        is changed while a model is loaded.
        """
        kind = "full_attention" if self.attention == "softmax" else "linear_attention"
        return [kind] * self.num_hidden_layers

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_attention_heads


_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),
    "gelu_erf": F.gelu,
    "relu": F.relu,
    "swish": F.silu,
}


def register() -> None:
    """Register the model with transformers' Auto classes."""
    AutoConfig.register(MODEL_TYPE, OkadfaConfig, exist_ok=True)
    AutoModel.register(OkadfaConfig, OkadfaModel, exist_ok=True)
    AutoModelForCausalLM.register(OkadfaConfig, OkadfaForCausalLM, exist_ok=True)


class OkadfaAttention(nn.Module):
    """Attention with scores temperature * cos(query, key) (Henry et al. 2020, with one temperature
    per head).

    The norms of queries and keys decide how well features estimate the softmax kernel: the variance
    grows like exp(|q + k|^2). Deviation from Choromanski et al. 2021, who do not fix the norms.
    """

    projection_HMD: Tensor
    is_causal = True

    def __init__(self, config: OkadfaConfig, layer: int) -> None:
        super().__init__()
        width, self.config, self.layer = config.hidden_size, config, layer
        self.heads, self.head_size = config.num_attention_heads, config.head_size
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width) for _ in range(4)
        )
        self.log_temperature_H = nn.Parameter(torch.empty(self.heads))
        if config.attention == "kernel":
            self.register_buffer(
                "projection_HMD",
                torch.empty(
                    self.heads, int(config.num_features or 0), self.head_size, dtype=torch.float32
                ),
            )

    def redraw(self, draw: int) -> None:
        """Set the random directions to those of this number."""
        self.projection_HMD.copy_(self.directions(draw))

    def directions(self, draw: int = 0) -> Tensor:
        """Return random directions (H, M, D): a pure function of the config, the layer and the
        number of the draw.
        """
        return draw_projection(
            self.heads,
            int(self.config.num_features or 0),
            self.head_size,
            seed=self.config.feature_seed,
            layer=self.layer,
            draw=draw,
        )

    def unit_queries_and_keys(self, hidden_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys of norm 1, in fp32 or more (B, H, T, D)."""
        projected = (self.in_heads(project(hidden_BTD)) for project in (self.q_proj, self.k_proj))
        queries, keys = (F.normalize(at_least_fp32(each), dim=-1, eps=1e-6) for each in projected)
        return queries, keys

    def temperature_H11(self) -> Tensor:  # noqa: N802 - shape suffix
        """Return the factor on the cosines of each head, in fp32 or more."""
        return temperature_of(self.log_temperature_H)[:, None, None]

    @takes_cache
    def forward(
        self,
        hidden_BTD: Tensor,
        *,
        mask: Tensor | None = None,
        segments_BT: Tensor | None = None,
        is_text_BT: Tensor | None = None,
        cache: Cache | None = None,
        **others: Any,
    ) -> Tensor:
        """(B, T, D) in and out.

        Args:
            mask: Mask of softmax attention, in the form that its implementation takes.
            segments_BT: Ascending numbers of packed documents, for kernel attention.
            is_text_BT: False at padding, for kernel attention.
            cache: Cache; read, and updated.
            others: What the implementation of softmax attention takes besides.
        """
        if self.config.attention == "kernel" and keeps_no_features(
            self.config._attn_implementation, cache
        ):
            return self._in_chunks(hidden_BTD, segments_BT, is_text_BT)
        queries, keys = self.unit_queries_and_keys(hidden_BTD)
        values = self.in_heads(self.v_proj(hidden_BTD))
        if self.config.attention == "softmax":
            attended_BTHD = self._softmax(queries, keys, values, mask, cache, **others)
        else:
            with maybe_autocast(hidden_BTD.device.type, enabled=False):
                attended_BHTD = attend_by_kernel(
                    *self.scaled(queries, keys),
                    at_least_fp32(values),
                    self.projection_HMD,
                    layer=self.layer,
                    segments_BT=segments_BT,
                    is_text_BT=is_text_BT,
                    past=cache,
                )
            attended_BTHD = attended_BHTD.transpose(1, 2).to(values.dtype)
        out_BTD: Tensor = self.o_proj(attended_BTHD.flatten(2))
        return out_BTD

    def _in_chunks(
        self, hidden_BTD: Tensor, segments_BT: Tensor | None, is_text_BT: Tensor | None
    ) -> Tensor:
        queries, keys, values = (
            self.in_heads(project(hidden_BTD))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        with maybe_autocast(hidden_BTD.device.type, enabled=False):
            attended_BHTD = attend_in_chunks(
                queries,
                keys,
                values,
                self.projection_HMD,
                temperature_of(self.log_temperature_H).sqrt(),
                segments_BT=segments_BT,
                is_text_BT=is_text_BT,
            )
        attended_BTHD = attended_BHTD.transpose(1, 2).to(values.dtype)
        out_BTD: Tensor = self.o_proj(attended_BTHD.flatten(2))
        return out_BTD

    def scaled(self, queries_BHTD: Tensor, keys_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys of norm 1, each with its share of the temperature."""
        share_H11 = self.temperature_H11().sqrt()
        return queries_BHTD * share_H11, keys_BHTD * share_H11

    def in_heads(self, projected_BTD: Tensor) -> Tensor:
        """(B, H, T, D)."""
        in_heads_BHTD: Tensor = projected_BTD.unflatten(-1, (self.heads, self.head_size)).transpose(
            1, 2
        )
        return in_heads_BHTD

    def _softmax(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        past: Cache | None,
        **others: Any,
    ) -> Tensor:
        queries = (queries * self.temperature_H11()).to(values.dtype)
        keys = keys.to(values.dtype)
        if past is not None:
            keys, values = past.update(keys, values, self.layer)
        implementation = self.config._attn_implementation
        attend: Any = _eager
        if implementation != "eager":
            attend = ALL_ATTENTION_FUNCTIONS[implementation]
        attended_BTHD: Tensor = attend(
            self, queries, keys, values, mask, scaling=1.0, dropout=0.0, **others
        )[0]
        return attended_BTHD


def _eager(
    _: nn.Module,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    scaling: float,
    **__: Any,
) -> tuple[Tensor]:
    """transformers' attention by its formula: (B, H, T, D) in, (B, T, H, D) out."""
    weights = torch.softmax(
        queries @ keys.mT * scaling + mask, dim=-1, dtype=at_least_fp32(queries).dtype
    )
    return ((weights.to(values.dtype) @ values).transpose(1, 2),)


class AttentionPart(nn.Module):
    """hidden + dropout(attention(norm(hidden)))."""

    def __init__(self, config: OkadfaConfig, layer: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = OkadfaAttention(config, layer)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_BTD: Tensor, **how: Any) -> Tensor:
        """(B, T, D) in and out."""
        out_BTD: Tensor = hidden_BTD + self.dropout(self.attention(self.norm(hidden_BTD), **how))
        return out_BTD


class MlpPart(nn.Module):
    """hidden + dropout(down(dropout(activation(up(norm(hidden))))))."""

    def __init__(self, config: OkadfaConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, int(config.intermediate_size or 0)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.up_proj, self.down_proj = nn.Linear(width, inner), nn.Linear(inner, width)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = _ACTIVATIONS[config.activation]

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """(B, T, D) in and out."""
        inner = self.dropout(self.activation(self.up_proj(self.norm(hidden_BTD))))
        out_BTD: Tensor = hidden_BTD + self.dropout(self.down_proj(inner))
        return out_BTD


class OkadfaBlock(GradientCheckpointingLayer):  # type: ignore[misc]
    """Attention, then MLP, each beside the residual stream."""

    def __init__(self, config: OkadfaConfig, layer: int) -> None:
        super().__init__()
        self.attention_part = AttentionPart(config, layer)
        self.mlp_part = MlpPart(config)

    def forward(self, hidden_BTD: Tensor, **how: Any) -> Tensor:
        """(B, T, D) in and out."""
        out_BTD: Tensor = self.mlp_part(self.attention_part(hidden_BTD, **how))
        return out_BTD


class OkadfaPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """Class attributes and initialisation that transformers needs."""

    config: OkadfaConfig
    config_class = OkadfaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["OkadfaBlock"]  # noqa: RUF012 - transformers' class attribute
    _skip_keys_device_placement = [CACHE_NAME]  # noqa: RUF012
    _supports_sdpa = True
    _supports_attention_backend = True
    _is_stateful = True
    _keep_in_fp32_modules_strict = ["projection_HMD"]  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the projections of attention orthogonally, as the original does, so that the
        penalty on queries and keys starts at 0; other weights from N(0, 0.02), biases zero.
        """
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, 0.0, self.config.initializer_range)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, 0.0, self.config.initializer_range)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, OkadfaAttention):
            for projection in (module.q_proj, module.k_proj, module.v_proj):
                if not projection.weight.is_meta:
                    init.orthogonal_(projection.weight)
            init.constant_(module.log_temperature_H, math.log(self.config.initial_temperature))
            if self.config.attention == "kernel" and not module.projection_HMD.is_meta:
                init.copy_(module.projection_HMD, module.directions())


class OkadfaModel(OkadfaPreTrainedModel):
    """The body: embedding, positions, blocks, final norm."""

    def __init__(self, config: OkadfaConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            OkadfaBlock(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
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
        """Token ids (B, T) to hidden states after the final norm (B, T, D).

        Args:
            attention_mask: (B, S), 0 at padding, of these tokens or of all up to them.
            position_ids: (B, T) or (1, T); None: counted from the mask or the cache.
            cache: A `RecurrentCache` for kernel attention, or with given positions any cache with
                recurrent layers.
            packed_lengths: (E,) lengths of the documents that lie end to end in every row.

        Raises:
            ValueError: packed documents and a cache, or positions that cannot be known.
        """
        del others
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        is_kernel = self.config.attention == "kernel"
        if use_cache and cache is None:
            cache = RecurrentCache(self.config) if is_kernel else DynamicCache(config=self.config)
        refuse_packed_with_cache(cache, packed_lengths)
        given_positions = position_ids
        if position_ids is None:
            position_ids = count_positions(inputs_embeds, attention_mask, cache)
        for_blocks: JsonDict = {CACHE_NAME: cache}
        if is_kernel:
            for_blocks |= {
                "segments_BT": number_segments(inputs_embeds, packed_lengths),
                "is_text_BT": find_text(inputs_embeds, attention_mask),
            }
        else:
            if packed_lengths is not None:
                for_blocks["packed_lengths"] = packed_lengths
            for_blocks["mask"] = create_causal_mask(
                self.config, inputs_embeds, attention_mask, cache, given_positions
            )
        positions = sinusoids(position_ids, self.config.hidden_size) * (
            math.sqrt(2) * self.config.initializer_range
        )
        hidden_BTD = self.dropout(inputs_embeds + positions.to(inputs_embeds.dtype))
        for block in self.layers:
            hidden_BTD = block(hidden_BTD, **for_blocks)
        if isinstance(cache, RecurrentCache):
            cache.positions += inputs_embeds.shape[1]
        return BaseModelOutputWithPast(self.norm(hidden_BTD), cache)


def sinusoids(positions_BT: Tensor, width: int) -> Tensor:
    """Return sin and cos of positions / 10000^(2i / width), fp32 (B, T, D) (Vaswani et al. 2017,
    section 3.5, in halves instead of alternating).

    The model scales them to the size of its initial embeddings; in the original they are 35 times
    as large.
    """
    frequencies = torch.exp(
        torch.arange(0, width, 2, device=positions_BT.device) * (-math.log(10_000.0) / width)
    )
    angles = positions_BT[..., None].float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :width]


class OkadfaForCausalLM(RecurrentGenerationMixin, OkadfaPreTrainedModel):
    """The body and a head without bias, tied to the embedding."""

    # Transformers' class attribute.
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: OkadfaConfig) -> None:
        super().__init__(config)
        self.model = OkadfaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @takes_cache
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Compute as any causal language model of transformers does, except that hidden states and
        attention weights are not returned.
        """
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            cache,
            inputs_embeds,
            use_cache,
            **others,
        )
        hidden_BTD = outputs.last_hidden_state
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden_BTD[:, kept])
        loss = None
        if labels is not None:
            vocabulary = self.config.vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=vocabulary)
        return CausalLMOutputWithPast(loss, logits, getattr(outputs, CACHE_NAME))


def violation_per_head(weight: Tensor, heads: int) -> Tensor:
    """|W W^T - I|^2 (Frobenius) of each head's D x W slice of a weight stored as (out, in): (H,),
    in the weight's dtype.

    The small Gram matrix: that of the whole projection would have W x W entries and, where W > D, a
    floor that no weights reach.
    """
    slices_HDW = weight.unflatten(0, (heads, -1))
    gram_HDD = slices_HDW @ slices_HDW.transpose(1, 2)
    violation_H: Tensor = (
        (gram_HDD - torch.eye(gram_HDD.shape[-1], dtype=weight.dtype, device=weight.device))
        .square()
        .sum((1, 2))
    )
    return violation_H


def attentions_of(model: nn.Module) -> list[OkadfaAttention]:
    """The attention modules, first layer first."""
    return [module for module in model.modules() if isinstance(module, OkadfaAttention)]


def orthogonality_penalty(model: nn.Module, *, values: bool = False) -> Tensor:
    """Sum of the violations of all query and key projections, with `values` of value projections as
    well: a scalar in the weights' dtype; its gradient is 4 (W W^T - I) W.
    """
    names = ("q_proj", "k_proj", "v_proj") if values else ("q_proj", "k_proj")
    return torch.stack(
        [
            violation_per_head(getattr(one, name).weight, one.heads).sum()
            for one in attentions_of(model)
            for name in names
        ]
    ).sum()


def redraw_features(model: nn.Module, draw: int) -> None:
    """Draw new random directions in every kernel attention.

    Args:
        draw: Number of the redraw; the directions are a pure function of it and the model's seed.
    """
    with torch.no_grad():
        for attention in attentions_of(model):
            if attention.config.attention == "kernel":
                attention.redraw(draw)


def step_hooks(model: nn.Module, recipe: Recipe, total_steps: int) -> StepHooks:
    """Return what the recipe adds to optimizer steps: new random directions of the kernel features
    every `model.redraw` steps, and the orthogonality penalty.

    The directions are saved in checkpoints, so a run that resumes between two redraws has them.
    """
    redraw_every = None if isinstance(recipe.model, str) else recipe.model.redraw
    rules = recipe.orthogonality

    def before_step(step: int) -> None:
        if redraw_every is not None and step % redraw_every == 0:
            redraw_features(model, step // redraw_every)

    if rules is None:
        return StepHooks(before_step)

    def penalty(step: int) -> Tensor:
        return rules.weight_at(step, total_steps) * orthogonality_penalty(
            model, values=rules.values
        )

    return StepHooks(before_step, penalty)
