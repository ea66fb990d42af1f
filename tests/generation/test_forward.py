"""Models are asked as they want to be: their name for the cache, positions, masks, logits of chosen
positions only.
"""

from inspect import Parameter, Signature
from typing import Any

import pytest
import torch
from fixture_types import Refuses
from torch import nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DynamicCache,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
)

from brimful.base.errors import RequestError
from brimful.generation.forward import Forward
from brimful.model.blocks import CACHE_NAME

IDS = torch.tensor([[5, 9, 20, 3]])
POSITIONS = torch.arange(4)[None]


def others() -> list[PreTrainedModel]:
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1}
    return [
        MambaForCausalLM(MambaConfig(**sizes, state_size=4)).eval(),
        BloomForCausalLM(BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=2)).eval(),
    ]


@pytest.mark.parametrize("number", range(2), ids=["mamba", "bloom"])
def test_models_with_other_names_and_without_positions_go_on_from_their_cache(number: int) -> None:
    model = others()[number]
    forward, cache = Forward(model), DynamicCache(config=model.config)
    with torch.no_grad():
        whole = model(IDS).logits
        first = forward(IDS[:, :3], cache, positions_BT=POSITIONS[:, :3], at_P=torch.tensor([0, 2]))
        last = forward(IDS[:, 3:], cache, positions_BT=POSITIONS[:, 3:])
    torch.testing.assert_close(torch.cat([first, last], dim=1), whole[:, [0, 2, 3]])
    assert not forward.has_positions


@pytest.mark.parametrize("name", ["cache", "past_key_values", "cache_params"])
def test_a_model_is_given_its_cache_by_the_name_that_it_has(
    name: str, model: PreTrainedModel
) -> None:
    """Code that comes with a model keeps the names of its time. In doubles, where passes of one and
    of four tokens differ by far less than a wrong cache would.
    """

    def forward(self: PreTrainedModel, input_ids: torch.Tensor, **options: Any) -> Any:
        options[CACHE_NAME] = options.pop(name)
        return super(named, self).forward(input_ids, **options)

    parameters = [
        Parameter(each, Parameter.KEYWORD_ONLY)
        for each in ("input_ids", name, "use_cache", "position_ids")
    ]
    forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    named = type("Named", (type(model),), {"forward": forward})
    renamed, cache = named(model.config).double().eval(), DynamicCache()
    with torch.no_grad():
        whole = renamed(IDS, **{name: DynamicCache()}).logits
        Forward(renamed)(IDS[:, :3], cache, positions_BT=POSITIONS[:, :3])
        last = Forward(renamed)(IDS[:, 3:], cache, positions_BT=POSITIONS[:, 3:])
    torch.testing.assert_close(last, whole[:, 3:])


def test_one_token_sees_the_slots_that_it_is_shown(model: PreTrainedModel) -> None:
    """A text with a foreign token before it reads as without, under fused attention and under the
    plain one.
    """
    for attention in ("sdpa", "eager"):
        model.set_attn_implementation(attention)
        forward, cache, with_foreign = Forward(model), DynamicCache(), DynamicCache()
        with torch.no_grad():
            forward(IDS[:, :3], cache, positions_BT=POSITIONS[:, :3])
            expected = forward(IDS[:, 3:], cache, positions_BT=POSITIONS[:, 3:])
            forward(torch.tensor([[5, 9, 20, 77]]), with_foreign, positions_BT=POSITIONS)
            seen = torch.tensor([[True, True, True, False, True]])
            torch.testing.assert_close(
                forward(IDS[:, 3:], with_foreign, positions_BT=POSITIONS[:, 3:], seen_BS=seen),
                expected,
            )


def test_a_model_without_a_cache_is_refused(model: PreTrainedModel, refuses: Refuses) -> None:
    class Bare(type(model)):  # type: ignore[misc]
        def forward(self, input_ids: torch.Tensor) -> nn.Module:
            raise NotImplementedError

    with refuses(RequestError):
        Forward(Bare(model.config))
