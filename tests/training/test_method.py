"""A method is found by the name of its file and sees the model as body and head."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from brimful.base.discover import names_in
from brimful.base.errors import BrimfulError
from brimful.model.build import build
from brimful.recipe import METHODS_PACKAGE, Recipe
from brimful.training.method import Method, Network, find_method, hidden_states_of


@pytest.fixture
def model(tiny: Callable[..., Recipe]) -> PreTrainedModel:
    return build(tiny(), vocabulary=50, end_of_text_id=0, attention="sdpa", device=torch.device("cpu"))


@pytest.mark.parametrize("name", names_in(METHODS_PACKAGE, ".py"))
def test_every_file_of_the_folder_is_a_method(name: str) -> None:
    assert isinstance(find_method(name), Method)


def test_an_unknown_method_is_told_with_the_nearest() -> None:
    with pytest.raises(BrimfulError, match=r"unknown training method 'pretrian' - did you mean 'pretrain'\?"):
        find_method("pretrian")


def test_body_and_head_together_are_the_model(model: PreTrainedModel) -> None:
    ids_BT = torch.arange(24).reshape(2, 12)
    hidden_states = hidden_states_of(model)
    network = Network(model, hidden_states, loss_chunk=8)

    logits_BTV = hidden_states(ids_BT) @ network.head_weight_VD.T

    torch.testing.assert_close(logits_BTV, model(ids_BT).logits, rtol=1e-5, atol=1e-6)
    assert network.logit_softcap is None
