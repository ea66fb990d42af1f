"""The token cache: whole or absent, exact, and the right width."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import Refuses
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from trained_tokenizers import train_tokenizer

from brimful.base.errors import DataError
from brimful.base.rundir import read_json
from brimful.data import cache_places, tokens
from brimful.data.cache_places import token_dtype
from brimful.data.tokens import (
    batch_encoder,
    pieces_in_context,
    read_tokens,
    text_pieces,
    write_tokens,
)
from brimful.model.tokenizer import load_tokenizer

DOCUMENTS = [("train", "abc"), ("validation", "é"), ("train", ""), ("train", "de")]


def spell(texts: list[str]) -> list[list[int]]:
    """Every character is its code point."""
    return [[ord(character) for character in text] for text in texts]


def write(
    folder: Path, documents: list[tuple[str, str]] = DOCUMENTS, vocabulary: int = 1000
) -> None:
    write_tokens(folder, documents, spell, vocabulary=vocabulary, end_of_text=0)


def test_documents_are_separated_by_end_of_text_and_counted(tmp_path: Path) -> None:
    """Bytes and characters are the texts'; the first document does not lean on the last."""
    write(tmp_path / "key")
    splits = read_tokens(tmp_path / "key")
    assert splits is not None
    train = splits["train"]
    assert train.tokens_N.tolist() == [97, 98, 99, 0, 0, 100, 101, 0]
    assert train.document_offsets.tolist() == [0, 4, 5, 8]
    assert (
        train.num_documents,
        train.num_bytes,
        train.num_characters,
        train.num_tokens,
        train.end_of_text,
    ) == (3, 5, 5, 8, 0)
    assert (splits["validation"].num_bytes, splits["validation"].num_characters) == (2, 1)
    assert isinstance(train.tokens_N, np.memmap)


@pytest.mark.parametrize(("vocabulary", "width"), [(65_536, 2), (65_537, 4)])
def test_ids_take_16_bits_while_they_fit(tmp_path: Path, vocabulary: int, width: int) -> None:
    """The largest id of each vocabulary survives."""
    largest = vocabulary - 1
    write_tokens(
        tmp_path / "key",
        [("train", "x")],
        lambda texts: [[largest] for _ in texts],
        vocabulary=vocabulary,
        end_of_text=1,
    )
    splits = read_tokens(tmp_path / "key")
    assert splits is not None
    assert splits["train"].tokens_N.tolist() == [largest, 1]
    assert (tmp_path / "key" / "train.tokens.bin").stat().st_size == 2 * width
    assert token_dtype(vocabulary) == f"<u{width}"


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path: Path, refuses: Refuses) -> None:
    """Neither the cache nor its half-written shadow."""

    def documents() -> Iterator[tuple[str, str]]:
        yield "train", "a" * tokens.BATCH_CHARACTERS
        raise DataError("the source broke off")

    with refuses(DataError):
        write_tokens(tmp_path / "key", documents(), spell, vocabulary=1000, end_of_text=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["train.tokens.bin", "train.offsets.bin", "index.json"])
@pytest.mark.parametrize("damage", ["flip", "shorten", "remove"])
def test_a_damaged_cache_is_not_read_but_replaced(tmp_path: Path, name: str, damage: str) -> None:
    """Every byte is covered by a checksum or by the JSON around it."""
    write(tmp_path / "key")
    path = tmp_path / "key" / name
    raw = bytearray(path.read_bytes())
    raw[3] ^= 1
    {
        "flip": lambda: path.write_bytes(raw),
        "shorten": lambda: path.write_bytes(raw[:-1]),
        "remove": path.unlink,
    }[damage]()
    if damage == "shorten" and name == "index.json":
        path.write_bytes(raw[:-3])
    assert read_tokens(tmp_path / "key") is None
    write(tmp_path / "key")
    assert read_tokens(tmp_path / "key") is not None


def test_another_format_is_not_read(tmp_path: Path) -> None:
    """A later brimful's cache is none for this one."""
    write(tmp_path / "key")
    index = read_json(tmp_path / "key" / "index.json")
    (tmp_path / "key" / "index.json").write_text(json.dumps({**index, "format": 99}))
    assert read_tokens(tmp_path / "key") is None


