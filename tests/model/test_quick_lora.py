"""LoRA layers computed by one function, beside peft's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from brimful.base.types import JsonDict
from brimful.data.batches import MicroBatch
from brimful.model.published import Loading, attach_adapters, load_model
from brimful.model.quick_lora import adapt_quickly
from brimful.recipe import AdapterRecipe
from brimful.training.method import Network, hidden_states_of, next_token_loss_sum
from brimful.training.sharding import gathering, shard
from brimful.training.world import World

TINY = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)


class _TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(48, 64)
        self.narrow = nn.Linear(64, 32, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.narrow(torch.tanh(self.wide(inputs)))
        return out


def _adapted(dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """Two layers with trained adapters whose scale is no power of two."""
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=12, target_modules=["wide", "narrow"], **settings)
    model = get_peft_model(_TwoLayers().to(dtype), config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape) / 10
    return model


def _step(model: nn.Module, inputs: Tensor, *, autocast: bool) -> dict[str, Tensor]:
    """The outputs and the gradients of a loss."""
    model.zero_grad()
    inputs = inputs.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        outputs = model(inputs)
    outputs.float().square().sum().backward()
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in (*model.named_parameters(), ("inputs", inputs))
        if parameter.grad is not None
    }
    return {"outputs": outputs.detach()} | gradients


def _quick_layers(model: nn.Module) -> int:
    return sum(type(module).__name__ == "QuickLora" for module in model.modules())


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"]
)
def test_outputs_and_gradients_are_pefts(dtype: torch.dtype, tolerance: float) -> None:
    model, inputs = _adapted(dtype), torch.randn(3, 5, 48).to(dtype)
    autocast = dtype == torch.bfloat16
    of_peft = _step(model, inputs, autocast=autocast)

    adapt_quickly(model)
    ours = _step(model, inputs, autocast=autocast)

    assert _quick_layers(model) == 2
    assert ours.keys() == of_peft.keys()
    for name, theirs in of_peft.items():
        assert ours[name].dtype == theirs.dtype, name
        difference = (ours[name] - theirs).float().norm() / theirs.float().norm()
        assert 0 <= difference < tolerance, name


def test_bf16_is_as_near_to_fp32_as_pefts() -> None:
    inputs = torch.randn(3, 5, 48).bfloat16()
    model = _adapted(torch.bfloat16)
    theirs = _step(model, inputs, autocast=True)
    adapt_quickly(model)
    ours = _step(model, inputs, autocast=True)
    exact = _step(model.float(), inputs.float(), autocast=False)

    def error(of: dict[str, Tensor]) -> float:
        return sum(
            float((of[name].float() - exact[name]).norm() / exact[name].norm()) for name in exact
        )

    assert error(ours) <= 1.05 * error(theirs)


def _with_dropout() -> Any:
    return _adapted(lora_dropout=0.5).train()


def _disabled() -> Any:
    model = _adapted()
    model.base_model.disable_adapter_layers()
    return model


def _merged() -> Any:
    model = _adapted()
    model.merge_adapter()
    return model


def _decomposed() -> Any:
    return _adapted(use_dora=True)


def _base_in_another_type() -> Any:
    return _adapted(torch.bfloat16)


@pytest.mark.parametrize(
    ("make", "layers"),
    [
        (_with_dropout, 0),
        (_decomposed, 0),
        (_disabled, 2),
        (_merged, 2),
        (_base_in_another_type, 2),
    ],
)
def test_what_it_does_not_cover_is_bit_for_bit_pefts(make: Callable[[], Any], layers: int) -> None:
    inputs = torch.randn(3, 5, 48).to(make().base_model.model.wide.weight.dtype)
    model = make()
    torch.manual_seed(1)
    theirs = model(inputs)

    adapt_quickly(model)
    torch.manual_seed(1)
    ours = model(inputs)

    assert _quick_layers(model) == layers
    assert torch.equal(ours, theirs)


def test_it_keeps_one_input_for_the_backward_pass_where_peft_keeps_two() -> None:
    inputs = torch.randn(40, 48).bfloat16()

    def kept_bytes(model: nn.Module) -> int:
        weights = {parameter.data_ptr() for parameter in model.parameters()}
        kept: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage().data_ptr() not in weights:
                storage = tensor.untyped_storage()
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
            torch.autocast("cpu", dtype=torch.bfloat16),
        ):
            outputs = model(inputs)
        del outputs
        return sum(kept.values())

    model = _adapted(torch.bfloat16)
    of_peft = kept_bytes(model)
    adapt_quickly(model)
    assert kept_bytes(model) < 0.75 * of_peft


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_ranks_that_hold_parts_have_the_gradients_of_one_device(
    tmp_path: Path, ranks: Callable[..., list[Any]], weights: str
) -> None:
    torch.manual_seed(0)
    LlamaForCausalLM(TINY).save_pretrained(tmp_path / "base")
    ids_BT = torch.arange(24).view(2, 12)

    def gradients_of(world: World | None) -> JsonDict:
        device = torch.device("cpu")
        model = load_model(tmp_path / "base", Loading(weights, "sdpa", device))
        attach_adapters(model, AdapterRecipe(rank=4), seed=1)
        generator = torch.Generator().manual_seed(2)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(0.0, 0.1, generator=generator)
        assert _quick_layers(model) == 14
        rows, loss_sum = ids_BT, next_token_loss_sum
        if world is not None:
            shard(model, world, device)
            rows, loss_sum = ids_BT[world.rank :][:1], gathering(next_token_loss_sum)
        network = Network(model, hidden_states_of(model), loss_chunk=16)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=weights == "bf16"):
            loss = loss_sum(network, MicroBatch(rows, rows))
        loss.backward()
        return {
            name: (each.grad if world is None else each.grad.full_tensor()).tolist()
            for name, each in model.named_parameters()
            if each.grad is not None
        }

    whole = gradients_of(None)
    for own in ranks(2, gradients_of):
        assert own.keys() == whole.keys()
        for name, gradient in whole.items():
            expected = torch.tensor(gradient)
            difference = (torch.tensor(own[name]) - expected).norm() / expected.norm()
            assert difference < {"fp32": 1e-5, "bf16": 2e-2}[weights], name


def test_what_torch_compiles_is_pefts_as_one_graph() -> None:
    model, inputs = _adapted(torch.bfloat16), torch.randn(3, 5, 48).bfloat16()

    def outputs_of(call: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return call(inputs)

    of_peft = outputs_of(model)
    adapt_quickly(model)
    compiled = torch.compile(model.base_model.model, backend="aot_eager", fullgraph=True)
    assert torch.equal(outputs_of(compiled), of_peft)
