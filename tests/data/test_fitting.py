"""Examples that are too long; cut and dropped ones of a run are in test_examples.py."""

from pathlib import Path

import pytest
from fixture_types import MakeRecipe, Refuses
from transformers import PreTrainedTokenizerFast

from brimful.base.errors import DataError
from brimful.data.account import Account
from brimful.data.chat import EncodedExample
from brimful.data.fitting import fitted
from brimful.data.formats import Example


def _encoded(*lengths: int) -> list[tuple[Example, EncodedExample]]:
    return [
        (example, EncodedExample([1] * length, [False, *[True] * (length - 1)], length, example))
        for number, length in enumerate(lengths)
        for example in [Example("", "", f"row {number}", "")]
    ]


def test_of_answers_to_one_prompt_all_are_dropped_with_a_long_one(
    tuning: MakeRecipe, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    recipe = tuning(tmp_path, sequence_length=4, long_documents="drop")
    answers = _encoded(5, 3, 6, 2, 2, 9)

    account = Account()

    pairs, of_pairs = fitted("train", answers, recipe, tokenizer, account, per_row=2)
    alone, of_alone = fitted("train", answers, recipe, tokenizer, Account())

    assert [example.where for example, _ in pairs] == ["row 0", "row 1"]
    assert of_pairs == {"cut": 0, "dropped": 4}
    (told,) = account
    assert (told.count, told.total, told.first, told.longest) == (2, 3, "row 2", 9)
    assert [len(encoded.ids) for _, encoded in alone] == [5, 3, 2, 2]
    assert of_alone["dropped"] == 2


@pytest.mark.parametrize("policy", ["error", "drop"])
def test_long_examples_alone_are_refused(
    tuning: MakeRecipe,
    tokenizer: PreTrainedTokenizerFast,
    refuses: Refuses,
    tmp_path: Path,
    policy: str,
) -> None:
    recipe = tuning(tmp_path, sequence_length=4, long_documents=policy)

    with refuses(DataError, names=["sequence_length"]):
        fitted("train", _encoded(6, 7), recipe, tokenizer, Account())
