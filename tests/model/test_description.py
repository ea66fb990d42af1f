"""What is counted on the description is what the module has and what the matrix products cost."""

import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from brimful.model.build import config_of, num_parameters
from brimful.model.description import count_parameters, training_flop_per_token
from brimful.recipe import OF_RECIPE, ModelRecipe, load, shipped_names

SHAPES = [
    ModelRecipe(
        architecture=architecture,
        layers=layers,
        heads=4,
        kv_heads=kv_heads,
        width=32,
        mlp_width=mlp_width,
        tie_embeddings=tied,
    )
    for architecture, kv_choices in (
        ("modernbert", (None,)),
        ("llama", (None, 1, 2, 4)),
        ("gpt2", (None, 4)),
    )
    for kv_heads in kv_choices
    for layers, mlp_width in ((1, None), (3, 50))
    for tied in (True, False)
]


def _named(model: ModelRecipe) -> str:
    return f"{model.architecture}-{model.layers}-kv{model.kv_heads}-{'tied' if model.tie_embeddings else 'untied'}"


def _module(
    model: ModelRecipe, vocabulary: int, context: int, attention: str = "sdpa"
) -> torch.nn.Module:
    config = config_of(model, vocabulary=vocabulary, context=context, end_of_text_id=0)
    auto = AutoModelForMaskedLM if model.is_bidirectional else AutoModelForCausalLM
    return auto.from_config(config, attn_implementation=attention, dtype=torch.float32)


@pytest.mark.parametrize("model", SHAPES, ids=_named)
def test_the_counted_parameters_are_those_of_the_module(model: ModelRecipe) -> None:
    module = _module(model, vocabulary=77, context=16)

    assert count_parameters(model, 77, 16).total == num_parameters(module)


@pytest.mark.parametrize("model", SHAPES[:2] + SHAPES[-2:], ids=_named)
def test_the_counts_by_role_are_those_of_the_modules_parts(model: ModelRecipe) -> None:
    counted, module = count_parameters(model, 77, 16), _module(model, vocabulary=77, context=16)

    embeddings = {
        id(weight): weight.numel()
        for name, weight in module.named_parameters()
        if re.search(r"embed_tokens|wte|wpe|embeddings", name)
    }
    assert counted.embedding == sum(embeddings.values())
    layers = num_parameters(module.head) if model.is_bidirectional else 0
    assert counted.head == layers + (
        0 if model.tie_embeddings else module.get_output_embeddings().weight.numel()
    )
    assert counted.blocks == num_parameters(module) - counted.embedding - counted.head


TOLD = {
    name: told[1]
    for name in shipped_names()
    if (told := re.search(r"(\d+(?:\.\d+)?)M[- ]parameter", load(name).description))
}


@pytest.mark.parametrize(("name", "digits"), TOLD.items())
def test_the_number_of_parameters_that_a_shipped_recipe_tells_is_true(
    name: str, digits: str
) -> None:
    recipe = load(name)
    if isinstance(recipe.model, str):  # what another recipe trains
        recipe = load(recipe.model.removeprefix(OF_RECIPE))
    vocabulary = (
        recipe.tokenizer.vocabulary or 67
    )  # the one character recipe: Tiny Shakespeare has 65 characters

    millions = count_parameters(recipe.model, vocabulary, recipe.context).total / 1e6

    assert f"{millions:.{len(digits.partition('.')[2])}f}" == digits


@pytest.mark.parametrize(("activation", "approximate"), [("gelu", "tanh"), ("gelu_erf", "none")])
def test_mlps_of_gpt2_have_the_activation_of_the_recipe(activation: str, approximate: str) -> None:
    model = ModelRecipe.model_validate(
        {"architecture": "gpt2", "layers": 1, "heads": 1, "width": 8, "activation": activation}
    )
    config = config_of(model, vocabulary=8, context=8, end_of_text_id=0)
    built = AutoModelForCausalLM.from_config(config)
    inputs = torch.linspace(-3, 3, 50)
    expected = torch.nn.functional.gelu(inputs, approximate=approximate)
    assert torch.equal(built.transformer.h[0].mlp.act(inputs), expected)


@pytest.mark.parametrize(
    ("architecture", "activation"), [("gpt2", "relu"), ("llama", "gelu_erf"), ("llama", "swish")]
)
def test_an_activation_that_the_architecture_lacks_is_refused(
    architecture: str, activation: str
) -> None:
    values = {"architecture": architecture, "layers": 1, "heads": 1, "width": 8}
    with pytest.raises(ValueError, match=f"activation {activation} is for architecture okadfa"):
        ModelRecipe.model_validate(values | {"activation": activation})


def test_gpt2_small_has_its_well_known_size() -> None:
    model = ModelRecipe(architecture="gpt2", layers=12, heads=12, width=768)

    assert count_parameters(model, 50_257, 1024).total == 124_439_808


def test_flop_per_token_of_one_llama_by_hand() -> None:
    model = ModelRecipe(layers=2, heads=2, width=8, kv_heads=1, mlp_width=10)
    block = 64 + 32 + 32 + 64 + 240  # q 8x8, k and v 8x4 each, o 8x8, three 8x10 of the MLP
    multiplying = 2 * block + 50 * 8  # and the head of 50 tokens
    attention = (
        2 * 8 * 16
    )  # layers x width x sequence: scores and weighted sums over half the square

    assert (
        training_flop_per_token(model, vocabulary=50, sequence_length=16)
        == 6 * multiplying + 6 * attention
    )


@pytest.mark.parametrize(
    "model",
    [
        ModelRecipe(layers=2, heads=4, width=64, kv_heads=2),
        ModelRecipe(architecture="gpt2", layers=3, heads=2, width=48, tie_embeddings=False),
        ModelRecipe(architecture="modernbert", layers=3, heads=2, width=48),
    ],
    ids=_named,
)
def test_flop_per_token_are_those_that_torch_counts(model: ModelRecipe) -> None:
    vocabulary, length, batch = 200, 64, 2
    module = _module(model, vocabulary, length, attention="eager")
    ids_BT = torch.randint(vocabulary, (batch, length))
    with FlopCounterMode(display=False) as counter:
        module(input_ids=ids_BT).logits.sum().backward()

    counted = counter.get_total_flops() / (batch * length)
    upper_triangle = (
        0 if model.is_bidirectional else 6 * model.layers * model.width * length
    )  # eager attention computes what causality then hides
    assert training_flop_per_token(model, vocabulary, length) + upper_triangle == pytest.approx(
        counted, rel=0.001
    )


def test_an_encoders_head_computes_for_hidden_tokens_only() -> None:
    model = ModelRecipe(architecture="modernbert", layers=2, heads=2, width=8, mlp_width=10)
    per_position = training_flop_per_token(
        model, vocabulary=50, sequence_length=16, scored_share=0.0
    )

    for share in (0.15, 1.0):
        whole = training_flop_per_token(
            model, vocabulary=50, sequence_length=16, scored_share=share
        )
        assert whole - per_position == pytest.approx(6 * share * (50 * 8 + 8 * 8))
