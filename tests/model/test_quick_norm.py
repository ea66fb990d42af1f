"""Norms with frozen weights, beside transformers' own."""

import importlib

import pytest
import torch
from torch import Tensor, nn

from brimful.model.quick_norm import NORMS, normalise_as_usual, normalise_quickly

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
