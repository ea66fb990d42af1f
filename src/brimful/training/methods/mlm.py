"""Masked language modelling of an encoder (Devlin et al. 2019, section 3.1): masked tokens are
predicted from both sides.

Shapes: B rows, T positions, D hidden size, N = B*T positions, of which S are scored.
"""

from torch import Tensor

from brimful.data.batches import MicroBatch
from brimful.training.losses import linear_cross_entropy
from brimful.training.method import Method, Network


def masked_loss_sum(network: Network, micro: MicroBatch) -> Tensor:
    """Return the summed cross-entropy of the tokens to be predicted; head and logits are computed
    only for them.

    Args:
        network: An encoder.
        micro: A micro-batch with `scored_N`.

    Returns:
        Sum in nats, fp32 scalar.

    Raises:
        ValueError: the micro-batch does not say which positions are scored.
    """
    if micro.scored_N is None:
        raise ValueError("a micro-batch of method mlm says which positions are scored")
    hidden_SD = network.before_head(network.hidden_states(micro).flatten(0, 1)[micro.scored_N])
    targets_S = micro.targets_BT.flatten()[micro.scored_N]
    return linear_cross_entropy(
        hidden_SD,
        network.head_weight_VD,
        targets_S,
        chunk_tokens=network.loss_chunk,
        softcap=network.logit_softcap,
        piece=network.piece,
    )


METHOD = Method(loss_sum=masked_loss_sum)
