"""Logits to the next token.

Shapes: B rows, V vocabulary, K candidates that survive top-k.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from brimful.base.errors import RequestError
from brimful.recipe import SampleRecipe


@dataclass(frozen=True)
class SamplingSettings:
    """How a token is drawn.

    Attributes:
        temperature: Logits are divided by it; 0 is greedy and ignores the other two.
        top_k: Only the k likeliest tokens, None for all.
        top_p: After top-k and renormalising, only the smallest set of likeliest tokens that holds at least this
            probability (nucleus sampling, Holtzman et al. 2020); the likeliest token always stays.

    Raises:
        RequestError: a value outside its range.
    """

    temperature: float
    top_k: int | None
    top_p: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RequestError(f"temperature must be 0 (greedy) or above, got {self.temperature}. 0.8 is a common choice.")
        if self.top_k is not None and self.top_k < 1:
            raise RequestError(f"top_k must be at least 1, got {self.top_k}. Leave it out to sample among all tokens.")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p must be above 0 and at most 1, got {self.top_p}. 1 samples among all tokens.")

    @classmethod
    def from_recipe(cls, sample: SampleRecipe) -> Self:
        """The settings of a recipe's `sample` section."""
        return cls(sample.temperature, sample.top_k, sample.top_p)


GREEDY = SamplingSettings(temperature=0.0, top_k=None, top_p=1.0)
"""Always the likeliest token."""


def sample_seeds(seed: int, count: int) -> list[int]:
    """Seeds of samples 0 .. count-1. The i-th depends on (seed, i) alone, so more samples leave the first ones as they were."""
    return [int(np.random.SeedSequence((seed, index)).generate_state(1)[0]) for index in range(count)]


def next_token(logits_BV: Tensor, settings: SamplingSettings, generators: list[torch.Generator]) -> Tensor:
    """Draw one token per row.

    Each row takes exactly one uniform number from its own generator and inverts the cumulative distribution with it, so
    a row's token depends on its logits and its generator only, not on its neighbours or on B.

    Args:
        logits_BV: Any float dtype, any device. `-inf` marks a token that is never drawn.
        settings: The filters.
        generators: B CPU generators; not used when greedy.

    Returns:
        ids_B, int64, on the device of the logits.

    Raises:
        RequestError: a row holds NaN or +inf, or allows no token.
    """
    if not torch.isfinite(logits_BV.amax(dim=-1)).all():
        raise RequestError(
            "the model's logits are not finite, so no token can be drawn: its weights hold NaN or inf. `brimful diagnose RUN` says which."
        )
    if settings.temperature == 0:
        return logits_BV.argmax(dim=-1)
    probabilities_BK, ids_BK = candidates(logits_BV, settings)
    uniform = torch.tensor([torch.rand((), generator=generator, dtype=torch.float64).item() for generator in generators], dtype=torch.float64)
    cumulative_BK = probabilities_BK.cumsum(dim=-1)
    total_B1 = cumulative_BK[:, -1:]
    below_total_B1 = torch.nextafter(total_B1, torch.zeros_like(total_B1))
    threshold_B1 = (uniform.to(device=logits_BV.device, dtype=total_B1.dtype)[:, None] * total_B1).minimum(below_total_B1)
    rank_B1 = torch.searchsorted(cumulative_BK, threshold_B1, right=True)
    return rank_B1[:, 0] if ids_BK is None else ids_BK.gather(1, rank_B1)[:, 0]


def candidates(logits_BV: Tensor, settings: SamplingSettings) -> tuple[Tensor, Tensor | None]:
    """The distribution that `next_token` draws from, for a temperature above 0.

    Returns:
        probabilities_BK in fp64 (fp32 on MPS), not renormalised after top-p (dropped tokens hold 0), and ids_BK, the token
        of each column, likeliest first; None where the columns are the vocabulary in order.
    """
    exact = torch.float32 if logits_BV.device.type == "mps" else torch.float64
    logits_BK, ids_BK = logits_BV.to(exact), None
    if settings.top_k is not None and settings.top_k < logits_BV.shape[-1]:
        logits_BK, ids_BK = logits_BK.topk(settings.top_k, dim=-1)
    elif settings.top_p < 1:
        logits_BK, ids_BK = logits_BK.sort(dim=-1, descending=True)
    scaled_BK = (logits_BK - logits_BK.amax(dim=-1, keepdim=True)) / settings.temperature
    probabilities_BK = scaled_BK.softmax(dim=-1)
    if settings.top_p < 1:
        before_BK = probabilities_BK.cumsum(dim=-1) - probabilities_BK
        probabilities_BK = probabilities_BK.masked_fill(before_BK >= settings.top_p, 0.0)
    return probabilities_BK, ids_BK
