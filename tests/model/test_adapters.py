"""Tokens that a model does not know yet: ids, rows, and the head with them."""

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from brimful.model.adapters import (
    head_weight_of,
    make_room,
    out_of_reach,
    rows_to_train,
)
from brimful.model.published import attach_adapters, without_adapters
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.recipe import AdapterRecipe
from brimful.rehearsal.models import with_adapters


def model(*, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=20, tie_word_embeddings=tied, **sizes, **heads)
    return LlamaForCausalLM(config).eval()


def test_rows_are_added_where_ids_need_them_and_are_the_mean_of_the_others() -> None:
    for tied in (True, False):
        longer, before = model(tied=tied), model(tied=tied)
        make_room(longer, [3, 19])
        assert longer.config.vocab_size == 20
        make_room(longer, [3, 21])
        assert longer.config.vocab_size == 22
        for layer, old in (
            (longer.get_input_embeddings(), before.get_input_embeddings()),
            (longer.get_output_embeddings(), before.get_output_embeddings()),
        ):
            assert torch.equal(layer.weight[:20], old.weight)
            assert torch.equal(layer.weight[20:], old.weight.mean(0).expand(2, -1))


def test_a_head_that_shares_the_embedding_is_not_named() -> None:
    assert rows_to_train(model(tied=True), [3]) == {"embed_tokens": [3]}
    assert rows_to_train(model(tied=False), [3]) == {"embed_tokens": [3], "lm_head": [3]}
    assert rows_to_train(model(tied=False), []) is None


def test_the_head_is_the_bases_while_adapters_are_disabled() -> None:
    for tied in (True, False):
        adapted = model(tied=tied)
        base = adapted.get_output_embeddings().weight.detach().clone()
        attach_adapters(adapted, AdapterRecipe(rank=2), seed=1, tokens=[3])
        for name, parameter in adapted.named_parameters():
            if "tokens_delta" in name:
                parameter.data += 1
        trained = head_weight_of(adapted)
        assert torch.equal(trained[3], base[3] + 1)
        assert torch.equal(trained[:3], base[:3])
        with without_adapters(adapted):
            assert torch.equal(head_weight_of(adapted), base)


SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
MAMBA_2 = {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "expand": 2}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "pad_token_id": 0}


def model_of(model_type: str, **sizes: object) -> nn.Module:
    config = AutoConfig.for_model(model_type, **SIZES | sizes)
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(config)
    return model


@pytest.mark.parametrize(
    ("model_type", "sizes", "unreached"),
    [
        ("llama", HEADS, set()),
        ("bloom", {"n_head": 2}, set()),  # its other way needs its own config key
        ("mamba2", MAMBA_2, {"out_proj"}),
        ("mamba", {"state_size": 8}, {"x_proj", "dt_proj", "out_proj"}),
        ("phimoe", HEADS | EXPERTS, {"router"}),
    ],
)
def test_layers_that_a_kernel_or_a_router_takes_apart_get_no_adapter(
    model_type: str, sizes: dict[str, int], unreached: set[str]
) -> None:
    names = out_of_reach(model_of(model_type, **sizes))

    assert {name.rpartition(".")[2] for name in names} == unreached


def test_adapters_are_attached_to_the_other_layers() -> None:
    with torch.device("meta"):
        adapted = with_adapters(model_of("mamba2", **MAMBA_2), Lora(4), StepSpec(canonical({}), 8))

    names = {name.rpartition(".lora_A")[0].rpartition(".")[2] for name in adapters_of(adapted)}
    assert names == {"in_proj"}


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_experts_and_router_are_adapted_where_peft_knows_their_type() -> None:
    with torch.device("meta"):
        model = model_of("qwen3_moe", **HEADS, num_experts=2)
        adapted = with_adapters(model, Lora(4), StepSpec(canonical({}), 8))

    names = {name.rpartition(".lora_A")[0].partition(".mlp.")[2] for name in adapters_of(adapted)}
    assert names == {"", "experts.base_layer", "experts", "gate"}


def adapters_of(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters() if ".lora_A." in name]
