"""Which linear layers adapters do not reach."""

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from brimful.model.adapter_reach import out_of_reach
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.rehearsal.models import with_adapters

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
