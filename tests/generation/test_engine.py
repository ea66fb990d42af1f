"""Generation with the cache, in batches, gives what one prompt at a time without a cache gives."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from fixture_types import Refuses
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from brimful.base.errors import RequestError
from brimful.generation.engine import Engine, generate, longest_first
from brimful.generation.requests import Generation, Request, StopRules
from brimful.generation.sampler import GREEDY, SamplingSettings, sample_seeds
from brimful.generation.slots import Slots
from brimful.generation.text import ends_in_loop, first_stop, text_behind
from brimful.model.blocks import context_of
from brimful.training.method import blocks_of

SAMPLED = SamplingSettings(1.0, 40, 0.95)
NOTHING = frozenset[int]()
NEVER = StopRules(NOTHING)
PROMPTS = [[5, 9, 200], [17], [8, 3, 120, 44, 71, 250, 6, 99, 31], [1, 2, 3, 4, 5]]


def recorded_shapes(model: PreTrainedModel) -> list[tuple[int, int]]:
    """(rows, tokens) of every forward pass from now on."""
    shapes: list[tuple[int, int]] = []
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Module)
    embedding.register_forward_hook(lambda _, args, __: shapes.append(tuple(args[0].shape)))
    return shapes


def without_cache(model: PreTrainedModel, prompt: list[int], max_new_tokens: int) -> list[int]:
    """Greedy, reading the whole window again for every token; a full window goes on from its last
    half.
    """
    window, new = list(prompt), []
    with torch.no_grad():
        for _ in range(max_new_tokens):
            if len(window) > context_of(model):
                window = window[-(context_of(model) // 2) :]
            new.append(int(model(torch.tensor([window]), use_cache=False).logits[0, -1].argmax()))
            window.append(new[-1])
    return new


@pytest.mark.parametrize("penalty", [1.0, 1.4], ids=["plain", "penalised"])
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_greedy_equals_transformers_token_for_token(
    model: PreTrainedModel, prompt: list[int], penalty: float
) -> None:
    theirs = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        do_sample=False,
        max_new_tokens=20,
        eos_token_id=None,
        pad_token_id=0,
        repetition_penalty=penalty,
    )
    ours = generate(
        model,
        [prompt],
        replace(GREEDY, repetition_penalty=penalty),
        max_new_tokens=20,
        stop_ids=NOTHING,
        seeds=[0],
    )
    assert ours == [Generation(theirs[0, len(prompt) :].tolist(), "length")]


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_batch_of_ragged_prompts_equals_one_by_one(
    model: PreTrainedModel, settings: SamplingSettings
) -> None:
    seeds = sample_seeds(11, len(PROMPTS))
    together = generate(model, PROMPTS, settings, max_new_tokens=20, stop_ids=NOTHING, seeds=seeds)
    alone = [
        generate(model, [prompt], settings, max_new_tokens=20, stop_ids=NOTHING, seeds=[seed])[0]
        for prompt, seed in zip(PROMPTS, seeds, strict=True)
    ]
    assert together == alone


def test_rows_that_outgrow_the_context_go_on_from_its_last_half(model: PreTrainedModel) -> None:
    ours = generate(
        model, PROMPTS, GREEDY, max_new_tokens=80, stop_ids=NOTHING, seeds=[0] * len(PROMPTS)
    )
    assert [row.token_ids for row in ours] == [
        without_cache(model, prompt, 80) for prompt in PROMPTS
    ]


def test_a_prompt_that_fills_the_context_is_served(model: PreTrainedModel) -> None:
    prompt = list(range(1, context_of(model) + 1))
    ours = generate(model, [prompt], GREEDY, max_new_tokens=3, stop_ids=NOTHING, seeds=[0])
    assert ours[0].token_ids == without_cache(model, prompt, 3)


def test_samples_of_one_prompt_differ_and_share_one_prefill(model: PreTrainedModel) -> None:
    shapes = recorded_shapes(model)
    samples = generate(
        model,
        [PROMPTS[2]] * 6,
        SAMPLED,
        max_new_tokens=10,
        stop_ids=NOTHING,
        seeds=sample_seeds(0, 6),
    )
    assert shapes == [(1, len(PROMPTS[2]))] + [(6, 1)] * 9
    assert len({tuple(sample.token_ids) for sample in samples}) == 6


def test_a_row_stops_at_a_stop_token_and_leaves_the_batch(model: PreTrainedModel) -> None:
    whole = generate(
        model, PROMPTS, SAMPLED, max_new_tokens=20, stop_ids=NOTHING, seeds=[1, 2, 3, 4]
    )
    stop = next(
        token
        for token in whole[1].token_ids[3:]
        if all(token not in row.token_ids for row in (whole[0], whole[2], whole[3]))
    )
    stopped_after = whole[1].token_ids.index(stop)
    shapes = recorded_shapes(model)
    ours = generate(
        model, PROMPTS, SAMPLED, max_new_tokens=20, stop_ids=frozenset({stop}), seeds=[1, 2, 3, 4]
    )
    assert ours == [
        whole[0],
        Generation(whole[1].token_ids[:stopped_after], "end_of_text"),
        whole[2],
        whole[3],
    ]
    assert shapes == [(4, 9)] + [(4, 1)] * stopped_after + [(3, 1)] * (19 - stopped_after)


def test_tokens_are_told_as_they_are_drawn_without_the_stop_token(model: PreTrainedModel) -> None:
    told: list[tuple[int, int]] = []
    first = generate(model, PROMPTS[:1], GREEDY, max_new_tokens=1, stop_ids=NOTHING, seeds=[0])[
        0
    ].token_ids[0]
    rows = generate(
        model,
        PROMPTS[:2],
        GREEDY,
        max_new_tokens=4,
        stop_ids=frozenset({first}),
        seeds=[0, 0],
        on_token=lambda row, token, _: told.append((row, token)),
    )
    assert rows[0] == Generation([], "end_of_text")
    assert told == [(1, token) for token in rows[1].token_ids]
    assert len(told) == 4


def test_a_text_ends_where_its_reader_says_so(model: PreTrainedModel) -> None:
    """The other texts are what they are without it."""
    settings = {"max_new_tokens": 12, "stop_ids": NOTHING, "seeds": [0, 0]}
    whole = generate(model, PROMPTS[:2], GREEDY, **settings)
    told: list[int] = []

    def is_enough(row: int, token: int, logprob: float | None) -> bool:
        told.append(row)
        return row == 0 and told.count(0) == 3

    ended, other = generate(model, PROMPTS[:2], GREEDY, **settings, on_token=is_enough)
    assert ended == Generation(whole[0].token_ids[:3], "stop")
    assert other == whole[1]


def test_texts_are_drawn_by_their_own_settings(model: PreTrainedModel) -> None:
    """Side by side as each alone, with the logprobs that a reader is told, too."""
    several = [None, GREEDY, SamplingSettings(0.7, 5, 1.0), SAMPLED]
    told: dict[int, list[float | None]] = {}
    requests = [
        Request(key, tuple(ids), key, 8, settings)
        for key, (ids, settings) in enumerate(zip(PROMPTS, several, strict=True))
    ]
    found = Engine(model).stream(
        requests,
        SAMPLED,
        NEVER,
        logprobs=True,
        on_token=lambda key, _, logprob: told.setdefault(key, []).append(logprob),
    )
    together = {request.key: written for request, written in found}
    for key, (ids, settings) in enumerate(zip(PROMPTS, several, strict=True)):
        alone = generate(
            model, [ids], settings or SAMPLED, max_new_tokens=8, stop_ids=NOTHING, seeds=[key]
        )
        assert together[key].token_ids == alone[0].token_ids
        assert together[key].logprobs == told[key]


class Late:
    """Requests, of which some come only when others are being written."""

    def __init__(self, requests: list[Request | None]) -> None:
        self.left = requests

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        if not self.left or (request := self.left.pop(0)) is None:
            raise StopIteration
        return request


def test_requests_that_come_later_are_written_too(model: PreTrainedModel) -> None:
    first, second = (Request(key, tuple(PROMPTS[key]), 0, 6) for key in range(2))
    late = Late([first, None, None, second])
    found = Engine(model).stream(late, GREEDY, NEVER)
    assert [request.key for request, _ in found] == [0, 1]


def test_a_training_model_is_put_back_into_training_mode_also_after_an_error(
    model: PreTrainedModel,
    refuses: Refuses,
) -> None:
    model.train()
    generate(model, [[1]], GREEDY, max_new_tokens=1, stop_ids=NOTHING, seeds=[0])
    assert model.training
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with refuses(RequestError):
        generate(model, [[1]], GREEDY, max_new_tokens=1, stop_ids=NOTHING, seeds=[0])
    assert model.training


@pytest.mark.parametrize(
    ("prompts", "max_new_tokens", "seeds"),
    [
        ([list(range(33))], 5, [0]),
        ([[1], []], 5, [0, 0]),
        ([[300]], 5, [0]),
        ([[-1]], 5, [0]),
        ([[1]], 0, [0]),
        ([[1]], 5, []),
    ],
)
def test_requests_that_cannot_be_served_say_why(
    model: PreTrainedModel,
    prompts: list[list[int]],
    max_new_tokens: int,
    seeds: list[int],
    refuses: Refuses,
) -> None:
    with refuses(RequestError):
        generate(
            model, prompts, GREEDY, max_new_tokens=max_new_tokens, stop_ids=NOTHING, seeds=seeds
        )


def small_device(
    model: PreTrainedModel, fails: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """Shapes (rows, tokens) of the passes from now on; those run out of memory where `fails(pass
    number, rows)` says so.
    """
    shapes: list[tuple[int, int]] = []

    def look(_: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        shapes.append((args[0].shape[0], args[0].shape[1]))
        if fails(len(shapes), shapes[-1][0]):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    blocks_of(model)[-1].register_forward_pre_hook(look)
    return shapes


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_out_of_memory_lets_half_the_rows_go_on_and_changes_no_text(
    model: PreTrainedModel, settings: SamplingSettings
) -> None:
    seeds = sample_seeds(11, len(PROMPTS))
    told: list[tuple[int, int]] = []
    usual = generate(model, PROMPTS, settings, max_new_tokens=24, stop_ids=NOTHING, seeds=seeds)
    shapes = small_device(model, lambda number, rows: number > 10 and rows > 1)
    ours = generate(
        model,
        PROMPTS,
        settings,
        max_new_tokens=24,
        stop_ids=NOTHING,
        seeds=seeds,
        on_token=lambda row, token, _: told.append((row, token)),
    )
    assert ours == usual
    assert [rows for rows, _ in shapes[:14]] == [4] * 11 + [2, 1, 1]
    assert {
        row: [token for told_row, token in told if told_row == row] for row in range(4)
    } == dict(enumerate(row.token_ids for row in usual))


def test_when_not_even_one_row_fits_the_error_says_so(
    model: PreTrainedModel, refuses: Refuses
) -> None:
    small_device(model, lambda number, rows: number > 3)
    with refuses(RequestError, names=["20.00", "6 tokens"]):
        generate(model, PROMPTS[:2], GREEDY, max_new_tokens=9, stop_ids=NOTHING, seeds=[0, 0])


def test_no_prompts_give_no_texts(model: PreTrainedModel) -> None:
    assert generate(model, [], GREEDY, max_new_tokens=5, stop_ids=NOTHING, seeds=[]) == []


def uneven(count: int) -> list[Request]:
    """Requests whose prompts and lengths differ; some prompts stand in several of them."""
    return [
        Request(key, tuple(PROMPTS[key // 2 % len(PROMPTS)]), 7 * key, 1 + key * 5 % 17)
        for key in range(count)
    ]


def streamed(
    engine: Engine,
    requests: list[Request],
    settings: SamplingSettings = SAMPLED,
    stop: StopRules = NEVER,
) -> dict[int, Generation]:
    return {
        request.key: generation for request, generation in engine.stream(requests, settings, stop)
    }


@pytest.mark.parametrize(
    "settings",
    [SAMPLED, replace(SAMPLED, repetition_penalty=1.3, min_p=0.02)],
    ids=["sampled", "penalised"],
)
def test_a_text_is_the_same_alone_and_among_others_that_enter_and_leave(
    model: PreTrainedModel, settings: SamplingSettings
) -> None:
    requests = uneven(64)
    together = streamed(Engine(model, most_rows=64), requests, settings)
    for rows in (1, 5):
        assert streamed(Engine(model, most_rows=rows), requests[:16], settings) == {
            key: together[key] for key in range(16)
        }
    assert [len(together[request.key].token_ids) for request in requests] == [
        request.max_new_tokens for request in requests
    ]


def test_a_text_that_outgrows_the_context_beside_others_is_the_same_alone(
    model: PreTrainedModel,
) -> None:
    requests = [
        Request(key, tuple(PROMPTS[key % 4]), key, 40 if key % 3 else 4) for key in range(6)
    ]
    assert streamed(Engine(model, most_rows=4), requests) == streamed(
        Engine(model, most_rows=1), requests
    )


def test_a_place_that_a_text_leaves_is_taken_by_one_that_waits(model: PreTrainedModel) -> None:
    requests = [Request(key, (1, 2), key, 10 if key == 0 else 5) for key in range(3)]
    shapes = recorded_shapes(model)
    order = [
        request.key
        for request, _ in Engine(model, most_rows=2).stream(requests, SAMPLED, StopRules(NOTHING))
    ]
    assert shapes == [(1, 2), *[(2, 1)] * 8, (1, 1)]
    assert order == [1, 2, 0]


def test_requests_are_taken_only_when_there_is_room_and_closing_takes_no_more(
    model: PreTrainedModel,
) -> None:
    taken: list[int] = []

    def asked() -> Iterator[Request]:
        for key in range(50):
            taken.append(key)
            yield Request(key, (1, 2), key, 3)

    model.train()
    stream = Engine(model, most_rows=4).stream(asked(), SAMPLED, StopRules(NOTHING))
    next(stream)
    assert taken == [0, 1, 2, 3]
    assert not torch.is_inference_mode_enabled()
    assert isinstance(stream, Iterator)
    stream.close()  # type: ignore[attr-defined]
    assert taken == [0, 1, 2, 3]
    assert model.training


def test_rows_keep_to_the_positions_that_they_may_take_together(model: PreTrainedModel) -> None:
    shapes = recorded_shapes(model)
    streamed(Engine(model, most_tokens=30), [Request(key, (1, 2, 3), key, 7) for key in range(7)])
    assert max(rows for rows, _ in shapes) == 3


def test_memory_that_runs_out_among_texts_that_come_and_go_changes_none(
    model: PreTrainedModel,
) -> None:
    requests = uneven(20)
    usual = streamed(Engine(model, most_rows=6), requests)
    shapes = small_device(model, lambda number, rows: number > 12 and rows > 3)
    assert streamed(Engine(model, most_rows=6), requests) == usual
    assert max(rows for rows, _ in shapes[20:]) <= 3


def test_memory_that_runs_out_as_all_running_texts_end_loses_no_waiting_one(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [Request(key, (1, 2, 3), key, 4) for key in range(6)]
    usual = streamed(Engine(model, most_rows=2), requests)
    leave, failures = (
        Slots.leave,
        [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")],
    )

    def failing(self: Slots, leaving: Sequence[int]) -> list[int]:
        if failures:
            raise failures.pop()
        return leave(self, leaving)

    monkeypatch.setattr(Slots, "leave", failing)
    assert streamed(Engine(model, most_rows=2), requests) == usual
    assert not failures


def test_log_probabilities_are_those_of_the_model_without_filters(model: PreTrainedModel) -> None:
    requests = uneven(6)
    for request, generation in Engine(model, most_rows=4).stream(
        requests, SAMPLED, StopRules(NOTHING), logprobs=True
    ):
        ids = torch.tensor([[*request.prompt_ids, *generation.token_ids]])
        with torch.no_grad():
            expected = (
                model(ids)
                .logits[0, len(request.prompt_ids) - 1 : -1]
                .log_softmax(-1)
                .gather(1, ids[0, len(request.prompt_ids) :, None])[:, 0]
            )
        assert generation.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_stop_text_ends_at_the_token_that_completes_it(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    requests = [Request(key, tuple(PROMPTS[key % 4]), key, 24) for key in range(8)]
    whole = streamed(Engine(model), requests)
    texts = {
        request.key: text_behind(tokenizer, request.prompt_ids, whole[request.key].token_ids)
        for request in requests
    }
    stops = (texts[0][9:12], texts[1][5])
    ours = streamed(Engine(model, tokenizer), requests, stop=StopRules(NOTHING, stops))
    for request in requests:
        ids = whole[request.key].token_ids
        ends = [
            end
            for end in range(1, len(ids) + 1)
            if first_stop(text_behind(tokenizer, request.prompt_ids, ids[:end]), stops) is not None
        ]
        expected = Generation(ids[: ends[0]], "stop") if ends else whole[request.key]
        assert ours[request.key] == expected
    assert ours[0].finish == ours[1].finish == "stop"


def test_a_greedy_text_in_a_loop_ends_early_where_that_is_wanted() -> None:
    """What it wrote until then is what it would have written anyway. Without blocks the next token
    depends on the last one alone, so that every text runs into a circle.
    """
    config = LlamaConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=0, max_position_embeddings=512
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    requests = [Request(key, tuple(PROMPTS[key]), key, 320) for key in range(4)]
    whole = streamed(Engine(model), requests, GREEDY)
    ended = streamed(Engine(model), requests, GREEDY, stop=StopRules(NOTHING, loops=True))
    assert {each.finish for each in whole.values()} == {"length"}
    assert "loop" in {each.finish for each in ended.values()}
    for key, each in ended.items():
        assert each.token_ids == whole[key].token_ids[: len(each.token_ids)]
        assert (each.finish == "loop") == ends_in_loop(each.token_ids)
        assert (each.finish == "loop") == (len(each.token_ids) < 320)


def test_empty_stop_texts_and_stop_texts_without_a_tokenizer_are_refused(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, refuses: Refuses
) -> None:
    for engine, texts in ((Engine(model), ("a",)), (Engine(model, tokenizer), ("a", ""))):
        with refuses(RequestError):
            streamed(engine, uneven(1), stop=StopRules(NOTHING, texts))


def test_the_longest_texts_come_first_and_equal_prompts_together() -> None:
    requests = [
        Request(0, (1,), 0, 9),
        Request(1, (2, 2), 0, 9),
        Request(2, (1,), 1, 9),
        Request(3, (3, 3), 0, 9),
        Request(4, (2, 2), 1, 9),
    ]
    assert [request.key for request in longest_first(requests)] == [3, 1, 4, 0, 2]
