"""Small tokenizers, trained by rules that are given as plain values."""

from collections.abc import Iterable
from typing import Any, Literal

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from brimful.data import tokenizer
from brimful.recipe.data import TokenizerRecipe


def train_backend(
    kind: Literal["bpe", "character"],
    vocabulary: int | None,
    min_frequency: int,
    texts: Iterable[str],
    encoder: bool = False,
    **rules: Any,
) -> Tokenizer:
    """Train one; `rules` are further keys of the recipe's section `tokenizer`."""
    made = TokenizerRecipe(kind=kind, vocabulary=vocabulary, min_frequency=min_frequency, **rules)
    return tokenizer.train_backend(made, texts, encoder=encoder)


def train_tokenizer(*given: Any, **rules: Any) -> PreTrainedTokenizerFast:
    """The same in the form of transformers."""
    return tokenizer.as_transformers(train_backend(*given, **rules))
