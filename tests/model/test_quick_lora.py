"""LoRA layers computed by one function, beside peft's own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from brimful.model.quick_lora import adapt_quickly


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