def test_words_are_those_of_the_whole_text_however_it_is_cut(tmp_path: Path) -> None:
    """White space of any kind parts them; texts longer than a batch are encoded in pieces."""
    text = "one two\n\nthree\tfour \n five" + "\nword" * 300_000 + ",word" * 300_000
    write(tmp_path / "key", [("train", text), ("train", " "), ("validation", "a b")])
    splits = read_tokens(tmp_path / "key")
    assert splits is not None
    assert (splits["train"].num_words, splits["validation"].num_words) == (300_005, 2)


def test_a_cache_from_before_words_were_counted_is_made_again(tmp_path: Path) -> None:
    """Under the same key, which names the data of runs as well."""
    write(tmp_path / "key")
    index = read_json(tmp_path / "key" / "index.json")
    for record in index["splits"].values():
        del record["words"]
    (tmp_path / "key" / "index.json").write_text(json.dumps(index))
    assert read_tokens(tmp_path / "key") is None
    write(tmp_path / "key")
    assert read_tokens(tmp_path / "key") is not None


def test_leftovers_of_killed_writers_are_removed_when_old(tmp_path: Path) -> None:
    """Young ones may belong to a writer at work."""
    old, young = tmp_path / ".key.old.tmp", tmp_path / ".key.young.tmp"
    for folder in (old, young):
        folder.mkdir()
        (folder / "train.tokens.bin").write_bytes(b"x")
    past = time.time() - 2 * cache_places.ABANDONED_AFTER_S
    for path in (old / "train.tokens.bin", old):
        os.utime(path, (past, past))
    write(tmp_path / "key")
    assert (old.exists(), young.exists()) == (False, True)


def test_no_documents_and_no_room_are_errors(tmp_path: Path, refuses: Refuses) -> None:
    """The second says which variable moves the cache."""
    with refuses(DataError):
        write(tmp_path / "key", [])
    (tmp_path / "file").write_text("in the way")
    with refuses(DataError, names=["BRIMFUL_CACHE"]):
        write(tmp_path / "file" / "key")


def test_long_documents_are_cut_between_words() -> None:
    """Joined they are the text; every piece but the last is long enough, and none much longer."""
    text = "".join(f"line {number} \n\n\n  indented\n" for number in range(200))
    pieces = list(text_pieces(text, 100))
    assert "".join(pieces) == text
    assert len(pieces) > 20
    assert all(len(piece) >= 100 and not piece[-1].isspace() for piece in pieces[:-1])
    assert list(text_pieces("x" * 1600, 100)) == ["x" * 1600]
    assert list(map(len, text_pieces("x" * 4000, 100))) == [1600, 1600, 800]
    assert list(text_pieces("")) == [""]


HEXADECIMAL = "".join(f"{number * 2654435761 % 2**32:08x}" for number in range(4000))
RAGGED: dict[str, Callable[[str], str]] = {
    "ragged": lambda text: text.replace(".\n", " .  \n \t").replace("!\n", "!\r\n\n\x85\u3000\n"),
    "space before each break": lambda text: text.replace("\n", " \n"),
    "one line": lambda text: text.replace("\n", " "),
    "no white space": lambda text: "".join(text.split()),
    "marks alone at ends": lambda text: text.replace("\n", "'\u0301_\n_\u0301'"),
    "Chinese": lambda text: "我们走路，看见树木。下雨了！" * (len(text) // 14),
    "hexadecimal": lambda text: HEXADECIMAL,
}


@pytest.mark.parametrize("changed", RAGGED)
@pytest.mark.parametrize("kind", ["bpe", "digits", "character"])
def test_cutting_a_long_document_does_not_change_its_ids(
    kind: str, changed: str, shared_data: Path
) -> None:
    """On 12,000 characters of Shakespeare, in pieces of 50 and of 5000."""
    text = RAGGED[changed]((shared_data / "tinyshakespeare" / "input.txt").read_text()[:40_000])
    is_bpe = kind != "character"
    tokenizer = train_tokenizer(
        "bpe" if is_bpe else "character",
        600 if is_bpe else None,
        2,
        [text],
        fewer="accept",
        split_digits=kind == "digits",
    )
    encode = batch_encoder(tokenizer)
    (whole,) = encode([text])
    for size in (50, 5000):
        pieces = list(text_pieces(text, size))
        assert len(pieces) > len(text) / size / 4
        assert [token for ids in encode(pieces) for token in ids] == whole


def _merged_freely(prepends: str) -> Tokenizer:
    """As SentencePiece makes it for Llama and Gemma, but with tokens that run over words; `prepends`:
    when a space is put before a text.
    """
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    if prepends == "normalizer":
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepends, split=False)
    return made


