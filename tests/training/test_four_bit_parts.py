"""4-bit layers in parts: the bytes of one device, each on one rank, computed with like there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from brimful.model.published import Loading, attach_adapters, load_model
from brimful.recipe import AdapterRecipe
from brimful.training.sharding import give_up_gathered, own_rows, shard, within
from brimful.training.world import World

pytestmark = pytest.mark.filterwarnings("ignore")  # peft and bitsandbytes warn about themselves

Ranks = Callable[..., list[Any]]
IDS_BT = torch.arange(24).view(4, 6)
UNEVEN = LlamaConfig(
    vocab_size=50,
    hidden_size=68,
    intermediate_size=94,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
)
"""Three ranks divide neither its packed weights nor their scales; a weight has less than 16,384
elements.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(UNEVEN).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def _model(folder: Path, *, dora: bool) -> PreTrainedModel:
    model = load_model(folder, Loading("fp32", "sdpa", torch.device("cpu"), quantize="nf4"))
    attach_adapters(model, AdapterRecipe(rank=4, dora=dora), seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()  # zeros would hide the other half of an adapter
    return model


def _bytes_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: each for name, each in model.named_parameters() if each.dtype == torch.uint8}


def _loss_and_gradients(model: PreTrainedModel, rows: Tensor) -> tuple[float, dict[str, Tensor]]:
    def loss() -> Tensor:
        logits_BTV = model(input_ids=rows).logits
        return nn.functional.cross_entropy(
            logits_BTV.flatten(0, 1), rows.flatten(), reduction="sum"
        )

    value = within(model, loss) if hasattr(model, "lies_in_parts") else loss()
    value.backward()
    gradients = {
        name: each.grad for name, each in model.named_parameters() if each.grad is not None
    }
    return value.item(), gradients


@pytest.mark.parametrize("dora", [False, True])
def test_ranks_hold_parts_of_the_bytes_of_one_device_and_compute_with_all(
    folder: Path, ranks: Ranks, *, dora: bool
) -> None:
    whole = _model(folder, dora=dora)
    scales = {
        f"{name}.scales": module.quant_state.absmax.clone()
        for name, module in whole.named_modules()
        if getattr(module, "quant_state", None) is not None
    }
    expected = {name: each.data.clone() for name, each in _bytes_of(whole).items()} | scales
    loss, gradients = _loss_and_gradients(whole, IDS_BT)
    assert len(scales) == len(expected) / 2 == 14

    def act(world: World) -> Any:
        model = _model(folder, dora=dora)
        shard(model, world, torch.device("cpu"))
        held = {name: own_rows(each)[0].numel() for name, each in _bytes_of(model).items()}
        with torch.no_grad():
            within(model, lambda: model(input_ids=IDS_BT[:1]) and None)
        give_up_gathered(model)
        first, count = world.slice_of(len(IDS_BT))
        own_loss, own = _loss_and_gradients(model, IDS_BT[first : first + count])
        parts = _bytes_of(model)
        assert all(isinstance(each, DTensor) for each in parts.values())
        same = [
            name for name, each in parts.items() if torch.equal(each.full_tensor(), expected[name])
        ]
        summed = {name: each.full_tensor().tolist() for name, each in own.items()}
        return [own_loss, held, sorted(same), summed]

    ends = ranks(3, act)

    assert sum(end[0] for end in ends) == pytest.approx(loss, rel=1e-6)
    for own_loss, held, same, summed in ends:
        assert own_loss > 0
        assert same == sorted(expected)
        assert summed.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(torch.tensor(summed[name]), gradient, rtol=1e-4, atol=1e-4)
        for name, whole_bytes in expected.items():
            assert held[name] <= -(-whole_bytes.numel() // 3)
    for name, whole_bytes in expected.items():
        assert sum(held[name] for _, held, *_ in ends) == whole_bytes.numel()
