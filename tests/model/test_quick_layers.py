"""Norms with frozen weights, beside transformers' own."""

import importlib
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
from brimful.model.quick_layers import (
    NORMS,
    QuickDropout,
    adapt_quickly,
    drop_quickly,
    kept_of,
    normalise_as_usual,
    normalise_quickly,
)
from brimful.recipe import AdapterRecipe
from brimful.training.method import Network, hidden_states_of, next_token_loss_sum
from brimful.training.sharding import gathering, shard
from brimful.training.world import World

MODULES = {
    "GraniteRMSNorm": "granite",
    "LlamaRMSNorm": "llama",
    "MistralRMSNorm": "mistral",
    "MixtralRMSNorm": "mixtral",
    "Phi3RMSNorm": "phi3",
    "Qwen2RMSNorm": "qwen2",
    "Qwen3RMSNorm": "qwen3",
    "SmolLM3RMSNorm": "smollm3",
}


def _norm(name: str, *, frozen: bool = True) -> nn.Module:
    folder = MODULES[name]
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    norm: nn.Module = getattr(module, name)(24, eps=1e-5)
    torch.manual_seed(0)
    norm.weight.data = torch.rand(24) + 0.5
    return norm.requires_grad_(not frozen)


def _through(norm: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs and the gradient of the inputs."""
    inputs = inputs.clone().requires_grad_()
    outputs = norm(inputs)
    outputs.backward(torch.linspace(-1, 1, inputs.numel()).view_as(inputs).to(outputs.dtype))
    assert inputs.grad is not None
    return outputs.detach(), inputs.grad


@pytest.mark.parametrize("name", sorted(NORMS))
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)], ids=["fp32", "bf16"]
)
def test_values_are_transformers_to_the_bit_and_gradients_up_to_rounding(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    norm = _norm(name).to(dtype)
    inputs = torch.randn(2, 7, 24).mul(3).to(dtype)
    before = inputs.clone()
    values, gradient = _through(norm, inputs)

    normalise_quickly(norm)
    own_values, own_gradient = _through(norm, inputs)

    assert type(norm).__name__ == "QuickNorm"
    assert torch.equal(own_values, values)
    assert own_gradient.dtype == gradient.dtype
    difference = (own_gradient - gradient).float().norm() / gradient.float().norm()
    assert difference < tolerance
    assert torch.equal(inputs, before)


def test_doubles_stay_doubles() -> None:
    norm = _norm("LlamaRMSNorm").double()
    inputs = torch.randn(2, 7, 24, dtype=torch.float64)
    usual = nn.RMSNorm(24, eps=1e-5, dtype=torch.float64)
    usual.weight.data = norm.weight.data
    expected = _through(usual, inputs)
    normalise_quickly(norm)
    torch.testing.assert_close(_through(norm, inputs), expected, rtol=1e-13, atol=1e-13)


def test_the_gradient_is_that_of_finite_differences() -> None:
    norm = _norm("LlamaRMSNorm")
    normalise_quickly(norm)
    inputs = torch.randn(3, 24, dtype=torch.float32)
    direction = torch.randn(3, 24)
    inputs.requires_grad_()
    norm(inputs).square().sum().backward()
    assert inputs.grad is not None
    by_gradient = (inputs.grad * direction).sum().item()

    def loss(step: float) -> float:
        with torch.no_grad():
            return float(norm(inputs + step * direction).double().square().sum())

    assert (loss(1e-2) - loss(-1e-2)) / 2e-2 == pytest.approx(by_gradient, rel=1e-2)


def test_weights_that_are_trained_or_of_another_type_are_left_to_transformers() -> None:
    trained, wide = _norm("LlamaRMSNorm", frozen=False), _norm("LlamaRMSNorm")
    for norm, inputs in ((trained, torch.randn(2, 24)), (wide, torch.randn(2, 24).bfloat16())):
        values = norm(inputs)
        normalise_quickly(norm)
        assert torch.equal(norm(inputs), values)
    trained(torch.randn(2, 24)).sum().backward()
    assert trained.weight.grad is not None


def test_a_model_gets_the_norms_of_transformers_back() -> None:
    model = nn.Sequential(_norm("LlamaRMSNorm"), nn.Linear(24, 2), _norm("Qwen2RMSNorm"))
    usual = [type(module) for module in model.modules()]
    normalise_quickly(model)
    assert [type(module) for module in model.modules()] != usual
    normalise_as_usual(model)
    assert [type(module) for module in model.modules()] == usual


CPU = torch.device("cpu")


@pytest.mark.parametrize("dropout", [0.05, 0.1, 0.5])
def test_it_drops_with_the_probability_that_is_asked_for(dropout: float) -> None:
    torch.manual_seed(0)
    count = 400_000

    kept, factor = kept_of(torch.Size([count // 4 - 1, 4]), dropout, CPU)

    spread = (dropout * (1 - dropout) / count) ** 0.5
    assert kept.float().mean().item() == pytest.approx(1 - dropout, abs=4 * spread)
    assert factor == pytest.approx(1 / (1 - dropout), rel=2e-5)


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = kept_of(torch.Size([400_000]), 0.5, CPU)[0].float() - 0.5

    for distance in (1, 2, 3, 4, 5):
        both = (kept[distance:] * kept[:-distance]).mean().item()
        assert abs(both) < 4 * 0.25 / 400_000**0.5


def test_the_gradient_is_that_of_what_was_kept() -> None:
    layer, values = QuickDropout(0.25), torch.randn(40, 50, requires_grad=True)

    dropped = layer(values)
    dropped.sum().backward()

    assert values.grad is not None
    torch.testing.assert_close(dropped, values * values.grad)
    assert values.grad.unique().tolist() == pytest.approx([0, 4 / 3])


def test_only_training_drops_and_one_seed_drops_the_same() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2), nn.Dropout(0.0))
    values = torch.ones(1000)
    drop_quickly(model)
    torch.manual_seed(1)
    first = model[0](values)
    torch.manual_seed(1)

    assert torch.equal(model[0](values), first)
    assert torch.equal(model[2](values), values)
    assert torch.equal(model.eval()[0](values), values)


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
