"""Tokens that a model does not know yet: ids, rows, and the head with them."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from brimful.model.added_tokens import (
    head_weight_of,
    make_room,
    rows_to_train,
)
from brimful.model.published import attach_adapters, without_adapters
from brimful.recipe import AdapterRecipe


def model(*, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=20, tie_word_embeddings=tied, **sizes, **heads)
    return LlamaForCausalLM(config).eval()


def test_rows_are_added_where_ids_need_them_and_are_the_mean_of_the_others() -> None:
    for tied in (True, False):
        longer, before = model(tied=tied), model(tied=tied)
        make_room(longer, [3, 19])
        assert longer.config.vocab_size == 20
        make_room(longer, [3, 21])
        assert longer.config.vocab_size == 22
        for layer, old in (
            (longer.get_input_embeddings(), before.get_input_embeddings()),
            (longer.get_output_embeddings(), before.get_output_embeddings()),
        ):
            assert torch.equal(layer.weight[:20], old.weight)
            assert torch.equal(layer.weight[20:], old.weight.mean(0).expand(2, -1))


def test_a_head_that_shares_the_embedding_is_not_named() -> None:
    assert rows_to_train(model(tied=True), [3]) == {"embed_tokens": [3]}
    assert rows_to_train(model(tied=False), [3]) == {"embed_tokens": [3], "lm_head": [3]}
    assert rows_to_train(model(tied=False), []) is None


def test_the_head_is_the_bases_while_adapters_are_disabled() -> None:
    for tied in (True, False):
        adapted = model(tied=tied)
        base = adapted.get_output_embeddings().weight.detach().clone()
        attach_adapters(adapted, AdapterRecipe(rank=2), seed=1, tokens=[3])
        for name, parameter in adapted.named_parameters():
            if "tokens_delta" in name:
                parameter.data += 1
        trained = head_weight_of(adapted)
        assert torch.equal(trained[3], base[3] + 1)
        assert torch.equal(trained[:3], base[:3])
        with without_adapters(adapted):
            assert torch.equal(head_weight_of(adapted), base)
