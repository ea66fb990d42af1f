import json
import logging
from unittest import TestCase

import pytest
from fixture_types import MakeStep, Refuses
from torch import nn
from transformers import AutoConfig, Gemma2Config, Llama4TextConfig, LlamaConfig

from brimful.base.errors import PlanError, RecipeError
from brimful.base.types import JsonDict
from brimful.model.quiet import quiet_bitsandbytes
from brimful.model.registered import register
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.rehearsal.models import (
    Linear4bit,
    config_of,
    count_parameters,
    kinds_of_blocks,
    meta_model,
    names_of_4bit_layers,
    num_blocks,
    plain_model,
    transformers_model,
    with_layers,
)
from brimful.rehearsal.training import record_training

SMOLLM2_360M = LlamaConfig(
    vocab_size=49152,
    hidden_size=960,
    intermediate_size=2560,
    num_hidden_layers=32,
    num_attention_heads=15,
    num_key_value_heads=5,
    tie_word_embeddings=True,
)
GEMMA2_2B = Gemma2Config(
    vocab_size=256000,
    hidden_size=2304,
    intermediate_size=9216,
    num_hidden_layers=26,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=256,
)


def _trained(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.parametrize(
    ("config", "lora", "count"),
    [
        (SMOLLM2_360M, Lora(4), 2_170_880),
        (SMOLLM2_360M, Lora(4, tokens=3), 2_170_880 + 3 * 960),
        (GEMMA2_2B, Lora(8, "q_proj,k_proj,v_proj,o_proj"), 3_194_880),
    ],
    ids=[
        "SmolLM2-360M, all linear layers, rank 4",
        "SmolLM2-360M, three tokens, whose rows the head shares",
        "Gemma-2-2B, attention, rank 8",
    ],
)
def test_adapters_have_as_many_parameters_as_published(
    config: LlamaConfig, lora: Lora, count: int
) -> None:
    spec = StepSpec(
        canonical(config.to_dict()), 64, adapter=lora, weights="bf16", attention="eager"
    )

    assert _trained(meta_model(spec, config_of(spec))) == count


def test_all_linear_leaves_the_output_head_out(step: MakeStep) -> None:
    spec = step(adapter=Lora(4))

    names = [
        name
        for name, parameter in meta_model(spec, config_of(spec)).named_parameters()
        if parameter.requires_grad
    ]

    assert len(names) == 2 * 2 * 7
    assert not [name for name in names if "lm_head" in name or "embed" in name]


def test_nf4_takes_half_a_byte_per_weight_and_its_scales() -> None:
    linear = nn.Linear(4096, 4096, bias=False, device="meta")

    packed = Linear4bit(linear, linear.weight.dtype)
    num_bytes = sum(
        tensor.nbytes
        for name, tensor in [*packed.named_parameters(), *packed.named_buffers()]
        if name != "codes"
    )

    assert num_bytes / linear.weight.numel() == pytest.approx(0.515869, abs=1e-6)


def test_every_linear_layer_but_the_head_is_packed(step: MakeStep) -> None:
    spec = step(quantize="nf4", weights="bf16")

    model = meta_model(spec, config_of(spec))
    packed = [name for name, module in model.named_modules() if isinstance(module, Linear4bit)]

    assert packed == names_of_4bit_layers(plain_model(spec, config_of(spec)))
    assert len(packed) == 2 * 7
    assert not isinstance(model.get_submodule("lm_head"), Linear4bit)


def test_packed_experts_count_as_the_weights_that_they_hold(step: MakeStep) -> None:
    plain, packed = (
        count_parameters(meta_model(spec, config_of(spec)))
        for spec in (
            step("qwen3_moe", **changes)
            for changes in ({}, {"quantize": "nf4", "packs_experts": True, "weights": "bf16"})
        )
    )

    assert packed[0] == plain[0]


def test_upcasting_leaves_no_16_bit_weight(step: MakeStep) -> None:
    spec = step(quantize="nf4", weights="bf16", adapter=Lora(4), upcast=True)

    model = meta_model(spec, config_of(spec))

    assert {str(parameter.dtype) for parameter in model.parameters()} == {
        "torch.float32",
        "torch.uint8",
    }
    assert type(transformers_model(model)).__name__ == "LlamaForCausalLM"


def test_a_router_that_is_a_linear_layer_of_its_own_is_not_packed() -> None:
    """It returns scores beside logits; transformers packs layers of torch's own class alone."""
    config = Llama4TextConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        intermediate_size_mlp=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
        pad_token_id=0,
    )
    spec = StepSpec(canonical(config.to_dict()), 32, quantize="nf4", cuda=True)

    model = meta_model(spec, config_of(spec))

    assert type(model.get_submodule("model.layers.0.feed_forward.router")).__name__ == (
        "Llama4Router"
    )
    assert isinstance(model.get_submodule("model.layers.0.self_attn.q_proj"), Linear4bit)


