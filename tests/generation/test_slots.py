"""Rows in slots read as rows alone do, whoever enters, leaves and moves."""

import random

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from brimful.generation import slots
from brimful.generation.forward import Forward
from brimful.generation.groups import Groups
from brimful.generation.slots import Slots
from brimful.model.blocks import context_of


def alone(model: PreTrainedModel, texts: list[list[int]]) -> torch.Tensor:
    return torch.stack(
        [model(torch.tensor([text]), use_cache=False).logits[0, -1] for text in texts]
    )


@pytest.mark.parametrize("kind", ["slots", "slots for few tokens", "groups"])
def test_rows_that_come_and_go_read_as_alone(model: PreTrainedModel, kind: str) -> None:
    drawn, cache = (
        random.Random(0),
        Groups(Forward(model))
        if kind == "groups"
        else Slots(Forward(model), 8, context=128, most_tokens=40 if "few" in kind else 1024),
    )
    texts: list[list[int]] = []
    with torch.inference_mode():
        for _ in range(14):
            if len(texts) < 6:
                prompts = [
                    drawn.choices(range(300), k=length)
                    for length in sorted(drawn.choices(range(1, 12), k=2))
                ]
                read = cache.prefill(prompts)
                torch.testing.assert_close(
                    read.logits_PV, alone(model, prompts), rtol=1e-4, atol=1e-4
                )
                sources = sorted(drawn.choices([0, 1], k=drawn.randint(1, 3)))
                cache.enter(read, sources)
                texts += [list(prompts[source]) for source in sources]
            texts = [[*text, drawn.randrange(300)] for text in texts]
            torch.testing.assert_close(
                cache.step([text[-1] for text in texts]), alone(model, texts), rtol=1e-4, atol=1e-4
            )
            order = cache.leave(
                drawn.sample(range(len(texts)), k=drawn.randint(0, len(texts) // 2))
            )
            texts = [texts[place] for place in order]


def test_a_leaving_row_moves_one_other_row_only(model: PreTrainedModel) -> None:
    cache = Slots(Forward(model), most_rows=8, context=128)
    with torch.inference_mode():
        cache.enter(cache.prefill([[1, 2, 3]]), [0] * 5)
        assert cache.leave([1]) == [0, 4, 2, 3]
        assert cache.leave([3, 0]) == [2, 1]
        assert cache.leave([0, 1]) == []


def test_slots_suit_models_whose_layers_keep_every_position(model: PreTrainedModel) -> None:
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 16,
        "vocab_size": 40,
    }
    windows = {
        window: MistralForCausalLM(
            MistralConfig(**sizes, max_position_embeddings=64, sliding_window=window)
        )
        for window in (8, 64)
    }
    mixed = Gemma2ForCausalLM(
        Gemma2Config(**sizes, head_dim=8, max_position_embeddings=64, sliding_window=8)
    )
    windows[64].set_attn_implementation("sdpa")
    suits = [
        Slots.suit(Forward(each), context_of(each))
        for each in (model, windows[64], windows[8], mixed)
    ]
    assert suits == [True, True, False, False]


def test_a_window_that_holds_the_context_hides_nothing_in_slots() -> None:
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 16,
        "vocab_size": 40,
    }
    model = MistralForCausalLM(
        MistralConfig(**sizes, max_position_embeddings=30, sliding_window=30, initializer_range=0.3)
    ).eval()
    cache, texts = Slots(Forward(model), most_rows=2, context=30), [list(range(1, 29)), [5]]
    with torch.inference_mode():
        cache.enter(cache.prefill(texts), [0, 1])
        for token in (7, 8):
            texts = [[*text, token] for text in texts]
            torch.testing.assert_close(
                cache.step([token, token]), alone(model, texts), rtol=1e-4, atol=1e-4
            )


def test_the_store_never_outgrows_what_was_planned(model: PreTrainedModel) -> None:
    """Memory was planned for so many rows of the context; growing ahead of need stops there."""
    cache = Slots(Forward(model), most_rows=6, context=30)
    with torch.inference_mode():
        for _ in range(3):
            cache.enter(cache.prefill([[1] * 20]), [0] * 2)
        assert {layer.keys.shape[::2] for layer in cache._cache.layers} == {(6, 30)}


def test_rows_that_enter_after_a_long_text_do_not_take_its_length(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rows x the longest position ever held would be far more than may be stored."""
    monkeypatch.setattr(slots, "STORE_STEP", 8)
    cache, short = Slots(Forward(model), most_rows=8, context=64, most_tokens=100), [5, 6, 7]
    with torch.inference_mode():
        cache.enter(cache.prefill([list(range(1, 25))]), [0])
        cache.enter(cache.prefill([short]), [0])
        cache.leave([0])
        cache.enter(cache.prefill([short]), [0] * 7)

        assert {layer.keys.shape[::2] for layer in cache._cache.layers} == {(8, 8)}
        torch.testing.assert_close(
            cache.step([9] * 8), alone(model, [[*short, 9]] * 8), rtol=1e-4, atol=1e-4
        )


def test_rows_that_are_awaited_are_stored_with_the_first_of_them(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown: list[int] = []
    monkeypatch.setattr(slots._Layer, "grow", lambda layer, rows: grown.append(rows))
    cache = Slots(Forward(model), 8, context=128)
    cache.await_rows(6)
    with torch.inference_mode():
        for prompt in ([1, 2, 3], [4, 5, 6], [7, 8, 9]):
            cache.enter(cache.prefill([prompt]), [0, 0])
        logits = cache.step([1] * 6)
    assert not grown
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])
