import dataclasses
import json

from brimful.integrations.other_tools.stand_ins import ForeignStep, PeftAdapter
from brimful.planning.step import Lora, StepSpec, canonical

CONFIG = {"model_type": "llama", "hidden_size": 64}


def test_what_says_nothing_about_the_network_is_left_out_and_order_does_not_matter() -> None:
    told = {
        "transformers_version": "5.23.0",
        "use_cache": True,
        "hidden_size": 64,
        "dtype": "bfloat16",
        "model_type": "llama",
    }

    assert canonical(told) == canonical(CONFIG)
    assert json.loads(canonical(told)) == CONFIG


def test_equal_steps_have_equal_keys_and_any_field_tells() -> None:
    spec = StepSpec(canonical(CONFIG), 128)

    assert spec.key() == StepSpec(canonical(CONFIG), 128).key()
    changes = [
        {"sequence_length": 129},
        {"adapter": Lora(8)},
        {"adapter": Lora(16)},
        {"flash": False},
        {"loss": "model"},
        {"cuda": False},
    ]
    assert (
        len({dataclasses.replace(spec, **change).key() for change in changes} | {spec.key()})
        == len(changes) + 1
    )


def test_steps_of_other_trainers_with_any_adapter_have_keys_of_their_own() -> None:
    adapters = [
        None,
        Lora(8),
        Lora(8, quick=True),
        PeftAdapter("IA3", "{}"),
        PeftAdapter("OFT", "{}"),
    ]
    keys = {ForeignStep("{}", 128, adapter=adapter).key() for adapter in adapters}

    assert len(keys) == len(adapters)


def test_the_config_is_read_back() -> None:
    assert StepSpec(canonical(CONFIG), 128).config == CONFIG
