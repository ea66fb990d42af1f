"""Generation with the cache, in batches, gives what one prompt at a time without a cache gives."""

from collections.abc import Callable

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from brimful.base.errors import RequestError
from brimful.generation.engine import Generation, TextStream, context_of, generate, text_behind
from brimful.generation.sampler import GREEDY, SamplingSettings, sample_seeds
from brimful.training.method import blocks_of

SAMPLED = SamplingSettings(1.0, 40, 0.95)
NOTHING = frozenset[int]()
PROMPTS = [[5, 9, 200], [17], [8, 3, 120, 44, 71, 250, 6, 99, 31], [1, 2, 3, 4, 5]]


def recorded_shapes(model: PreTrainedModel) -> list[tuple[int, int]]:
    """(rows, tokens) of every forward pass from now on."""
    shapes: list[tuple[int, int]] = []
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Module)
    embedding.register_forward_hook(lambda _, args, __: shapes.append(tuple(args[0].shape)))
    return shapes


def without_cache(model: PreTrainedModel, prompt: list[int], max_new_tokens: int) -> list[int]:
    """Greedy, reading the whole window again for every token; a full window goes on from its last half."""
    window, new = list(prompt), []
    with torch.no_grad():
        for _ in range(max_new_tokens):
            if len(window) > context_of(model):
                window = window[-(context_of(model) // 2) :]
            new.append(int(model(torch.tensor([window]), use_cache=False).logits[0, -1].argmax()))
            window.append(new[-1])
    return new


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_greedy_equals_transformers_token_for_token(model: PreTrainedModel, prompt: list[int]) -> None:
    theirs = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=20, eos_token_id=None, pad_token_id=0
    )
    ours = generate(model, [prompt], GREEDY, max_new_tokens=20, stop_ids=NOTHING, seeds=[0])
    assert ours == [Generation(theirs[0, len(prompt) :].tolist(), "length")]


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_batch_of_ragged_prompts_equals_one_by_one(model: PreTrainedModel, settings: SamplingSettings) -> None:
    seeds = sample_seeds(11, len(PROMPTS))
    together = generate(model, PROMPTS, settings, max_new_tokens=20, stop_ids=NOTHING, seeds=seeds)
    alone = [
        generate(model, [prompt], settings, max_new_tokens=20, stop_ids=NOTHING, seeds=[seed])[0] for prompt, seed in zip(PROMPTS, seeds, strict=True)
    ]
    assert together == alone


def test_rows_that_outgrow_the_context_go_on_from_its_last_half(model: PreTrainedModel) -> None:
    ours = generate(model, PROMPTS, GREEDY, max_new_tokens=80, stop_ids=NOTHING, seeds=[0] * len(PROMPTS))
    assert [row.token_ids for row in ours] == [without_cache(model, prompt, 80) for prompt in PROMPTS]


def test_a_prompt_that_fills_the_context_is_served(model: PreTrainedModel) -> None:
    prompt = list(range(1, context_of(model) + 1))
    ours = generate(model, [prompt], GREEDY, max_new_tokens=3, stop_ids=NOTHING, seeds=[0])
    assert ours[0].token_ids == without_cache(model, prompt, 3)


def test_samples_of_one_prompt_differ_and_share_one_prefill(model: PreTrainedModel) -> None:
    shapes = recorded_shapes(model)
    samples = generate(model, [PROMPTS[2]] * 6, SAMPLED, max_new_tokens=10, stop_ids=NOTHING, seeds=sample_seeds(0, 6))
    assert shapes == [(1, len(PROMPTS[2]))] + [(6, 1)] * 9
    assert len({tuple(sample.token_ids) for sample in samples}) == 6


def test_a_row_stops_at_a_stop_token_and_leaves_the_batch(model: PreTrainedModel) -> None:
    whole = generate(model, PROMPTS, SAMPLED, max_new_tokens=20, stop_ids=NOTHING, seeds=[1, 2, 3, 4])
    stop = next(token for token in whole[1].token_ids[3:] if all(token not in row.token_ids for row in (whole[0], whole[2], whole[3])))
    stopped_after = whole[1].token_ids.index(stop)
    shapes = recorded_shapes(model)
    ours = generate(model, PROMPTS, SAMPLED, max_new_tokens=20, stop_ids=frozenset({stop}), seeds=[1, 2, 3, 4])
    assert ours == [whole[0], Generation(whole[1].token_ids[:stopped_after], "end_of_text"), whole[2], whole[3]]
    assert shapes == [(4, 9)] + [(4, 1)] * stopped_after + [(3, 1)] * (19 - stopped_after)


def test_tokens_are_told_as_they_are_drawn_without_the_stop_token(model: PreTrainedModel) -> None:
    told: list[tuple[int, int]] = []
    first = generate(model, PROMPTS[:1], GREEDY, max_new_tokens=1, stop_ids=NOTHING, seeds=[0])[0].token_ids[0]
    rows = generate(
        model, PROMPTS[:2], GREEDY, max_new_tokens=4, stop_ids=frozenset({first}), seeds=[0, 0], on_token=lambda row, token: told.append((row, token))
    )
    assert rows[0] == Generation([], "end_of_text")
    assert told == [(1, token) for token in rows[1].token_ids]
    assert len(told) == 4


def test_a_training_model_is_put_back_into_training_mode_also_after_an_error(model: PreTrainedModel) -> None:
    model.train()
    generate(model, [[1]], GREEDY, max_new_tokens=1, stop_ids=NOTHING, seeds=[0])
    assert model.training
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(RequestError, match="not finite"):
        generate(model, [[1]], GREEDY, max_new_tokens=1, stop_ids=NOTHING, seeds=[0])
    assert model.training


@pytest.mark.parametrize(
    ("prompts", "max_new_tokens", "seeds", "said"),
    [
        ([list(range(33))], 5, [0], "33 tokens, the model reads at most 32.*by 1 tokens"),
        ([[1], []], 5, [0, 0], "prompt 1 has no tokens"),
        ([[300]], 5, [0], "token id 300"),
        ([[-1]], 5, [0], "token id -1"),
        ([[1]], 0, [0], "max_new_tokens"),
        ([[1]], 5, [], "seeds"),
    ],
)
def test_requests_that_cannot_be_served_say_why(
    model: PreTrainedModel, prompts: list[list[int]], max_new_tokens: int, seeds: list[int], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        generate(model, prompts, GREEDY, max_new_tokens=max_new_tokens, stop_ids=NOTHING, seeds=seeds)


def small_device(model: PreTrainedModel, fails: Callable[[int, int], bool]) -> list[tuple[int, int]]:
    """Shapes (rows, tokens) of the passes from now on; those run out of memory where `fails(pass number, rows)` says so."""
    shapes: list[tuple[int, int]] = []

    def look(_: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        shapes.append((args[0].shape[0], args[0].shape[1]))
        if fails(len(shapes), shapes[-1][0]):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    blocks_of(model)[-1].register_forward_pre_hook(look)
    return shapes


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_out_of_memory_lets_half_the_rows_go_on_and_changes_no_text(model: PreTrainedModel, settings: SamplingSettings) -> None:
    seeds = sample_seeds(11, len(PROMPTS))
    told: list[tuple[int, int]] = []
    usual = generate(model, PROMPTS, settings, max_new_tokens=80, stop_ids=NOTHING, seeds=seeds)
    shapes = small_device(model, lambda number, rows: number > 10 and rows > 1)
    ours = generate(model, PROMPTS, settings, max_new_tokens=80, stop_ids=NOTHING, seeds=seeds, on_token=lambda row, token: told.append((row, token)))
    assert ours == usual
    assert [rows for rows, _ in shapes[:14]] == [4] * 11 + [2, 1, 1]
    assert {row: [token for told_row, token in told if told_row == row] for row in range(4)} == dict(enumerate(row.token_ids for row in usual))


def test_when_not_even_one_row_fits_the_error_says_so(model: PreTrainedModel) -> None:
    small_device(model, lambda number, rows: number > 3)
    with pytest.raises(RequestError, match=r"out of memory \(tried to allocate 20.00 MiB\) with one text of 6 tokens.*shorter text"):
        generate(model, PROMPTS[:2], GREEDY, max_new_tokens=9, stop_ids=NOTHING, seeds=[0, 0])


def test_no_prompts_give_no_texts(model: PreTrainedModel) -> None:
    assert generate(model, [], GREEDY, max_new_tokens=5, stop_ids=NOTHING, seeds=[]) == []


def pieces_of(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer)
    return [*(stream.push(token) for token in ids), stream.flush()]


@pytest.mark.parametrize("text", ["the cat sat", "naïve café — 東京 \U0001f469‍\U0001f52c!", "\n\n  spaces\t", "a\ufffdb\ufffd", ""])
def test_streamed_text_is_the_text_and_every_piece_is_whole_characters(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
        assert pieces[-1] == ""


def test_text_comes_as_soon_as_its_character_is_whole(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("é!", add_special_tokens=False)
    assert pieces_of(tokenizer, ids) == ["", "é", "!", ""]


def test_a_character_that_never_becomes_whole_shows_at_the_end(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("a東", add_special_tokens=False)
    assert pieces_of(tokenizer, ids[:-1]) == ["a", "", "", "\ufffd"]


def test_the_space_between_a_prompt_and_its_continuation_is_kept() -> None:
    """A decoder of Llama 2's kind takes it from a text's first token."""
    words = Tokenizer(models.WordLevel({"\u2581def": 0, "\u2581add": 1, "<s>": 2}, unk_token="<s>"))  # noqa: S106
    words.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<s>")  # noqa: S106
    stream = TextStream(tokenizer, [2, 0])

    assert tokenizer.decode([1]) == "add"
    assert text_behind(tokenizer, [0], [1]) == stream.push(1) == " add"
    assert text_behind(tokenizer, [0], []) == stream.flush() == ""


def test_characters_of_several_tokens_on_both_sides_stay_whole() -> None:
    """Tokens that are bytes say something only together."""
    bytes_only = {"<s>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    model = Tokenizer(models.BPE(bytes_only, [], unk_token="<s>", byte_fallback=True))  # noqa: S106
    model.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<s>")  # noqa: S106
    ids = [byte + 1 for byte in "\u6771".encode()]
    stream = TextStream(tokenizer, ids)

    assert text_behind(tokenizer, ids, ids) == "\u6771"
    assert "".join([*map(stream.push, ids), stream.flush()]) == "\u6771"


def test_streaming_any_tokens_equals_decoding_them_at_once(tokenizer: PreTrainedTokenizerFast) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        ids = torch.randint(0, 300, (40,), generator=generator).tolist()
        assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)
