import numpy as np
from fixture_types import Refuses
from trained_tokenizers import train_tokenizer
from transformers import PreTrainedTokenizerFast

from brimful.base.errors import DataError
from brimful.data.unknown_ids import refuse_unknown_ids


def _longer() -> PreTrainedTokenizerFast:
    tokenizer = train_tokenizer("bpe", 260, 2, ["say red twice\n" * 9], fewer="accept")
    tokenizer.add_tokens(["<pad>", "<more>"])
    return tokenizer


def test_tokens_that_no_text_needs_may_lack_a_row() -> None:
    tokenizer = _longer()
    rows = len(tokenizer) - 2
    refuse_unknown_ids("the train split", np.array([0, rows - 1], np.uint32), tokenizer, rows)
    refuse_unknown_ids("the train split", np.array([], np.uint32), tokenizer, rows)


def test_a_token_that_a_text_needs_is_named_with_how_often_it_occurs(refuses: Refuses) -> None:
    tokenizer = _longer()
    rows = len(tokenizer) - 2
    ids = np.array([0, rows + 1, 1, rows + 1], np.uint32)
    with refuses(DataError, names=["'<more>'", f"id {rows + 1}", "2 x", f"{rows} rows"]):
        refuse_unknown_ids("the train split", ids, tokenizer, rows)
    refuse_unknown_ids("the train split", ids, tokenizer, rows + 2)
