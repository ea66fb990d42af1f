"""As many texts at once as the memory holds, counted as transformers stores them."""

import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from brimful.base.units import GIB
from brimful.model.blocks import CACHE_NAME
from brimful.model.okadfa.modeling import OkadfaConfig, OkadfaForCausalLM
from brimful.planning.kv_cache import CPU_ROWS, GPU_ROWS, kv_shape, room_for_rows

SMOLLM2_360M = LlamaConfig(
    num_hidden_layers=32,
    hidden_size=960,
    num_attention_heads=15,
    num_key_value_heads=5,
    vocab_size=49_152,
    max_position_embeddings=8192,
)


def models() -> list[PreTrainedModel]:
    llama = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
        vocab_size=50,
    )
    wide = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        head_dim=16,
        intermediate_size=32,
        vocab_size=50,
    )
    return [
        LlamaForCausalLM(llama),
        LlamaForCausalLM(wide),
        GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50)),
    ]


@pytest.mark.parametrize("number", range(3), ids=["grouped heads", "own head size", "gpt2"])
def test_bytes_per_token_are_those_of_the_cache_that_a_model_fills(number: int) -> None:
    model, cache = models()[number], DynamicCache()
    with torch.no_grad():
        model(torch.zeros(1, 7, dtype=torch.long), use_cache=True, **{CACHE_NAME: cache})
    stored_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert 7 * kv_shape(model.config).bytes_per_token(4) == stored_bytes


def test_the_figures_of_smollm2_360m() -> None:
    assert kv_shape(SMOLLM2_360M).bytes_per_token(2) == 2 * 32 * 5 * 64 * 2


@pytest.mark.parametrize(
    ("free_bytes", "is_cpu", "rows"),
    [(80 * GIB, False, GPU_ROWS), (80 * GIB, True, CPU_ROWS), (1, True, 1)],
)
def test_rows_stop_where_more_gain_little_and_one_always_runs(
    free_bytes: int, is_cpu: bool, rows: int
) -> None:
    found, positions = room_for_rows(SMOLLM2_360M, 2, free_bytes, is_cpu=is_cpu)
    assert found == rows
    assert positions >= 1


def test_rows_and_their_positions_fit_into_the_memory() -> None:
    for free_bytes in (GIB // 16, GIB, 8 * GIB):
        rows, positions = room_for_rows(SMOLLM2_360M, 2, free_bytes, is_cpu=False)
        assert (
            rows * SMOLLM2_360M.vocab_size * 4
            + positions * kv_shape(SMOLLM2_360M).bytes_per_token(2)
            < free_bytes
        )


def test_a_config_without_attention_is_counted_by_its_width() -> None:
    config = PretrainedConfig(num_hidden_layers=2, hidden_size=8, vocab_size=10)
    assert kv_shape(config).bytes_per_token(4) == 2 * 2 * 8 * 4


KERNEL = OkadfaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=50)


@pytest.mark.parametrize("length", [1, 90])
def test_kernel_attention_keeps_the_same_bytes_of_a_text_however_long(length: int) -> None:
    with torch.no_grad():
        cache = OkadfaForCausalLM(KERNEL)(torch.zeros(3, length, dtype=torch.long), use_cache=True)[
            CACHE_NAME
        ]
    assert (
        3 * kv_shape(KERNEL).state_bytes(4)
        == 3 * kv_shape(KERNEL).state_bytes(2)
        == sum(layer.recurrent_states[0].nbytes for layer in cache.layers)
    )
    assert kv_shape(KERNEL).bytes_per_token(4) == 0


def test_texts_of_kernel_attention_are_limited_by_their_states_alone() -> None:
    medium = OkadfaConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16)
    for free_bytes in (GIB, 8 * GIB):
        rows, positions = room_for_rows(medium, 2, free_bytes, is_cpu=False)
        assert positions == sys.maxsize
        assert 0.7 * free_bytes < rows * kv_shape(medium).state_bytes(2) < 0.8 * free_bytes
    assert room_for_rows(medium, 2, 1, is_cpu=False)[0] == 1
    assert (
        kv_shape(
            OkadfaConfig(
                attention="softmax", hidden_size=32, num_hidden_layers=2, num_attention_heads=4
            )
        ).state_bytes(4)
        == 0
    )


def test_plain_values_say_what_the_config_does() -> None:
    for config in (GPT2Config(n_embd=48, n_layer=3, n_head=4), LlamaConfig(num_hidden_layers=3)):
        assert kv_shape(SimpleNamespace(**config.to_dict())) == kv_shape(config)
