"""Sequence classification: one label per text or any number of them, with weights, focal loss and
label smoothing.

Shapes: B texts, C labels.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.data.batches import MicroBatch
from brimful.model.packed_texts import logits_of_packed
from brimful.recipe.kinds import StepOptions
from brimful.training.method import LossSum, Method, Network

_TINY = 1e-12
"""Keeps the base of the focal factor above 0, where a power below 1 has no gradient."""


def _configured(options: StepOptions) -> LossSum:
    def loss_sum(network: Network, micro: MicroBatch) -> Tensor:
        return labels_loss_sum(
            _logits(network, micro),
            micro.targets_BT,
            micro.weights,
            focal_gamma=options.get("focal_gamma", 0.0),
            smoothing=options.get("smoothing", 0.0),
        )

    return loss_sum


def _logits(network: Network, micro: MicroBatch) -> Tensor:
    """Return the logits of the texts of a pass, fp32 (B, C)."""
    if micro.lengths_E is None:
        logits_BC: Tensor = network.model(**micro.model_inputs()).logits
        return logits_BC.float()
    return logits_of_packed(
        network.model, micro.inputs_BT, micro.lengths_E, len(micro.targets_BT)
    ).float()


def labels_loss_sum(
    logits_BC: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    focal_gamma: float = 0.0,
    smoothing: float = 0.0,
) -> Tensor:
    """Return the weighted sum of the texts' losses.

    Args:
        logits_BC: fp32.
        targets: int64 (B,), numbers of labels: cross-entropy of the softmax. Or float32 (B, C), 1
            for each label that a text has: binary cross-entropy of each label's sigmoid, averaged
            over the labels.
        weights: Weights, of the shape of the targets.
        focal_gamma: The loss of a target with probability p is multiplied by (1 - p)^gamma (Lin et
            al. 2017, equation 4; its alpha is `weights`).
        smoothing: Share of a target that is spread evenly over all labels (Szegedy et al. 2016,
            section 7), or over yes and no.

    Returns:
        fp32 scalar.
    """
    is_single = targets.ndim == 1
    if is_single:
        losses = F.cross_entropy(logits_BC, targets, reduction="none", label_smoothing=smoothing)
    else:
        smoothed_BC = targets * (1 - smoothing) + smoothing / 2
        losses = F.binary_cross_entropy_with_logits(logits_BC, smoothed_BC, reduction="none")
    if focal_gamma:
        # The probability of a target is exp(-loss).
        losses = losses * (-torch.expm1(-losses)).clamp(min=_TINY) ** focal_gamma
    if weights is not None:
        losses = losses * weights
    return losses.sum() if is_single else losses.sum() / logits_BC.shape[1]


METHOD = Method(loss_sum=_configured({}), configured=_configured)
