"""As many texts at once as the memory holds, counted as transformers stores them."""

import pytest
import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel

from brimful.base.units import GIB
from brimful.planning.kv_cache import CPU_ROWS, GPU_ROWS, kv_shape, room_for_rows

SMOLLM2_360M = LlamaConfig(
    num_hidden_layers=32, hidden_size=960, num_attention_heads=15, num_key_value_heads=5, vocab_size=49_152, max_position_embeddings=8192
)


def models() -> list[PreTrainedModel]:
    llama = LlamaConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=32, vocab_size=50)
    wide = LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, head_dim=16, intermediate_size=32, vocab_size=50)
    return [LlamaForCausalLM(llama), LlamaForCausalLM(wide), GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50))]


@pytest.mark.parametrize("number", range(3), ids=["grouped heads", "own head size", "gpt2"])
def test_bytes_per_token_are_those_of_the_cache_that_a_model_fills(number: int) -> None:
    model, cache = models()[number], DynamicCache()
    with torch.no_grad():
        model(torch.zeros(1, 7, dtype=torch.long), past_key_values=cache, use_cache=True)
    stored_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert 7 * kv_shape(model.config).bytes_per_token(4) == stored_bytes


def test_the_figures_of_smollm2_360m() -> None:
    assert kv_shape(SMOLLM2_360M).bytes_per_token(2) == 2 * 32 * 5 * 64 * 2


@pytest.mark.parametrize(("free_bytes", "is_cpu", "rows"), [(80 * GIB, False, GPU_ROWS), (80 * GIB, True, CPU_ROWS), (1, True, 1)])
def test_rows_stop_where_more_gain_little_and_one_always_runs(free_bytes: int, is_cpu: bool, rows: int) -> None:
    found, positions = room_for_rows(SMOLLM2_360M, 2, free_bytes, is_cpu=is_cpu)
    assert found == rows
    assert positions >= 1


def test_rows_and_their_positions_fit_into_the_memory() -> None:
    for free_bytes in (GIB // 16, GIB, 8 * GIB):
        rows, positions = room_for_rows(SMOLLM2_360M, 2, free_bytes, is_cpu=False)
        assert rows * SMOLLM2_360M.vocab_size * 4 + positions * kv_shape(SMOLLM2_360M).bytes_per_token(2) < free_bytes


def test_a_config_without_attention_is_counted_by_its_width() -> None:
    config = PretrainedConfig(num_hidden_layers=2, hidden_size=8, vocab_size=10)
    assert kv_shape(config).bytes_per_token(4) == 2 * 2 * 8 * 4
