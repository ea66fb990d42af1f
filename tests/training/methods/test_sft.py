"""Tuning on examples: only targets are scored, and nothing else gets logits."""

import torch
from fixture_types import MakeRecipe

from brimful.data.batches import IGNORED, MicroBatch
from brimful.model.build import build
from brimful.training.method import Network, hidden_states_of
from brimful.training.methods.sft import METHOD


def test_logits_of_targets_alone_give_the_same_loss_and_gradients(
    tiny: MakeRecipe,
) -> None:
    model = build(
        tiny(), vocabulary=50, end_of_text_id=0, attention="sdpa", device=torch.device("cpu")
    )
    network = Network(model, hidden_states_of(model), loss_chunk=4)
    inputs_BT = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(1))
    targets_BT = torch.where(torch.arange(9) < 5, IGNORED, inputs_BT.roll(-1, 1))
    scored_N = (targets_BT.flatten() != IGNORED).nonzero()[:, 0]
    gradients = []
    for micro in (MicroBatch(inputs_BT, targets_BT), MicroBatch(inputs_BT, targets_BT, scored_N)):
        loss = METHOD.loss_sum(network, micro)
        gradients.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])

    for all_logits, scored in zip(*gradients, strict=True):
        torch.testing.assert_close(scored, all_logits, rtol=1e-5, atol=1e-6)
