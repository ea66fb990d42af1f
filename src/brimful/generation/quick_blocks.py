"""Blocks of Llama's kind with fewer and quicker operations, to write many texts on a CPU in bf16:
weights that read the same numbers are one product, the activation and the gate are computed inside
of products, and attention reads keys and values in bf16.

A block is exchanged only if it gives the numbers that its own code gives, up to the rounding of
bf16 (`_agrees`), so no list of model types is kept here.

Shapes: B texts, T tokens of each, N rows of a product (all tokens), W width, H heads, K key/value
heads, D head size.
"""

import functools
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from brimful.generation.quick_slots import BankLayer, PackedPrompts
from brimful.model.blocks import CACHE_NAME, takes_cache
from brimful.planning.writing import FILLED_BY_UNITS, FILLED_ROWS

ROWS = FILLED_BY_UNITS
"""Every product in bf16 has so many rows; missing ones are filled up with zeros. How a product is
rounded can depend on its number of rows, and a text must not depend on how many others are written.
On a Xeon with AMX, 64 rows take 1.4 times as long as 16 rows (1536 x 576, by hand).
"""
FEWER_ROWS = FILLED_ROWS
"""Where products were seen to be rounded alike whatever their rows, they are filled up to multiples
of this: without AMX, 64 rows take 3.4 times as long as 16 rows (an EPYC, the same product).
"""
_TRIED = 1024
"""Different outputs where products are tried: more would take longer to draw than to multiply."""
PROMPT_ROWS = 256
"""Rows of every product where prompts are read: 0.7 of the time of four products of 64 rows."""
PROBE_TOKENS, PROBE_SHARE = 6, 0.05
"""A block is tried on so many tokens; what it adds to them may differ by this share of its size."""


class Weight(NamedTuple):
    """What a linear layer multiplies with; adapters are merged."""

    weight_OI: Tensor
    bias_O: Tensor | None


class Product:
    """Products with weights in bf16, in the layout that they want; several weights that read the
    same inputs are one, their outputs stand beside each other.
    """

    def __init__(self, *weights: Weight) -> None:
        rounded = [each.weight_OI.detach().to(torch.bfloat16) for each in weights]
        weight_OI = rounded[0] if len(rounded) == 1 else torch.cat(rounded)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI, ROWS)
        self._size = len(weight_OI), weight_OI.shape[1]
        self._bias_O: Tensor | None = None
        if any(each.bias_O is not None for each in weights):
            parts = [_bias_of(each) for each in weights]
            self._bias_O = torch.cat(parts)

    def __call__(
        self,
        x_NI: Tensor,
        rows: int = ROWS,
        *,
        activation: str = "none",
        gate_NO: Tensor | None = None,
    ) -> Tensor:
        """Multiply in products of `rows` rows, or of fewer ones that are rounded alike.

        Args:
            x_NI: Inputs in bf16.
            rows: Most rows of a product.
            activation: "swish": computed before the result is rounded.
            gate_NO: What the result is multiplied with before it is rounded; in bf16.

        Returns:
            In bf16; in fp32 where there is a bias.
        """
        fill, num_rows = filled_rows(rows, *self._size), len(x_NI)
        x_NI = _filled(x_NI, fill)
        if gate_NO is None:
            blocks = [
                torch.ops.mkldnn._linear_pointwise(x, self._weight, None, activation, [], "")
                for x in x_NI.split(rows)
            ]
        else:
            blocks = [
                torch.ops.mkldnn._linear_pointwise.binary(x, gate, self._weight, None, "mul")
                for x, gate in zip(
                    x_NI.split(rows), _filled(gate_NO, fill).split(rows), strict=True
                )
            ]
        output_NO = (blocks[0] if len(blocks) == 1 else torch.cat(blocks))[:num_rows]
        return output_NO if self._bias_O is None else output_NO + self._bias_O