@pytest.mark.parametrize(("cuda", "converts"), [(True, False), (False, True)])
def test_under_cudas_autocast_adapters_of_4_bit_layers_take_their_input_as_it_is(
    step: MakeStep, *, cuda: bool, converts: bool
) -> None:
    spec = step(quantize="nf4", weights="bf16", autocast="bf16", adapter=Lora(4), cuda=cuda)

    places = record_training(spec, config_of(spec), 2).places

    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    assert f"{layer} clone" in places
    assert (f"{layer} _to_copy" in places) is converts


def test_importing_bitsandbytes_says_nothing_about_its_kernels() -> None:
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")

    with TestCase().assertLogs(logger) as logged:
        with quiet_bitsandbytes():
            logger.warning("hidden")
        logger.warning("shown")

    assert [record.message for record in logged.records] == ["shown"]


def test_adapters_for_layers_that_are_not_there_are_refused(
    step: MakeStep, refuses: Refuses
) -> None:
    spec = step(adapter=Lora(4, "c_attn"))

    with refuses(RecipeError):
        meta_model(spec, config_of(spec))


def test_an_unknown_model_type_is_refused(step: MakeStep) -> None:
    spec = StepSpec(json.dumps({"model_type": "lama"}), 64)

    with pytest.raises(PlanError, match="lama"):
        config_of(spec)


@pytest.mark.parametrize("model_type", ["llama", "modernbert", "okadfa", "qwen3"])
def test_a_model_of_another_depth_has_a_kind_for_each_layer(model_type: str) -> None:
    register()
    config = AutoConfig.for_model(
        model_type,
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
    )

    for layers in (2, 5):
        other = with_layers(config, range(layers))
        assert num_blocks(other) == layers
        assert len(getattr(other, "layer_types", None) or [None] * layers) == layers
    assert num_blocks(config) == 3


def test_lists_and_values_of_single_blocks_follow_the_number_of_blocks() -> None:
    config = AutoConfig.for_model(
        "llama", hidden_size=32, num_hidden_layers=3, num_attention_heads=2, vocab_size=64
    )
    config.kinds = ["a", "a", "b"]
    config.per_layer_config = {2: {"intermediate_size": 64}}

    longer, shorter = with_layers(config, range(6)), with_layers(config, range(2))

    assert longer.kinds == ["a", "a", "b", "a", "a", "b"]
    assert [longer.per_layer_config[block].intermediate_size for block in (2, 5)] == [64, 64]
    assert (shorter.kinds, shorter.is_heterogeneous) == (["a", "a"], False)
    first, second, third = kinds_of_blocks(config)
    assert first == second != third


@pytest.mark.parametrize(
    "odd", [{"hidden_act": "nosuch"}, {"num_key_value_heads": 0}, {"pad_token_id": 99}]
)
def test_a_config_that_transformers_cannot_build_is_an_error_that_says_so(
    odd: JsonDict,
) -> None:
    """Whatever it raises: the plan makes one message of it."""
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 16}
    config = LlamaConfig(**sizes | odd)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="transformers cannot build what its config says"):
        plain_model(StepSpec(canonical({}), 8), config)
