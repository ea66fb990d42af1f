"""Fresh weights: scaled, reproducible, and what is saved loads with transformers alone."""

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

import brimful.model.build
from brimful.base.errors import PlanError
from brimful.model.build import (
    INITIAL_STD,
    RESIDUAL_PROJECTIONS,
    build,
    num_buffer_elements,
    num_parameters,
)
from brimful.model.description import CLS_ID, PAD_ID, SEP_ID, ParameterCount

Build = Callable[..., PreTrainedModel]

ARCHITECTURES = ["llama", "gpt2"]
BOTH = pytest.mark.parametrize("architecture", ARCHITECTURES)


@pytest.fixture
def built(tiny: MakeRecipe) -> Build:
    """`built("key=value", ...)` is the model of the tiny recipe with overrides."""
    return lambda *overrides: build(
        tiny(*overrides),
        vocabulary=120,
        end_of_text_id=0,
        attention="sdpa",
        device=torch.device("cpu"),
    )


@BOTH
def test_projections_into_the_residual_stream_start_smaller(
    built: Build, architecture: str
) -> None:
    model = built(f"model={{architecture: {architecture}, layers: 3, heads: 2, width: 64}}")

    small = [
        weight for name, weight in model.named_parameters() if name.endswith(RESIDUAL_PROJECTIONS)
    ]
    others = [
        weight
        for name, weight in model.named_parameters()
        if weight.dim() == 2 and not name.endswith(RESIDUAL_PROJECTIONS)
    ]
    assert len(small) == 2 * 3
    for weight in small:
        assert weight.std().item() == pytest.approx(INITIAL_STD / math.sqrt(2 * 3), rel=0.06)
        assert abs(weight.mean().item()) < 0.001
    for weight in others:
        assert weight.std().item() == pytest.approx(INITIAL_STD, rel=0.06)


@BOTH
def test_norms_start_at_one_and_biases_at_zero(built: Build, architecture: str) -> None:
    vectors = {
        name: weight
        for name, weight in built(f"model.architecture={architecture}").named_parameters()
        if weight.dim() == 1
    }

    assert vectors
    for name, weight in vectors.items():
        assert torch.all(weight == (0.0 if name.endswith("bias") else 1.0)), name


@BOTH
def test_the_same_seed_gives_the_same_weights_and_another_one_others(
    built: Build, architecture: str
) -> None:
    one, same, other = (
        built(f"model.architecture={architecture}", f"seed={seed}").state_dict()
        for seed in (1, 1, 2)
    )

    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if one[name].dim() == 2)


def test_building_leaves_the_random_generators_of_the_process_alone(
    built: Build,
) -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    built()

    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]


def test_weights_depend_on_the_seed_and_not_on_what_was_drawn_before(
    built: Build,
) -> None:
    before = built().state_dict()
    torch.manual_seed(99)

    assert all(torch.equal(before[name], weight) for name, weight in built().state_dict().items())


@BOTH
def test_weights_are_fp32_whatever_the_default_is(built: Build, architecture: str) -> None:
    assert {
        weight.dtype for weight in built(f"model.architecture={architecture}").parameters()
    } == {torch.float32}


def test_buffers_are_not_parameters() -> None:
    module = torch.nn.Linear(3, 2, bias=False)
    module.register_buffer("mask", torch.zeros(10, 10))

    assert num_parameters(module) == 6
    assert num_buffer_elements(module) == 100


def test_tied_weights_count_once(built: Build) -> None:
    tied, untied = num_parameters(built()), num_parameters(built("model.tie_embeddings=false"))

    assert untied - tied == 120 * 32


@BOTH
def test_rotary_tables_and_masks_are_counted_beside_the_parameters(
    built: Build, architecture: str
) -> None:
    model = built(f"model.architecture={architecture}")

    assert num_parameters(model) == sum(weight.numel() for weight in set(model.parameters()))
    assert num_buffer_elements(model) == sum(buffer.numel() for buffer in model.buffers())


