"""From a recipe to the step that is traced: types of weights and products, the model's own limits,
the loop as it is.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Devices, MakeRecipe, Refuses
from transformers import GPT2Config, LlamaConfig

from brimful.base.errors import PlanError
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.model.description import count_parameters
from brimful.planning.specs import facts_of_values, lora_of, model_facts
from brimful.planning.step import Lora, StepSpec
from brimful.planning.survey import prepare
from brimful.recipe import Recipe

PUBLISHED = """
name: published
sequence_length: 1024
batch: {sequences: 16}
training: {steps: 3}
model: HuggingFaceTB/SmolLM2-135M
data: {path: a.txt}
optimizer: {learning_rate: 1e-3}
"""


@pytest.fixture
def published(written: Callable[[str], MakeRecipe]) -> MakeRecipe:
    """`published("key=value", ...)` tunes a published model."""
    return written(PUBLISHED)


def _step(recipe: Recipe, device: Device, **changes: Any) -> StepSpec:
    return prepare(recipe, device).spec(recompute=False, **changes)


# --- types


@pytest.mark.parametrize(
    ("overrides", "device", "weights", "autocast", "quantize"),
    [
        ((), "NVIDIA H200", "fp32", "bf16", "none"),
        ((), "Tesla T4", "fp32", "fp16", "none"),
        (("plan.precision=fp32",), "NVIDIA H200", "fp32", "none", "none"),
        (("adapter={}",), "NVIDIA H200", "bf16", "bf16", "none"),
        (("adapter={}",), "Tesla T4", "fp16", "fp16", "none"),
        (("adapter={}", "plan.precision=fp32"), "NVIDIA H200", "fp32", "none", "none"),
        (("adapter={}", "quantize=nf4"), "NVIDIA H200", "bf16", "bf16", "nf4"),
        (("adapter={}", "quantize=nf4"), "Tesla T4", "fp16", "fp16", "nf4"),
    ],
    ids=[
        "full",
        "full on a T4",
        "full in fp32",
        "LoRA",
        "LoRA on a T4",
        "LoRA in fp32",
        "QLoRA",
        "QLoRA on a T4",
    ],
)
def test_what_trains_is_held_in_fp32_and_what_is_frozen_in_the_type_of_the_products(
    published: MakeRecipe,
    overrides: tuple[str, ...],
    device: str,
    weights: str,
    autocast: str,
    quantize: str,
) -> None:
    spec = _step(published(*overrides), catalog.get(device))

    assert (spec.weights, spec.autocast, spec.quantize) == (weights, autocast, quantize)
    assert (spec.adapter is None) == (not overrides or "adapter" not in overrides[0])
    assert spec.adapter is None or spec.adapter.dtype == "fp32"


@pytest.mark.parametrize(
    ("device", "autocast"), [("cpu", "bf16"), ("Tesla T4", "fp16"), ("NVIDIA H200", "bf16")]
)
def test_a_fresh_model_keeps_fp32_weights(
    tiny: MakeRecipe, devices: Devices, device: str, autocast: str
) -> None:
    spec = _step(tiny("plan={}"), devices[device])

    assert (spec.weights, spec.autocast, spec.adapter, spec.quantize) == (
        "fp32",
        autocast,
        None,
        "none",
    )


@pytest.mark.parametrize(
    ("section", "adapter"),
    [
        ("{}", Lora(16, "all-linear", 0.0, quick=True)),
        ("{rank: 4, dropout: 0.1, dora: true}", Lora(4, "all-linear", 0.1, dora=True)),
        ("{targets: [q_proj, v_proj]}", Lora(16, "q_proj,v_proj", quick=True)),
        ("{targets: q_proj}", Lora(16, "q_proj", quick=True)),
    ],
)
def test_adapters_are_those_of_the_recipe(
    published: MakeRecipe, section: str, adapter: Lora
) -> None:
    assert lora_of(published(f"adapter={section}")) == adapter


@pytest.mark.parametrize(
    ("words", "quick"),
    [((), True), (("adapter.dropout=0.1",), False), (("quantize=nf4",), False)],
)
def test_plain_adapters_are_quick(
    published: MakeRecipe, words: tuple[str, ...], quick: bool
) -> None:
    adapter = lora_of(published("adapter={}", *words))
    assert adapter is not None
    assert adapter.quick is quick


def test_tokens_that_are_added_are_rows_beside_adapters_and_in_a_full_model(
    published: MakeRecipe,
) -> None:
    overrides = ("method=sft", "data.added_tokens=[<a>, <b>]")
    whole, adapted = published(*overrides), published(*overrides, "adapter={}")
    assert model_facts(whole).vocabulary == model_facts(adapted).vocabulary + 2
    adapter = lora_of(adapted)
    assert adapter is not None
    assert adapter.tokens == 2
    assert '"tokens"' not in StepSpec("{}", 64, adapter=Lora(4)).key()


def test_without_adapters_there_are_none(published: MakeRecipe) -> None:
    assert lora_of(published()) is None


# --- the step is the loop's


def test_the_step_is_that_of_brimfuls_own_loop(published: MakeRecipe, devices: Devices) -> None:
    spec = _step(
        published("optimizer.clip_norm=null", "plan.loss_chunk=77", "plan.attention=eager"),
        devices["Tesla T4"],
    )

    assert (spec.task, spec.loss, spec.loss_chunk, spec.attention, spec.sequence_length) == (
        "causal_lm",
        "chunked",
        77,
        "eager",
        1024,
    )
    assert (spec.cuda, spec.flash, spec.optimizer, spec.accumulates, spec.clips) == (
        True,
        False,
        "fused",
        True,
        False,
    )
    assert _step(published(), devices["Tesla T4"]).clips


@pytest.mark.parametrize("variant", ["fused", "foreach", "for_loop"])
def test_the_update_that_is_traced_is_the_one_that_runs(
    published: MakeRecipe, variant: str
) -> None:
    assert (
        _step(published(f"plan.optimizer={variant}"), catalog.get("Tesla T4")).optimizer == variant
    )


@pytest.mark.parametrize(
    ("kind", "variant"), [("adamw_8bit", "8bit"), ("paged_adamw_8bit", "paged_8bit")]
)
def test_an_optimizer_of_8_bits_is_traced_as_one(
    published: MakeRecipe, kind: str, variant: str
) -> None:
    assert _step(published(f"optimizer.kind={kind}"), catalog.get("Tesla T4")).optimizer == variant


def test_a_cpu_is_traced_with_its_own_kernels_and_a_gpu_with_those_of_its_generation(
    tiny: MakeRecipe, devices: Devices
) -> None:
    kernels = {
        name: (spec.cuda, spec.flash)
        for name, device in devices.items()
        for spec in [_step(tiny("plan={}"), device)]
    }

    assert kernels["cpu"] == (False, True)
    assert (kernels["Tesla T4"], kernels["NVIDIA A100-SXM4-80GB"], kernels["NVIDIA H200"]) == (
        (True, False),
        (True, True),
        (True, True),
    )


def test_devices_with_the_same_abilities_share_a_step(
    published: MakeRecipe, devices: Devices
) -> None:
    steps = {
        name: _step(published("plan.loss_chunk=1024"), devices[name]).key()
        for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA H200", "Tesla T4")
    }

    assert steps["NVIDIA A100-SXM4-80GB"] == steps["NVIDIA H200"] != steps["Tesla T4"]


# --- the model


def test_a_described_model_has_the_vocabulary_that_is_known_else_the_recipes(
    tiny: MakeRecipe,
) -> None:
    recipe = tiny("model.context=64")

    guessed, known = model_facts(recipe), model_facts(recipe, 290)

    assert (guessed.vocabulary, known.vocabulary, known.context) == (300, 290, 64)
    assert known.parameters == count_parameters(recipe.fresh_model, 290, 64).total
    assert known.config["vocab_size"] == 290


def test_a_character_tokenizer_counts_256_entries_until_the_text_is_read(
    tiny: MakeRecipe,
) -> None:
    assert model_facts(tiny("tokenizer={kind: character}")).vocabulary == 256


def test_a_published_model_is_known_from_the_catalog(published: MakeRecipe) -> None:
    facts = model_facts(published())

    assert (facts.vocabulary, facts.parameters, facts.config["model_type"]) == (
        49_152,
        134_515_008,
        "llama",
    )
    assert facts.context is not None
    assert facts.context >= 1024


def test_a_sequence_longer_than_the_model_reads_is_refused_with_both_numbers(
    published: MakeRecipe,
    refuses: Refuses,
) -> None:
    with refuses(PlanError):
        model_facts(published("model=openai-community/gpt2", "sequence_length=1025"))
    assert (
        model_facts(published("model=openai-community/gpt2", "sequence_length=1024")).context
        == 1024
    )


@pytest.mark.parametrize("device", ["cpu", "Tesla T4", "NVIDIA H200"])
def test_a_model_that_caps_its_scores_takes_eager_attention(
    published: MakeRecipe, devices: Devices, device: str
) -> None:
    recipe = published("model=google/gemma-2-2b", "adapter={}")

    assert model_facts(recipe).softcapped
    assert _step(recipe, devices[device]).attention == "eager"


def test_grouped_heads_are_noticed(published: MakeRecipe, tiny: MakeRecipe) -> None:
    assert model_facts(published()).grouped
    assert not model_facts(published("model=openai-community/gpt2")).grouped
    assert not model_facts(tiny()).grouped
    assert model_facts(tiny("model.kv_heads=1")).grouped


@pytest.mark.parametrize("whole_path", [True, False])
def test_a_local_config_is_enough(
    published: MakeRecipe, tmp_path: Path, *, whole_path: bool
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2048,
    )
    (folder / "config.json").write_text(json.dumps(config.to_dict()))

    facts = model_facts(published(f"model={folder / 'config.json' if whole_path else folder}"))

    assert (facts.vocabulary, facts.context, facts.parameters, facts.softcapped) == (
        512,
        2048,
        None,
        False,
    )
    assert facts.config["hidden_size"] == 64


def test_positions_stand_under_gpt2s_own_name_too(
    published: MakeRecipe, tmp_path: Path, refuses: Refuses
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            GPT2Config(vocab_size=512, n_embd=64, n_layer=2, n_head=4, n_positions=128).to_dict()
        )
    )

    with refuses(PlanError):
        model_facts(published(f"model={tmp_path}"))


def test_of_a_model_of_several_parts_the_one_that_reads_text_is_planned(
    published: MakeRecipe, tmp_path: Path
) -> None:
    text = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attn_logit_softcapping": 50.0,
    }
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    )

    facts = model_facts(published(f"model={tmp_path}"))

    assert (facts.vocabulary, facts.context, facts.softcapped, facts.grouped) == (
        262_208,
        131_072,
        True,
        True,
    )
    assert (facts.config["model_type"], facts.config["hidden_size"]) == ("gemma3_text", 64)


def test_a_config_without_a_vocabulary_is_told(refuses: Refuses) -> None:
    with refuses(PlanError):
        facts_of_values({"model_type": "llama", "hidden_size": 64}, None)
    with refuses(PlanError):
        facts_of_values(
            {
                "model_type": "kosmos-2",
                "text_config": {"model_type": "kosmos_2_text_model", "vocab_size": 8},
            },
            None,
        )


def test_a_folder_without_a_config_is_refused(
    published: MakeRecipe, tmp_path: Path, refuses: Refuses
) -> None:
    with refuses(PlanError):
        model_facts(published(f"model={tmp_path}"))


ENCODER = ("method=mlm", "model.architecture=modernbert", "data.masked_share=0.3")


def test_an_encoders_step_makes_logits_for_hidden_tokens_only(
    tiny: MakeRecipe, devices: Devices
) -> None:
    spec = _step(tiny(*ENCODER), next(iter(devices.values())))

    assert (spec.task, spec.loss, spec.attention, spec.padded) == (
        "masked_lm",
        "chunked",
        "sdpa",
        False,
    )
    assert spec.scored_tokens == round(0.3 * 31)
    assert _step(tiny(*ENCODER, "data.layout=document"), next(iter(devices.values()))).padded
    assert _step(tiny(), next(iter(devices.values()))).scored_tokens == 32
