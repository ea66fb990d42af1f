"""What an encoder puts in place of a hidden word: the sample of a run of method mlm.

Shapes: S snippets, T positions, V vocabulary.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from brimful.data.tokens import TokenSplit
from brimful.generation.load import LoadedRun
from brimful.generation.samples import TextSample
from brimful.model.description import CLS_ID, ENCODER_TOKENS, MASK_ID, MASK_TOKEN, SEP_ID

SNIPPET_TOKENS = 40
GUESSES = 5
FINISH = "fill-mask"
"""`finish` of such a sample."""
_TRIES = 64
"""Places that are looked at for each snippet."""


@dataclass(frozen=True)
class Snippet:
    """Tokens of a text of which one is to be hidden.

    Attributes:
        ids: No special ones.
        place: Place of the hidden token.
    """

    ids: tuple[int, ...]
    place: int


def fill_masks(loaded: LoadedRun, split: TokenSplit, *, count: int, seed: int) -> list[TextSample]:
    """Hide a word in each of a few snippets of a split and let the model guess it.

    Args:
        loaded: A run of method mlm.
        split: Text the model was not trained on.
        count: Snippets at most; fewer where the split has no more words that are one token.
        seed: Seed of the choice of places.

    Returns:
        The prompt is the snippet with [MASK], the completion what stood there and the likeliest
        guesses with their probabilities.
    """
    return [
        _guess(loaded, snippet, seed) for snippet in snippets(loaded, split, count=count, seed=seed)
    ]


def snippets(loaded: LoadedRun, split: TokenSplit, *, count: int, seed: int) -> list[Snippet]:
    """Places drawn from a split where a whole word is one token."""
    length = min(SNIPPET_TOKENS, loaded.context - 2, split.num_tokens)
    draws = np.random.Philox(key=seed).random_raw(_TRIES * count)
    starts = (draws % np.uint64(split.num_tokens - length + 1)).astype(np.int64).tolist()
    found: list[Snippet] = []
    for number in range(count):
        tried = starts[number * _TRIES : (number + 1) * _TRIES]
        candidates = (
            snippet
            for start in tried
            for snippet in _candidates(
                loaded, split.tokens_N[start : start + length].astype(int).tolist()
            )
        )
        if (snippet := next(candidates, None)) is not None:
            found.append(snippet)
    return found


def _candidates(loaded: LoadedRun, ids: list[int]) -> Iterator[Snippet]:
    """Words of the tokens' middle, but for those beside special tokens."""
    if any(token < len(ENCODER_TOKENS) for token in ids):
        return
    texts = [loaded.tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in ids]
    for place in range(len(ids) // 3, len(ids) - 1):
        word, after = texts[place], texts[place + 1]
        if len(word) > 3 and word[0] == " " and word[1:].isalpha() and not after[:1].isalnum():
            yield Snippet(tuple(ids), place)


def _guess(loaded: LoadedRun, snippet: Snippet, seed: int) -> TextSample:
    started_s = time.perf_counter()
    hidden = [*snippet.ids[: snippet.place], MASK_ID, *snippet.ids[snippet.place + 1 :]]
    ids_BT = torch.tensor([[CLS_ID, *hidden, SEP_ID]], device=loaded.model.device)
    with torch.no_grad():
        probabilities_V = (
            loaded.model(input_ids=ids_BT).logits[0, snippet.place + 1].float().softmax(dim=-1)
        )
    best = probabilities_V.topk(min(GUESSES, len(probabilities_V)))
    guesses = [
        f"{_shown(loaded, int(token))} {share:.0%}"
        for share, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    truth = snippet.ids[snippet.place]
    rank = int((probabilities_V > probabilities_V[truth]).sum()) + 1
    completion = (
        f"{_shown(loaded, truth)} stands there, guess number {rank:,}. Guesses:"
        f" {', '.join(guesses)}"
    )
    before, after = (
        _text(loaded, part)
        for part in (snippet.ids[: snippet.place], snippet.ids[snippet.place + 1 :])
    )
    return TextSample(
        f"{before} {MASK_TOKEN}{after}",
        completion,
        FINISH,
        seed,
        0.0,
        GUESSES,
        1.0,
        1,
        time.perf_counter() - started_s,
    )


def _shown(loaded: LoadedRun, token: int) -> str:
    """Return a token without the space before a word; what is nothing but space is spelled out."""
    text = _text(loaded, (token,))
    return repr(text.strip() or text)


def _text(loaded: LoadedRun, ids: tuple[int, ...]) -> str:
    text: str = loaded.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
    return text
