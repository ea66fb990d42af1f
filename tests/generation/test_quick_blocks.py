"""Blocks of Llama's kind with fewer and quicker operations."""

from collections.abc import Callable

import pytest
import torch
from quick_models import (
    attach_changing_adapters,
    gpt2,
    granite,
    llama,
    mistral,
    needs_bf16,
    qwen2,
    qwen3,
)
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel

from brimful.generation.copied_weights import copied_weights
from brimful.generation.engine import Engine
from brimful.generation.quick_blocks import (
    FEWER_ROWS,
    PROMPT_ROWS,
    ROWS,
    Product,
    Weight,
    filled_rows,
)
from brimful.generation.requests import Request, StopRules
from brimful.generation.sampler import SamplingSettings
from brimful.planning.kv_cache import QUICK_MODEL_TYPES

pytestmark = needs_bf16
PROMPT = torch.tensor([[5, 9, 200, 17, 3, 8], [1, 2, 3, 4, 5, 6]])


def logits(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(PROMPT).logits.float()
    return found


@pytest.mark.parametrize(
    ("make", "adapted"), [(llama, False), (llama, True), (mistral, False), (qwen2, False)]
)
def test_quick_blocks_are_no_further_from_fp32_than_autocast(
    make: Callable[[], PreTrainedModel], *, adapted: bool
) -> None:
    model = make()
    assert model.config.model_type in QUICK_MODEL_TYPES
    if adapted:
        attach_changing_adapters(model)
    expected = logits(model.eval())
    with copied_weights(model, "bf16", with_blocks=True) as is_quick:
        found = logits(model)
    with torch.autocast("cpu", torch.bfloat16):
        usual = logits(model)

    assert is_quick
    assert 0 < (found - expected).abs().mean() < 1.2 * (usual - expected).abs().mean()
    assert torch.equal(logits(model), expected)


def test_a_base_in_bf16_with_adapters_has_quick_blocks(recwarn: pytest.WarningsRecorder) -> None:
    """As LoRA leaves a model that it trained in bf16."""
    model = llama()
    attach_changing_adapters(model)
    expected = logits(model.eval())
    for name, parameter in model.named_parameters():
        if "lora" not in name:
            parameter.data = parameter.data.to(torch.bfloat16)
    usual = logits(model)
    with copied_weights(model, "bf16", with_blocks=True) as is_quick:
        found = logits(model)

    assert is_quick
    assert not recwarn.list
    assert 0 < (found - expected).abs().mean() < 1.2 * (usual - expected).abs().mean()


@pytest.mark.parametrize("make", [granite, qwen3, gpt2])
def test_blocks_that_compute_something_else_stay(make: Callable[[], PreTrainedModel]) -> None:
    model = make()
    with copied_weights(model, "bf16") as is_quick:
        layers_alone = logits(model)
    with copied_weights(model, "bf16", with_blocks=True) as might_be_quick:
        assert torch.equal(logits(model), layers_alone)
    assert (is_quick, might_be_quick) == (False, False)


def test_a_block_that_differs_in_one_layer_keeps_all_as_they_are() -> None:
    model = llama()
    with copied_weights(model, "bf16", with_blocks=True) as is_quick:
        assert is_quick
    model.model.layers[1].mlp.act_fn = nn.GELU()
    with copied_weights(model, "bf16", with_blocks=True) as is_quick:
        assert not is_quick


def test_written_tokens_are_as_likely_as_the_model_in_fp32_says() -> None:
    model = llama()
    asked = [Request(key, (7, 9, 11 + key), key, 20) for key in range(60)]
    settings, never = SamplingSettings(1.0, None, 1.0), StopRules(frozenset())
    written = list(
        Engine(model, products="bf16").stream(asked, settings, never, logprobs=True)
    )  # all of them first: an open stream has exchanged the blocks
    found, exact, usual = [], [], []
    for request, generation in written:
        assert generation.logprobs is not None
        found.append(torch.tensor(generation.logprobs))
        ids = torch.tensor([[*request.prompt_ids, *generation.token_ids]])
        chosen = ids[0, len(request.prompt_ids) :, None]
        for enabled, likelihoods in ((False, exact), (True, usual)):
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                all_TV = model(ids).logits[0, len(request.prompt_ids) - 1 : -1].float()
            likelihoods.append(all_TV.log_softmax(-1).gather(1, chosen)[:, 0])
    errors, usual_errors = (torch.cat(each) - torch.cat(exact) for each in (found, usual))
    assert len(errors) == 1200
    assert errors.abs().mean() < 1.2 * usual_errors.abs().mean()
    assert abs(errors.mean()) < 3 * errors.std() / len(errors) ** 0.5


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_quick_block_keeps_keys_in_the_cache_by_either_name(name: str) -> None:
    """A block that did not know the name would attend to nothing before, and say nothing."""
    model = llama().eval()
    with copied_weights(model, "bf16", with_blocks=True) as is_quick, torch.inference_mode():
        assert is_quick
        block, cache = model.model.layers[0], DynamicCache()
        turned = model.model.rotary_emb(torch.zeros(1), position_ids=PROMPT[:1])
        block.forward(torch.ones(1, 6, 256), position_embeddings=turned, **{name: cache})
    assert cache.get_seq_length() == 6


@pytest.mark.parametrize("size", [(192, 64), (64, 192), (96, 63)])
def test_products_have_fewer_rows_only_where_that_is_rounded_alike(size: tuple[int, int]) -> None:
    """A row of random numbers has the bits that it has among `ROWS` of them."""
    generator = torch.Generator().manual_seed(1)
    weight, x = (
        torch.randn(size, generator=generator),
        torch.randn(ROWS, size[1], generator=generator),
    )
    multiply = Product(Weight(weight, None))

    whole = multiply(x.bfloat16())

    assert filled_rows(ROWS, *size) in (FEWER_ROWS, ROWS)
    for rows in range(1, ROWS):
        assert torch.equal(multiply(x.bfloat16()[:rows]), whole[:rows])


def test_a_processor_that_rounds_by_the_number_of_rows_gets_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the last bit of bf16 is enough to tell."""
    real = torch.ops.mkldnn._linear_pointwise

    def other(x: Tensor, *arguments: object) -> Tensor:
        found: Tensor = torch.ones_like(real(x, *arguments))
        return found if len(x) > FEWER_ROWS else found + 2.0**-7

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", other)
    assert filled_rows.__wrapped__(ROWS, 32, 64) == ROWS


def test_products_that_cancel_out_entirely_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", lambda *given: 0 * real(*given))
    assert filled_rows.__wrapped__(ROWS, 32, 64) == ROWS


@pytest.mark.parametrize("rows", [ROWS, PROMPT_ROWS])
def test_products_of_several_weights_activations_and_gates(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(size, 64, generator=generator).bfloat16() for size in (32, 48))
    x = torch.randn(rows + 9, 64, generator=generator).bfloat16()
    gate = torch.randn(rows + 9, 32, generator=generator).bfloat16()
    bias = torch.randn(48, generator=generator)
    expected = [x.float() @ each.float().T for each in (first, second)]

    def close(found: Tensor, wanted: Tensor) -> None:
        torch.testing.assert_close(found.float(), wanted, rtol=2**-7, atol=2**-6)

    one = Product(Weight(first, None))
    close(one(x, rows), expected[0])
    close(one(x, rows, activation="swish"), functional.silu(expected[0]))
    close(one(x, rows, gate_NO=gate), expected[0] * gate.float())
    both = Product(Weight(first, None), Weight(second, bias))
    close(both(x, rows), torch.cat([expected[0], expected[1] + bias], 1))
    assert torch.equal(one(x, rows)[rows:], one(x[rows:], rows))
