"""Counting models are real distributions and as strong as counting gets."""

import gzip
import math

import numpy as np
import pytest
from fixture_types import Refuses

from brimful.base.env import shared_data_folder
from brimful.base.errors import RequestError
from brimful.evaluation import baselines
from brimful.evaluation.baselines import ngram_baselines


def markov(count: int, states: int, seed: int) -> tuple[np.ndarray, float]:
    """Tokens of a random first-order chain and its entropy per token in nats."""
    generator = np.random.default_rng(99)
    moves = generator.dirichlet(np.full(states, 0.3), states)
    uniform_N = np.random.default_rng(seed).random(count)
    cumulative, tokens = moves.cumsum(1), [0]
    for draw in uniform_N[1:]:
        tokens.append(min(int(np.searchsorted(cumulative[tokens[-1]], draw)), states - 1))
    tokens_N = np.array(tokens)
    entropy_V = -(moves * np.log(np.maximum(moves, 1e-300))).sum(1)
    return tokens_N, float(entropy_V[tokens_N].mean())


def test_the_bigram_reaches_the_entropy_of_a_chain_and_the_unigram_does_not(splits) -> None:
    train, _ = markov(40_000, 30, seed=1)
    held_out, entropy = markov(10_000, 30, seed=2)
    counted = ngram_baselines(splits.of(train), splits.of(held_out), 30)
    assert counted.bigram.loss == pytest.approx(entropy, rel=0.02)
    assert counted.bigram.loss < counted.unigram.loss < counted.uniform.loss


def test_uniform_and_unigram_are_their_formulas(splits) -> None:
    counted = ngram_baselines(splits.of([9, 0, 0, 1]), splits.of([5, 0, 1, 2], num_bytes=6), 10)
    assert counted.tokens == 3
    assert counted.uniform.loss == pytest.approx(math.log(10))
    nats = -(math.log(3 / 13) + math.log(2 / 13) + math.log(1 / 13))
    assert counted.unigram.loss == pytest.approx(nats / 3)
    assert counted.unigram.bits_per_byte == pytest.approx(nats / math.log(2) / 6)


@pytest.mark.parametrize("count", [2, 3, 10, 3000])
def test_the_bigram_is_a_distribution_after_every_token_seen_or_not(count: int) -> None:
    vocabulary = 25
    tokens_N = np.random.default_rng(count).geometric(0.3, count).clip(max=20)
    bigram = baselines._KneserNey(tokens_N, vocabulary)
    previous_N, next_N = np.divmod(np.arange(vocabulary**2), vocabulary)
    table = bigram.probabilities(previous_N, next_N).reshape(vocabulary, vocabulary)
    np.testing.assert_allclose(table.sum(1), 1.0, rtol=1e-9)
    assert table.min() > 0


def test_counting_in_pieces_counts_the_same(splits, monkeypatch: pytest.MonkeyPatch) -> None:
    train, held_out = splits.random(1001, seed=1), splits.random(500, seed=2)
    whole = ngram_baselines(train, held_out, 50)
    for pieces in (1, 7, 500, 1000):
        monkeypatch.setattr(baselines, "CHUNK_TOKENS", pieces)
        in_pieces = ngram_baselines(train, held_out, 50)
        for name in ("uniform", "unigram", "bigram"):
            assert getattr(in_pieces, name).loss == pytest.approx(
                getattr(whole, name).loss, rel=1e-12
            )


def test_pairs_that_training_never_saw_cost_a_finite_price(splits) -> None:
    counted = ngram_baselines(splits.of([1, 1, 1, 1]), splits.of([2, 3, 2]), 4)
    assert math.isfinite(counted.bigram.loss)
    assert counted.bigram.loss > counted.uniform.loss


def test_ids_beyond_the_vocabulary_and_splits_too_short_are_refused(
    splits, refuses: Refuses
) -> None:
    with refuses(RequestError):
        ngram_baselines(splits.of([1, 2]), splits.of([1, 7]), 7)
    with refuses(RequestError):
        ngram_baselines(splits.of([1]), splits.of([1, 2]), 7)
    with refuses(RequestError):
        ngram_baselines(splits.of([1, 2]), splits.of([]), 7)


def test_the_record_holds_the_three(splits) -> None:
    record = ngram_baselines(splits.random(100), splits.random(50), 50).to_json()
    assert record["tokens"] == 49
    assert (
        set(record["bigram"])
        == set(record["unigram"])
        == set(record["uniform"])
        == {"loss", "bits_per_byte"}
    )


def test_on_real_text_the_bigram_beats_tuned_interpolation_of_the_same_counts(splits) -> None:
    """Words of WikiText-2 against Jelinek-Mercer with its weight tuned on the evaluation text
    itself: a bound in the rival's favour.
    """
    folder = shared_data_folder()
    if folder is None:
        pytest.skip("real text is not here; set BRIMFUL_DATA")
    words_of = {}
    text = {
        name: gzip.decompress((folder / "wikitext-2" / f"{name}.txt.gz").read_bytes())[:1_500_000]
        .decode(errors="ignore")
        .split()
        for name in ("train", "valid")
    }
    ids = {
        name: np.array(
            [
                words_of.setdefault(word, len(words_of))
                if name == "train"
                else words_of.get(word, 0)
                for word in text[name]
            ]
        )
        for name in ("train", "valid")
    }
    vocabulary = len(words_of)
    counted = ngram_baselines(splits.of(ids["train"]), splits.of(ids["valid"]), vocabulary)
    counts_V = np.bincount(ids["train"], minlength=vocabulary)
    pairs, pair_counts = np.unique(
        ids["train"][:-1] * vocabulary + ids["train"][1:], return_counts=True
    )
    keys = ids["valid"][:-1] * vocabulary + ids["valid"][1:]
    place = np.searchsorted(pairs, keys).clip(max=len(pairs) - 1)
    relative = np.where(pairs[place] == keys, pair_counts[place], 0) / np.maximum(
        counts_V[ids["valid"][:-1]], 1
    )
    unigram = (counts_V[ids["valid"][1:]] + 1) / (counts_V.sum() + vocabulary)
    rival = min(
        -np.log(weight * relative + (1 - weight) * unigram).mean()
        for weight in np.linspace(0.05, 0.95, 19)
    )
    assert counted.bigram.loss < rival < counted.unigram.loss
