"""Choices that need no trace follow from abilities and measured rates, say why, and give way to the
user's.
"""

import dataclasses

import pytest
from fixture_types import Devices, MakeDevice, MakeRecipe, Refuses
from peft.utils import transformers_weight_conversion
from syrupy.assertion import SnapshotAssertion
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from brimful.base.errors import PlanError
from brimful.base.units import MIB
from brimful.hardware import catalog
from brimful.hardware.device import Abilities, Device
from brimful.model import packed_texts
from brimful.model.attention import NAME
from brimful.model.description import PACKABLE_ENCODERS
from brimful.planning.choices import (
    ADAPTED_EXPERTS,
    BF16_LEAST_WIDTH,
    TEXTS_ATTENTION,
    attention_choice,
    experts_choice,
    fp32_where_quicker,
    kernels_choice,
    loader_choice,
    loss_chunk_choice,
    optimizer_choice,
    packing_choice,
    precision_choice,
    refuse_four_bits,
)
from brimful.planning.timing import NEW_LENGTHS, TERMS, StepTime
from brimful.recipe import Recipe, load


@pytest.fixture
def mps(cpu: MakeDevice) -> Device:
    return cpu(
        name="an Apple GPU", kind="mps", abilities=Abilities(bf16=True, fp16=True), threads=None
    )


@pytest.fixture
def published(tiny: MakeRecipe) -> Recipe:
    return tiny().model_copy(
        update={"model": "openai-community/gpt2", "tokenizer": None, "plan": tiny("plan={}").plan}
    )


# --- precision


@pytest.mark.parametrize(
    ("name", "precision", "because"),
    [
        ("Tesla T4", "fp16", "no native bf16"),
        ("NVIDIA A100-SXM4-80GB", "bf16", "native on this device"),
        ("NVIDIA H200", "bf16", "native on this device"),
    ],
)
def test_precision_follows_the_abilities_of_a_gpu(
    tiny: MakeRecipe, name: str, precision: str, because: str
) -> None:
    choice = precision_choice(tiny("plan={}"), catalog.get(name))

    assert choice.value == precision
    assert because in choice.reason
    assert choice.alternative == "fp32"


@pytest.mark.parametrize(
    ("model_type", "options", "precision"),
    [
        ("gemma3_text", [], "fp32"),
        ("gemma2", [], "fp16"),
        ("qwen2", [], "fp16"),
        ("qwen2", ["plan.attention=eager"], "fp32"),
    ],
)
def test_a_model_that_leaves_fp16s_range_is_not_planned_in_it(
    tiny: MakeRecipe,
    refuses: Refuses,
    model_type: str,
    options: list[str],
    precision: str,
) -> None:
    recipe, t4 = tiny("plan={}", *options), catalog.get("Tesla T4")
    choice = precision_choice(recipe, t4, model_type=model_type)

    assert (choice.value, "range of fp16" in choice.reason) == (precision, precision == "fp32")
    ampere = precision_choice(recipe, catalog.get("NVIDIA A100-SXM4-80GB"), model_type=model_type)
    assert ampere.value == "bf16"
    if precision == "fp32":
        fixed = tiny("plan={precision: fp16}", *options)
        with refuses(PlanError, names=["plan.precision=fp32"]):
            precision_choice(fixed, t4, model_type=model_type)


def test_a_gpu_without_16_bit_matrix_units_stays_at_fp32(tiny: MakeRecipe) -> None:
    old = dataclasses.replace(catalog.get("Tesla T4"), abilities=Abilities())

    assert precision_choice(tiny("plan={}"), old).value == "fp32"


def test_an_apple_gpu_stays_at_fp32_until_somebody_measured_16_bit(
    tiny: MakeRecipe, mps: Device
) -> None:
    assert precision_choice(tiny("plan={}"), mps).value == "fp32"


