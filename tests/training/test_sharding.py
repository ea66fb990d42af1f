"""Rows of weights on several ranks: every row lies on exactly one, also where ranks get none."""

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
from brimful.training.memory_errors import lies_in_parts
from brimful.training.sharding import give_up_gathered, like, own_rows, shard, within
from brimful.training.world import World

Ranks = Callable[..., list[Any]]


class _Blocks(nn.Module):
    """Two blocks whose rows do not come out even, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(5, 5) for _ in range(2)])
        self.head = nn.Linear(5, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def test_parts_are_rows_that_come_back_whole(ranks: Ranks) -> None:
    def act(world: World) -> Any:
        model = _Blocks()
        whole = {name: each.detach().clone() for name, each in model.named_parameters()}
        shard(model, world, torch.device("cpu"))
        rows = {
            name: [own_rows(each)[1], own_rows(each)[0].tolist()]
            for name, each in model.named_parameters()
        }
        again = [
            torch.equal(like(each, whole[name]).full_tensor(), whole[name])
            for name, each in model.named_parameters()
        ]
        return [rows, lies_in_parts(model), all(again)]

    parts = ranks(3, act)

    model = _Blocks()
    assert [part[1:] for part in parts] == [[True, True]] * 3
    assert not lies_in_parts(model)
    for name, parameter in model.named_parameters():
        held = [row for rows, *_ in parts for row in rows[name][1]]
        torch.testing.assert_close(torch.tensor(held), parameter)
        firsts = [rows[name][0] for rows, *_ in parts if rows[name][1]]
        counts = [len(rows[name][1]) for rows, *_ in parts]
        assert firsts == [sum(counts[:rank]) for rank, count in enumerate(counts) if count]


def test_a_part_of_the_model_may_be_called_and_gradients_are_sums(ranks: Ranks) -> None:
    inputs = torch.arange(10.0).view(2, 5)

    def act(world: World) -> Any:
        model = _Blocks()
        shard(model, world, torch.device("cpu"))

        def loss() -> torch.Tensor:
            hidden = model.blocks[1](model.blocks[0](inputs[world.rank :][:1]))
            return (hidden @ model.head.weight.T).square().sum()

        with torch.no_grad():
            value = within(model, lambda: loss().item())
        give_up_gathered(model)
        within(model, loss).backward()
        return [value, model.head.weight.grad.full_tensor().tolist()]

    ends = ranks(2, act)

    model = _Blocks()
    losses = [
        (model.blocks[1](model.blocks[0](row[None])) @ model.head.weight.T).square().sum()
        for row in inputs
    ]
    sum(losses).backward()
    torch.testing.assert_close(torch.tensor([value for value, _ in ends]), torch.stack(losses))
    for _, gradient in ends:
        torch.testing.assert_close(torch.tensor(gradient), model.head.weight.grad)


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


@pytest.mark.filterwarnings("ignore")  # peft and bitsandbytes warn about themselves
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
