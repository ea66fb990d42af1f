"""Logits to the next token.

Shapes: B rows, V vocabulary, K candidates that survive top-k.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from brimful.base.errors import RequestError
from brimful.recipe import SampleRecipe

FEW_TOKENS = 128
"""Likeliest tokens that are looked at first for top-p."""
BLOCK = 64
"""Tokens whose weights are added before a running sum is made."""
ROWS_IN_CACHE = 8
"""Rows that a CPU draws for together, so that what is computed of them stays in its cache."""
_ALL_BITS = 2**64 - 1
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class SamplingSettings:
    """How a token is drawn. The filters apply in the order of transformers: penalty, temperature,
    top-k, top-p, min-p.

    Attributes:
        temperature: Logits are divided by it; 0 is greedy and ignores the filters below.
        top_k: Only the k likeliest tokens, None for all.
        top_p: Only the smallest set of likeliest tokens that holds, after top-k and renormalising,
            at least this probability (nucleus sampling, Holtzman et al. 2020); the likeliest token
            always stays.
        min_p: Only tokens at least this share as likely as the likeliest one (Nguyen et al. 2024);
            0 for all.
        repetition_penalty: Logits of tokens in the prompt or in the text so far are divided by it
            where positive and multiplied where negative (Keskar et al. 2019); 1 changes nothing.
            Greedy heeds it too.

    Raises:
        RequestError: a value outside its range.
    """

    temperature: float
    top_k: int | None
    top_p: float
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RequestError(
                f"temperature must be 0 (greedy) or above, got {self.temperature}. 0.8 is a common"
                " choice."
            )
        if self.top_k is not None and self.top_k < 1:
            raise RequestError(
                f"top_k must be at least 1, got {self.top_k}. Leave it out to sample among all"
                " tokens."
            )
        if not 0 < self.top_p <= 1:
            raise RequestError(
                f"top_p must be above 0 and at most 1, got {self.top_p}. 1 samples among all"
                " tokens."
            )
        if not 0 <= self.min_p <= 1:
            raise RequestError(
                f"min_p must be between 0 and 1, got {self.min_p}. 0 samples among all tokens."
            )
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise RequestError(
                f"repetition_penalty must be above 0, got {self.repetition_penalty}. 1 changes"
                " nothing."
            )

    @classmethod
    def from_recipe(cls, sample: SampleRecipe) -> Self:
        """The settings of a recipe's `sample` section."""
        return cls(sample.temperature, sample.top_k, sample.top_p)


GREEDY = SamplingSettings(temperature=0.0, top_k=None, top_p=1.0)
"""Always the likeliest token."""


def sample_seeds(seed: int, count: int) -> list[int]:
    """Seeds of samples 0 .. count-1. The i-th depends on (seed, i) alone, so more samples leave the
    first ones as they were.
    """
    return [
        int(np.random.SeedSequence((seed, index)).generate_state(1)[0]) for index in range(count)
    ]


def uniform_numbers(seeds: Sequence[int], counts: Sequence[int]) -> NDArray[np.float64]:
    """One number in [0, 1) for each (seed, number of the token): a hash of the two, so that no
    order of drawing and no neighbour matters.

    SplitMix64 (Steele, Lea, Flood 2014): its output function over the seed, then over that plus the
    token's number times its increment.
    """
    state = np.array([seed & _ALL_BITS for seed in seeds], dtype=np.uint64)
    start = _mixed(state + _INCREMENT)
    mixed = _mixed(start + _INCREMENT * (np.asarray(counts, dtype=np.uint64) + np.uint64(1)))
    return np.asarray((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)))


def penalised(logits_BV: Tensor, said_BV: Tensor, penalty: float) -> Tensor:
    """Logits with the repetition penalty on the tokens that were said."""
    return torch.where(
        said_BV, torch.where(logits_BV < 0, logits_BV * penalty, logits_BV / penalty), logits_BV
    )


