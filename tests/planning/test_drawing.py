"""Memory of a model that draws answers, beside what the real engine allocates."""

import pytest
import torch
from quick_models import needs_bf16
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from brimful.generation.copied_weights import Products
from brimful.generation.engine import Engine
from brimful.generation.quick_blocks import FEWER_ROWS, ROWS, filled_rows
from brimful.generation.requests import Request, StopRules
from brimful.generation.sampler import SamplingSettings
from brimful.model.published import attach_adapters
from brimful.planning.drawing import DrawingMemory
from brimful.recipe import AdapterRecipe
from measured_steps import read_profile, storage_bytes

CONFIG = LlamaConfig(
    vocab_size=8192,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    initializer_range=0.1,  # rounding to bf16 hides what a block with smaller weights adds
)
ADAPTERS = AdapterRecipe(rank=4)
PROMPT, NEW = 20, 45


@pytest.fixture
def model() -> PreTrainedModel:
    filled_rows.cache_clear()
    return LlamaForCausalLM(CONFIG).eval()


def _seen(model: PreTrainedModel, products: Products, rows: int, prompts: int) -> int:
    """The peak of all tensors."""
    requests = [
        Request(row, tuple(range(row % prompts, row % prompts + PROMPT)), row, NEW)
        for row in sorted(range(rows), key=lambda row: row % prompts)
    ]
    engine = Engine(model, products=products, most_rows=rows)
    start = storage_bytes(model)
    settings = SamplingSettings(1.0, None, 1.0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in engine.stream(requests, settings, StopRules(frozenset()), logprobs=True):
            pass
    return int(read_profile(profiler, start).live_E().max())


def _planned(model: PreTrainedModel, *, in_bf16: bool, has_adapters: bool) -> DrawingMemory:
    base = sum(each.numel() for name, each in model.named_parameters() if "lora" not in name)
    weight_bytes = model.get_output_embeddings().weight.itemsize
    fill = FEWER_ROWS if filled_rows(ROWS, 8192, 256) == FEWER_ROWS else ROWS
    filled_rows.cache_clear()
    return DrawingMemory(
        CONFIG.to_dict(),
        base,
        storage_bytes(model),
        weight_bytes,
        in_bf16,
        has_adapters,
        in_four_bits=False,
        fill=fill,
    )


@pytest.mark.parametrize(("rows", "prompts"), [(4, 1), (40, 5)])
@pytest.mark.parametrize("products", ["own", "fp32"])
@pytest.mark.long_but("own-4-1")
def test_in_fp32(model: PreTrainedModel, products: Products, rows: int, prompts: int) -> None:
    """Adapters are merged into copies of the layers."""
    if products == "fp32":
        attach_adapters(model, ADAPTERS, seed=0)
    planned = _planned(model, in_bf16=False, has_adapters=products == "fp32")
    found = planned.tensors_bytes(rows, prompts, PROMPT, PROMPT + NEW)
    assert found == pytest.approx(_seen(model, products, rows, prompts), rel=0.02)


@needs_bf16
@pytest.mark.parametrize(("rows", "prompts"), [(4, 1), (40, 5)])
@pytest.mark.parametrize("base", ["adapted", "full"])
@pytest.mark.long_but("adapted-4-1")
def test_in_bf16(model: PreTrainedModel, base: str, rows: int, prompts: int) -> None:
    """A base of LoRA in bf16, and weights in fp32; products are tried in the first drawing."""
    if base == "adapted":
        attach_adapters(model.to(torch.bfloat16), ADAPTERS, seed=0)
    planned = _planned(model, in_bf16=True, has_adapters=base == "adapted")
    found = planned.tensors_bytes(rows, prompts, PROMPT, PROMPT + NEW)
    assert found == pytest.approx(_seen(model, "bf16", rows, prompts), rel=0.02)
