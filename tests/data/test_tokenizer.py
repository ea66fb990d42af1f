"""Tokenizers are trained here, lose nothing, and load as transformers' own."""

import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from fixture_types import Refuses
from trained_tokenizers import train_backend, train_tokenizer
from transformers import AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from brimful.base.errors import DataError
from brimful.data.tokenizer import (
    TokenizerReport,
    check_compression,
    refuse_unknown_ids,
    round_trips,
    tokenizer_fingerprint,
    verdict,
)
from brimful.data.tokens import batch_encoder
from brimful.model.description import CLS_ID, ENCODER_TOKENS, MASK_ID, PAD_ID, SEP_ID

TEXTS = [
    "def add(a, b):\n    return a + b\n",
    "the cat , the hat . it 's n't\r\n\n\n  the end",
    "naïve 日本 🙂 <|endoftext|> the end",
] * 4
UNSEEN = "Ж\x00\u200b <|unknown|> \t the\n\n cat's"


@pytest.mark.parametrize("kind", ["bpe", "character"])
def test_training_text_comes_back_exactly(kind: str) -> None:
    """Spaces before punctuation, line ends, accents, emoji and the spelling of special tokens
    included.
    """
    tokenizer = train_tokenizer(kind, 280 if kind == "bpe" else None, 2, TEXTS)  # type: ignore[arg-type]
    assert round_trips(tokenizer, TEXTS)
    assert (
        tokenizer.eos_token,
        tokenizer.eos_token_id,
        tokenizer.clean_up_tokenization_spaces,
    ) == ("<|endoftext|>", 0, False)


def test_a_byte_level_tokenizer_knows_every_text() -> None:
    """All 256 bytes are in the alphabet: no unknown token exists, and the vocabulary has the size
    asked for.
    """
    tokenizer = train_tokenizer("bpe", 280, 2, TEXTS)
    assert len(tokenizer) == 280
    assert tokenizer.unk_token is None
    assert round_trips(tokenizer, [UNSEEN, "".join(map(chr, range(0x500)))])


def test_digits_can_be_tokens_of_their_own() -> None:
    """Where they would else be merged; everything still comes back, and the tokenizer is another
    one.
    """
    texts = ["2024 plus 2024 is 4048, not 2024.2024\n"] * 4
    together, apart = (
        train_tokenizer("bpe", 262, 2, texts, split_digits=split) for split in (False, True)
    )
    assert any(sum(map(str.isdigit, token)) > 1 for token in together.get_vocab())
    assert not any(
        sum(map(str.isdigit, token)) and len(token) > 1
        for token in apart.get_vocab()
        if token != apart.eos_token
    )
    assert round_trips(apart, [*texts, UNSEEN])
    assert tokenizer_fingerprint(together) != tokenizer_fingerprint(apart)


def test_a_character_tokenizer_has_one_token_per_character() -> None:
    """And a token for those it has never seen, so their text does not come back."""
    tokenizer = train_tokenizer("character", None, 2, ["abba", "ca"])
    assert tokenizer.get_vocab() == {"<|endoftext|>": 0, "<|unknown|>": 1, "a": 2, "b": 3, "c": 4}
    assert batch_encoder(tokenizer)(["cabx"]) == [[4, 2, 3, 1]]
    assert not round_trips(tokenizer, ["cabx"])