def _in_words(prepends: str) -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepends)
    return made


@pytest.mark.long_but(
    "_merged_freely-always-ragged",
    "_merged_freely-first-ragged",
    "_merged_freely-never-ragged",
    "_merged_freely-normalizer-ragged",
    "_in_words-always-ragged",
    "_in_words-first-ragged",
)
@pytest.mark.parametrize("changed", ["ragged", "one line", "space before each break", "no change"])
@pytest.mark.parametrize(
    ("make", "prepends"),
    [
        *((_merged_freely, scheme) for scheme in ("always", "first", "never", "normalizer")),
        *((_in_words, scheme) for scheme in ("always", "first", "never")),
    ],
)
def test_a_cut_is_not_seen_by_a_tokenizer_that_puts_a_space_before_a_text(
    make: Callable[[str], Tokenizer],
    prepends: str,
    changed: str,
    shared_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Shakespeare in pieces of 300 characters or more (some 2,000 where all is one line), where a
    token runs over many of the cuts.
    """
    text = (shared_data / "tinyshakespeare" / "input.txt").read_text()
    text = text[: 40_000 if changed == "one line" else 12_000]
    text = RAGGED.get(changed, str)(text)
    tokenizer = make(prepends)
    specials = ["<unk>"]
    trainer: Any = trainers.BpeTrainer(vocab_size=500, special_tokens=specials, show_progress=False)
    if make is _in_words:
        trainer = trainers.UnigramTrainer(
            vocab_size=500, special_tokens=specials, unk_token="<unk>", show_progress=False
        )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    encode = batch_encoder(tokenizer)
    monkeypatch.setattr(tokens, "PIECE_CHARACTERS", 300)
    pieces = list(pieces_in_context(text, encode))
    assert len(pieces) > 20

    documents = ["the cat", text, ""]
    write_tokens(
        tmp_path / "key",
        [("train", each) for each in documents],
        encode,
        vocabulary=1000,
        end_of_text=999,
    )
    split = read_tokens(tmp_path / "key")
    assert split is not None
    expected = [id_ for ids in encode(documents) for id_ in [*ids, 999]]
    assert split["train"].tokens_N.tolist() == expected
    assert split["train"].num_characters == sum(map(len, documents))


def test_a_document_longer_than_a_batch_is_one_document(tmp_path: Path) -> None:
    """Its pieces get one end-of-text together."""
    text = "word\n" * (tokens.BATCH_CHARACTERS // 2)
    write(tmp_path / "key", [("train", text), ("train", "z")])
    splits = read_tokens(tmp_path / "key")
    assert splits is not None
    assert splits["train"].document_offsets.tolist() == [0, len(text) + 1, len(text) + 3]
    assert np.array_equal(
        splits["train"].tokens_N[: len(text)], np.frombuffer(text.encode(), np.uint8)
    )


def test_progress_reaches_the_total(tmp_path: Path) -> None:
    """Counted in documents."""
    seen: list[tuple[str, int, int | None]] = []
    write_tokens(
        tmp_path / "key",
        DOCUMENTS,
        spell,
        vocabulary=1000,
        end_of_text=0,
        num_documents=4,
        progress=lambda *told: seen.append(told),
    )
    assert seen[-1] == ("tokenising", 4, 4)


def test_a_tokenizer_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    """Two tokens with the number of a third one. Which of the three is missed, the library draws at
    random.
    """
    train_tokenizer("bpe", 270, 2, ["the cat sees the dog " * 50]).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = read_json(path)
    vocabulary = content["model"]["vocab"]
    first, second, third, *_ = sorted(vocabulary, key=vocabulary.get, reverse=True)
    vocabulary[first] = vocabulary[second] = vocabulary[third]
    path.write_text(json.dumps(content))
    missed = "|".join(map(re.escape, (first, second, third)))
    rule = rf"contradicts itself: Token `({missed})` out of vocabulary at .*\. "
    message = f"the tokenizer {re.escape(str(tmp_path))} {rule}Put a sound tokenizer.json back\\.$"
    with pytest.raises(DataError, match=message):
        batch_encoder(load_tokenizer(str(tmp_path)))
