"""A training method for tests: the chosen answer of a pair is to be likelier than the rejected."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.data.batches import IGNORED, MicroBatch
from brimful.training.method import Method, Network


def preference_loss_sum(network: Network, micro: MicroBatch) -> Tensor:
    """Return the sum over pairs of -log sigmoid(log p(chosen) - log p(rejected)); the rows of a
    micro-batch are all chosen answers, then all rejected ones.
    """
    logits_BTV = network.hidden_states(micro) @ network.head_weight_VD.T
    nats_BT = F.cross_entropy(
        logits_BTV.float().transpose(1, 2),
        micro.targets_BT,
        ignore_index=IGNORED,
        reduction="none",
    )
    chosen_P, rejected_P = (-nats_BT.sum(1)).chunk(2)
    return -torch.nn.functional.logsigmoid(chosen_P - rejected_P).sum()


METHOD = Method(loss_sum=preference_loss_sum)
