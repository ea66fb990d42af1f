from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from brimful.model.attention import EXPANDED, NAME
from brimful.model.packed_attention import NAME as PACKED
from brimful.model.registered import register


def test_names_are_known_however_often_they_are_registered() -> None:
    for _ in range(2):
        register()

    assert {NAME, EXPANDED, PACKED} <= set(ALL_ATTENTION_FUNCTIONS.valid_keys())
    config = AutoConfig.for_model(
        "okadfa", vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    assert AutoModelForCausalLM.from_config(config).config.model_type == "okadfa"
