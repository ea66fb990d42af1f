"""Which tokens the training sequences hold; long documents are told."""

from collections.abc import Callable
from typing import Any

import pytest
from fixture_types import MakeRecipe, Refuses

from brimful.base.errors import DataError
from brimful.data.account import Account
from brimful.data.row_layout import document_sequences, tell_long_documents, windows_of
from brimful.data.tokens import TokenSplit

Split = Callable[..., TokenSplit]


@pytest.mark.parametrize(
    ("policy", "told"), [("truncate", [("cut", 1)]), ("drop", [("dropped", 1)]), ("split", [])]
)
def test_documents_that_are_cut_or_dropped_are_told(
    token_split: Split, recipe: MakeRecipe, policy: str, told: list[Any]
) -> None:
    """Split ones lose nothing."""
    account = Account()
    data = {"path": "x", "layout": "document", "long_documents": policy}
    tell_long_documents(token_split(20, 2), recipe(data), account)
    assert [(entry.kind, entry.count) for entry in account] == told


def test_what_does_not_fit_is_refused_before_training(
    token_split: Split, recipe: MakeRecipe, refuses: Refuses
) -> None:
    document = recipe({"path": "x", "layout": "document"})
    with refuses(DataError, names=["data.long_documents"]):
        tell_long_documents(token_split(20, 2), document, Account())
    with refuses(DataError, names=["sequence_length 8"]):
        tell_long_documents(token_split(3), recipe({"path": "x"}), Account())


def test_windows_share_the_tokens(token_split: Split) -> None:
    tokens_N = token_split(7).tokens_N
    assert windows_of(tokens_N, 3).tolist() == [tokens_N[n : n + 4].tolist() for n in range(5)]


def test_split_documents_keep_every_token(token_split: Split) -> None:
    starts, lengths, num_long = document_sequences(token_split(6, 2), 4, "split")
    assert (starts.tolist(), lengths.tolist(), num_long) == ([0, 4, 7], [4, 3, 3], 1)
