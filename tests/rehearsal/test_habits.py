"""What other trainers do, seen in small traces as on CUDA."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brimful.planning.step import Habits, Lora, LossChain, PeftAdapter, StepSpec
from brimful.planning.trace import Trace
from brimful.rehearsal.models import config_of
from brimful.rehearsal.training import record_training

BATCH, LENGTH, WIDTH, VOCABULARY = 4, 64, 64, 512
TOKENS = BATCH * LENGTH
BF16_LOGITS_BYTES = 2 * TOKENS * VOCABULARY


@functools.cache
def _trace(spec: StepSpec) -> Trace:
    return record_training(spec, config_of(spec), BATCH)


def _peak_bytes(spec: StepSpec, phase: str) -> int:
    trace = _trace(spec)
    marks = [*trace.marks.items(), ("", len(trace.events_E))]
    start, end = next(
        (first, marks[index + 1][1])
        for index, (name, first) in enumerate(marks[:-1])
        if name == phase
    )
    return int(trace.live_E()[start:end].max())


@pytest.fixture
def other(step: Callable[..., StepSpec]) -> Callable[..., StepSpec]:
    """A pure bf16 step of another trainer on CUDA."""

    def make(**changes: Any) -> StepSpec:
        return step(
            **(
                {
                    "cuda": True,
                    "weights": "bf16",
                    "loss": LossChain(),
                    "attention": "sdpa",
                    "accumulates": False,
                }
                | changes
            )
        )

    return make


def test_an_upcast_beside_the_logits_costs_them_once_more(other: Callable[..., StepSpec]) -> None:
    beside, instead = (
        _peak_bytes(other(loss=LossChain(upcast)), "forward") for upcast in ("beside", "instead")
    )  # type: ignore[arg-type]

    assert beside - instead == BF16_LOGITS_BYTES


def test_a_kernel_in_place_saves_the_log_softmax(other: Callable[..., StepSpec]) -> None:
    plain, in_place = (
        _peak_bytes(other(loss=LossChain(cross_entropy=kernel)), "forward")
        for kernel in ("torch", "in_place")
    )  # type: ignore[arg-type]

    assert plain - in_place == pytest.approx(2 * BF16_LOGITS_BYTES, rel=0.02)


def test_outputs_that_are_kept_stand_beside_the_next_forward_pass(
    other: Callable[..., StepSpec],
) -> None:
    plain, kept = (
        _peak_bytes(other(habits=Habits(keeps_outputs=keeps)), "forward 2")
        for keeps in (False, True)
    )

    assert kept - plain >= BF16_LOGITS_BYTES


def test_a_fused_norm_keeps_no_fp32_copy_and_trains_no_weight(
    other: Callable[..., StepSpec],
) -> None:
    plain, fused = (
        _peak_bytes(other(habits=Habits(fused_rms_norm=fuses)), "forward")
        for fuses in (False, True)
    )

    assert plain - fused >= 5 * 4 * TOKENS * WIDTH


def test_dropout_on_cuda_keeps_a_byte_for_each_element(other: Callable[..., StepSpec]) -> None:
    adapter = Lora(4, "down_proj", 0.0)
    without, dropped = (
        _peak_bytes(other(adapter=replace(adapter, dropout=share)), "forward")
        for share in (0.0, 0.1)
    )

    assert 0 < dropped - without <= 2 * TOKENS * 160


def test_older_recomputation_holds_a_block_s_output_again(other: Callable[..., StepSpec]) -> None:
    newer, older = (
        _peak_bytes(
            other(
                recompute=True,
                loss=LossChain("none", cross_entropy="fused_linear"),
                habits=Habits(reentrant=nested),
            ),
            "backward",
        )
        for nested in (False, True)
    )

    assert older > newer


@pytest.mark.parametrize(("bits", "group"), [("gptq4", 32), ("gptq4", 0), ("nf4", 0)])
def test_packed_layers_take_about_half_a_byte_for_each_weight(
    other: Callable[..., StepSpec], bits: str, group: int
) -> None:
    trace = _trace(other(adapter=Lora(4, "q_proj"), quantize=bits, gptq_group=group))
    weights = 2 * (2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH // 2 + 3 * WIDTH * 160)
    parameters = {name: index for index, name in enumerate(trace.places)}
    packed = sum(
        int(trace.sizes_S[trace.places_S == index].sum())
        for name, index in parameters.items()
        if name.endswith("_proj.weight")
    )

    assert packed <= weights
    assert trace.parameters > weights


def test_adapters_of_another_kind_train_what_peft_says(other: Callable[..., StepSpec]) -> None:
    trace = _trace(
        other(
            adapter=PeftAdapter("IA3", '{"target_modules": ["k_proj"], "feedforward_modules": []}')
        )
    )

    assert trace.trainable == 2 * 32
