"""Networks of one structure are known as such from their configs, whatever their widths."""

import pytest
from fixture_types import Refuses

from brimful.base.types import JsonDict
from brimful.model import catalog
from brimful.planning.architecture import (
    Monomial,
    NotOfItsKind,
    monomials,
    network_of,
    serves,
    values_of,
    widths,
)
from brimful.planning.family_key import SHORTEST, TraceFamilyKey
from brimful.planning.step import StepSpec

DEFAULTS = {"attention_dropout": 0.0, "rms_norm_eps": 1e-6, "rope_parameters": None}


def _config(name: str) -> JsonDict:
    row = catalog.find(name)
    assert row is not None
    return dict(row.config)


def _structure(config: JsonDict, *, eight_bit: bool = False) -> str:
    return network_of(config, DEFAULTS, eight_bit=eight_bit).structure


def test_sizes_of_one_architecture_have_one_structure_and_widths_of_their_own() -> None:
    small = network_of(_config("meta-llama/Llama-3.1-8B"), DEFAULTS, eight_bit=False)
    large = network_of(_config("meta-llama/Llama-3.1-70B"), DEFAULTS, eight_bit=False)

    assert small.structure == large.structure
    assert small.widths == widths(h=4096, d=128, n=32, g=8, f=14336, v=128256, blocks=32)
    assert large.widths.blocks == 80


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"hidden_size": 2048, "vocab_size": 99, "rms_norm_eps": 1e-3, "pad_token_id": 7}, True),
        ({"max_position_embeddings": 4096, "num_hidden_layers": 9, "attention_dropout": 0.0}, True),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8}}, True),
        ({"tie_word_embeddings": True}, False),
        ({"attention_dropout": 0.1}, False),
        ({"attention_bias": True}, False),
        ({"num_key_value_heads": 32}, False),
        ({"something_new": 1}, False),
    ],
)
def test_what_shapes_a_step_beside_widths_makes_another_structure(
    changes: JsonDict, same: bool
) -> None:
    config = _config("meta-llama/Llama-3.1-8B")

    assert (_structure(config | changes) == _structure(config)) is same


def test_windows_count_by_the_blocks_that_have_them(refuses: Refuses) -> None:
    config = _config("google/gemma-2-2b")
    kinds = ["sliding_attention", "full_attention"] * 13

    assert _structure(config | {"layer_types": kinds}) == _structure(config)
    assert _structure(config | {"sliding_window": 512}) == _structure(config)
    assert _structure(config | {"sliding_window": None}) != _structure(config)
    with refuses(NotOfItsKind):
        _structure(config | {"layer_types": kinds[::-1]})
    unused = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 21}
    config = _config("Qwen/Qwen2.5-7B")
    assert _structure(config | unused) == _structure(config | {"sliding_window": None})


def test_an_8_bit_optimizer_knows_small_tensors() -> None:
    wide, narrow = _config("meta-llama/Llama-3.1-8B"), _config("HuggingFaceTB/SmolLM2-135M")
    narrow |= {"tie_word_embeddings": False}

    assert _structure(wide) == _structure(narrow)
    assert _structure(wide, eight_bit=True) != _structure(narrow, eight_bit=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "other"},
        {"head_dim": 100},
        {"head_dim": 512},
        {"num_key_value_heads": 1},
        {"num_key_value_heads": None},
        {"hidden_size": 4097},
        {"vocab_size": "many"},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"rope_scaling": 2},
    ],
    ids=str,
)
def test_networks_of_other_kernels_or_unknown_widths_are_left_to_tracing(
    changes: JsonDict,
) -> None:
    with pytest.raises(NotOfItsKind):
        _structure(_config("meta-llama/Llama-3.1-8B") | changes)


def test_a_config_is_made_of_widths_again() -> None:
    sizes = widths(h=64, d=8, n=8, g=2, f=96, v=100, blocks=7)

    made = network_of({"model_type": "llama", **values_of(sizes)}, {}, eight_bit=False)

    assert made.widths == sizes
    assert sizes.values["e"] == 32  # whole tiles


def test_monomials_are_products_of_widths_rounded_up_where_elements_share_a_scale() -> None:
    sizes = widths(h=10, d=8, n=3, g=3, f=7, v=5, blocks=7)
    all_of_them = monomials("hdf", (64,))

    assert [Monomial("hf").at(sizes), Monomial("hf", 64).at(sizes), Monomial().at(sizes)] == [
        70,
        2,
        1,
    ]
    assert [each.letters for each in all_of_them[:8]] == [
        "",
        "h",
        "d",
        "f",
        "hd",
        "hf",
        "df",
        "hdf",
    ]
    assert all_of_them[8:] == [Monomial("h", 64), Monomial("hf", 64)]


def test_a_family_of_every_network_serves_lengths_below_every_limit() -> None:
    spec = StepSpec("{}", 0)

    assert serves(TraceFamilyKey(spec, (SHORTEST, 4096)))
    assert serves(TraceFamilyKey(spec, None))
    assert not serves(TraceFamilyKey(spec, (4224, 8192)))
