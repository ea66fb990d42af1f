"""Choices that need no trace follow from abilities and measured rates, say why, and give way to the user's."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from brimful.base.units import MIB
from brimful.hardware import catalog
from brimful.hardware.device import Abilities, Device
from brimful.model.attention import NAME
from brimful.planning.choices import BF16_PAYS_FROM, COMPILE_SECONDS, attention_choice, compile_choice, loss_chunk_choice, precision_choice
from brimful.planning.plan import Prediction
from brimful.recipe import Recipe


@pytest.fixture
def mps(cpu: Callable[..., Device]) -> Device:
    return cpu(name="an Apple GPU", kind="mps", abilities=Abilities(bf16=True, fp16=True), threads=None)


@pytest.fixture
def published(tiny: Callable[..., Recipe]) -> Recipe:
    return tiny().model_copy(update={"model": "openai-community/gpt2", "tokenizer": None, "plan": tiny("plan={}").plan})


# --- precision


@pytest.mark.parametrize(
    ("name", "precision", "because"),
    [
        ("Tesla T4", "fp16", "no native bf16"),
        ("NVIDIA A100-SXM4-80GB", "bf16", "native on this device"),
        ("NVIDIA H200", "bf16", "native on this device"),
    ],
)
def test_precision_follows_the_abilities_of_a_gpu(tiny: Callable[..., Recipe], name: str, precision: str, because: str) -> None:
    choice = precision_choice(tiny("plan={}"), catalog.get(name))

    assert choice.value == precision
    assert because in choice.reason
    assert choice.alternative == "fp32"


def test_a_gpu_without_16_bit_matrix_units_stays_at_fp32(tiny: Callable[..., Recipe]) -> None:
    old = dataclasses.replace(catalog.get("Tesla T4"), abilities=Abilities())

    assert precision_choice(tiny("plan={}"), old).value == "fp32"


def test_an_apple_gpu_stays_at_fp32_until_somebody_measured_16_bit(tiny: Callable[..., Recipe], mps: Device) -> None:
    assert precision_choice(tiny("plan={}"), mps).value == "fp32"


@pytest.mark.parametrize(
    ("rates", "precision"),
    [
        ({"fp32": 1.0, "bf16": BF16_PAYS_FROM}, "bf16"),
        ({"fp32": 1.0, "bf16": BF16_PAYS_FROM - 0.01}, "fp32"),
        ({"fp32": 1.0, "bf16": 0.1}, "fp32"),
        ({"fp32": 1.0}, "fp32"),
        ({}, "fp32"),
    ],
)
def test_a_cpu_uses_bf16_when_it_was_measured_to_pay(
    tiny: Callable[..., Recipe], cpu: Callable[..., Device], rates: dict[str, float], precision: str
) -> None:
    choice = precision_choice(tiny("plan={}"), cpu(dense_flop_per_s=rates))

    assert choice.value == precision
    assert (f"{rates['bf16']:.1f}x as fast" if len(rates) == 2 else "not measured") in choice.reason


def test_bf16_instructions_decide_whatever_a_busy_machine_measures(tiny: Callable[..., Recipe], cpu: Callable[..., Device]) -> None:
    busy = cpu(abilities=Abilities(bf16=True), dense_flop_per_s={"fp32": 1e11, "bf16": 1e10})

    assert precision_choice(tiny("plan={}"), busy).value == "bf16"


# --- attention


@pytest.mark.parametrize(
    ("device", "length", "precision", "chosen"),
    [
        ("cpu", 64, "bf16", NAME), ("cpu", 256, "bf16", NAME), ("cpu", 1024, "bf16", NAME), ("cpu", 2048, "bf16", "sdpa"), ("cpu", 64, "fp32", "sdpa"),
        ("cpu", 65, "fp32", NAME), ("cpu", 256, "fp16", "sdpa"), ("Tesla T4", 256, "bf16", "sdpa"),
    ],
)  # fmt: skip
def test_attention_in_blocks_is_chosen_on_cpus_where_it_was_measured_to_win(
    tiny: Callable[..., Recipe], devices: dict[str, Device], device: str, length: int, precision: str, chosen: str
) -> None:
    recipe = tiny("plan={}", f"sequence_length={length}")

    assert attention_choice(recipe, devices[device], precision).value == chosen


def test_a_published_model_keeps_torchs_kernel_on_a_cpu(published: Recipe, cpu: Callable[..., Device]) -> None:
    assert attention_choice(published, cpu(), "bf16").value == "sdpa"


@pytest.mark.parametrize("device", ["cpu", "NVIDIA H200"])
def test_capped_scores_rule_fused_kernels_out(published: Recipe, devices: dict[str, Device], device: str) -> None:
    choice = attention_choice(published, devices[device], "bf16", softcapped=True)

    assert choice.value == "eager"
    assert "caps its attention scores" in choice.reason


@pytest.mark.parametrize(
    ("device", "precision", "chosen"),
    [("Tesla T4", "fp16", "brimful_expanded"), ("NVIDIA H200", "bf16", "sdpa"), ("NVIDIA H200", "fp32", "brimful_expanded"), ("cpu", "bf16", "sdpa")],
)
def test_grouped_heads_are_repeated_where_there_is_no_flash_kernel_for_them(
    published: Recipe, devices: dict[str, Device], device: str, precision: str, chosen: str
) -> None:
    assert attention_choice(published, devices[device], precision, grouped=True).value == chosen
    assert attention_choice(published, devices[device], precision, grouped=False).value == "sdpa"


# --- pieces of the loss


@pytest.mark.parametrize("kind", ["cpu", "mps", "cuda"])
@pytest.mark.parametrize("vocabulary", [300, 5000, 50_257, 250_000, 10_000_000])
def test_logits_of_a_piece_of_the_loss_stay_small(tiny: Callable[..., Recipe], cpu: Callable[..., Device], kind: str, vocabulary: int) -> None:
    choice = loss_chunk_choice(tiny("plan={}"), cpu(kind=kind), vocabulary)

    tokens = int(choice.value)
    assert 64 <= tokens <= 16_384
    assert tokens & (tokens - 1) == 0
    assert tokens == 64 or 4 * vocabulary * tokens <= {"cpu": 8 * MIB, "mps": 64 * MIB, "cuda": 256 * MIB}[kind]


def test_256_mib_of_logits_are_1024_tokens_of_65536_entries(tiny: Callable[..., Recipe], devices: dict[str, Device]) -> None:
    choice = loss_chunk_choice(tiny("plan={}"), devices["Tesla T4"], 65_536)

    assert choice.value == 1024
    assert "256.0 MiB of logits" in choice.reason


# --- compilation


@pytest.mark.parametrize(("steps", "compiles"), [(200, False), (300, True)])
def test_compiling_is_chosen_when_it_saves_half_more_than_it_costs(
    tiny: Callable[..., Recipe], cpu: Callable[..., Device], steps: int, *, compiles: bool
) -> None:
    """At 1.08 times the speed a step of 1 s saves 74 ms: 18 s are saved in 243 steps."""
    assert COMPILE_SECONDS * 1.5 == 18

    choice = compile_choice(tiny("plan={}"), cpu(), Prediction(1.0, 0.5, 2.0, "said"), steps)

    assert (choice.value, choice.alternative) == (compiles, not compiles)
    assert "compiling costs about 12.0 s and would save about" in choice.reason


@pytest.mark.parametrize(
    ("changes", "step_time_s", "steps", "because"),
    [
        ({"abilities": Abilities()}, 1.0, 10**7, "no compiler"),
        ({}, None, 10**7, "not known well enough"),
        ({}, 1.0, None, "not known well enough"),
    ],
)
def test_compiling_is_not_chosen_where_it_cannot_be_done_or_judged(
    tiny: Callable[..., Recipe], cpu: Callable[..., Device], changes: dict[str, Any], step_time_s: float | None, steps: int | None, because: str
) -> None:
    step_time = None if step_time_s is None else Prediction(step_time_s, step_time_s, step_time_s, "said")

    choice = compile_choice(tiny("plan={}"), cpu(**changes), step_time, steps)

    assert choice.value is False
    assert because in choice.reason


# --- the user's word


@pytest.mark.parametrize(
    ("setting", "choose"),
    [
        ("precision=fp16", precision_choice),
        ("attention=eager", lambda recipe, device: attention_choice(recipe, device, "bf16")),
        ("attention=sdpa", lambda recipe, device: attention_choice(recipe, device, "bf16", softcapped=True)),
        ("loss_chunk=7", lambda recipe, device: loss_chunk_choice(recipe, device, 300)),
        ("compile=true", lambda recipe, device: compile_choice(recipe, device, None, None)),
    ],
)
def test_what_the_user_fixed_stands(
    tiny: Callable[..., Recipe], devices: dict[str, Device], setting: str, choose: Callable[[Recipe, Device], Any]
) -> None:
    name, _, value = setting.partition("=")
    for device in devices.values():
        choice = choose(tiny("plan={}", f"plan.{setting}"), device)

        assert (choice.name, str(choice.value).lower(), choice.reason) == (name, value, "fixed by the user")