@pytest.mark.parametrize("pays", [True, False])
def test_a_cpu_uses_bf16_when_it_was_measured_to_pay_and_names_both_rates(
    tiny: MakeRecipe, cpu: MakeDevice, pays: bool
) -> None:
    rates = {"fp32": 158e9, "bf16": 400e9 if pays else 83e9}
    device = cpu(abilities=Abilities(bf16=pays), dense_flop_per_s=rates)
    choice = precision_choice(tiny("plan={}"), device)

    assert choice.value == ("bf16" if pays else "fp32")
    assert f"{rates['bf16'] / 1e9:.0f} GFLOP/s in bf16, 158 in fp32" in choice.reason


@pytest.mark.parametrize("rates", [{"fp32": 1.0}, {}])
def test_a_cpu_whose_rates_were_not_measured_uses_fp32(
    tiny: MakeRecipe, cpu: MakeDevice, rates: dict[str, float]
) -> None:
    device = cpu(abilities=Abilities(bf16=True), dense_flop_per_s=rates)
    choice = precision_choice(tiny("plan={}"), device)

    assert choice.value == "fp32"
    assert "not measured" in choice.reason


@pytest.mark.parametrize(
    ("width", "precision"), [(128, "fp32"), (BF16_LEAST_WIDTH, "bf16"), (None, "bf16")]
)
def test_a_narrow_classifier_takes_fp32_on_a_cpu(
    cpu: MakeDevice, width: int | None, precision: str
) -> None:
    device = cpu(abilities=Abilities(bf16=True), dense_flop_per_s={"fp32": 1e11, "bf16": 4e11})

    assert precision_choice(load("moderation-offline"), device, width).value == precision
    # Rows of texts end to end have few lengths.
    packed = precision_choice(load("moderation-offline"), device, width, packed=True)
    assert packed.value == "bf16"


@pytest.mark.parametrize(
    ("products_s", "kernels_s", "precision"),
    [(0.010, 0.090, "fp32"), (0.100, 0.090, "bf16"), (0.010, 0.0, "bf16")],
)
def test_short_examples_take_fp32_where_kernels_of_bf16_take_longer_than_products_gain(
    tiny: MakeRecipe, cpu: MakeDevice, products_s: float, kernels_s: float, precision: str
) -> None:
    rates = {"fp32": 1e11, "bf16": 2e11}
    device = cpu(abilities=Abilities(bf16=True), dense_flop_per_s=rates)
    terms = {TERMS["matrix"]: products_s, NEW_LENGTHS: kernels_s}
    time = StepTime(sum(terms.values()), terms, 1e9)
    chosen = precision_choice(tiny("plan={}"), device)

    assert (fp32_where_quicker(chosen, device, time) or chosen).value == precision
    fixed = precision_choice(tiny("plan={precision: bf16}"), device)
    assert fp32_where_quicker(fixed, device, time) is None
    few = fp32_where_quicker(chosen, device, time, fill=0.1) or chosen
    assert few.value == ("fp32" if kernels_s else "bf16")


# --- attention


@pytest.mark.parametrize(
    ("device", "length", "precision", "chosen"),
    [
        ("cpu", 64, "bf16", NAME),
        ("cpu", 256, "bf16", NAME),
        ("cpu", 1024, "bf16", NAME),
        ("cpu", 2048, "bf16", "sdpa"),
        ("cpu", 64, "fp32", "sdpa"),
        ("cpu", 65, "fp32", NAME),
        ("cpu", 256, "fp16", "sdpa"),
        ("Tesla T4", 256, "bf16", "sdpa"),
    ],
)
def test_attention_in_blocks_is_chosen_on_cpus_where_it_was_measured_to_win(
    tiny: MakeRecipe,
    devices: Devices,
    device: str,
    length: int,
    precision: str,
    chosen: str,
) -> None:
    recipe = tiny("plan={}", f"sequence_length={length}")

    assert attention_choice(recipe, devices[device], precision).value == chosen