def next_tokens(
    logits_BV: Tensor, settings: Sequence[SamplingSettings], uniform_B: NDArray[np.float64]
) -> Tensor:
    """Draw one token per row by `next_token`, each by its own settings."""
    rows_of: dict[SamplingSettings, list[int]] = {}
    for row, each in enumerate(settings):
        rows_of.setdefault(each, []).append(row)
    if len(rows_of) == 1:
        return next_token(logits_BV, settings[0], uniform_B)
    ids_B = torch.empty(len(settings), dtype=torch.long, device=logits_BV.device)
    for each, rows in rows_of.items():
        ids_B[rows] = next_token(logits_BV[rows], each, uniform_B[rows])
    return ids_B


def logprobs_of(logits_BV: Tensor, ids_B: Tensor) -> list[float]:
    """Return the logprobs of tokens under the model's own distribution; waits for the device."""
    chosen_B1 = logits_BV.gather(1, ids_B.clamp(min=0)[:, None]).float()
    logprobs: list[float] = (chosen_B1[:, 0] - logits_BV.float().logsumexp(dim=-1)).tolist()
    return logprobs


def next_token(
    logits_BV: Tensor, settings: SamplingSettings, uniform_B: NDArray[np.float64]
) -> Tensor:
    """Draw one token per row, by inverting the cumulative distribution at the row's number.

    A row's token depends on its logits and its number only, not on its neighbours or on B. Nothing
    here waits for the device.

    Args:
        logits_BV: Any float dtype, any device; the repetition penalty is applied already. `-inf`
            marks a token that is never drawn.
        settings: Temperature and filters.
        uniform_B: Numbers in [0, 1); not used when greedy.

    Returns:
        ids_B, int64, on the device of the logits; -1 where a row holds NaN or +inf, or allows no
        token: see `checked`.
    """
    if logits_BV.device.type == "cpu" and len(logits_BV) > ROWS_IN_CACHE:
        parts = range(0, len(logits_BV), ROWS_IN_CACHE)
        return torch.cat(
            [
                next_token(
                    logits_BV[first : first + ROWS_IN_CACHE],
                    settings,
                    uniform_B[first : first + ROWS_IN_CACHE],
                )
                for first in parts
            ]
        )
    likeliest_B1 = logits_BV.amax(dim=-1, keepdim=True)
    if settings.temperature == 0:
        ids_B = logits_BV.argmax(dim=-1)
    else:
        weights_BK, ids_BK = candidates(logits_BV, settings)
        exact = _exact(logits_BV.device)
        rank_B1 = _inverted(
            weights_BK,
            torch.from_numpy(uniform_B).to(device=logits_BV.device, dtype=exact)[:, None],
        )
        ids_B = rank_B1[:, 0] if ids_BK is None else ids_BK.gather(1, rank_B1)[:, 0]
    return torch.where(torch.isfinite(likeliest_B1[:, 0]), ids_B, -1)


def checked(ids_B: Tensor) -> list[int]:
    """Drawn tokens as numbers; waits for the device.

    Raises:
        RequestError: a row's logits were not finite.
    """
    ids: list[int] = ids_B.tolist()
    if min(ids, default=0) < 0:
        raise RequestError(
            "the model's logits are not finite, so no token can be drawn: its weights hold NaN or"
            " inf. `brimful diagnose RUN` names the tensors and what to change."
        )
    return ids


def candidates(logits_BV: Tensor, settings: SamplingSettings) -> tuple[Tensor, Tensor | None]:
    """What `next_token` draws from, for a temperature above 0.

    Returns:
        weights_BK, proportional to the probabilities (1 for the likeliest token, 0 for dropped
        ones) in fp32, and ids_BK, the token of each column, likeliest first; None where the columns
        are the vocabulary in order.
    """
    ids_BK: Tensor | None = None
    if settings.top_k is not None and settings.top_k < logits_BV.shape[-1]:
        values, ids_BK = logits_BV.topk(settings.top_k, dim=-1)
        weights_BK = _weights(values, settings.temperature)
        total_B1 = weights_BK.sum(dim=-1, keepdim=True, dtype=_exact(logits_BV.device))
    elif settings.top_p < 1:
        total_B1 = _weights(logits_BV, settings.temperature).sum(
            dim=-1, keepdim=True, dtype=_exact(logits_BV.device)
        )
        weights_BK, ids_BK = _likeliest(logits_BV, settings, total_B1)
    else:
        weights_BK = _weights(logits_BV, settings.temperature)
    if settings.top_p < 1:
        before_BK = weights_BK.cumsum(dim=-1, dtype=_exact(logits_BV.device)) - weights_BK
        weights_BK = weights_BK.masked_fill(before_BK >= settings.top_p * total_B1, 0.0)
    if settings.min_p > 0:
        weights_BK = weights_BK.masked_fill(weights_BK < settings.min_p, 0.0)
    return weights_BK, ids_BK


