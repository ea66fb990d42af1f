"""Learning from single answers that are desired or not: Kahneman-Tversky optimisation (Ethayarajh
et al. 2024, arXiv 2402.01306, equation 7) and the unpaired form of APO-zero (D'Oosterlinck et al.
2024, arXiv 2408.06266).

The reference point is the distance of the model from the reference, estimated over a whole step
from prompts with the answers to other ones, in passes without gradients before the first gradient.

Shapes: R answers.
"""

import torch
from torch import Tensor

from brimful.data.batches import MicroBatch
from brimful.recipe.kinds import StepOptions
from brimful.recipe.preference import PreferenceRecipe
from brimful.training.method import LossSum, Method, Network
from brimful.training.methods.dpo import log_probs, reference_log_probs, rules_of_step

DESIRED = "desired_R"
"""Name in `MicroBatch.kept`: 1 for a desired answer, -1 for another, 0 for one that does not count.
"""


def _configured(options: StepOptions) -> LossSum:
    rules = rules_of_step(options, loss="kto")

    def loss_sum(network: Network, micro: MicroBatch) -> Tensor:
        desired_R = micro.kept[DESIRED]
        reference_R = reference_log_probs(network, micro)
        log_probs_R = log_probs(network, micro, network.hidden_states(micro))
        losses_R, named = judged_losses(rules, log_probs_R, reference_R, desired_R, network.of_step)
        for name, (values_R, counts_R) in named.items():
            network.note(name, values_R, counts_R)
        return losses_R.sum()

    return loss_sum


def judged_losses(
    rules: PreferenceRecipe,
    log_probs_R: Tensor,
    reference_R: Tensor,
    desired_R: Tensor,
    distance: Tensor | None,
) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """Return the weighted loss of each answer (R,), and what answers are watched by: named values,
    each with 1 where it counts and else 0.

    Args:
        rules: Resolved.
        log_probs_R: Log-probabilities of the answers, summed over their tokens.
        reference_R: The same by the reference.
        desired_R: Judgements, as `DESIRED`.
        distance: Mean log-ratio of mismatched answers; None: rewards are compared with 0.
    """
    beta, ratios_R = rules.beta or 0.0, log_probs_R - reference_R
    point = torch.zeros_like(ratios_R) if distance is None else distance.clamp(min=0)
    is_good_R, is_bad_R = (desired_R > 0).float(), (desired_R < 0).float()
    weights_R = rules.desirable_weight * is_good_R + rules.undesirable_weight * is_bad_R
    losses_R = weights_R * (1 - torch.sigmoid(desired_R * beta * (ratios_R - point)))
    probs_R, rewards_R = log_probs_R.detach(), beta * ratios_R.detach()
    is_right_R = (desired_R * (ratios_R.detach() - point) > 0).float()
    named = {
        "accuracy": (is_right_R, is_good_R + is_bad_R),
        "reward_chosen": (rewards_R, is_good_R),
        "reward_rejected": (rewards_R, is_bad_R),
    }
    if distance is not None:
        named["kl"] = (point.expand_as(ratios_R), is_good_R + is_bad_R)
    return losses_R, named | {
        "log_prob_chosen": (probs_R, is_good_R),
        "log_prob_rejected": (probs_R, is_bad_R),
        "displaced": ((rewards_R < 0).float(), is_good_R),
    }


def _measuring(options: StepOptions) -> LossSum | None:
    return _log_ratios if rules_of_step(options, loss="kto").loss == "kto" else None


def _log_ratios(network: Network, micro: MicroBatch) -> Tensor:
    """Return the sum of the log-ratios of a micro-batch's answers."""
    reference_R = reference_log_probs(network, micro)
    return (log_probs(network, micro, network.hidden_states(micro)) - reference_R).sum()


METHOD = Method(loss_sum=_configured({}), configured=_configured, measuring=_measuring)