def test_a_published_model_keeps_torchs_kernel_on_a_cpu(published: Recipe, cpu: MakeDevice) -> None:
    assert attention_choice(published, cpu(), "bf16").value == "sdpa"


@pytest.mark.parametrize("device", ["cpu", "NVIDIA H200"])
def test_capped_scores_rule_fused_kernels_out(
    published: Recipe, devices: Devices, device: str, snapshot: SnapshotAssertion
) -> None:
    choice = attention_choice(published, devices[device], "bf16", softcapped=True)

    assert choice.value == "eager"
    assert choice.reason == snapshot


@pytest.mark.parametrize("device", ["cpu", "NVIDIA H200", "Tesla T4"])
def test_a_class_without_fused_attention_stores_its_scores(
    published: Recipe, devices: Devices, device: str, snapshot: SnapshotAssertion
) -> None:
    choice = attention_choice(published, devices[device], "bf16", grouped=True, fused=False)

    assert choice.value == "eager"
    assert choice.reason == snapshot


def test_attention_that_the_class_does_not_have_is_refused_with_one_that_it_has(
    published: Recipe,
    tiny: MakeRecipe,
    devices: Devices,
    refuses: Refuses,
) -> None:
    """The error's advice is followed."""
    fixed = published.model_copy(update={"plan": tiny("plan={}", "plan.attention=sdpa").plan})
    with refuses(PlanError, names=["plan.attention=sdpa", "Use eager"]):
        attention_choice(fixed, devices["cpu"], "bf16", fused=False)
    for name in ("eager", "auto"):
        taken = published.model_copy(
            update={"plan": tiny("plan={}", f"plan.attention={name}").plan}
        )
        assert attention_choice(taken, devices["cpu"], "bf16", fused=False).value == "eager"


@pytest.mark.parametrize("quantize", ["none", "nf4"])
def test_a_base_published_in_4_bits_is_tuned_in_4_bits(
    published: Recipe, devices: Devices, quantize: str, refuses: Refuses
) -> None:
    recipe = published.model_copy(
        update={"model": "unsloth/Qwen3-4B-Instruct-2507-bnb-4bit", "quantize": quantize}
    )
    if quantize == "nf4":
        refuse_four_bits(recipe, devices["NVIDIA H200"])
        return
    with refuses(PlanError, names=["quantize=nf4"]):
        refuse_four_bits(recipe, devices["NVIDIA H200"])


@pytest.mark.parametrize(
    ("device", "precision", "chosen"),
    [
        ("Tesla T4", "fp16", "brimful_expanded"),
        ("NVIDIA H200", "bf16", "sdpa"),
        ("NVIDIA H200", "fp32", "brimful_expanded"),
        ("cpu", "bf16", "sdpa"),
    ],
)
def test_grouped_heads_are_repeated_where_there_is_no_flash_kernel_for_them(
    published: Recipe, devices: Devices, device: str, precision: str, chosen: str
) -> None:
    assert attention_choice(published, devices[device], precision, grouped=True).value == chosen
    assert attention_choice(published, devices[device], precision, grouped=False).value == "sdpa"


# --- pieces of the loss


@pytest.mark.parametrize("kind", ["cpu", "mps", "cuda"])
@pytest.mark.parametrize("vocabulary", [300, 5000, 50_257, 250_000, 10_000_000])
def test_logits_of_a_piece_of_the_loss_stay_small(
    tiny: MakeRecipe, cpu: MakeDevice, kind: str, vocabulary: int
) -> None:
    choice = loss_chunk_choice(tiny("plan={}"), cpu(kind=kind), vocabulary)

    tokens = int(choice.value)
    assert 64 <= tokens <= 16_384
    assert tokens & (tokens - 1) == 0
    assert (
        tokens == 64
        or 4 * vocabulary * tokens <= {"cpu": 8 * MIB, "mps": 64 * MIB, "cuda": 256 * MIB}[kind]
    )


