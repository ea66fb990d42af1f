"""Learning from pairs of a chosen and a rejected answer to one prompt: direct preference
optimisation and its kin, with and without a reference.

Shapes: R answers, all chosen ones and then all rejected ones; P = R / 2 pairs; B rows, T positions,
N scored positions, D hidden size.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.data.batches import MicroBatch
from brimful.recipe.kinds import StepOptions
from brimful.recipe.preference import WITHOUT_REFERENCE, PreferenceRecipe
from brimful.training.method import LossSum, Method, Network, scored_losses
from brimful.training.tensorfile import Tensors

CHOSEN_ROWS = "sft_R"
"""Name in `MicroBatch.kept`: of each answer how much a token counts in the loss of method sft, so
that the sum over a step's pairs is their number times the mean over its chosen tokens."""
TOKENS, REFERENCE = "tokens_R", "reference_R"
"""Names in `MicroBatch.kept`: tokens of each answer; its log-probability by the reference."""


def _configured(options: StepOptions) -> LossSum:
    rules = rules_of_step(options)
    has_reference = rules.loss not in WITHOUT_REFERENCE

    def loss_sum(network: Network, micro: MicroBatch) -> Tensor:
        kept = micro.kept
        reference_R = reference_log_probs(network, micro) if has_reference else None
        log_probs_R = log_probs(network, micro, network.hidden_states(micro))
        losses_P, rewards_R = pair_losses(rules, log_probs_R, kept[TOKENS], reference_R)
        counts_P = (kept[TOKENS] > 0).float().chunk(2)[0]
        for name, values_P in named_values(log_probs_R, reference_R, rewards_R).items():
            network.note(name, values_P, counts_P)
        loss = (losses_P * counts_P).sum()
        if rules.sft_weight:
            loss = loss - rules.sft_weight * (log_probs_R * kept[CHOSEN_ROWS]).sum()
        return loss

    return loss_sum


def rules_of_step(options: StepOptions, **usual: Any) -> PreferenceRecipe:
    """Return what decides the loss of a step, resolved; `usual`: where the options say nothing."""
    return PreferenceRecipe.model_construct(**usual | dict(options.get("preference", {}))).resolved


def reference_log_probs(network: Network, micro: MicroBatch) -> Tensor:
    """Return the reference's log-probability of each answer (R,): what was kept of it, else that of
    the model with its adapters off. To be called first, while no activations of another pass are
    held.
    """
    if (kept_R := micro.kept.get(REFERENCE)) is not None:
        return kept_R
    with torch.no_grad():
        return log_probs(network, micro, network.reference_states(micro))


def log_probs(network: Network, micro: MicroBatch, hidden_BTD: Tensor) -> Tensor:
    """Return the log-probability of each answer, summed over its tokens: fp32 (R,) nats. No logits
    are made for other tokens, and never all of them at once.
    """
    losses_N = scored_losses(network, micro, hidden_BTD)
    if micro.scored_N is not None:
        everywhere = losses_N.new_zeros(micro.targets_BT.numel())
        losses_N = everywhere.scatter(0, micro.scored_N, losses_N)
    if micro.lengths_E is None:
        return -losses_N.view_as(micro.targets_BT).sum(1)
    parts = losses_N.split(micro.lengths_E.tolist())
    # Behind what several answers begin with, which is a part without scored tokens.
    begun = () if micro.after_E is None else {*micro.after_E.tolist()}
    return -torch.stack([each.sum() for number, each in enumerate(parts) if number not in begun])


def pair_losses(
    rules: PreferenceRecipe,
    log_probs_R: Tensor,
    tokens_R: Tensor,
    reference_R: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each pair (P,), without the loss of method sft, and the reward of each
    answer (R,), which has no gradient.

    Args:
        rules: Resolved. With a reference, the losses are those of Rafailov et al. 2023 (equation
            7), SLiC's hinge, IPO (Azar et al. 2023, equation 17, per token as its authors have it)
            and robust DPO (Chowdhury et al. 2024, equation 12); without, SimPO (Meng et al. 2024,
            equation 6), ORPO (Hong et al. 2024, equation 7) and CPO (Xu et al. 2024, equation 3).
        log_probs_R: Log-probabilities of the answers, summed over their tokens.
        tokens_R: Number of tokens of each answer.
        reference_R: `log_probs_R` by the reference; None: the loss has none.
    """
    beta, smoothing = rules.beta or 0.0, rules.label_smoothing
    ratios_R = log_probs_R if reference_R is None else log_probs_R - reference_R
    scores_R = ratios_R / tokens_R.clamp(min=1) if rules.per_token else ratios_R
    chosen_P, rejected_P = scores_R.chunk(2)
    delta_P = chosen_P - rejected_P
    match rules.loss:
        case "hinge":
            losses_P = torch.relu(1 - beta * delta_P)
        case "ipo":
            losses_P = (delta_P - 1 / (2 * beta)) ** 2
        case "orpo":
            odds_P = delta_P - (_log_of_others(chosen_P) - _log_of_others(rejected_P))
            losses_P = -beta * F.logsigmoid(odds_P)
        case "robust":
            right_P, wrong_P = F.logsigmoid(beta * delta_P), F.logsigmoid(-beta * delta_P)
            losses_P = (smoothing * wrong_P - (1 - smoothing) * right_P) / (1 - 2 * smoothing)
        case _:
            logits_P = beta * delta_P - (rules.margin or 0.0)
            losses_P = -(1 - smoothing) * F.logsigmoid(logits_P)
            if smoothing:
                losses_P = losses_P - smoothing * F.logsigmoid(-logits_P)
    rewards_R = beta * (scores_R if reference_R is None else ratios_R).detach()
    return losses_P, rewards_R


def _log_of_others(log_shares: Tensor) -> Tensor:
    """Return log(1 - exp(x)) of x < 0, exact near 0 and far from it."""
    log_shares = log_shares.clamp(max=-1e-7)
    near = torch.log(-torch.expm1(log_shares))
    return torch.where(log_shares > -math.log(2), near, torch.log1p(-log_shares.exp()))


def named_values(log_probs_R: Tensor, before_R: Tensor | None, rewards_R: Tensor) -> Tensors:
    """Return what pairs are watched by, each (P,). displaced: whether the chosen answer has become
    less likely, and the rejected one more so (Razin et al. 2024, arXiv 2410.08847); kl: how far
    the model is from what it was, nats an answer, as half of the squared log-ratio of both answers
    (Schulman 2020, "Approximating KL divergence", k2: to second order the divergence either way on
    answers that the model from before wrote; unlike the mean log-ratio it is never below 0, and a
    rise of one answer does not hide a fall of the other). Both not where `before_R`, the
    log-probabilities from before training, is not known.
    """
    chosen_P, rejected_P = rewards_R.chunk(2)
    probs_P, others_P = log_probs_R.detach().chunk(2)
    named = {
        "margin": chosen_P - rejected_P,
        "accuracy": (chosen_P > rejected_P).float(),
        "reward_chosen": chosen_P,
        "reward_rejected": rejected_P,
    }
    if before_R is not None:
        grown_P, others_grown_P = (log_probs_R.detach() - before_R).chunk(2)
        named["kl"] = (grown_P.square() + others_grown_P.square()) / 4
        named["displaced"] = ((grown_P > others_grown_P) & (grown_P < 0)).float()
    return named | {"log_prob_chosen": probs_P, "log_prob_rejected": others_P}


METHOD = Method(loss_sum=_configured({}), configured=_configured)
