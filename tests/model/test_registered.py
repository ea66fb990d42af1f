import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from brimful.model.attention import EXPANDED, NAME
from brimful.model.catalog import has_head
from brimful.model.packed_attention import NAME as PACKED
from brimful.model.registered import register, registers_text_head


def test_names_are_known_however_often_they_are_registered() -> None:
    for _ in range(2):
        register()

    assert {NAME, EXPANDED, PACKED} <= set(ALL_ATTENTION_FUNCTIONS.valid_keys())
    config = AutoConfig.for_model(
        "okadfa", vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    assert AutoModelForCausalLM.from_config(config).config.model_type == "okadfa"


@pytest.mark.parametrize("text_part", ["mllama_text_model", "emu3_text_model"])
def test_a_text_part_with_a_class_under_the_type_of_the_whole_predicts_tokens(
    text_part: str,
) -> None:
    assert has_head(text_part)

    config = CONFIG_MAPPING[text_part](num_hidden_layers=1)
    with torch.device("meta"):
        assert type(AutoModelForCausalLM.from_config(config)).config_class is type(config)


@pytest.mark.parametrize("other", ["clip_text_model", "llama_of_nobody", "t5"])
def test_a_text_part_without_one_does_not(other: str) -> None:
    assert not registers_text_head(other)
