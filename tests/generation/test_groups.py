"""Models with short windows or recurrent states write what transformers writes with them."""

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel

from brimful.generation.engine import Engine, context_of, generate
from brimful.generation.forward import Forward
from brimful.generation.groups import Groups
from brimful.generation.requests import Request, StopRules
from brimful.generation.sampler import GREEDY, SamplingSettings

PROMPTS = [[5, 9, 20], [17, 4, 4], [8, 3, 12, 24, 31, 15, 6, 19, 31], [1, 2, 3, 4, 5]]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 60, "initializer_range": 0.3, "bos_token_id": 0, "eos_token_id": 0}
HEADS = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "sliding_window": 6,
}


@pytest.fixture(params=["mistral", "gemma2", "mamba"])
def unusual(request: pytest.FixtureRequest) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        if request.param == "mamba":
            return MambaForCausalLM(MambaConfig(**SIZES, state_size=4)).eval()
        if request.param == "mistral":
            return MistralForCausalLM(MistralConfig(**SIZES, **HEADS)).eval()
        return Gemma2ForCausalLM(Gemma2Config(**SIZES, **HEADS, attn_implementation="eager")).eval()


def test_greedy_texts_of_a_ragged_batch_are_those_without_a_cache(unusual: PreTrainedModel) -> None:
    ours = generate(unusual, PROMPTS, GREEDY, max_new_tokens=12, stop_ids=frozenset(), seeds=[0] * 4)
    for prompt, row in zip(PROMPTS, ours, strict=True):
        text = list(prompt)
        with torch.no_grad():
            for _ in range(12):
                text.append(int(unusual(torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
        assert row.token_ids == text[len(prompt) :]


def test_a_text_is_the_same_alone_and_among_others_that_enter_and_leave(unusual: PreTrainedModel) -> None:
    requests = [Request(key, tuple(PROMPTS[key // 2 % 4]), key, 1 + key * 5 % 13) for key in range(16)]
    settings, stop = SamplingSettings(1.0, None, 1.0), StopRules(frozenset({7}))
    alone, together = (
        {request.key: written for request, written in Engine(unusual, most_rows=rows).stream(requests, settings, stop)} for rows in (1, 6)
    )
    assert alone == together


def test_equally_long_prompts_share_a_pass_and_a_group(unusual: PreTrainedModel) -> None:
    groups = Groups(Forward(unusual))
    with torch.inference_mode():
        groups.enter(groups.prefill(PROMPTS[:3]), [0, 0, 1, 2])
        assert groups.step([1, 1, 1, 1]).shape == (4, 60)
    assert [group.rows for group in groups._groups] == [3, 1]
    assert groups.leave([3, 1]) == [0, 2]
    assert [group.rows for group in groups._groups] == [2]


def test_recurrent_models_read_without_limit() -> None:
    assert context_of(MambaForCausalLM(MambaConfig(**SIZES, state_size=4))) > 10**9
