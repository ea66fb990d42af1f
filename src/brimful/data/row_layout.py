"""Which tokens of a split the training sequences hold, without torch.

Suffixes: T positions of a sequence, N tokens of a split, W sequences of an epoch, D documents.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from brimful.base.arrays import Array, Bools, Ints
from brimful.base.errors import DataError
from brimful.data.account import Account
from brimful.data.tokens import TokenSplit
from brimful.recipe import Recipe


def tell_long_documents(split: TokenSplit, recipe: Recipe, account: Account) -> None:
    """Count the training documents that are cut or dropped, where each is a sequence.

    Raises:
        DataError: as `windows_of` and `document_sequences`.
    """
    data = recipe.data
    # [CLS] takes one position of every sequence.
    length = recipe.sequence_length - recipe.kind.fills_masks
    if data.layout == "stream":
        windows_of(split.tokens_N, length)
        return
    *_, count = document_sequences(split, length, data.long_documents)
    if kind := {"truncate": "cut", "drop": "dropped"}.get(data.long_documents):
        total = split.num_documents
        account.add(kind, "", count=count, total=total, split="train", unit="document")


def long_ones(
    what: str,
    lengths_E: Ints,
    policy: str,
    sequence_length: int,
    where_of: Callable[[int], str],
    *,
    policies: Sequence[str] = ("truncate", "drop"),
    more: int = 0,
) -> Bools:
    """Return a mask of the documents, examples or texts that are too long.

    Args:
        what: What they are, for errors.
        lengths_E: Tokens of each.
        policy: `data.long_documents`.
        sequence_length: The most tokens, but for `more`.
        where_of: Place of one, for errors.
        policies: Those by which long ones are allowed.

    Raises:
        DataError: one is too long and may not be, or none would be left.
    """
    is_long_E: Bools = lengths_E > sequence_length + more
    count = int(is_long_E.sum())
    if count and policy not in policies:
        first = int(np.argmax(is_long_E))
        choices = " or ".join(f"data.long_documents={each}" for each in policies)
        raise DataError(
            f"{count} of {len(lengths_E)} {what} are longer than sequence_length {sequence_length}:"
            f" the first is {where_of(first)} with {lengths_E[first]} tokens, the longest has"
            f" {lengths_E.max()}. Raise sequence_length, or choose {choices}."
        )
    if policy == "drop" and count == len(lengths_E):
        raise DataError(
            f"all {count} {what} are longer than sequence_length {sequence_length}, so all were"
            " dropped. Raise sequence_length, or choose data.long_documents=truncate."
        )
    return is_long_E


def windows_of(tokens_N: Array, sequence_length: int) -> Array:
    """Every window of T + 1 tokens, [N - T, T + 1], without copies.

    Raises:
        DataError: there are fewer tokens.
    """
    if len(tokens_N) < sequence_length + 1:
        raise DataError(
            f"the training split has {len(tokens_N)} tokens, one sequence needs"
            f" {sequence_length + 1} (sequence_length {sequence_length} + 1): use more text or a"
            " shorter sequence_length."
        )
    return sliding_window_view(tokens_N, sequence_length + 1)


def document_sequences(
    split: TokenSplit, sequence_length: int, long_documents: str
) -> tuple[Ints, Ints, int]:
    """First target and number of targets of each sequence, and how many documents were too long.

    Raises:
        DataError: a document is too long and may not be, or none is left.
    """
    offsets = np.asarray(split.document_offsets).astype(np.int64)
    starts_D, lengths_D = offsets[:-1], np.diff(offsets)
    is_long_D = long_ones(
        "documents (end-of-text included)",
        lengths_D,
        long_documents,
        sequence_length,
        lambda number: f"number {number + 1}",
        policies=("truncate", "split", "drop"),
    )
    num_long = int(is_long_D.sum())
    if long_documents == "drop":
        return starts_D[~is_long_D], lengths_D[~is_long_D], num_long
    if long_documents != "split":
        return starts_D, np.minimum(lengths_D, sequence_length), num_long
    pieces_D = -(-lengths_D // sequence_length)
    first_piece_D = np.cumsum(pieces_D) - pieces_D
    document_W = np.repeat(np.arange(len(pieces_D)), pieces_D)
    skipped_W = (np.arange(len(document_W)) - first_piece_D[document_W]) * sequence_length
    return (
        starts_D[document_W] + skipped_W,
        np.minimum(lengths_D[document_W] - skipped_W, sequence_length),
        num_long,
    )
