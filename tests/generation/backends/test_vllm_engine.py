import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from fixture_types import Refuses

from brimful.base.errors import RequestError
from brimful.generation.backends.vllm_engine import (
    VllmEngine,
    base_and_adapter,
    generation_of,
    refuse,
    sampling_arguments,
)
from brimful.generation.requests import Generation, Request, StopRules, refuse_too_long
from brimful.generation.sampler import GREEDY, SamplingSettings
from brimful.planning.vllm_share import PASS_TOKENS, VllmShare

HAS_VLLM = importlib.util.find_spec("vllm") is not None
REQUEST = Request(4, (1, 2, 3), seed=9, max_new_tokens=20)
STOP = StopRules(frozenset({7, 2}), ("\n\n",))


@dataclass
class _Logprob:
    logprob: float


@dataclass
class _Output:
    """The fields of vllm.CompletionOutput that are read."""

    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: int | str | None
    logprobs: list[dict[int, _Logprob]] | None = None


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed")
def test_without_vllm_it_is_refused_with_how_to_get_it(refuses: Refuses) -> None:
    with refuses(RequestError):
        VllmEngine("there", device=torch.device("cuda"), dtype=torch.bfloat16)


def test_every_setting_is_translated() -> None:
    settings = SamplingSettings(
        temperature=0.7, top_k=None, top_p=1.0, min_p=0.1, repetition_penalty=1.2
    )

    assert sampling_arguments(REQUEST, settings, STOP, logprobs=True) == {
        "temperature": 0.7,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "seed": 9,
        "max_tokens": 20,
        "stop_token_ids": [2, 7],
        "stop": ["\n\n"],
        "ignore_eos": True,
        "detokenize": True,
        "logprobs": 0,
    }


def test_texts_are_put_together_only_where_a_stop_text_needs_it() -> None:
    arguments = sampling_arguments(REQUEST, GREEDY, StopRules(frozenset({2})), logprobs=False)

    assert (
        arguments["detokenize"],
        arguments["stop"],
        arguments["logprobs"],
        arguments["temperature"],
    ) == (False, None, None, 0.0)


def test_min_p_with_top_p_means_something_else_there_and_is_refused(refuses: Refuses) -> None:
    with refuses(RequestError, names=["min_p", "0.1", "top_p", "0.9", "plan.sampling=brimful"]):
        refuse(SamplingSettings(temperature=1.0, top_k=None, top_p=0.9, min_p=0.1))

    refuse(SamplingSettings(temperature=1.0, top_k=5, top_p=1.0, min_p=0.1))


def test_a_text_that_it_would_cut_is_refused(refuses: Refuses) -> None:
    with refuses(RequestError, names=["20", "22"]):
        refuse_too_long(REQUEST, 22, "vLLM")

    refuse_too_long(REQUEST, 23, "vLLM")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (_Output((5, 6, 7), "stop", 7), Generation([5, 6], "end_of_text")),
        (_Output((5, 6, 8), "stop", "\n\n"), Generation([5, 6, 8], "stop")),
        (_Output((5, 6, 8), "length", None), Generation([5, 6, 8], "length")),
    ],
)
def test_the_stop_token_does_not_belong_to_a_text(output: _Output, expected: Generation) -> None:
    assert generation_of(output, STOP, logprobs=False) == expected


def test_the_stop_token_belongs_to_an_answer_that_is_rewarded() -> None:
    stop = StopRules(frozenset({7}), keeps_token=True)
    output = _Output((5, 7), "stop", 7, [{5: _Logprob(-1.5)}, {7: _Logprob(-2.0)}])

    expected = Generation([5, 7], "end_of_text", [-1.5, -2.0])
    assert generation_of(output, stop, logprobs=True) == expected


def test_log_probabilities_are_those_of_the_written_tokens() -> None:
    output = _Output(
        (5, 7), "stop", 7, [{5: _Logprob(-1.5), 8: _Logprob(-0.2)}, {7: _Logprob(-2.0)}]
    )

    assert generation_of(output, STOP, logprobs=True) == Generation([5], "end_of_text", [-1.5])


def test_adapters_are_told_from_weights(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "maker/base", "r": 8})
    )

    assert base_and_adapter(str(tmp_path)) == ("maker/base", tmp_path)
    assert base_and_adapter("maker/model") == ("maker/model", None)


def test_trained_rows_of_added_tokens_are_refused(tmp_path: Path, refuses: Refuses) -> None:
    rows = {"embed_tokens": [7]}
    (tmp_path / "adapter_config.json").write_text(json.dumps({"trainable_token_indices": rows}))
    with refuses(RequestError, names=["plan.sampling=brimful", "--merge"]):
        base_and_adapter(str(tmp_path))


@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")
def test_vllm_writes_greedily_what_our_engine_writes(tmp_path: Path) -> None:
    """On a GPU, or on a CPU with vLLM's build for it; and leaves torch as it was."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from brimful.generation.engine import Engine

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval().to(device)
    model.save_pretrained(tmp_path)
    requests = [Request(key, (5, 9, 3 + key), seed=key, max_new_tokens=8) for key in range(4)]
    share = VllmShare(rows=64, context=64, cache_bytes=1 << 26)
    state, set_threads = torch.get_rng_state(), torch.set_num_threads
    engine = VllmEngine(str(tmp_path), device=device, dtype=torch.float32, share=share)

    def written(stop: StopRules) -> dict[int, Generation]:
        return {each.key: found for each, found in engine.stream(requests, GREEDY, stop)}

    ours = {
        each.key: found
        for each, found in Engine(model).stream(requests, GREEDY, StopRules(frozenset({0})))
    }
    assert written(StopRules(frozenset({0}))) == ours
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.set_num_threads is set_threads

    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.roll(1, 0))
    engine.with_weights_of(model)
    assert written(StopRules(frozenset({0}))) == {
        each.key: found
        for each, found in Engine(model).stream(requests, GREEDY, StopRules(frozenset({0})))
    }
    # More questions than a pass reads, each with a seed of its own.
    long = [Request(key, (5, 9, key, *[7] * 50), seed=key, max_new_tokens=4) for key in range(64)]
    settings, keeps = SamplingSettings(1.0, None, 1.0), StopRules(frozenset(), keeps_token=True)
    drawn = [*engine.stream(long, settings, keeps, logprobs=True)]
    assert len(drawn) * len(long[0].prompt_ids) > PASS_TOKENS
    assert all(len(each.logprobs or []) == 4 for _, each in drawn)
    engine.close()
