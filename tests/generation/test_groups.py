"""Models with short windows or recurrent states write what transformers writes with them."""

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from brimful.generation.engine import Engine, _Run, generate
from brimful.generation.forward import Forward
from brimful.generation.groups import Groups
from brimful.generation.requests import Request, StopRules
from brimful.generation.sampler import GREEDY, SamplingSettings
from brimful.generation.slots import Slots
from brimful.model.blocks import context_of
from brimful.model.okadfa.modeling import OkadfaConfig, OkadfaForCausalLM

PROMPTS = [[5, 9, 20], [17, 4, 4], [8, 3, 12, 24, 31, 15, 6, 19, 31], [1, 2, 3, 4, 5]]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": 60,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
HEADS = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "sliding_window": 6,
}


@pytest.fixture(params=["mistral", "gemma2", "mamba", "okadfa"])
def unusual(request: pytest.FixtureRequest) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        if request.param == "mamba":
            return MambaForCausalLM(MambaConfig(**SIZES, state_size=4)).eval()
        if request.param == "okadfa":
            return OkadfaForCausalLM(OkadfaConfig(**SIZES, num_attention_heads=4)).eval()
        if request.param == "mistral":
            return MistralForCausalLM(MistralConfig(**SIZES, **HEADS)).eval()
        return Gemma2ForCausalLM(Gemma2Config(**SIZES, **HEADS, attn_implementation="eager")).eval()


def without_cache(model: PreTrainedModel, prompt: list[int], max_new_tokens: int) -> list[int]:
    """Greedy, reading the whole text again for every token."""
    text = list(prompt)
    with torch.no_grad():
        for _ in range(max_new_tokens):
            text.append(int(model(torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
    return text[len(prompt) :]


def okadfa(attention: str, **values: object) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return OkadfaForCausalLM(
            OkadfaConfig(**SIZES, num_attention_heads=4, attention=attention, **values)
        ).eval()


def test_greedy_texts_of_a_ragged_batch_are_those_without_a_cache(unusual: PreTrainedModel) -> None:
    ours = generate(
        unusual, PROMPTS, GREEDY, max_new_tokens=12, stop_ids=frozenset(), seeds=[0] * 4
    )
    assert [row.token_ids for row in ours] == [
        without_cache(unusual, prompt, 12) for prompt in PROMPTS
    ]


def test_a_text_is_the_same_alone_and_among_others_that_enter_and_leave(
    unusual: PreTrainedModel,
) -> None:
    requests = [
        Request(key, tuple(PROMPTS[key // 2 % 4]), key, 1 + key * 5 % 13) for key in range(16)
    ]
    settings, stop = SamplingSettings(1.0, None, 1.0), StopRules(frozenset({7}))
    alone, together = (
        {
            request.key: written
            for request, written in Engine(unusual, most_rows=rows).stream(requests, settings, stop)
        }
        for rows in (1, 6)
    )
    assert alone == together


def test_equally_long_prompts_share_a_pass_and_all_rows_a_group_where_only_states_are_kept(
    unusual: PreTrainedModel,
) -> None:
    groups, keeps_states = (
        Groups(Forward(unusual)),
        unusual.config.model_type in {"mamba", "okadfa"},
    )
    with torch.inference_mode():
        groups.enter(groups.prefill(PROMPTS[:3]), [0, 0, 1, 2])
        groups.enter(groups.prefill(PROMPTS[3:]), [0])
        assert groups.step([1, 1, 1, 1, 1]).shape == (5, 60)
    assert [group.lengths for group in groups._groups] == (
        [[4, 4, 4, 10, 6]] if keeps_states else [[4, 4, 4], [10], [6]]
    )
    assert groups.leave([3, 1]) == [0, 2, 4]
    assert [group.lengths for group in groups._groups] == (
        [[4, 4, 6]] if keeps_states else [[4, 4], [6]]
    )


def test_a_text_of_kernel_attention_goes_on_as_long_as_asked_in_memory_that_does_not_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, stored_bytes, advance = okadfa("kernel"), list[int](), _Run.advance

    def watched(run: _Run) -> None:
        advance(run)
        assert isinstance(run._cache, Groups)
        stored_bytes.extend(
            sum(layer.recurrent_states[0].nbytes for layer in group.cache.layers)
            for group in run._cache._groups
        )

    monkeypatch.setattr(_Run, "advance", watched)
    ours = generate(
        model, [PROMPTS[0]], GREEDY, max_new_tokens=500, stop_ids=frozenset(), seeds=[0]
    )
    assert len(ours[0].token_ids) == 500
    assert ours[0].token_ids[:200] == without_cache(model, PROMPTS[0], 200)
    assert len(stored_bytes) == 498
    assert set(stored_bytes) == {2 * 4 * 32 * (8 + 1) * 4}


def test_the_same_model_with_softmax_attention_runs_on_slots() -> None:
    model = okadfa("softmax", max_position_embeddings=64)
    assert Slots.suit(Forward(model), context_of(model))
    ours = generate(model, PROMPTS, GREEDY, max_new_tokens=40, stop_ids=frozenset(), seeds=[0] * 4)
    assert [row.token_ids for row in ours] == [
        without_cache(model, prompt, 40) for prompt in PROMPTS
    ]


def test_recurrent_models_read_without_limit() -> None:
    assert context_of(MambaForCausalLM(MambaConfig(**SIZES, state_size=4))) > 10**9
    assert context_of(okadfa("kernel")) > 10**9
    assert context_of(okadfa("softmax", max_position_embeddings=64)) == 64
