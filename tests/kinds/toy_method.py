"""A training method for tests: the chosen answer of a pair is to be likelier than the rejected,
each by its mean over tokens; with `beside_base` by how much likelier than before tuning.

Shapes: R rows, all chosen answers and then all rejected ones; P = R / 2 pairs; T positions, D
hidden size, V vocabulary.
"""

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.data.batches import IGNORED, MicroBatch
from brimful.recipe.kinds import StepOptions
from brimful.training.method import LossSum, Method, Network


def _configured(options: StepOptions) -> LossSum:
    def loss_sum(network: Network, micro: MicroBatch) -> Tensor:
        means_R = _mean_log_shares(network, micro, network.hidden_states(micro))
        if "beside_base" in options:
            means_R = means_R - _mean_log_shares(network, micro, network.reference_states(micro))
        chosen_P, rejected_P = means_R.chunk(2)
        return -F.logsigmoid(chosen_P - rejected_P).sum()

    return loss_sum


def _mean_log_shares(network: Network, micro: MicroBatch, hidden_RTD: Tensor) -> Tensor:
    logits_RTV = hidden_RTD @ network.head_weight_VD.T
    nats_N = F.cross_entropy(
        logits_RTV.flatten(0, 1).float(),
        micro.targets_BT.flatten(),
        ignore_index=IGNORED,
        reduction="none",
    )
    return -nats_N.view_as(micro.targets_BT).sum(1) / micro.kept["tokens_R"]


METHOD = Method(loss_sum=_configured({}), configured=_configured)
