"""Which tokens of a split the training sequences hold, without torch.

Suffixes: T positions of a sequence, N tokens of a split, W sequences of an epoch, D documents.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from brimful.base.arrays import Array, Ints
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
    is_long_D = lengths_D > sequence_length
    num_long = int(is_long_D.sum())
    if num_long and long_documents == "error":
        first = int(np.argmax(is_long_D))
        raise DataError(
            f"{num_long} of {split.num_documents} documents are longer than sequence_length"
            f" {sequence_length}: the first is number {first + 1} with {int(lengths_D[first])}"
            f" tokens (end-of-text included), the longest has {int(lengths_D.max())}. Raise"
            " sequence_length, or choose data.long_documents=truncate, split or drop."
        )
    if long_documents == "drop":
        if num_long == len(lengths_D):
            raise DataError(
                f"all {num_long} documents are longer than sequence_length {sequence_length}, so"
                " dropping them leaves none. Raise it."
            )
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