@pytest.mark.parametrize("kind", ["bpe", "character"])
def test_auto_tokenizer_loads_the_same_tokenizer_beside_a_model(tmp_path: Path, kind: str) -> None:
    """The config of a llama in the same folder must not turn it into a llama tokenizer."""
    tokenizer = train_tokenizer(kind, 280 if kind == "bpe" else None, 2, TEXTS)  # type: ignore[arg-type]
    tokenizer.save_pretrained(tmp_path)
    LlamaConfig(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(tokenizer)
    assert loaded("the cat").input_ids == batch_encoder(tokenizer)(["the cat"])[0]
    assert loaded.decode(loaded(TEXTS[1]).input_ids) == TEXTS[1]


@pytest.mark.parametrize("kind", ["bpe", "character"])
def test_text_that_spells_end_of_text_is_text(kind: str) -> None:
    """A document about language models must not end in its middle."""
    tokenizer = train_tokenizer(kind, 280 if kind == "bpe" else None, 2, TEXTS)  # type: ignore[arg-type]
    (ids,) = batch_encoder(tokenizer)(["a <|endoftext|> b"])
    assert tokenizer.eos_token_id not in ids


def test_a_vocabulary_the_text_does_not_support_says_which_it_does(
    refuses: Refuses,
) -> None:
    """With that number it works."""
    with refuses(DataError, names=["tokenizer.vocabulary=5000"]) as caught:
        train_tokenizer("bpe", 5000, 2, TEXTS)
    supported = int(str(caught.value).split("it gives ")[1].split(" ")[0])
    assert len(train_tokenizer("bpe", supported, 2, TEXTS)) == supported


def test_the_same_text_gives_the_same_tokenizer() -> None:
    """And other text another."""
    first, second = (tokenizer_fingerprint(train_tokenizer("bpe", 280, 2, TEXTS)) for _ in range(2))
    assert first == second != tokenizer_fingerprint(train_tokenizer("bpe", 270, 2, TEXTS))


@pytest.mark.parametrize(
    ("ratio", "word"),
    [(1.49, "fail"), (1.5, "low"), (2.5, "good"), (3.49, "good"), (3.5, "excellent")],
)
def test_compression_is_judged_by_the_guides_gates(ratio: float, word: str) -> None:
    """A character tokenizer is exempt."""
    assert verdict("bpe", ratio) == word
    assert verdict("character", 1.0) == "exempt"


def report(kind: str, characters: float, num_bytes: float) -> TokenizerReport:
    return TokenizerReport(
        kind,
        300,
        characters,
        num_bytes,
        characters,
        num_bytes,
        0.0,
        True,
        verdict(kind, characters),
        "",
    )


def test_a_tokenizer_that_hardly_compresses_is_refused(refuses: Refuses) -> None:
    """Not so characters, nor scripts of several bytes a character."""
    with refuses(DataError, names=["1.20 characters", "1.5", "tokenizer.vocabulary", "300"]):
        check_compression(report("bpe", 1.2, 1.3))
    check_compression(report("bpe", 1.2, 3.6))
    check_compression(report("character", 1.0, 1.0))


KINDS = pytest.mark.parametrize(("kind", "vocabulary"), [("bpe", 280), ("character", None)])


@KINDS
def test_an_encoders_tokenizer_puts_its_special_tokens_around_a_text(
    tmp_path: Path, kind: Literal["bpe", "character"], vocabulary: int | None
) -> None:
    """Also when AutoTokenizer loads it; a document of the training text has none but the [SEP] that
    is put behind it.
    """
    tokenizer = train_tokenizer(kind, vocabulary, 2, TEXTS, encoder=True)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    (plain,) = batch_encoder(tokenizer)(["the cat"])

    for each in (tokenizer, loaded):
        assert each("the cat").input_ids == [CLS_ID, *plain, SEP_ID]
        assert each("the cat", "the hat").input_ids[len(plain) + 1] == SEP_ID
        assert [each.pad_token_id, each.cls_token_id, each.sep_token_id, each.mask_token_id] == [
            PAD_ID,
            CLS_ID,
            SEP_ID,
            MASK_ID,
        ]
        assert (each.bos_token_id, each.eos_token_id) == (CLS_ID, SEP_ID)
        assert each("the [MASK]").input_ids[-2] == MASK_ID
        assert each.decode(each("the cat").input_ids, skip_special_tokens=True) == "the cat"
    assert tokenizer.convert_ids_to_tokens(range(4)) == list(ENCODER_TOKENS)
    assert min(plain) >= len(ENCODER_TOKENS)
    assert round_trips(tokenizer, TEXTS)


@KINDS
def test_training_text_that_spells_an_encoders_special_tokens_is_text(
    kind: Literal["bpe", "character"], vocabulary: int | None
) -> None:
    tokenizer = train_tokenizer(kind, vocabulary, 2, [*TEXTS, "[]CLSEPADMK"], encoder=True)
    (ids,) = batch_encoder(tokenizer)(["a [MASK] b [SEP][PAD] [CLS]"])

    assert min(ids) >= len(ENCODER_TOKENS)
    assert tokenizer.decode(ids) == "a [MASK] b [SEP][PAD] [CLS]"


@pytest.mark.parametrize("encoder", [False, True])
def test_capital_letters_can_become_small_ones(encoder: bool) -> None:
    tokenizer = train_tokenizer(
        "bpe", 270, 2, [text.title() for text in TEXTS], lowercase=True, encoder=encoder
    )
    one, other = batch_encoder(tokenizer)(["The CAT", "the cat"])

    assert one == other
    assert not any(
        re.search("[A-Z]", token)
        for token in tokenizer.get_vocab()
        if len(token) > 1 and token not in tokenizer.all_special_tokens
    )
    assert round_trips(tokenizer, ["The CAT", UNSEEN])
    assert tokenizer_fingerprint(tokenizer) != tokenizer_fingerprint(
        train_tokenizer("bpe", 270, 2, TEXTS, encoder=encoder)
    )


@KINDS
def test_a_tokenizer_that_is_no_encoders_is_the_same_as_ever(
    kind: Literal["bpe", "character"], vocabulary: int | None
) -> None:
    """Its file's fingerprint is a recorded one: runs from before go on."""
    expected = {
        "bpe": "62208df6cb6e39e00358308ff5ca25b1a802bea14e3cc629302c342156b5056c",
        "character": "90797b246427a2e8c8a25d647d12d824b46b23e09e5dd910b3b5bcf7ad884129",
    }
    assert tokenizer_fingerprint(train_tokenizer(kind, vocabulary, 2, TEXTS)) == expected[kind]


def test_bpe_learns_from_text_without_white_space() -> None:
    """Its time grew with the square of a word's length: a million letters took no end."""
    tokenizer = train_backend("bpe", 270, 2, ["a" * 1_000_000], fewer="accept")
    assert len(tokenizer.encode("a" * 64).ids) < 64


def test_words_of_usual_length_are_learned_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the text is, and with words up to the cut."""
    texts = ["the cat sat on the mat " * 2000 + "x" * 10_000 + " and the rat " * 100]
    cut = train_backend("bpe", 300, 2, texts, fewer="accept").to_str()
    monkeypatch.setattr("brimful.data.tokenizer.LEARNED_PIECE_CHARACTERS", 1 << 20)
    assert train_backend("bpe", 300, 2, texts, fewer="accept").to_str() == cut


def _longer() -> PreTrainedTokenizerFast:
    tokenizer = train_tokenizer("bpe", 260, 2, ["say red twice\n" * 9], fewer="accept")
    tokenizer.add_tokens(["<pad>", "<more>"])
    return tokenizer


def test_tokens_that_no_text_needs_may_lack_a_row() -> None:
    tokenizer = _longer()
    rows = len(tokenizer) - 2
    refuse_unknown_ids("the train split", np.array([0, rows - 1], np.uint32), tokenizer, rows)
    refuse_unknown_ids("the train split", np.array([], np.uint32), tokenizer, rows)


def test_a_token_that_a_text_needs_is_named_with_how_often_it_occurs(refuses: Refuses) -> None:
    tokenizer = _longer()
    rows = len(tokenizer) - 2
    ids = np.array([0, rows + 1, 1, rows + 1], np.uint32)
    with refuses(DataError, names=["'<more>'", f"id {rows + 1}", "2 x", f"{rows} rows"]):
        refuse_unknown_ids("the train split", ids, tokenizer, rows)
    refuse_unknown_ids("the train split", ids, tokenizer, rows + 2)
