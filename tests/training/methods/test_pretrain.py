"""Next-token prediction: the summed loss is transformers' own, and everything trains."""

import pytest
import torch
from fixture_types import MakeRecipe

from brimful.data.batches import MicroBatch
from brimful.model.build import build
from brimful.training.method import Network, hidden_states_of
from brimful.training.methods.pretrain import METHOD


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_the_loss_is_the_sum_over_targets_whatever_the_chunk(
    tiny: MakeRecipe, architecture: str, chunk: int
) -> None:
    model = build(
        tiny(f"model.architecture={architecture}"),
        vocabulary=50,
        end_of_text_id=0,
        attention="sdpa",
        device=torch.device("cpu"),
    )
    inputs_BT, targets_BT = torch.arange(24).reshape(2, 12), torch.arange(1, 25).reshape(2, 12)
    targets_BT[0, :5] = -100

    loss = METHOD.loss_sum(
        Network(model, hidden_states_of(model), loss_chunk=chunk), MicroBatch(inputs_BT, targets_BT)
    )

    expected = torch.nn.functional.cross_entropy(
        model(inputs_BT).logits.flatten(0, 1), targets_BT.flatten(), reduction="sum"
    )
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)


def test_every_parameter_of_a_fresh_model_trains(tiny: MakeRecipe) -> None:
    model = build(
        tiny(), vocabulary=50, end_of_text_id=0, attention="sdpa", device=torch.device("cpu")
    )

    assert all(parameter.requires_grad for parameter in model.parameters())
