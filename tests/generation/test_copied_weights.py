"""Copies of weights for writing many texts: adapters merged, products in bf16."""

from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from quick_models import CONTEXT, attach_changing_adapters, granite, needs_bf16
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from brimful.generation import copied_weights as copies
from brimful.generation import quick_blocks
from brimful.generation.copied_weights import copied_weights, products_for
from brimful.generation.engine import Engine
from brimful.generation.export import SUMMING
from brimful.generation.requests import Generation, Request, StopRules
from brimful.generation.sampler import GREEDY, SamplingSettings
from brimful.hardware import host
from brimful.model.published import without_adapters

NEVER = StopRules(frozenset())
PROMPT = torch.tensor([[5, 9, 200, 17, 3, 8]])


def make_model(width: int) -> PreTrainedModel:
    """Random weights large enough that the likeliest token wins clearly."""
    config = LlamaConfig(
        vocab_size=300,
        max_position_embeddings=CONTEXT,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=2 * width,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return LlamaForCausalLM(config).eval()


def wide(*, adapted: bool = False) -> PreTrainedModel:
    model = make_model(256)
    if adapted:
        attach_changing_adapters(model)
    return model.eval()


def logits(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(PROMPT).logits
    return found


def requests(keys: Sequence[int]) -> list[Request]:
    """Uneven prompts and lengths; each is the same whoever else is asked."""
    return [
        Request(key, tuple(range(1 + key, 4 + key + 5 * (key % 4))), 100 + key, 3 + (7 * key) % 40)
        for key in keys
    ]


def written(engine: Engine, keys: Sequence[int]) -> dict[int, Generation]:
    settings = SamplingSettings(1.0, None, 1.0)
    return {
        request.key: generation
        for request, generation in engine.stream(requests(keys), settings, NEVER)
    }


@cache
def written_together(make: Callable[[], PreTrainedModel]) -> dict[int, Generation]:
    """24 of 80 texts at a time."""
    return written(Engine(make(), products="bf16", most_rows=24), range(80))


@pytest.mark.parametrize("is_disabled", [False, True], ids=["adapted", "without adapters"])
def test_merged_copies_give_the_logits_of_base_and_adapters(*, is_disabled: bool) -> None:
    model, base = wide(adapted=True), logits(wide())
    if is_disabled:
        model.disable_adapters()
    expected = logits(model)
    kept = {name: weight.clone() for name, weight in model.state_dict().items()}
    with copied_weights(model, "fp32"):
        merged = logits(model)

    allowed = SUMMING * expected.abs().max()  # what `brimful export --merge` allows
    assert (merged - expected).abs().max() <= allowed
    assert torch.equal(expected, base) is is_disabled
    assert torch.equal(logits(model), expected)
    assert all(torch.equal(weight, kept[name]) for name, weight in model.state_dict().items())


def test_merged_copies_save_the_products_of_the_adapters() -> None:
    model = wide(adapted=True)
    called: list[str] = []
    for name, module in model.named_modules():
        if "lora_A" in name or "lora_B" in name:
            module.register_forward_hook(lambda *_, name=name: called.append(name))
    with copied_weights(model, "fp32"):
        logits(model)

    assert not called
    with without_adapters(model), copied_weights(model, "fp32"):
        assert torch.equal(logits(model), logits(wide()))


def test_texts_of_merged_copies_are_those_of_base_and_adapters() -> None:
    model = wide(adapted=True)
    asked = requests(range(6))
    ways = [
        dict(Engine(model, products=products).stream(asked, GREEDY, NEVER))
        for products in ("own", "fp32")
    ]
    assert ways[0] == ways[1]


def test_layers_of_a_failed_stream_multiply_with_their_own_weights_again() -> None:
    model = wide(adapted=True)
    expected = logits(model)
    with pytest.raises(KeyboardInterrupt), copied_weights(model, "fp32"):
        raise KeyboardInterrupt
    assert torch.equal(logits(model), expected)


@needs_bf16
@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "adapted"])
def test_products_in_bf16_are_no_further_from_fp32_than_those_of_autocast(*, adapted: bool) -> None:
    model = wide(adapted=adapted)
    expected = logits(model)
    with copied_weights(model, "bf16"):
        found = logits(model).float()
    with torch.autocast("cpu", torch.bfloat16):
        usual = logits(model).float()

    assert 0 < (found - expected).abs().mean() < 1.2 * (usual - expected).abs().mean()
    assert torch.equal(logits(model), expected)


@needs_bf16
def test_a_bias_is_added_and_any_number_of_rows_is_multiplied() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 32)
    weight = layer.weight.detach().bfloat16().float()
    inputs = torch.randn(3, quick_blocks.ROWS - 7, 64).bfloat16().float()
    product = copies._bf16_product(
        quick_blocks.Weight(layer.weight, layer.bias.detach()), keeps_bf16=False
    )

    expected = inputs @ weight.T + layer.bias.detach()
    assert product(inputs).shape == expected.shape
    torch.testing.assert_close(product(inputs), expected, rtol=2**-7, atol=2**-7)
    assert torch.equal(product(inputs)[1, :1], product(inputs[1, :1]))


@needs_bf16
@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("make", [wide, granite], ids=["quick blocks", "own blocks"])
@pytest.mark.long_but("own blocks-3", "own blocks-70", "quick blocks-3", "quick blocks-70")
def test_a_text_in_bf16_is_the_same_alone_and_among_others(
    make: Callable[[], PreTrainedModel], rows: int
) -> None:
    together = written_together(make)
    again = written(Engine(make(), products="bf16", most_rows=rows), range(7, 80, 3))
    assert again == {key: together[key] for key in again}


@needs_bf16
def test_copies_are_chosen_by_processor_width_memory_and_recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, adapted, narrow = wide(), wide(adapted=True), make_model(32)

    assert products_for(model) == "bf16"
    assert products_for(model, "fp32") == "own"
    assert products_for(narrow) == "own"
    assert products_for(adapted, "fp32") == "fp32"
    with monkeypatch.context() as patch:
        patch.setattr(copies, "has_quick_bf16", lambda: False)
        assert (products_for(model), products_for(adapted)) == ("own", "fp32")
    monkeypatch.setattr(host, "memory_total_bytes", lambda limits: 1000)
    assert (products_for(model), products_for(adapted)) == ("own", "own")
