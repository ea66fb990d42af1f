"""Activation offloading: the same numbers, and nothing of a block's input left on the device."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from brimful.base.types import JsonDict
from brimful.planning.offload import offloaded_bytes
from brimful.planning.step import StepSpec, canonical
from brimful.training.offload import HostMemory, offload_activations
from brimful.training.selective import recompute_activations


class _Watched(HostMemory):
    """The host's memory, which notes what came to it."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.came: list[weakref.ref[Tensor]] = []

    def away(self, tensor: Tensor) -> Any:
        self.num_bytes += tensor.nbytes
        self.came.append(weakref.ref(tensor))
        return super().away(tensor)


def _model(values: JsonDict, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(**{**values, "num_hidden_layers": 3})
    return AutoModelForCausalLM.from_config(config).to(dtype).train()


def _gradients(model: Any, tokens: Tensor) -> dict[str, Tensor]:
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    return {name: each.grad.clone() for name, each in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_without_it_bit_for_bit(
    llama_values: JsonDict, dtype: torch.dtype
) -> None:
    tokens = torch.randint(0, 512, (2, 32))
    plain, offloaded = _model(llama_values, dtype), _model(llama_values, dtype)
    for model in (plain, offloaded):
        recompute_activations(model)
    elsewhere = _Watched()

    assert offload_activations(offloaded, elsewhere) >= 3
    expected, found = _gradients(plain, tokens), _gradients(offloaded, tokens)

    assert all(torch.equal(expected[name], found[name]) for name in expected)
    spec = StepSpec(
        canonical({**llama_values, "num_hidden_layers": 3}),
        32,
        weights="fp32" if dtype == torch.float32 else "bf16",
        recompute=True,
        offload=True,
    )
    assert elsewhere.num_bytes == offloaded_bytes(spec, 2)


def test_inputs_of_blocks_end_with_the_forward_pass(llama_values: JsonDict) -> None:
    model, elsewhere = _model(llama_values), _Watched()
    recompute_activations(model)
    offload_activations(model, elsewhere)

    tokens = torch.randint(0, 512, (2, 32))
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    gc.collect()

    assert len(elsewhere.came) == 3
    assert all(each() is None for each in elsewhere.came)
    loss.backward()
    assert all(each.grad is not None for each in model.parameters())


def test_without_checkpointed_layers_nothing_is_offloaded() -> None:
    assert offload_activations(torch.nn.Linear(2, 2), HostMemory()) == 0


def test_a_run_with_it_has_the_losses_of_one_that_recomputes(
    said: Callable[..., tuple[int, str, str]], recipe_file: Any, tmp_path: Any
) -> None:
    from brimful.runs import read_run

    for name, change in (("plain", "plan.recompute=true"), ("away", "plan.offload=activations")):
        code, _, err = said("train", str(recipe_file), f"run.name={name}", change)
        assert code == 0, err

    plain, away = (read_run(tmp_path / "runs" / name) for name in ("plain", "away"))

    assert away.plan is not None
    assert (away.plan.offload, away.plan.recompute, away.plan.compile) == (True, True, False)
    assert [step.loss for step in away.steps] == [step.loss for step in plain.steps]
    assert [step.grad_norm for step in away.steps] == [step.grad_norm for step in plain.steps]
