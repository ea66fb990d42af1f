import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from fixture_types import Refuses
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    PreTrainedModel,
)

from brimful.base.errors import RequestError
from brimful.generation.backends.transformers_batching import TransformersBatching
from brimful.generation.engine import Engine
from brimful.generation.requests import Generation, Request, StopRules
from brimful.generation.sampler import GREEDY, SamplingSettings

CONTEXT, VOCABULARY = 64, 120
SETTINGS = SamplingSettings(temperature=1.2, top_k=50, top_p=0.95, min_p=0.01)
STOP = StopRules(frozenset({7, 11}))
REQUESTS = [
    Request(key, prompt, seed=100 + key, max_new_tokens=4 + 5 * (key % 3))
    for key, prompt in enumerate(
        [(5, 9, 33), (17,), tuple(range(20, 45)), (17,), (5, 9, 33), (60, 61)]
    )
]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("settings", [SETTINGS, GREEDY], ids=["sampled", "greedy"])
def test_the_same_seeds_write_the_same_texts_as_our_engine(
    model: PreTrainedModel, settings: SamplingSettings
) -> None:
    ours = _written(Engine(model).stream(REQUESTS, settings, STOP))

    assert (
        _written(TransformersBatching(model, most_rows=3).stream(iter(REQUESTS), settings, STOP))
        == ours
    )
    assert len({generation.finish for generation in ours.values()}) == (
        2 if settings is SETTINGS else 1
    )


def test_a_stream_that_is_closed_early_ends_its_thread_and_puts_the_model_back(
    model: PreTrainedModel,
) -> None:
    threads, attention = threading.active_count(), model.config._attn_implementation
    taken: list[Request] = []
    stream = TransformersBatching(model, most_rows=2).stream(_noted(taken), GREEDY, STOP)

    next(stream)
    assert len(taken) < len(REQUESTS)
    stream.close()

    assert threading.active_count() == threads
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize(
    ("change", "stop", "logprobs", "named"),
    [
        ({"repetition_penalty": 1.2}, STOP, False, "no repetition penalty"),
        ({}, StopRules(frozenset(), ("\n\n",)), False, "no stop texts"),
        ({}, STOP, True, "no log-probabilities"),
    ],
)
def test_what_it_cannot_do_is_refused_at_once_with_what_can(
    model: PreTrainedModel,
    change: dict[str, float],
    stop: StopRules,
    logprobs: bool,
    named: str,
    refuses: Refuses,
) -> None:
    with refuses(RequestError, names=[str(named), "plan.sampling=brimful"]):
        TransformersBatching(model).stream(
            REQUESTS, replace(SETTINGS, **change), stop, logprobs=logprobs
        )


def test_a_text_longer_than_the_context_is_refused(
    model: PreTrainedModel, refuses: Refuses
) -> None:
    with refuses(RequestError, names=["63", "64"]):
        next(
            TransformersBatching(model).stream(
                [Request(3, (1, 2), seed=0, max_new_tokens=CONTEXT - 1)], GREEDY, STOP
            )
        )


def test_a_model_that_fails_ends_the_stream_with_one_error(refuses: Refuses) -> None:
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=CONTEXT,
    )
    broken = LlamaForCausalLM(config).eval()
    torch.nn.init.constant_(broken.lm_head.weight, torch.nan)

    with refuses(RequestError):
        next(
            TransformersBatching(broken).stream(
                [Request(0, (1, 2), seed=0, max_new_tokens=2)], GREEDY, STOP
            )
        )


def test_a_recurrent_model_is_refused(refuses: Refuses) -> None:
    mamba = AutoModelForCausalLM.from_config(
        MambaConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, state_size=4)
    )

    with refuses(RequestError, names=["plan.sampling=brimful"]):
        TransformersBatching(mamba)


def _written(stream: Iterator[tuple[Request, Generation]]) -> dict[int, Generation]:
    return {request.key: generation for request, generation in stream}


def _noted(taken: list[Request]) -> Iterator[Request]:
    for request in REQUESTS:
        taken.append(request)
        yield request
