"""Learning from the rewards of a model's own answers: group-relative policy optimisation (Shao et
al. 2024, arXiv 2402.03300, equation 3) and its kin.

Dr. GRPO (Liu et al. 2025, arXiv 2503.20783) divides neither by deviations nor by lengths; DAPO (Yu
et al. 2025, arXiv 2503.14476, equations 8 to 11) averages over tokens and clips asymmetrically;
GSPO (Zheng et al. 2025, arXiv 2507.18071, equations 5 to 7) takes the ratio of whole answers.
Truncated importance sampling is that of Yao et al. 2025 ("Your efficient RL framework secretly
brings you off-policy RL training"). What a loss divides by is in `SHARE` and in the divisor of the
step, so that any micro-batch gives the same gradients.

Shapes: N tokens of answers, R answers of a pass, A tokens of an answer at most, G answers to a
question, Q questions.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from brimful.data.batches import MicroBatch
from brimful.recipe.kinds import StepOptions
from brimful.recipe.rewards import RewardsRecipe
from brimful.training.method import LossSum, Method, Network, scored_losses

ADVANTAGE, SHARE, SLOT = "advantage_N", "share_N", "slot_N"
"""Names in `MicroBatch.kept`, each of all tokens of a pass: the advantage of the token's answer;
how much the token counts; its place among A places of each answer.
"""
OLD, SAMPLED = "old_N", "sampled_N"
"""Log-probability of the token by the weights that drew it, as the trainer and as the sampler
computed it.
"""
WATCHED = ("reward", "tokens", "cut", "equal", "entropy")
"""Names in `MicroBatch.kept`, of each answer (R,): means over the round that it is from, for the
journal.
"""
_LEAST_DEVIATION = 1e-4
"""Added to the deviation of a group's rewards, as TRL does; the paper has nothing there."""


def _configured(options: StepOptions) -> LossSum:
    values = dict(options.get("rewards", {}))
    values.pop("old", None)
    rules = RewardsRecipe(**values).resolved

    def loss_sum(network: Network, micro: MicroBatch) -> Tensor:
        kept, reference_N = micro.kept, None
        if rules.kl:
            with torch.no_grad():
                states_BTD = network.reference_states(micro)
                reference_N = -scored_losses(network, micro, states_BTD, rules.temperature)
        states_BTD = network.hidden_states(micro)
        log_probs_N = -scored_losses(network, micro, states_BTD, rules.temperature)
        losses_N, named = token_losses(rules, log_probs_N, kept, reference_N)
        for name in WATCHED:
            network.note(name, kept[name], torch.ones_like(kept[name]))
        for name, values_N in named.items():
            network.note(name, values_N, torch.ones_like(values_N))
        return (losses_N * kept[SHARE]).sum()

    return loss_sum


def token_losses(
    rules: RewardsRecipe,
    log_probs_N: Tensor,
    kept: Mapping[str, Tensor],
    reference_N: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of each token (N,), and what tokens are watched by, each (N,).

    Args:
        rules: Resolved.
        log_probs_N: Log-probabilities by the present weights.
        kept: Values as of `MicroBatch.kept`. Without OLD the present weights have drawn the tokens:
            the ratio is 1, and has a gradient.
        reference_N: Log-probabilities by the model before training; None: the loss has no distance
            from it.
    """
    now_N = log_probs_N.detach()
    old_N, advantage_N = kept.get(OLD, now_N), kept[ADVANTAGE]
    log_ratio_N = log_probs_N - old_N
    if rules.loss == "gspo":
        answers, longest = len(kept[WATCHED[0]]), rules.max_new_tokens
        log_ratio_N = _mean_of_answer(log_ratio_N, kept[SLOT], answers, longest)
    ratio_N = log_ratio_N.exp()
    low, high = 1 - (rules.clip or 0.0), 1 + (rules.clip_high or 0.0)
    losses_N = -torch.min(ratio_N * advantage_N, ratio_N.clamp(low, high) * advantage_N)
    is_clipped_N = ((ratio_N < low) & (advantage_N < 0)) | ((ratio_N > high) & (advantage_N > 0))
    named = {"clipped": is_clipped_N.float()}
    if rules.weight_cap is not None:
        weights_N = (old_N - kept[SAMPLED]).exp().clamp(max=rules.weight_cap)
        losses_N = losses_N * weights_N
        named["weight"] = weights_N
    if reference_N is not None:
        away_N = reference_N - log_probs_N
        distance_N = away_N.exp() - away_N - 1
        losses_N = losses_N + rules.kl * distance_N
        named["kl"] = distance_N
    return losses_N, named


def _mean_of_answer(values_N: Tensor, slot_N: Tensor, answers: int, longest: int) -> Tensor:
    """Return for each token the mean over the tokens of its answer (N,). Each token has a place of
    its own in a table of all answers, so that sums come out the same each time.
    """
    empty = values_N.new_zeros(answers * longest)
    sums_R, counts_R = (
        empty.scatter(0, slot_N, each_N).view(answers, longest).sum(1)
        for each_N in (values_N, torch.ones_like(values_N))
    )
    means_R1 = (sums_R / counts_R.clamp(min=1))[:, None]
    return means_R1.expand(answers, longest).flatten()[slot_N]


def advantages_of(
    rewards_QG: NDArray[np.float64], scale: str | None, negative_weight: float = 1.0
) -> NDArray[np.float32]:
    """Return how much better each answer is than the others to its question (Q, G).

    Args:
        rewards_QG: Reward of each answer.
        scale: What the difference from the group's mean is divided by: the deviation of the rewards
            in the group, in all groups (batch), or nothing (none).
        negative_weight: Weight of the differences below 0.
    """
    differences_QG = rewards_QG - rewards_QG.mean(1, keepdims=True)
    if scale == "group":
        differences_QG /= rewards_QG.std(1, ddof=1, keepdims=True) + _LEAST_DEVIATION
    elif scale == "batch":
        differences_QG /= rewards_QG.std(ddof=1) + _LEAST_DEVIATION
    weights_QG = np.where(differences_QG < 0, negative_weight, 1.0)
    return np.asarray(weights_QG * differences_QG, np.float32)


METHOD = Method(loss_sum=_configured({}), configured=_configured)
