"""The program never waits for the device within a micro-batch: run on tensors without values, none
can be read, and whatever goes to the device goes by the copy that is not waited for.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.data import batches
from brimful.data.batches import MicroBatch
from brimful.hardware import catalog
from brimful.model import packed_attention
from brimful.planning.specs import model_facts
from brimful.planning.step import StepSpec
from brimful.planning.survey import prepare
from brimful.recipe import load
from brimful.rehearsal.models import config_of, meta_model, with_layers
from brimful.rehearsal.training import blank_batch, method_of, network_of
from brimful.training.loop import accumulate_gradients
from brimful.training.precision import Precision

META = torch.device("meta")
RECIPES: dict[str, tuple[str, ...]] = {
    "quickstart": (),
    "lora": (),
    "dpo": ("preference.reference=in_passes",),
    "kto": (),
    "unit-grpo": ("rewards.kl=0.1",),
    "tiny-encoder": (),
    "okadfa-small": (),
}


class Copies(TorchDispatchMode):
    """Counts copies from the CPU to the device that the program waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.device == META:
            tensors = [each for each in args if isinstance(each, Tensor) and each.ndim]
            if any(each.device.type == "cpu" for each in tensors):
                self.waited.append(str(func))
        return made


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Copies]:
    """Counts while it is entered, but for the copies that nobody waits for."""

    def moved(tensor: Tensor, device: torch.device) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

    for module in (batches, packed_attention):
        monkeypatch.setattr(module, "moved", moved)
    # torch knows no autocast on tensors without values.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    with Copies() as counted:
        yield counted


def step_of(name: str) -> StepSpec:
    recipe = load(name, list(RECIPES.get(name, ())))
    device = catalog.get("h100")
    return prepare(recipe, device, model=model_facts(recipe)).spec(recompute=False)


def packed(micro: MicroBatch) -> MicroBatch:
    """The same with two examples in each row, where rows may be cut."""
    rows, positions = micro.inputs_BT.shape
    if micro.lengths_E is not None or micro.mask_BT is not None:
        return micro
    lengths_E = torch.tensor([5, positions - 5] * rows)
    flat = {"inputs_BT": micro.inputs_BT.view(1, -1), "targets_BT": micro.targets_BT.view(1, -1)}
    return replace(micro, **flat, lengths_E=lengths_E)  # type: ignore[arg-type]


@pytest.mark.long_but("quickstart", "kto")
@pytest.mark.parametrize("name", RECIPES)
def test_two_micro_batches_are_not_waited_for(name: str, copies: Copies) -> None:
    assert copies_of_step(name, copies) == []


def test_padded_rows_are_waited_for_where_transformers_reads_their_mask(copies: Copies) -> None:
    """It leaves out masks that hide nothing, and reads each for that."""
    with pytest.raises(RuntimeError, match="item"):
        copies_of_step("moderation", copies)


def test_a_copy_that_is_waited_for_is_counted(copies: Copies) -> None:
    torch.zeros(3).to(META)

    assert copies.waited == ["aten._to_copy.default"]


def copies_of_step(name: str, copies: Copies) -> list[str]:
    spec = step_of(name)
    model = meta_model(spec, with_layers(config_of(spec), range(2))).train()
    micro = blank_batch(spec, 2)
    if spec.attention == packed_attention.NAME:
        micro = packed(micro)
    network, method = network_of(model, spec), method_of(spec)
    scale = torch.ones((), device=META)

    copies.waited.clear()
    micros = (each.to(META) for each in (micro, micro))
    accumulate_gradients(network, method, Precision("fp32"), META, micros, scale)
    assert any(parameter.grad is not None for parameter in model.parameters())
    return copies.waited
