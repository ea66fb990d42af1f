"""Words that are looked up give the ids that the library gives for the whole text."""

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
from tokenizers import Tokenizer
from trained_tokenizers import train_backend

from brimful.data import word_encoder
from brimful.data.builtin import python_code, python_docs
from brimful.data.tokens import batch_encoder
from brimful.data.word_encoder import WordEncoder, quickest_encoder

CHARACTERS = [chr(code) for code in range(128)]
KINDS = " \n\t\x0b\x0c\r\x1c\x00aZ09'._-srvelmtd"
"""Characters of every kind that words are parted by."""


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Every twentieth document of Python's library."""
    return [
        *itertools.islice(python_docs(), 0, None, 20),
        *itertools.islice(python_code(), 0, None, 20),
    ]


@pytest.fixture(scope="module")
def tokenizer(texts: list[str]) -> Tokenizer:
    return train_backend("bpe", 1024, 2, texts)


def _pairs() -> Iterator[str]:
    """Every pair of ASCII characters, and every four of some kinds."""
    yield "".join(one + other for one in CHARACTERS for other in CHARACTERS)
    yield from map("".join, itertools.product(CHARACTERS, repeat=2))
    draw = random.Random(0)
    for _ in range(2000):
        yield "".join(draw.choices(KINDS, k=draw.randrange(1, 40)))


def test_all_ids_are_those_of_the_library(tokenizer: Tokenizer, texts: list[str]) -> None:
    special = ["a <|endoftext|> b", "it's ½ <|endoftext|> 日本 they'll"]
    some = [*texts, *_pairs(), *special, "", "naïve text", "\u00a0x"]
    assert WordEncoder(tokenizer)(some) == batch_encoder(tokenizer)(some)


def test_forgetting_words_changes_nothing(
    tokenizer: Tokenizer, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_encoder, "MOST_CHARACTERS", 300)
    assert WordEncoder(tokenizer)(texts[:40]) == batch_encoder(tokenizer)(texts[:40])


@pytest.mark.parametrize(
    "make",
    [
        lambda texts: train_backend("bpe", 270, 2, texts, split_digits=True),
        lambda texts: train_backend("bpe", 270, 2, texts, lowercase=True),
        lambda texts: train_backend("character", None, 2, texts),
    ],
    ids=["digits apart", "small letters", "characters"],
)
def test_tokenizers_that_part_text_otherwise_are_left_to_the_library(
    make: Callable[[list[str]], Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_encoder, "usable_cores", lambda limits: 1)
    made = make(["The cat 12 sat on The mat 12, the dog 34 sat on the log 34\n"] * 4)
    assert not isinstance(quickest_encoder(made), WordEncoder)


@pytest.mark.parametrize(("cores", "by_words"), [(1, True), (2, True), (3, False)])
def test_with_many_cores_the_library_encodes(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, cores: int, by_words: bool
) -> None:
    monkeypatch.setattr(word_encoder, "usable_cores", lambda limits: cores)
    assert isinstance(quickest_encoder(tokenizer), WordEncoder) is by_words


@pytest.mark.parametrize("encoder", [False, True])
def test_an_encoders_tokenizer_is_encoded_by_words_too(
    encoder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_encoder, "usable_cores", lambda limits: 1)
    texts = ["the cat sat on [MASK] the mat [SEP]\n"] * 4
    made = train_backend("bpe", 262 + 5 * encoder, 2, texts, encoder=encoder)
    by_words = quickest_encoder(made)
    assert isinstance(by_words, WordEncoder)
    assert by_words(texts) == batch_encoder(made)(texts)
