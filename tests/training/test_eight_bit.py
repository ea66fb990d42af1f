"""8-bit AdamW: near AdamW's own steps, whole after a restart, and clear where it cannot run."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import Refuses
from torch import nn

from brimful.base.errors import CheckpointError, DeviceError, RequestError, TrainingStopped
from brimful.recipe import OptimizerRecipe
from brimful.training import eight_bit
from brimful.training.memory_errors import OutOfMemory, all_or_nothing, attempt
from brimful.training.optim import (
    StepGuard,
    build_optimizer,
    guarded_update,
    load_named_states,
    named_states,
)
from brimful.training.precision import Precision
from brimful.training.tensorfile import load_tensors, save_tensors

pytest.importorskip("bitsandbytes")
FP32, CPU = Precision("fp32"), torch.device("cpu")
SETTINGS = OptimizerRecipe(learning_rate=1e-3)


def _model() -> nn.Sequential:
    """Its matrices have states of 8 bits, its vectors are too small for that."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    """Guarded updates towards a fixed function; the batch of a step follows from its number."""
    guard = StepGuard.fresh(FP32, CPU)
    for number in numbers:
        inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(number))
        model.zero_grad()
        loss = (model(inputs) - inputs.roll(1, 1)).square().mean()
        loss.backward()
        guarded_update(optimizer, guard, FP32, loss=loss.detach(), clip_norm=1.0)


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_few_steps_stay_near_those_of_adamw_in_fp32() -> None:
    start, ends = _weights(_model()), []
    for variant in ("fused", "8bit"):
        model = _model()
        _steps(model, build_optimizer(model, SETTINGS, variant=variant), range(10))
        ends.append(_weights(model) - start)

    assert torch.cosine_similarity(*ends, dim=0) > 0.99
    assert not torch.equal(*ends)


def test_matrices_have_states_of_one_byte_and_small_tensors_of_four() -> None:
    model = _model()
    optimizer = build_optimizer(model, SETTINGS, variant="8bit")
    _steps(model, optimizer, range(1))

    matrix, vector = (optimizer.state[parameter] for parameter in list(model.parameters())[:2])
    assert (matrix["state1"].dtype, matrix["absmax2"].numel(), vector["state1"].dtype) == (
        torch.uint8,
        32,
        torch.float32,
    )


def test_a_run_restored_from_a_file_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = _model()
    optimizer = build_optimizer(whole, SETTINGS, variant="8bit")
    _steps(whole, optimizer, range(3))
    weights = {name: value.clone() for name, value in whole.state_dict().items()}
    save_tensors(tmp_path / "optimizer.safetensors", named_states(whole, optimizer))
    _steps(whole, optimizer, range(3, 6))

    restored = _model()
    restored.load_state_dict(weights)
    again = build_optimizer(restored, SETTINGS, variant="8bit")
    load_named_states(restored, again, load_tensors(tmp_path / "optimizer.safetensors"))
    _steps(restored, again, range(3, 6))

    assert torch.equal(_weights(whole), _weights(restored))
    ours, theirs = named_states(restored, again), named_states(whole, optimizer)
    assert ours.keys() == theirs.keys()
    assert all(
        torch.equal(value, theirs[name]) and value.dtype == theirs[name].dtype
        for name, value in ours.items()
    )
    assert {name.partition(":")[2] for name in ours} == {
        "step",
        "state1",
        "state2",
        "qmap1",
        "qmap2",
        "absmax1",
        "absmax2",
    }


def test_going_back_within_a_run_drops_the_states_made_since() -> None:
    model = _model()
    optimizer = build_optimizer(model, SETTINGS, variant="8bit")
    _steps(model, optimizer, range(2))

    load_named_states(model, optimizer, {})

    assert not optimizer.state


def test_states_of_another_layout_are_refused(refuses: Refuses) -> None:
    model = _model()
    optimizer = build_optimizer(model, SETTINGS, variant="8bit")
    _steps(model, optimizer, range(1))
    states = named_states(model, optimizer)
    states["0.weight:absmax1"] = torch.zeros(4)

    with refuses(CheckpointError):
        load_named_states(model, build_optimizer(model, SETTINGS, variant="8bit"), states)


def _fails_at(monkeypatch: pytest.MonkeyPatch, optimizer: Any, method: str, call: int) -> None:
    """Let the `call`-th call of a method of the optimizer run out of memory, once."""
    real, count = getattr(optimizer, method), 0

    def act(*args: Any) -> None:
        nonlocal count
        count += 1
        if count == call:
            raise torch.OutOfMemoryError("CUDA out of memory (for the test)")
        real(*args)

    monkeypatch.setattr(optimizer, method, act)


def _update(optimizer: torch.optim.Optimizer) -> None:
    with all_or_nothing(optimizer):
        optimizer.step()


@pytest.mark.parametrize("call", [1, 3])
def test_an_update_whose_states_do_not_fit_changes_nothing_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    model = _model()
    optimizer = build_optimizer(model, SETTINGS, variant="8bit")
    model(torch.ones(1, 64)).sum().backward()
    before = _weights(model)
    with monkeypatch.context() as patch:
        _fails_at(patch, optimizer, "init_state", call)
        assert isinstance(attempt(lambda: _update(optimizer)), OutOfMemory)
    assert (len(optimizer.state), bool(torch.equal(_weights(model), before))) == (0, True)

    _update(optimizer)

    assert len(optimizer.state) == 4
    assert not torch.equal(_weights(model), before)


def test_an_update_that_fails_half_done_stops_training(
    monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    model = _model()
    optimizer = build_optimizer(model, SETTINGS, variant="8bit")
    model(torch.ones(1, 64)).sum().backward()
    _fails_at(monkeypatch, optimizer, "update_step", 2)

    with refuses(TrainingStopped):
        attempt(lambda: _update(optimizer))


def test_paged_states_need_cuda(refuses: Refuses) -> None:
    with refuses(DeviceError, names=["paged_adamw_8bit"]):
        build_optimizer(_model(), SETTINGS, variant="paged_8bit")


def test_without_bitsandbytes_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with refuses(RequestError):
        eight_bit.require("8bit", "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("variant", ["8bit", "paged_8bit"])
def test_on_cuda_restored_states_go_on_bit_for_bit_and_large_ones_are_paged_where_asked(
    tmp_path: Path, variant: str
) -> None:
    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
        for number in numbers:
            generator = torch.Generator("cuda").manual_seed(number)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, device="cuda", generator=generator)
            optimizer.step()

    def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(512, 512).cuda()
        return model, build_optimizer(model, SETTINGS, variant=variant)

    whole, optimizer = model_and_optimizer()
    steps(whole, optimizer, range(2))
    weights = {name: value.clone() for name, value in whole.state_dict().items()}
    save_tensors(tmp_path / "optimizer.safetensors", named_states(whole, optimizer))
    steps(whole, optimizer, range(2, 4))
    restored, again = model_and_optimizer()
    restored.load_state_dict(weights)
    load_named_states(restored, again, load_tensors(tmp_path / "optimizer.safetensors"))
    steps(restored, again, range(2, 4))

    assert torch.equal(_weights(whole), _weights(restored))
    assert getattr(again.state[next(restored.parameters())]["state1"], "is_paged", False) == (
        variant == "paged_8bit"
    )
