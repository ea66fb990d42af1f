"""An encoder guesses hidden words; the sample says what stood there and how sure the guesses
are.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fixture_types import Refuses
from trained_tokenizers import train_tokenizer

from brimful.base.errors import RequestError
from brimful.data.tokens import TokenSplit, batch_encoder
from brimful.generation.fill_mask import FINISH, GUESSES, SNIPPET_TOKENS, fill_masks, snippets
from brimful.generation.load import LoadedRun
from brimful.model.build import build
from brimful.model.description import SEP_ID
from brimful.recipe import Recipe

TEXT = "the quick brown fox likes the other lazy dogs under that green tree, "


@pytest.fixture
def loaded(tiny: Callable[..., Recipe], tmp_path: Path) -> LoadedRun:
    tokenizer = train_tokenizer("bpe", 300, 2, [TEXT * 40], encoder=True)
    recipe = tiny("method=mlm", "model.architecture=modernbert", "sequence_length=64")
    model = build(
        recipe,
        vocabulary=len(tokenizer),
        end_of_text_id=0,
        attention="sdpa",
        device=torch.device("cpu"),
    )
    return LoadedRun(model.eval(), tokenizer, recipe, tmp_path / "run")


@pytest.fixture
def split(loaded: LoadedRun) -> TokenSplit:
    (ids,) = batch_encoder(loaded.tokenizer)([TEXT * 40])
    return TokenSplit(
        np.array([*ids, SEP_ID], "<u2"),
        np.array([0, len(ids) + 1], "<u8"),
        len(TEXT) * 40,
        len(TEXT) * 40,
        1,
    )


def test_hidden_are_whole_words_inside_a_snippet_and_the_seed_says_which(
    loaded: LoadedRun, split: TokenSplit
) -> None:
    found = snippets(loaded, split, count=6, seed=1)

    assert len(found) == 6
    for snippet in found:
        assert (
            loaded.tokenizer.decode([snippet.ids[snippet.place]])[1:]
            in TEXT.replace(",", "").split()
        )
        assert 0 < snippet.place < len(snippet.ids) - 1
        assert len(snippet.ids) == SNIPPET_TOKENS
    assert (
        found
        == snippets(loaded, split, count=6, seed=1)
        != snippets(loaded, split, count=6, seed=2)
    )


def test_the_guess_is_what_the_model_finds_likeliest_at_the_mask(
    loaded: LoadedRun, split: TokenSplit
) -> None:
    (snippet,) = snippets(loaded, split, count=1, seed=1)
    with torch.no_grad():  # a head that knows nothing but the answer
        loaded.model.decoder.weight = torch.nn.Parameter(
            torch.zeros_like(loaded.model.decoder.weight)
        )
        loaded.model.head.norm.weight.fill_(0)
        loaded.model.head.norm.bias = torch.nn.Parameter(torch.ones(32))
        loaded.model.decoder.weight[snippet.ids[snippet.place]] = 1.0
    (sample,) = fill_masks(loaded, split, count=1, seed=1)
    word = loaded.tokenizer.decode([snippet.ids[snippet.place]]).strip()

    assert sample.completion.startswith(
        f"'{word}' stands there, guess number 1. Guesses: '{word}' 100%, "
    )
    assert sample.completion.count("%") == GUESSES
    assert (sample.finish, sample.seed, sample.tokens) == (FINISH, 1, 1)
    before, after = sample.prompt.split(" [MASK]")
    assert f"{before} {word}{after}" == loaded.tokenizer.decode(list(snippet.ids))


def test_a_split_without_a_word_that_is_one_token_gives_no_sample(loaded: LoadedRun) -> None:
    (ids,) = batch_encoder(loaded.tokenizer)(["0123456789" * 30])
    split = TokenSplit(
        np.array([*ids, SEP_ID], "<u2"), np.array([0, len(ids) + 1], "<u8"), 300, 300, 1
    )

    assert fill_masks(loaded, split, count=3, seed=0) == []


def test_it_is_asked_for_no_text(loaded: LoadedRun, refuses: Refuses) -> None:
    with refuses(RequestError, names=["method=classify model="]):
        loaded.prompt_ids("The quick")
