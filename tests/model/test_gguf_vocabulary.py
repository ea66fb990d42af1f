"""A tokenizer in GGUF's words: how it splits text has a name, tokens have kinds."""

from collections.abc import Callable

import pytest
from fixture_types import Refuses
from gguf import TokenType
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from trained_tokenizers import train_tokenizer
from transformers import PreTrainedTokenizerFast

from brimful.base.errors import RequestError
from brimful.model.gguf_vocabulary import LOOKS_UP_WORDS, SPLITTING, vocabulary_of


def splitting_at(pattern: str, *, ignore_merges: bool = False) -> PreTrainedTokenizerFast:
    letters = {letter: number for number, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = Tokenizer(models.BPE(letters, [], ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_a_tokenizer_trained_here_is_written_whole() -> None:
    tokenizer = train_tokenizer("bpe", 280, 2, ["say red twice green blue three times\n" * 20])
    found = vocabulary_of(tokenizer, 284)
    end = tokenizer.eos_token_id
    assert found.splitting in {"gpt-2", "smollm"}
    assert found.kinds[end] == TokenType.CONTROL
    assert found.kinds.count(TokenType.NORMAL) == len(tokenizer) - 1
    assert found.tokens[len(tokenizer) :] == tuple(
        f"[PAD{id_}]" for id_ in range(len(tokenizer), 284)
    )
    assert found.kinds[-1] == TokenType.UNUSED
    assert all(len(merge.split(" ")) == 2 for merge in found.merges)
    assert not found.begins


@pytest.mark.parametrize("parts", [parts for parts in SPLITTING if parts[-1] == "bytes"])
def test_the_patterns_of_llama_3_and_qwen_2_are_known(
    parts: tuple[str, str], refuses: Refuses
) -> None:
    name = SPLITTING[parts]
    known = {name in LOOKS_UP_WORDS: name} | {False: LOOKS_UP_WORDS.get(name, name)}
    for looks_up in (True, False):
        tokenizer = splitting_at(parts[0], ignore_merges=looks_up)
        if looks_up in known:
            assert vocabulary_of(tokenizer, 256).splitting == known[looks_up]
            continue
        with refuses(RequestError):
            vocabulary_of(tokenizer, 256)


def _merges_one_pair_alone() -> PreTrainedTokenizerFast:
    """llama.cpp would make "abc" of "a" and "bc", too."""
    vocabulary = {token: number for number, token in enumerate(["a", "b", "c", "ab", "bc", "abc"])}
    merges = [("a", "b"), ("b", "c"), ("ab", "c")]
    model = models.BPE(vocabulary, merges, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _begins_first_text_alone_with_space() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE({"a": 0}, [], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _lowercases() -> PreTrainedTokenizerFast:
    tokenizer = train_tokenizer("bpe", 260, 2, ["say red twice\n" * 20])
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


@pytest.mark.parametrize(
    "make",
    [
        lambda: train_tokenizer("character", None, 1, ["say red twice"]),
        _lowercases,
        _merges_one_pair_alone,
        _begins_first_text_alone_with_space,
        lambda: splitting_at(r"\s+"),
    ],
)
def test_other_tokenizers_are_refused_with_the_reason(
    make: Callable[[], PreTrainedTokenizerFast], refuses: Refuses
) -> None:
    with refuses(RequestError):
        vocabulary_of(make(), 300)
