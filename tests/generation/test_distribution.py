"""What the engine draws has the model's distribution under every setting, and greedy texts are
those of transformers' `generate`.
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from brimful.generation.engine import Engine
from brimful.generation.requests import Generation, Request, StopRules
from brimful.generation.sampler import GREEDY, SamplingSettings

VOCABULARY = 400
DRAWS = 3000
P_THRESHOLD = 1e-3
"""Seeds are fixed: a right sampler passes always or never; one in a thousand seeds would be
unlucky.
"""
LEAST_EXPECTED = 5
"""Cells that are expected less often are counted together (Cochran 1954)."""
PLAIN = SamplingSettings(temperature=1.0, top_k=None, top_p=1.0)
SETTINGS = {
    "plain": PLAIN,
    "temperature": replace(PLAIN, temperature=0.6),
    "top-k": replace(PLAIN, top_k=12),
    "top-p": replace(PLAIN, top_p=0.7),
    "min-p": replace(PLAIN, min_p=0.08),
    "repetition penalty": replace(PLAIN, repetition_penalty=1.6),
    "all together": SamplingSettings(
        temperature=1.3, top_k=40, top_p=0.9, min_p=0.02, repetition_penalty=1.3
    ),
}
NEVER = StopRules(frozenset())
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
MODELS = {
    "llama with grouped heads": ("llama", COMMON | {"num_key_value_heads": 2}),
    "gpt2": ("gpt2", COMMON),
    "mistral, sliding window": (
        "mistral",
        COMMON | {"num_key_value_heads": 4, "sliding_window": 6},
    ),
    "gemma2, every other layer with a window": (
        "gemma2",
        COMMON | {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 6},
    ),
    "qwen2": ("qwen2", COMMON | {"num_key_value_heads": 2}),
    "mamba, recurrent": (
        "mamba",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 8,
            "bos_token_id": 0,
        },
    ),
}
PROMPTS = ((5, 9, 5, 33, 70), (17,), (3, 3, 3, 3, 3, 3, 3, 3, 3, 80, 81), (44, 2, 61))
NEW_TOKENS = 12


def _model(name: str, spread: float) -> PreTrainedModel:
    """Fresh weights; a larger spread makes likelier tokens likelier."""
    kind, values = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            CONFIG_MAPPING[kind](**values, initializer_range=spread)
        )
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model.eval()


def _written(
    model: PreTrainedModel, requests: list[Request], settings: SamplingSettings, stop: StopRules
) -> dict[int, Generation]:
    return {
        request.key: generation
        for request, generation in Engine(model).stream(requests, settings, stop)
    }


def _probabilities(
    model: PreTrainedModel, ids: tuple[int, ...], settings: SamplingSettings
) -> torch.Tensor:
    """Of the next token, by transformers' own logits processors."""
    written = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=1,
        do_sample=True,
        output_scores=True,
        return_dict_in_generate=True,
        temperature=settings.temperature,
        top_k=settings.top_k or 0,
        top_p=settings.top_p,
        min_p=settings.min_p or None,
        repetition_penalty=settings.repetition_penalty,
    )
    scores: torch.Tensor = written.scores[0][0]
    return scores.double().softmax(-1)


def _p_value(drawn: list[int], probabilities: torch.Tensor) -> float:
    """Of Pearson's chi-square test; 0 where something was drawn that has no probability."""
    counts, expected = torch.zeros_like(probabilities), probabilities * len(drawn)
    for token, count in Counter(drawn).items():
        counts[token] = count
    if counts[expected == 0].any():
        return 0.0
    rare = expected < LEAST_EXPECTED
    cells = [
        (counts[~rare], expected[~rare]),
        (counts[rare].sum()[None], expected[rare].sum()[None]),
    ]
    observed, wanted = (torch.cat(each) for each in zip(*cells, strict=True))
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    return float(
        torch.special.gammaincc(
            torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64), statistic / 2
        )
    )


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    """Its next token is one of some dozens."""
    return _model("llama with grouped heads", spread=0.4)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_tokens_are_drawn_as_often_as_the_model_and_the_settings_say(
    llama: PreTrainedModel, settings: SamplingSettings
) -> None:
    prompt = (5, 9, 5, 33, 70)
    texts = _written(
        llama,
        [Request(key, prompt, seed=key, max_new_tokens=2) for key in range(DRAWS)],
        settings,
        NEVER,
    ).values()

    firsts = [text.token_ids[0] for text in texts]
    likeliest = Counter(firsts).most_common(1)[0][0]
    behind_it = [text.token_ids[1] for text in texts if text.token_ids[0] == likeliest]
    assert _p_value(firsts, _probabilities(llama, prompt, settings)) > P_THRESHOLD
    assert _p_value(behind_it, _probabilities(llama, (*prompt, likeliest), settings)) > P_THRESHOLD


def test_the_test_of_distributions_sees_a_wrong_one(llama: PreTrainedModel) -> None:
    prompt = (5, 9, 5, 33, 70)
    probabilities = _probabilities(llama, prompt, PLAIN)
    texts = _written(
        llama,
        [Request(key, prompt, seed=key, max_new_tokens=1) for key in range(DRAWS)],
        replace(PLAIN, temperature=0.9),
        NEVER,
    )

    assert (probabilities * DRAWS > LEAST_EXPECTED).sum() > 20
    assert _p_value([text.token_ids[0] for text in texts.values()], probabilities) < P_THRESHOLD


@pytest.mark.parametrize("name", MODELS)
def test_greedy_texts_are_those_of_transformers_token_for_token(name: str) -> None:
    model = _model(name, spread=0.4)
    for penalty in (1.0, 1.4):
        full = [_greedy(model, prompt, penalty) for prompt in PROMPTS]
        end = full[0][NEW_TOKENS // 2]
        limits = [NEW_TOKENS - 3 * (number % 3) for number in range(2 * len(PROMPTS))]
        requests = [
            Request(key, PROMPTS[key // 2], seed=key, max_new_tokens=limit)
            for key, limit in enumerate(limits)
        ]

        written = _written(
            model,
            requests,
            replace(GREEDY, repetition_penalty=penalty),
            StopRules(frozenset({end})),
        )

        for key, limit in enumerate(limits):
            whole = full[key // 2][:limit]
            expected = (
                (whole[: whole.index(end)], "end_of_text") if end in whole else (whole, "length")
            )
            assert (written[key].token_ids, written[key].finish) == expected, (name, penalty, key)
        assert {each.finish for each in written.values()} == {"end_of_text", "length"}


def _greedy(model: PreTrainedModel, prompt: tuple[int, ...], penalty: float) -> list[int]:
    ids, mask = torch.tensor([prompt]), torch.ones(1, len(prompt), dtype=torch.long)
    written = model.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        repetition_penalty=penalty,
    )
    new: list[int] = written[0, len(prompt) :].tolist()
    return new
