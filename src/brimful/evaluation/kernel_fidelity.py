"""What the attention layers of okadfa do: how near kernel attention is to the softmax attention
that it estimates, whether a layer adds anything at all, and how far the projections of queries and
keys are from orthogonal.

Shapes: B rows, T positions, H heads, D hidden size (head size where a tensor has heads), M
features.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from transformers import PreTrainedModel

from brimful.data.batches import Batch
from brimful.evaluation.stats import mean_of_known
from brimful.model.blocks import eval_mode
from brimful.model.okadfa.chunked_attention import attend_in_chunks
from brimful.model.okadfa.modeling import OkadfaAttention, attentions_of, violation_per_head

DEAD_BELOW = 1e-3
"""|output| / |values| of a layer that adds nothing. The mean of a million unrelated values still
has a thousandth of their norm, so that no way to attend within a text that this program reads falls
below; what does is numerically empty.
"""


@dataclass(frozen=True)
class AttentionLayer:
    """One layer.

    Attributes:
        name: "block 1".
        output_norm: Root mean square of the attended values before the output projection, over that
            of the values.
        cosine: Cosine of kernel attention's output and softmax attention's for the same queries,
            keys and values, mean over positions and heads; None where the model has softmax
            attention.
        norm_ratio: |kernel| / |softmax|, root mean squares; likewise.
        violation: |W W^T - I|^2 / head size, mean over the heads of queries and keys.
        worst_violation: The largest of them.
        temperatures: Temperature of each head.
    """

    name: str
    output_norm: float
    cosine: float | None
    norm_ratio: float | None
    violation: float
    worst_violation: float
    temperatures: tuple[float, ...]

    @property
    def is_dead(self) -> bool:
        """Whether it adds nothing."""
        return not self.output_norm >= DEAD_BELOW


@dataclass(frozen=True)
class AttentionFidelity:
    """All layers, the first first."""

    layers: tuple[AttentionLayer, ...]

    @property
    def mean_cosine(self) -> float | None:
        """Mean cosine over layers; None where the model has softmax attention."""
        return mean_of_known(layer.cosine for layer in self.layers)

    @property
    def mean_violation(self) -> float:
        """Mean violation of orthogonality over layers."""
        return sum(layer.violation for layer in self.layers) / len(self.layers)

    @property
    def dead(self) -> tuple[str, ...]:
        """Names of layers that add nothing."""
        return tuple(layer.name for layer in self.layers if layer.is_dead)


@torch.no_grad()
def measure_attention(model: PreTrainedModel, batches: Sequence[Batch]) -> AttentionFidelity | None:
    """Look at what every attention layer reads while the model reads held-out rows; None where it
    has none of okadfa's.
    """
    attentions = attentions_of(model)
    if not attentions:
        return None
    sums = [_Sums() for _ in attentions]
    hooks = [
        each.register_forward_pre_hook(partial(_look, total))
        for each, total in zip(attentions, sums, strict=True)
    ]
    try:
        with eval_mode(model):
            for batch in batches:
                model.base_model(batch.inputs_BT.to(model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    layers = map(_layer_of, itertools.count(1), attentions, sums)
    return AttentionFidelity(tuple(layers))


@dataclass
class _Sums:
    """Sums over all positions and heads that a layer read: of squared outputs and values, and of
    cosines.
    """

    count: int = 0
    cosine: float = 0.0
    kernel: float = 0.0
    softmax: float = 0.0
    values: float = 0.0


def _look(sums: _Sums, attention: OkadfaAttention, inputs: tuple[Any, ...]) -> None:
    """Both kinds of attention of what a layer is about to read."""
    hidden_BTD: Tensor = inputs[0]
    queries, keys = attention.unit_queries_and_keys(hidden_BTD)
    values = attention.in_heads(attention.v_proj(hidden_BTD)).to(queries.dtype)
    softmax_BHTD = F.scaled_dot_product_attention(
        queries * attention.temperature_H11(), keys, values, is_causal=True, scale=1.0
    )
    sums.count += values[..., 0].numel()
    sums.values += _squares(values)
    sums.softmax += _squares(softmax_BHTD)
    if attention.config.attention == "kernel":
        kernel_BHTD = attend_in_chunks(
            queries,
            keys,
            values,
            attention.projection_HMD,
            attention.temperature_H11().sqrt().flatten(),
        )
        sums.kernel += _squares(kernel_BHTD)
        sums.cosine += float(
            F.cosine_similarity(kernel_BHTD.double(), softmax_BHTD.double(), dim=-1).sum()
        )


def _squares(each: Tensor) -> float:
    return float(each.double().square().sum())


def _layer_of(number: int, attention: OkadfaAttention, sums: _Sums) -> AttentionLayer:
    """Return the measurements of one layer from its sums; `number` counts from 1."""
    output, cosine, norm_ratio = sums.softmax, None, None
    if attention.config.attention == "kernel":
        output, cosine = sums.kernel, sums.cosine / sums.count
        norm_ratio = _root_ratio(output, sums.softmax)
    violations_H = torch.cat(
        [
            violation_per_head(each.weight.double(), attention.heads)
            for each in (attention.q_proj, attention.k_proj)
        ]
    )
    relative_H = violations_H / attention.head_size
    return AttentionLayer(
        name=f"block {number}",
        output_norm=_root_ratio(output, sums.values) or 0.0,
        cosine=cosine,
        norm_ratio=norm_ratio,
        violation=float(relative_H.mean()),
        worst_violation=float(relative_H.max()),
        temperatures=tuple(attention.temperature_H11().flatten().tolist()),
    )


def _root_ratio(above: float, below: float) -> float | None:
    """Return the ratio of two root mean squares from their sums of squares."""
    if not below:
        return None
    return math.sqrt(above / below)
