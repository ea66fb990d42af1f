"""Plans within rounding of the plainest step pass; broken ones do not."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from small_plans import PLAINEST
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from brimful.base.errors import PlanError
from brimful.hardware import catalog
from brimful.hardware.probe import probe
from brimful.rehearsal import one_step
from brimful.rehearsal import verify as verify_module
from brimful.rehearsal.verify import Verification, verify
from brimful.training.optim import guarded_update

PLAN = replace(PLAINEST, micro_batches=(3, 3, 2), attention="sdpa", recompute=True, loss_chunk=40)
ALL = {"loss", "gradient direction", "gradient length", "update direction", "update length"}

Verifying = Callable[..., Verification]


def _failed(verification: Verification) -> set[str]:
    return {check.name for check in verification.checks if not check.passed}


@pytest.fixture
def verified(tiny: MakeRecipe) -> Verifying:
    """`verified("key=value", precision="bf16")` verifies the tiny recipe on this CPU with fields of
    its plan replaced.
    """
    return lambda *overrides, **changes: verify(
        tiny(*overrides), replace(PLAN, **changes), probe("cpu")
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    "overrides",
    [(), ("model.architecture=gpt2", "model.dropout=0.1", "model.tie_embeddings=false")],
)
def test_a_sound_plan_passes(
    verified: Verifying, precision: str, overrides: tuple[str, ...]
) -> None:
    verification = verified(*overrides, precision=precision)
    assert _failed(verification) == set()
    assert {check.name for check in verification.checks} == ALL
    assert json.loads(json.dumps(verification.to_json()))["passed"] is True


@pytest.mark.parametrize("attention", ["eager", "sdpa", "brimful_blocks", "brimful_expanded"])
@pytest.mark.parametrize("optimizer", ["fused", "foreach", "for_loop"])
def test_every_attention_and_optimizer_passes(
    verified: Verifying, attention: str, optimizer: str
) -> None:
    assert verified(
        "model.heads=4", "model.kv_heads=2", attention=attention, optimizer=optimizer
    ).passed


def test_a_tiny_learning_rate_passes_although_weights_round_its_update_away(
    verified: Verifying,
) -> None:
    assert verified("optimizer.learning_rate=1e-6", precision="fp32").passed


def _breaks_only_the_plan(
    broken: Callable[..., Tensor], real: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """The plainest step accumulates single sequences and is left alone."""

    def accumulate(
        network: Any, method: Any, precision: Any, device: Any, micro_batches: Any, scale: Tensor
    ) -> Tensor:
        pieces = list(micro_batches)
        act = real if max(len(micro.inputs_BT) for micro in pieces) == 1 else broken
        return act(network, method, precision, device, pieces, scale)

    return accumulate


def _broken(monkeypatch: pytest.MonkeyPatch, change: Callable[..., tuple[Any, Tensor]]) -> None:
    real = one_step.accumulate_gradients

    def broken(
        network: Any, method: Any, precision: Any, device: Any, pieces: Any, scale: Tensor
    ) -> Tensor:
        pieces, scale = change(pieces, scale)
        return real(network, method, precision, device, pieces, scale)

    monkeypatch.setattr(one_step, "accumulate_gradients", _breaks_only_the_plan(broken, real))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_dropped_micro_batch_fails_everywhere(
    verified: Verifying, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    _broken(monkeypatch, lambda pieces, scale: (pieces[:-1], scale))
    assert _failed(verified(precision=precision)) == ALL


@pytest.mark.parametrize(
    ("precision", "factor"), [("fp32", 1.0001), ("fp16", 1.001), ("bf16", 1.005)]
)
def test_a_wrong_loss_scale_fails_on_the_gradients_length(
    verified: Verifying,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    factor: float,
) -> None:
    _broken(monkeypatch, lambda pieces, scale: (pieces, scale * factor))
    assert "gradient length" in _failed(verified(precision=precision))


def test_a_mean_over_each_micro_batch_instead_of_over_the_step_fails(
    verified: Verifying, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = one_step.accumulate_gradients

    def broken(
        network: Any, method: Any, precision: Any, device: Any, pieces: Any, scale: Tensor
    ) -> Tensor:
        total = sum(int((micro.targets_BT >= 0).sum()) for micro in pieces)
        shares = [total / len(pieces) / int((micro.targets_BT >= 0).sum()) for micro in pieces]
        return torch.stack(
            [
                real(network, method, precision, device, [piece], scale * share)
                for piece, share in zip(pieces, shares, strict=True)
            ]
        ).sum()

    monkeypatch.setattr(one_step, "accumulate_gradients", _breaks_only_the_plan(broken, real))
    failed = _failed(verified(precision="bf16"))
    assert "gradient direction" in failed
    assert "update direction" in failed


def test_targets_shifted_by_one_fail(verified: Verifying, monkeypatch: pytest.MonkeyPatch) -> None:
    _broken(
        monkeypatch,
        lambda pieces, scale: (
            [replace(micro, targets_BT=micro.targets_BT.roll(1, dims=1)) for micro in pieces],
            scale,
        ),
    )
    assert "gradient direction" in _failed(verified(precision="bf16"))


def test_an_update_that_forgets_to_clip_fails_on_its_length(
    verified: Verifying, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unclipped(
        optimizer: torch.optim.AdamW, *arguments: Any, clip_norm: float | None, **named: Any
    ) -> Tensor:
        return guarded_update(
            optimizer,
            *arguments,
            clip_norm=None if optimizer.defaults["fused"] else clip_norm,
            **named,
        )

    monkeypatch.setattr(one_step, "guarded_update", unclipped)
    failed = _failed(verified("optimizer.clip_norm=0.1", precision="bf16"))
    assert "update length" in failed
    assert not failed & {"loss", "gradient direction", "gradient length"}


def test_a_gradient_that_is_not_finite_fails_and_is_still_json(
    verified: Verifying, monkeypatch: pytest.MonkeyPatch
) -> None:
    _broken(monkeypatch, lambda pieces, scale: (pieces, scale * float("inf")))
    verification = verified()
    assert "gradient direction" in _failed(verification)
    assert json.loads(json.dumps(verification.to_json(), allow_nan=False))["passed"] is False


@pytest.mark.parametrize(("call", "which"), [(1, "plainest"), (2, "planned")])
def test_a_step_that_runs_out_of_memory_is_told_with_a_way_out(
    verified: Verifying,
    monkeypatch: pytest.MonkeyPatch,
    call: int,
    which: str,
    refuses: Refuses,
) -> None:
    real, calls = verify_module.take_step, []

    def take_step(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(*args)

    monkeypatch.setattr(verify_module, "take_step", take_step)
    with refuses(PlanError, names=["2.00", which, "--verify", "smaller plan.micro_batch"]):
        verified()


def test_another_devices_plan_runs_on_this_cpu_and_says_what_that_leaves_out(
    tiny: MakeRecipe,
    snapshot: SnapshotAssertion,
) -> None:
    verification = verify(
        tiny(), replace(PLAN, precision="bf16", compile=True), catalog.get("NVIDIA A100-SXM4-80GB")
    )
    assert verification.passed
    assert verification.ran_on == "this machine's CPU"
    assert verification.untested == snapshot
    assert [each.partition(" ")[0] for each in verification.shown] == ["checked:", "of"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_sound_plan_passes_on_a_gpu(tiny: MakeRecipe, precision: str) -> None:
    assert _failed(verify(tiny(), replace(PLAN, precision=precision), probe("cuda"))) == set()