def test_256_mib_of_logits_are_1024_tokens_of_65536_entries(
    tiny: MakeRecipe, devices: Devices, snapshot: SnapshotAssertion
) -> None:
    choice = loss_chunk_choice(tiny("plan={}"), devices["Tesla T4"], 65_536)

    assert choice.value == 1024
    assert choice.reason == snapshot


# --- update, loader and layout


def test_the_update_is_fused_because_that_needs_no_temporary(tiny: MakeRecipe) -> None:
    choice = optimizer_choice(tiny("plan={}"), catalog.get("Tesla T4"))

    assert (choice.value, choice.alternative) == ("fused", "foreach")
    assert "temporary" in choice.reason


@pytest.mark.parametrize(
    ("kind", "variant", "device"),
    [("adamw_8bit", "8bit", "cpu"), ("paged_adamw_8bit", "paged_8bit", "NVIDIA H200")],
)
def test_states_of_8_bits_are_the_recipes_choice_and_the_plan_says_so(
    tiny: MakeRecipe, devices: Devices, kind: str, variant: str, device: str
) -> None:
    choice = optimizer_choice(tiny("plan={}", f"optimizer.kind={kind}"), devices[device])

    assert (choice.value, choice.alternative) == (variant, None)
    assert "optimizer.kind" in choice.reason
    assert ("driver" in choice.reason) == (variant == "paged_8bit")


def test_a_device_without_kernels_for_8_bits_is_told_what_runs_instead(
    tiny: MakeRecipe,
    devices: Devices,
    mps: Device,
    refuses: Refuses,
) -> None:
    with refuses(PlanError):
        optimizer_choice(tiny("optimizer.kind=paged_adamw_8bit"), devices["cpu"])
    with refuses(PlanError):
        optimizer_choice(tiny("optimizer.kind=adamw_8bit"), mps)


def test_a_variant_of_adamw_in_fp32_contradicts_a_kind_of_8_bits(
    tiny: MakeRecipe, devices: Devices, refuses: Refuses
) -> None:
    with refuses(PlanError):
        optimizer_choice(
            tiny("optimizer.kind=adamw_8bit", "plan.optimizer=foreach"), devices["cpu"]
        )


@pytest.mark.parametrize(
    ("kind", "variant", "device"),
    [
        ("adamw", "rounded", "cpu"),
        ("adamw_8bit", "rounded_8bit", "NVIDIA H200"),
        ("paged_adamw_8bit", "rounded_paged_8bit", "NVIDIA H200"),
    ],
)
def test_weights_of_bf16_are_multiplied_in_bf16_and_updated_by_rounding(
    tiny: MakeRecipe,
    devices: Devices,
    kind: str,
    variant: str,
    device: str,
    snapshot: SnapshotAssertion,
) -> None:
    recipe = tiny("plan={}", f"optimizer.kind={kind}", "optimizer.weights=bf16")

    choice = optimizer_choice(recipe, devices[device])
    assert (choice.value, choice.alternative) == (variant, None)
    assert choice.reason == snapshot
    precision = precision_choice(recipe, devices[device])
    assert precision.value == "bf16"
    assert "optimizer.weights" in precision.reason


def test_weights_of_bf16_need_a_device_that_computes_in_it(
    tiny: MakeRecipe,
    devices: Devices,
    mps: Device,
    refuses: Refuses,
) -> None:
    """The advice works: fp32 weights with an 8-bit optimizer can be planned for on a T4."""
    with refuses(PlanError, names=["Tesla T4", "optimizer.weights=fp32"]):
        precision_choice(tiny("plan={}", "optimizer.weights=bf16"), devices["Tesla T4"])
    advised = tiny("plan={}", "optimizer.weights=fp32", "optimizer.kind=adamw_8bit")
    assert precision_choice(advised, devices["Tesla T4"]).value == "fp16"
    assert optimizer_choice(advised, devices["Tesla T4"]).value == "8bit"