def _exact(device: torch.device) -> torch.dtype:
    """Type in which probabilities are summed; Metal has no doubles."""
    return torch.float32 if device.type == "mps" else torch.float64


def _weights(logits_BK: Tensor, temperature: float) -> Tensor:
    """Relative to the likeliest token's."""
    logits = logits_BK.float()
    weights = logits - logits.amax(dim=-1, keepdim=True)
    divisor = max(temperature, torch.finfo(torch.float32).tiny)  # what fp32 takes for 0 gives NaN
    return weights.div_(divisor).exp_()  # in place: new memory takes longer than the sums


def _likeliest(
    logits_BV: Tensor, settings: SamplingSettings, total_B1: Tensor
) -> tuple[Tensor, Tensor]:
    """Weights and ids of so many of the likeliest tokens that top-p needs no other; on a CPU, where
    sorting whole vocabularies is slow, few.
    """
    width = vocabulary = logits_BV.shape[-1]
    if logits_BV.device.type == "cpu":
        width = FEW_TOKENS
    while width < vocabulary:
        values, ids_BK = logits_BV.topk(width, dim=-1)
        weights_BK = _weights(values, settings.temperature)
        if bool(
            (
                weights_BK.sum(dim=-1, keepdim=True, dtype=total_B1.dtype)
                >= settings.top_p * total_B1
            ).all()
        ):
            return weights_BK, ids_BK
        width *= 8
    values, ids_BK = logits_BV.sort(dim=-1, descending=True)
    return _weights(values, settings.temperature), ids_BK


def _inverted(weights_BK: Tensor, uniform_B1: Tensor) -> Tensor:
    """The first column at which the running sum passes the number times the whole sum; never one
    without weight.

    Wide rows are searched in two steps, blocks first, so that no running sum over the vocabulary is
    made.
    """
    rows, width = weights_BK.shape
    if width <= 4 * BLOCK:
        return _passed(weights_BK.cumsum(dim=-1, dtype=uniform_B1.dtype), uniform_B1)[0]
    blocks_BNK = torch.nn.functional.pad(weights_BK, (0, -width % BLOCK)).view(rows, -1, BLOCK)
    # Sums of so few numbers are exact enough in fp32; as doubles, all weights would be copied.
    sums_BN = blocks_BNK.sum(dim=-1)
    block_B1, rest_B1 = _passed(sums_BN.cumsum(dim=-1, dtype=uniform_B1.dtype), uniform_B1)
    inside_BK = blocks_BNK[torch.arange(rows, device=block_B1.device), block_B1[:, 0]].cumsum(
        dim=-1, dtype=uniform_B1.dtype
    )
    return block_B1 * BLOCK + _rank(inside_BK, rest_B1)


def _passed(cumulative_BK: Tensor, uniform_B1: Tensor) -> tuple[Tensor, Tensor]:
    """The column, and what is left of the number's share when it begins."""
    threshold_B1 = uniform_B1 * cumulative_BK[:, -1:]
    rank_B1 = _rank(cumulative_BK, threshold_B1)
    before_B1 = torch.where(rank_B1 > 0, cumulative_BK.gather(1, (rank_B1 - 1).clamp(min=0)), 0.0)
    return rank_B1, threshold_B1 - before_B1


def _rank(cumulative_BK: Tensor, threshold_B1: Tensor) -> Tensor:
    """The first column above the threshold, which rounding may have put on or above the last
    sum.
    """
    total_B1 = cumulative_BK[:, -1:]
    below_B1 = torch.nextafter(total_B1, torch.zeros_like(total_B1))
    return torch.searchsorted(cumulative_BK, threshold_B1.minimum(below_B1), right=True).clamp(
        max=cumulative_BK.shape[-1] - 1
    )
