"""The configuration derives what is not said, keeps what is, and refuses what cannot be."""

from pathlib import Path

import pytest
from fixture_types import Refuses
from transformers import AutoConfig

from brimful.model.okadfa.configuration import OkadfaConfig
from brimful.model.registered import register


def test_what_is_not_said_follows_from_the_sizes() -> None:
    config = OkadfaConfig(hidden_size=512, num_attention_heads=8, num_hidden_layers=3)
    assert (config.head_size, config.num_features, config.intermediate_size) == (64, 256, 2048)
    assert config.layer_types == ["linear_attention"] * 3
    assert config.max_position_embeddings is None
    assert (
        OkadfaConfig(attention="softmax", num_hidden_layers=2).layer_types == ["full_attention"] * 2
    )


def test_a_written_configuration_is_read_back(tmp_path: Path) -> None:
    register()
    config = OkadfaConfig(
        hidden_size=32,
        num_attention_heads=2,
        num_features=24,
        feature_seed=5,
        initial_temperature=2.5,
        eos_token_id=[1, 2],
    )
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).to_diff_dict() == config.to_diff_dict()
    assert AutoConfig.for_model("okadfa", hidden_size=32, num_attention_heads=2).head_size == 16


def test_the_kind_of_attention_can_be_changed_when_a_model_is_read(tmp_path: Path) -> None:
    register()
    OkadfaConfig(num_hidden_layers=2).save_pretrained(tmp_path)
    assert (
        AutoConfig.from_pretrained(tmp_path, attention="softmax").layer_types
        == ["full_attention"] * 2
    )


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": 30, "num_attention_heads": 4},
        {"attention": "linear"},
        {"initial_temperature": 0.0},
        {"initial_temperature": float("nan")},
        {"num_features": 0},
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, object], refuses: Refuses) -> None:
    with refuses(ValueError):
        OkadfaConfig(**values)
