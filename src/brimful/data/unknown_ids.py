"""Token ids without a row in the model's embedding: a published tokenizer may have more tokens than
its model has rows. Those that no text needs do no harm.
"""

from transformers import PreTrainedTokenizerBase

from brimful.base.arrays import Array
from brimful.base.errors import DataError


def refuse_unknown_ids(
    what: str, ids_N: Array, tokenizer: PreTrainedTokenizerBase, rows: int
) -> None:
    """Check that a model can read token ids.

    Args:
        what: Holds them, in words.
        ids_N: Token ids [N].
        tokenizer: Gave them.
        rows: Rows of the model's embedding.

    Raises:
        DataError: an id has no row. Names its token.
    """
    largest = int(ids_N.max(initial=0))
    if largest < rows:
        return
    raise DataError(
        f"{what} needs the token {tokenizer.convert_ids_to_tokens(largest)!r} (id {largest}),"
        f" {int((ids_N == largest).sum())} x, but the model's embedding has {rows} rows, of the"
        f" ids 0 to {rows - 1}. Take what spells this token out of the text, or use a tokenizer"
        " and a model that belong together."
    )
