"""A cache that knows how much it has read; others say that they do not."""

import torch
from fixture_types import Refuses
from transformers import DynamicCache

from brimful.model.cache_name import CACHE_NAME
from brimful.model.okadfa.configuration import OkadfaConfig
from brimful.model.okadfa.modeling import OkadfaForCausalLM
from brimful.model.okadfa.recurrent_cache import RecurrentCache, num_read, sum_before

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def _read(cache: DynamicCache, length: int, config: OkadfaConfig) -> None:
    with torch.no_grad():
        OkadfaForCausalLM(config)(
            torch.zeros(3, length, dtype=torch.long), use_cache=True, **{CACHE_NAME: cache}
        )


def test_it_counts_positions_and_holds_one_sum_per_layer() -> None:
    config = OkadfaConfig(**SIZES)
    cache = RecurrentCache(config)
    assert (num_read(cache), sum_before(cache, 0)) == (0, None)
    _read(cache, 5, config)
    _read(cache, 1, config)
    assert cache.get_seq_length() == num_read(cache) == 6
    assert cache.get_mask_sizes(2, 0) == (8, 0)
    assert all(sum_before(cache, layer).shape == (3, 2, 32, 9) for layer in range(2))
    assert not cache.is_compileable


def test_rows_are_chosen_and_texts_forgotten() -> None:
    config = OkadfaConfig(**SIZES)
    cache = RecurrentCache(config)
    _read(cache, 4, config)
    cache.reorder_cache(torch.tensor([2, 0]))
    state = sum_before(cache, 1)
    assert state is not None
    assert state.shape[0] == 2
    cache.reset()
    assert (cache.positions, float(state.abs().sum())) == (0, 0.0)


def test_caches_of_transformers_say_what_they_know(refuses: Refuses) -> None:
    config = OkadfaConfig(**SIZES, attention="softmax")
    softmax, recurrent = DynamicCache(config=config), DynamicCache(config=OkadfaConfig(**SIZES))
    assert num_read(None) == num_read(DynamicCache()) == num_read(recurrent) == 0
    _read(softmax, 4, config)
    assert num_read(softmax) == 4
    _read(recurrent, 4, OkadfaConfig(**SIZES))
    with refuses(ValueError, names=["position_ids"]):
        num_read(recurrent)