@functools.cache
def filled_rows(most_rows: int, outputs: int, inputs: int) -> int:
    """Return of what number products get a multiple of rows: `FEWER_ROWS` if this processor rounds
    products of weights of this size alike with any such number of rows up to the most, else the
    most. The numbers that are tried cancel out, so that a result is nothing but rounding, and
    another order of adding them shows.
    """
    generator = torch.Generator().manual_seed(0)
    half_OJ = torch.randn(min(outputs, _TRIED), inputs // 2, generator=generator).bfloat16()
    times = -(-outputs // len(half_OJ))
    weight_OI = torch.cat([half_OJ, half_OJ], 1).repeat(times, 1)[:outputs]
    weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI, ROWS)
    del weight_OI
    half_NJ = torch.randn(most_rows, inputs // 2, generator=generator)
    x_NI = torch.cat([half_NJ, -half_NJ], 1).to(torch.bfloat16)
    multiply = torch.ops.mkldnn._linear_pointwise
    whole_NO = multiply(x_NI, weight, None, "none", [], "")
    are_alike = (
        bool(whole_NO.any())
        and all(  # AMX leaves no rounding of small ones
            torch.equal(multiply(x_NI[:rows], weight, None, "none", [], ""), whole_NO[:rows])
            for rows in range(FEWER_ROWS, most_rows, FEWER_ROWS)
        )
    )
    return FEWER_ROWS if are_alike and inputs % 2 == 0 else most_rows


def _bias_of(weight: Weight) -> Tensor:
    if weight.bias_O is None:
        return weight.weight_OI.new_zeros(len(weight.weight_OI), dtype=torch.float32)
    return weight.bias_O.detach().float()


def _filled(x_NI: Tensor, rows: int) -> Tensor:
    """Add rows of zeros up to a multiple of `rows`."""
    missing = -len(x_NI) % rows
    return functional.pad(x_NI, (0, 0, 0, missing)) if missing else x_NI


def quick_blocks(
    model: PreTrainedModel, weights: Mapping[nn.Module, Callable[[], Weight]]
) -> dict[nn.Module, "QuickBlock"]:
    """Quick forms of a model's blocks, all of them or none.

    Args:
        model: The model, on a CPU, in eval mode.
        weights: What gives the weights of its linear layers.
    """
    config = model.config.get_text_config(decoder=True)
    blocks = [module for module in model.modules() if _has_parts(module, weights)]
    if len(blocks) != config.num_hidden_layers or config._attn_implementation != "sdpa":
        return {}
    found: dict[nn.Module, QuickBlock] = {}
    for block in blocks:
        quick = QuickBlock(block, weights)
        is_alike = all(quick.heads == other.heads for other in found.values())
        if not is_alike or not _agrees(block, quick):
            return {}
        found[block] = quick
    return found


_LINEAR = tuple(
    [f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")]
    + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
)
_NORMS = ("input_layernorm", "post_attention_layernorm")
_ATTENTION = ("layer_idx", "head_dim", "scaling")


def _has_parts(block: nn.Module, weights: Container[nn.Module]) -> bool:
    """Return whether a module has the layers of a block of Llama, and no other with weights."""
    parts = dict(block.named_modules())
    linear = [parts.get(name) for name in _LINEAR]
    if not all(layer in weights for layer in linear if layer is not None) or None in linear:
        return False
    inside = {id(each) for layer in linear if layer is not None for each in layer.modules()}
    norms = {id(parts.get(name)) for name in _NORMS}
    others = [
        module
        for module in parts.values()
        if list(module.parameters(recurse=False)) and id(module) not in inside | norms
    ]
    has_norms = all(hasattr(parts.get(name), "variance_epsilon") for name in _NORMS)
    is_known = all(hasattr(parts["self_attn"], name) for name in _ATTENTION)
    return has_norms and is_known and not others


class QuickBlock:
    """What a block's `forward` is exchanged for.

    Args:
        block: A block of Llama's kind.
        weights: What gives the weights of the block's linear layers.
    """

    def __init__(self, block: Any, weights: Mapping[nn.Module, Callable[[], Weight]]) -> None:
        attention, mlp = block.self_attn, block.mlp
        self._norms = [_Norm(getattr(block, name)) for name in _NORMS]
        self._layer: int = attention.layer_idx
        self._head_size, self._scale = int(attention.head_dim), float(attention.scaling)
        query, key, value = (
            weights[layer]() for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        self._heads = len(query.weight_OI) // self._head_size
        self._kv_heads = len(key.weight_OI) // self._head_size
        self.heads = (self._kv_heads, self._head_size)
        self._into_heads = Product(query, key, value)
        self._out_of_heads = Product(weights[attention.o_proj]())
        self._gate, self._up, self._down = (
            Product(weights[layer]()) for layer in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        )

    @takes_cache
    def __call__(
        self,
        hidden_states: Tensor,
        *args: Any,
        position_embeddings: tuple[Tensor, Tensor],
        cache: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        """The block's output, in fp32.

        Args:
            hidden_states: (B, T, W). T is 1 where texts are written; where prompts are read B is 1
                and they follow each other.
            args: Not looked at.
            position_embeddings: Cosines and sines.
            cache: Cache of keys and values.
            kwargs: Not looked at.
        """
        del args, kwargs
        layers = () if cache is None else cache.layers
        layer = layers[self._layer] if len(layers) > self._layer else None
        rows = ROWS if isinstance(layer, BankLayer) else PROMPT_ROWS
        residual_NW = hidden_states.flatten(0, 1).float()
        heads_NX = self._into_heads(self._norms[0](residual_NW), rows)
        query, key, value = self._rotated(heads_NX, *position_embeddings)
        if isinstance(layer, BankLayer):
            attended_NX = layer.attend(query, key, value, self._scale)
        else:
            texts = len(hidden_states)
            attended_NX = self._read(query, key, value, cache, texts)
        residual_NW = residual_NW + self._out_of_heads(attended_NX, rows)
        normed_NW = self._norms[1](residual_NW)
        gate_NX = self._gate(normed_NW, rows, activation="swish")
        inner_NX = self._up(normed_NW, rows, gate_NO=gate_NX)
        output_NW = residual_NW + self._down(inner_NX, rows)
        return output_NW.view(hidden_states.shape)

    def _rotated(
        self, heads_NX: Tensor, cosine_BTD: Tensor, sine_BTD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (N, H, D) and keys (N, K, D) turned by their positions, and values (N, K, D)."""
        half, turned = self._head_size // 2, self._heads + self._kv_heads
        heads_NHD = heads_NX.view(len(heads_NX), -1, self._head_size)
        straight_NHD = heads_NHD[:, :turned]
        texts = len(heads_NX) // cosine_BTD.shape[1]  # equal positions are given once
        cosine_N1D, sine_N1D = (
            each.float().expand(texts, -1, -1).flatten(0, 1)[:, None]
            for each in (cosine_BTD, sine_BTD)
        )
        signed_N1D = torch.cat([-sine_N1D[..., :half], sine_N1D[..., half:]], -1)
        turned_NHD = torch.addcmul(
            straight_NHD * cosine_N1D, straight_NHD.roll(half, -1).float(), signed_N1D
        ).to(torch.bfloat16)
        value_NKD = heads_NHD[:, turned:].to(torch.bfloat16)
        return turned_NHD[:, : self._heads], turned_NHD[:, self._heads :], value_NKD

    def _read(self, query: Tensor, key: Tensor, value: Tensor, cache: Any, texts: int) -> Tensor:
        """Attention of every prompt to itself; keys and values go into the cache."""
        lengths = [len(query) // texts] * texts
        if isinstance(cache, PackedPrompts):
            lengths = cache.lengths
        parts = []
        for part in zip(*(each.split(lengths) for each in (query, key, value)), strict=True):
            query_HTD, key_KTD, value_KTD = (each.transpose(0, 1)[None] for each in part)
            attended = functional.scaled_dot_product_attention(
                query_HTD,
                key_KTD,
                value_KTD,
                is_causal=True,
                scale=self._scale,
                enable_gqa=self._heads != self._kv_heads,
            )
            parts.append(attended[0].transpose(0, 1).flatten(1))
        if cache is not None:
            key_BKTD, value_BKTD = (
                each.unflatten(0, (texts, -1)).transpose(1, 2) for each in (key, value)
            )
            cache.update(key_BKTD, value_BKTD, self._layer)
        return torch.cat(parts)


class _Norm:
    """Root-mean-square normalisation in fp32, its result in bf16."""

    def __init__(self, norm: Any) -> None:
        self._weight_W = norm.weight.detach().float()
        self._epsilon = float(norm.variance_epsilon)

    def __call__(self, x_NW: Tensor) -> Tensor:
        size = self._weight_W.shape
        return functional.rms_norm(x_NW, size, self._weight_W, self._epsilon).to(torch.bfloat16)


def _agrees(block: nn.Module, quick: QuickBlock) -> bool:
    """Return whether a block and its quick form add the same to some random numbers."""
    generator = torch.Generator().manual_seed(0)
    attention: Any = block.self_attn
    norm: Any = block.input_layernorm
    shape = (1, PROBE_TOKENS, len(norm.weight))
    hidden = torch.randn(shape, generator=generator).to(norm.weight.dtype)
    angles = torch.rand((1, PROBE_TOKENS, attention.head_dim // 2), generator=generator) * 6
    angles = torch.cat([angles, angles], -1)
    options: dict[str, Any] = {
        "attention_mask": None,
        "position_embeddings": (angles.cos().to(hidden.dtype), angles.sin().to(hidden.dtype)),
        "position_ids": torch.arange(PROBE_TOKENS)[None],
        CACHE_NAME: None,
    }
    with torch.inference_mode():
        own = block(hidden, **options)
        own = own[0] if isinstance(own, tuple) else own
        change, quick_change = own - hidden, quick(hidden, **options) - hidden
    return bool((change - quick_change).abs().max() < PROBE_SHARE * change.abs().max())


def replaced_layers(block: nn.Module) -> Iterator[nn.Module]:
    """The linear layers that a block's quick form replaces."""
    parts = dict(block.named_modules())
    for name in _LINEAR:
        yield parts[name]