def test_a_kernel_for_fp32_weights_contradicts_weights_of_bf16(
    tiny: MakeRecipe, devices: Devices, refuses: Refuses
) -> None:
    with refuses(PlanError, names=["plan.optimizer=foreach", "optimizer.weights"]):
        optimizer_choice(
            tiny("plan={optimizer: foreach}", "optimizer.weights=bf16"), devices["cpu"]
        )


def test_one_thread_makes_the_next_batch(tiny: MakeRecipe) -> None:
    choice = loader_choice(tiny("plan={}"))

    assert (choice.value, choice.alternative) == (1, 0)


@pytest.mark.parametrize("layout", ["stream", "document"])
def test_packing_is_the_recipes_layout_and_never_the_plans_idea(
    tiny: MakeRecipe, layout: str, snapshot: SnapshotAssertion
) -> None:
    """`data.layout` decides what a step sees."""
    choice = packing_choice(tiny(f"data.layout={layout}"), "llama")

    assert (choice.value, choice.alternative) == (layout, None)
    assert choice.reason == snapshot


# --- the user's word


def test_a_kernel_that_the_user_fixed_stands_for_capped_scores(
    tiny: MakeRecipe, devices: Devices
) -> None:
    for device in devices.values():
        choice = attention_choice(tiny("plan={attention: sdpa}"), device, "bf16", softcapped=True)

        assert (choice.value, choice.reason) == ("sdpa", "fixed by the user")


def test_examples_lie_end_to_end_where_the_model_keeps_them_apart(
    tuning: MakeRecipe,
) -> None:
    assert packing_choice(tuning(), "llama").value == "packed"
    assert packing_choice(tuning(), "stablelm").value == "padded"
    assert packing_choice(tuning("plan.packing=padded"), "llama").value == "padded"


@pytest.mark.parametrize(
    ("change", "model_type"),
    [("plan.attention=sdpa", "llama"), ("plan.attention=auto", "stablelm")],
)
def test_packed_rows_that_would_not_stay_apart_are_refused_when_asked_for(
    tuning: MakeRecipe, change: str, model_type: str, refuses: Refuses
) -> None:
    assert packing_choice(tuning(change), model_type).value == "padded"
    with refuses(PlanError):
        packing_choice(tuning(change, "plan.packing=packed"), model_type)


def test_texts_lie_end_to_end_on_a_cpu_where_the_classifier_keeps_them_apart(
    refuses: Refuses,
) -> None:
    """Others would not stay apart, so that is refused when asked for."""
    for model_type in PACKABLE_ENCODERS:
        assert packing_choice(load("moderation"), model_type).value == "packed"
    assert packing_choice(load("moderation", ["plan.packing=padded"]), "bert").value == "padded"
    for change, model_type, kind in (
        ("plan.attention=sdpa", "bert", "cpu"),
        ("plan.attention=auto", "deberta-v2", "cpu"),
        ("plan.attention=auto", "bert", "cuda"),
    ):
        assert packing_choice(load("moderation", [change]), model_type, kind).value == "padded"
        with refuses(PlanError):
            packing_choice(load("moderation", [change, "plan.packing=packed"]), model_type, kind)


def test_packed_texts_are_attended_to_from_both_sides(cpu: MakeDevice) -> None:
    choice = attention_choice(
        load("moderation"), cpu(), "bf16", packed=True, attends_both_sides=True
    )

    assert choice.value == TEXTS_ATTENTION == packed_texts.NAME


ENCODER = ("method=mlm", "model.architecture=modernbert")


@pytest.mark.parametrize("length", [80, 2048])
def test_an_encoder_takes_a_kernel_that_looks_to_both_sides(
    tiny: MakeRecipe, devices: Devices, cpu: MakeDevice, length: int
) -> None:
    recipe = tiny(*ENCODER, f"sequence_length={length}")
    for device in (*devices.values(), cpu()):
        assert attention_choice(recipe, device, "bf16").value == "sdpa"
    assert attention_choice(tiny(*ENCODER, "plan.attention=eager"), cpu(), "fp32").value == "eager"


