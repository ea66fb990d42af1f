"""Text comes in whole characters, reads as it would as a whole, and ends at its stop texts."""

import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from brimful.generation.text import (
    StopFinder,
    TextStream,
    ends_in_loop,
    first_stop,
    text_behind,
    text_ends_in_loop,
)


def pieces_of(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer)
    return [*(stream.push(token) for token in ids), stream.flush()]


@pytest.mark.parametrize(
    "text",
    [
        "the cat sat",
        "naïve café — 東京 \U0001f469‍\U0001f52c!",
        "\n\n  spaces\t",
        "a\ufffdb\ufffd",
        "",
    ],
)
def test_streamed_text_is_the_text_and_every_piece_is_whole_characters(
    tokenizer: PreTrainedTokenizerFast, text: str
) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
        assert pieces[-1] == ""


def test_text_comes_as_soon_as_its_character_is_whole(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("é!", add_special_tokens=False)
    assert pieces_of(tokenizer, ids) == ["", "é", "!", ""]


def test_a_character_that_never_becomes_whole_shows_at_the_end(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    ids = tokenizer.encode("a東", add_special_tokens=False)
    assert pieces_of(tokenizer, ids[:-1]) == ["a", "", "", "\ufffd"]


def test_the_space_between_a_prompt_and_its_continuation_is_kept() -> None:
    """A decoder of Llama 2's kind takes it from a text's first token."""
    words = Tokenizer(models.WordLevel({"\u2581def": 0, "\u2581add": 1, "<s>": 2}, unk_token="<s>"))
    words.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<s>")
    stream = TextStream(tokenizer, [2, 0])

    assert tokenizer.decode([1]) == "add"
    assert text_behind(tokenizer, [0], [1]) == stream.push(1) == " add"
    assert text_behind(tokenizer, [0], []) == stream.flush() == ""


def test_characters_of_several_tokens_on_both_sides_stay_whole() -> None:
    """Tokens that are bytes say something only together."""
    bytes_only = {"<s>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    model = Tokenizer(models.BPE(bytes_only, [], unk_token="<s>", byte_fallback=True))
    model.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<s>")
    ids = [byte + 1 for byte in "\u6771".encode()]
    stream = TextStream(tokenizer, ids)

    assert text_behind(tokenizer, ids, ids) == "\u6771"
    assert "".join([*map(stream.push, ids), stream.flush()]) == "\u6771"


def test_streaming_any_tokens_equals_decoding_them_at_once(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        ids = torch.randint(0, 300, (40,), generator=generator).tolist()
        assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


def test_the_first_stop_text_is_the_one_that_stands_first() -> None:
    assert first_stop("one two three", ("three", "two", "four")) == 4
    assert first_stop("one", ("two",)) is None


@pytest.mark.parametrize(
    "stops",
    [("at",), ("e c", "xyz"), ("\u6771",), ("cat sat on the mat",), ("\ufffd",), (" ",)],
    ids=repr,
)
def test_a_stop_text_is_found_with_the_token_that_completes_it(
    tokenizer: PreTrainedTokenizerFast, stops: tuple[str, ...]
) -> None:
    """As decoding the whole text after every token finds it, also across tokens, inside them, and
    between end-of-text tokens that say nothing.
    """
    drawn = random.Random(0)
    pieces = ["the cat ", "sat on the mat", " \u6771\u4eac", "e", " c", "at", "\u00e9"]
    for _ in range(40):
        prompt = tokenizer.encode(drawn.choice(pieces))
        ids = tokenizer.encode("".join(drawn.choices(pieces, k=6)))
        for _ in range(drawn.randrange(20)):
            ids.insert(drawn.randrange(len(ids)), drawn.choice([0, drawn.randrange(300)]))
        finder = StopFinder(tokenizer, stops)
        found = next(
            (end for end in range(1, len(ids) + 1) if finder.completes(prompt, ids[:end])), None
        )
        wanted = (
            end
            for end in range(1, len(ids) + 1)
            if first_stop(text_behind(tokenizer, prompt, ids[:end]), stops) is not None
        )
        assert found == next(wanted, None)


@pytest.mark.parametrize(
    ("ids", "is_loop"),
    [
        ([1, 2, 3, 4, 5] * 10, True),
        ([9, 9, 7, *[1, 2, 3, 4, 5] * 10, 1, 2], True),
        ([1, 2, 3, 4, 5] * 5, False),
        ([7] * 47, False),
        ([7] * 48, True),
        ([*[1, 2, 3, 4, 5] * 10, 6], False),
        (list(range(500)), False),
        ([], False),
    ],
)
def test_a_part_that_comes_again_and_again_at_the_end_is_a_loop(
    ids: list[int], is_loop: bool
) -> None:
    assert ends_in_loop(ids) is is_loop


def test_numbers_that_count_up_are_a_loop_in_words() -> None:
    """`243 + 1 = 244.` and so on: no token stands there twice in the same place."""
    counting = " ".join(f"{number} + 1 = {number + 1}." for number in range(243, 255))
    assert text_ends_in_loop(f"1 hour = 60 minutes. {counting} 255 +")


def test_a_worked_answer_is_no_loop() -> None:
    spelled = (
        "1 mile = 5280 feet. 30 x 5280 = 158400. 7 x 5280 = 36960. 158400 + 36960 = 195360."
        " <answer>195360</answer>"
    )
    assert not text_ends_in_loop(spelled)
    assert not text_ends_in_loop("")