def test_a_module_that_differs_from_its_description_is_refused(
    built: Build, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr(
        brimful.model.build,
        "count_parameters",
        lambda *_: ParameterCount(embedding=1, blocks=2, head=3),
    )

    with refuses(PlanError):
        built()


@pytest.mark.parametrize(
    "model",
    [
        "{architecture: llama, layers: 2, heads: 4, kv_heads: 2, width: 32}",
        "{architecture: llama, layers: 1, heads: 2, width: 32, tie_embeddings: false}",
        "{architecture: gpt2, layers: 2, heads: 2, width: 32, dropout: 0.1}",
        (
            "{architecture: gpt2, layers: 1, heads: 2, width: 32, tie_embeddings: false,"
            " mlp_width: 50}"
        ),
    ],
)
def test_a_saved_model_loads_with_transformers_and_says_the_same(
    built: Build, tmp_path: Path, model: str
) -> None:
    original = built(f"model={model}").eval()
    original.save_pretrained(tmp_path / "model")

    loaded, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )

    ids_BT = torch.arange(64).reshape(2, 32)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert num_parameters(loaded) == num_parameters(original)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded.eval()(ids_BT).logits, original(ids_BT).logits, rtol=0, atol=0
        )


@BOTH
def test_the_config_holds_what_the_recipe_says(built: Build, architecture: str) -> None:
    config = built(f"model.architecture={architecture}", "model.context=48").config

    assert (
        config.vocab_size,
        config.hidden_size,
        config.num_hidden_layers,
        config.num_attention_heads,
    ) == (120, 32, 2, 2)
    assert config.max_position_embeddings == 48
    assert config.eos_token_id == config.bos_token_id == 0
    assert config.tie_word_embeddings


ENCODER = (
    "method=mlm",
    "model={architecture: modernbert, layers: 3, heads: 2, width: 64, dropout: 0.1}",
)


def test_an_encoder_starts_small_like_the_others_and_its_weights_depend_on_the_seed_only(
    built: Build,
) -> None:
    model, same, other = built(*ENCODER), built(*ENCODER), built(*ENCODER, "seed=2")
    cut = 0.88  # standard deviation of a normal that is cut off at two

    for name, weight in model.named_parameters():
        assert torch.equal(weight, same.get_parameter(name))
        if weight.dim() == 1:
            assert (weight == 1).all(), name
            continue
        assert not torch.equal(weight, other.get_parameter(name))
        small = name.endswith(("Wo.weight", "head.dense.weight"))
        assert weight.std().item() == pytest.approx(
            cut * INITIAL_STD / (math.sqrt(2 * 3) if small else 1), rel=0.06
        ), name


def test_an_encoder_looks_to_both_sides_and_has_the_special_tokens_of_its_tokenizer(
    built: Build,
) -> None:
    model = built(*ENCODER).eval()
    config, ids_BT = model.config, torch.arange(4, 24)[None]
    changed_BT = ids_BT.clone()
    changed_BT[0, -1] = 99

    assert (
        config.pad_token_id,
        config.cls_token_id,
        config.bos_token_id,
        config.sep_token_id,
        config.eos_token_id,
    ) == (
        PAD_ID,
        CLS_ID,
        CLS_ID,
        SEP_ID,
        SEP_ID,
    )
    assert set(config.layer_types) == {"full_attention"}
    assert (
        config.mlp_dropout,
        config.embedding_dropout,
        config.classifier_dropout,
        config.attention_dropout,
    ) == (0.1, 0.1, 0.1, 0.0)
    with torch.no_grad():
        assert not torch.allclose(model(ids_BT).logits[0, 0], model(changed_BT).logits[0, 0])


def test_a_saved_encoder_loads_with_transformers_for_masked_words_and_for_labels(
    built: Build, tmp_path: Path
) -> None:
    original = built(*ENCODER).eval()
    original.save_pretrained(tmp_path / "model")

    loaded, info = AutoModelForMaskedLM.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    _, info_of_classifier = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "model", num_labels=3, output_loading_info=True
    )

    ids_BT = torch.arange(64).reshape(2, 32)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(
            loaded.eval()(ids_BT).logits, original(ids_BT).logits, rtol=0, atol=0
        )
    assert set(info_of_classifier["missing_keys"]) == {"classifier.weight", "classifier.bias"}
