"""Next-token prediction over whole sequences; every parameter trains."""

from torch import Tensor

from brimful.training.losses import linear_cross_entropy
from brimful.training.method import Method, Network


def _loss_sum(network: Network, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
    hidden_BTD = network.hidden_states(inputs_BT)
    return linear_cross_entropy(hidden_BTD, network.head_weight_VD, targets_BT, chunk_tokens=network.loss_chunk, softcap=network.logit_softcap)


METHOD = Method(loss_sum=_loss_sum, trains=lambda name, parameter: True)