@pytest.mark.parametrize("kernel", ["brimful_blocks", "brimful_expanded", "brimful_packed"])
def test_a_kernel_that_looks_to_the_left_only_is_refused_for_an_encoder(
    tiny: MakeRecipe, cpu: MakeDevice, kernel: str, refuses: Refuses
) -> None:
    with refuses(PlanError, names=[f"plan.attention={kernel}"]):
        attention_choice(tiny(*ENCODER, f"plan.attention={kernel}"), cpu(), "fp32")


# --- kernels of linear attention and state-space blocks


@pytest.mark.parametrize(
    ("model_type", "device", "value"),
    [
        ("llama", "NVIDIA H200", None),
        ("qwen3_next", "NVIDIA H200", "causal_conv1d,fla"),
        ("mamba2", "NVIDIA H200", "causal_conv1d,mamba_ssm"),
        ("mamba2", "Apple M4 Max", "torch"),
    ],
)
def test_a_device_elsewhere_is_taken_to_have_the_kernels_of_a_model(
    model_type: str, device: str, value: str | None
) -> None:
    choice = kernels_choice(model_type, catalog.get(device))

    assert (choice and choice.value) == value
    if value == "causal_conv1d,fla":
        assert choice is not None
        assert "causal-conv1d and flash-linear-attention are taken to be" in choice.reason


@pytest.mark.parametrize(
    ("model_type", "overrides", "value", "told"),
    [
        ("qwen3_moe", (), "adapted", "and the router"),
        ("qwen3_moe", ("adapter.targets=q_proj",), "frozen", "no adapters"),
        (
            "qwen3_moe",
            ("quantize=nf4",),
            "adapted",
            "so they stay in 16 bits: other adapter.targets",
        ),
        ("qwen3_moe", ("quantize=nf4", "adapter.targets=q_proj"), "packed", "in 4 bits"),
        ("gpt_oss", ("quantize=nf4",), "packed", "no adapters; in 4 bits"),
        ("dbrx", ("quantize=nf4",), "frozen", "those of this type stay in 16 bits"),
    ],
)
def test_a_plan_says_what_adapters_and_4_bits_leave_of_experts(
    model_type: str, overrides: tuple[str, ...], value: str, told: str
) -> None:
    recipe = load("lora", overrides=overrides)

    choice = experts_choice(recipe, {"model_type": model_type, "num_experts": 8}, in_parts=False)

    assert choice is not None
    assert choice.value == value
    assert told in choice.reason
    without = {"model_type": "gemma4_text", "num_experts": None}
    assert experts_choice(recipe, without, in_parts=False) is None


def test_experts_of_a_model_in_parts_stay_in_16_bits() -> None:
    recipe = load("lora", overrides=("quantize=nf4",))

    choice = experts_choice(recipe, {"model_type": "gpt_oss", "num_experts": 8}, in_parts=True)

    assert choice is not None
    assert choice.value == "frozen"
    assert "those of a model in parts stay in 16 bits" in choice.reason


def test_experts_that_are_adapted_are_those_of_peft() -> None:
    patterns = transformers_weight_conversion._MODEL_TO_CONVERSION_PATTERN
    fused = transformers_weight_conversion._MOE_FUSED_TARGETS

    assert {
        name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if patterns.get(name) in fused
    } == ADAPTED_EXPERTS


def test_kernels_that_are_not_installed_here_are_named_with_how_to_install_them() -> None:
    here = dataclasses.replace(catalog.get("NVIDIA H200"), index=0)

    choice = kernels_choice("qwen3_next", here)

    assert choice is not None
    assert choice.value == "torch"
    assert "pip install causal-conv1d flash-linear-attention" in choice.reason
