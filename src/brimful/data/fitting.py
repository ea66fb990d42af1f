"""Examples as token ids that are longer than a sequence: cut, dropped or refused."""

from dataclasses import replace
from itertools import compress

import numpy as np
from transformers import PreTrainedTokenizerBase

from brimful.base.errors import DataError
from brimful.base.types import Counts
from brimful.data.account import Account
from brimful.data.chat import EncodedExample
from brimful.data.formats import Example
from brimful.data.row_layout import long_ones
from brimful.recipe import Recipe

Encoded = list[tuple[Example, EncodedExample]]
"""Examples of a split with their ids."""


def fitted(
    name: str,
    pairs: Encoded,
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerBase,
    account: Account,
    per_row: int = 1,
) -> tuple[Encoded, Counts]:
    """Apply `data.long_documents`; an example of sequence_length + 1 tokens gives sequence_length
    targets. Where the model writes the answers that it learns, no row is too long for its own.

    Args:
        name: The split.
        pairs: Its examples.
        recipe: Says how long a sequence is, and what becomes of longer ones.
        tokenizer: The model's.
        account: Gets the answers that were cut, and the examples, or pairs, that were dropped.
        per_row: Examples of a row, which are dropped together; more than one are the answers of a
            pair.

    Returns:
        The examples that are at most one sequence long, or are cut to that; and how many were cut,
        and dropped.

    Raises:
        DataError: an example is too long and may not be, or nothing of an answer is left.
    """
    most, policy = recipe.sequence_length, recipe.data.long_documents
    if recipe.kind.draws_answers:
        return pairs, {"cut": 0, "dropped": 0}
    drops = policy == "drop"
    lengths_E = np.array([len(encoded.ids) for _, encoded in pairs], dtype=np.int64)
    if drops:
        lengths_E = lengths_E.reshape(-1, per_row).max(axis=1).repeat(per_row)
    wheres = [example.where for example, _ in pairs]
    is_long_E = long_ones(f"{name} examples", lengths_E, policy, most, wheres.__getitem__, more=1)
    if drops:
        kept = [*compress(pairs, ~is_long_E)]
    else:
        kept = [(example, _cut(encoded, most + 1, tokenizer)) for example, encoded in pairs]
        if empty := [example.where for example, encoded in kept if not any(encoded.is_target)]:
            raise DataError(
                f"{len(empty)} of {len(pairs)} {name} examples have nothing left to learn within"
                f" sequence_length {most}, because their prompts fill it: the first is {empty[0]}."
                " Raise sequence_length, or drop them with data.long_documents=drop."
            )
    count, kind, each, unit = int(is_long_E.sum()), "cut", 1, "answer"
    if drops:
        kind, each, unit = "dropped", per_row, "pair"
    account.add(
        kind,
        wheres[np.argmax(is_long_E)],
        count=count // each,
        total=len(pairs) // each,
        split=name,
        longest=int(lengths_E.max()),
        unit=unit if per_row > 1 else "",
    )
    return kept, {"cut": 0, "dropped": 0, kind: count}


def _cut(
    encoded: EncodedExample, length: int, tokenizer: PreTrainedTokenizerBase
) -> EncodedExample:
    if len(encoded.ids) <= length:
        return encoded
    ids, is_target = encoded.ids[:length], encoded.is_target[:length]
    num_bytes = len(tokenizer.decode([*compress(ids, is_target)]).encode())
    return replace(encoded, ids=ids, is_target=is_target, num_bytes=num_bytes)
