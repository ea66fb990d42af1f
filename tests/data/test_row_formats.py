"""What a row of each format says is learned, is only read, and is not used."""

from collections.abc import Callable
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.account import Account, AccountEntry
from brimful.data.formats import Example, Message, examples_of
from brimful.data.rows import Row
from brimful.recipe import DataRecipe

Make = Callable[..., DataRecipe]
SYSTEM_ASKED = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
]
SYSTEM_PROMPT = (Message("system", "Be short."), Message("user", "Hi"))
ASK, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
OFF = {
    "weight": 0,
    "loss": False,
    "train": 0.0,
    "training": False,
    "learn": False,
    "trainable": False,
    "masked": True,
}


def account_of(data: DataRecipe, *rows: Any) -> tuple[list[Example], dict[str, AccountEntry]]:
    account = Account()
    numbered = [Row(columns, f"row {number}") for number, columns in enumerate(rows, start=1)]
    return list(examples_of(numbered, data, account=account)), {
        entry.kind: entry for entry in account
    }


@pytest.mark.parametrize("flag", OFF)
def test_answers_that_are_flagged_out_are_only_read(data_recipe: Make, flag: str) -> None:
    """OpenAI's weight and the like; what stands behind the last learned answer is left out."""
    off, on = {flag: OFF[flag]}, {flag: not OFF[flag]}
    turns = [ASK, ANSWER | off, ASK, ANSWER | on, ASK, ANSWER | {flag: None}, ASK, ANSWER | off]
    (example,), entries = account_of(data_recipe("x"), {"messages": turns})
    assert [message.is_learned for message in example.messages or ()] == [
        True,
        False,
        True,
        True,
        True,
        True,
    ]
    assert (entries["flagged"].count, entries["flagged"].names) == (2, {flag: 2})
    assert entries["flagged"].first == "row 1, message 2"
    (example,), entries = account_of(data_recipe("x", leave_out=[flag]), {"messages": turns})
    assert all(message.is_learned for message in example.messages or ())
    assert [*entries] == ["left_out"]


def test_rows_of_which_nothing_is_to_be_learned_are_left_out_and_counted(data_recipe: Make) -> None:
    """By their answers' flags, or by one of the row, as Fireworks AI has it."""
    flagged = {"messages": [ASK, ANSWER | {"weight": 0}]}
    learned = {"messages": [ASK, ANSWER]}
    row_flagged = {**learned, "weight": 0}
    examples, entries = account_of(data_recipe("x"), flagged, learned, row_flagged)
    assert [example.where for example in examples] == ["row 2"]
    assert (entries["rows_flagged"].count, entries["rows_flagged"].first) == (2, "row 1")
    pair = {"prompt": "a", "completion": "b"}
    examples, _ = account_of(data_recipe("x"), pair | {"weight": 1.0}, pair | {"weight": 0.0})
    assert [example.where for example in examples] == ["row 1"]


def test_a_question_that_is_flagged_is_learned_only_where_all_is(
    data_recipe: Make, refuses: Refuses
) -> None:
    """And then nothing may be flagged out."""
    row = {"messages": [ASK | {"train": True}, ANSWER]}
    assert account_of(data_recipe("x"), row)[1]["no_answers"].names == {"train": 1}
    assert not account_of(data_recipe("x", loss_on="all"), row)[1]
    with refuses(DataError, names=["message 1", "data.loss_on=completion", "data.leave_out"]):
        account_of(data_recipe("x", loss_on="all"), {"messages": [ASK | {"train": False}, ANSWER]})


@pytest.mark.parametrize(
    "flags", [{"weight": 0.5}, {"loss": "no"}, {"train_detail": [{"begin_offset": 0}]}]
)
def test_flags_that_cannot_be_kept_are_refused(
    data_recipe: Make, flags: JsonDict, refuses: Refuses
) -> None:
    """With a way out that works."""
    row, (name,) = {"messages": [ASK, ANSWER | flags]}, flags
    with refuses(DataError, names=["row 1, message 2", name, f"data.leave_out='[{name}]'"]):
        account_of(data_recipe("x"), row)
    assert len(account_of(data_recipe("x", leave_out=[name]), row)[0]) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASK, ANSWER]},
        {"prompt": [ASK], "completion": [ANSWER]},
        {"prompt": "a", "completion": "b"},
        {"question": "a", "answer": "b"},
    ],
)
def test_a_system_column_is_a_system_message_of_every_format(
    data_recipe: Make, row: JsonDict
) -> None:
    """As of conversations and alpaca; where it is empty there is none."""
    asked = Message("user", "a")
    examples, entries = account_of(data_recipe("x"), row | {"system": "s"}, row | {"system": ""})
    assert [example.prompt for example in examples] == [(Message("system", "s"), asked), (asked,)]
    assert (entries["system"].count, {*entries} - {"marked"}) == (1, {"system"})


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASK, ANSWER]},
        {"prompt": "a", "completion": "b"},
        {"instruction": "a", "output": "b"},
    ],
)
def test_a_column_without_a_name_is_one_that_nothing_reads(
    data_recipe: Make, row: JsonDict
) -> None:
    """As pandas writes its index."""
    examples, entries = account_of(data_recipe("x"), {"": "0"} | row)
    assert (len(examples), [*entries]) == (1, ["columns"])
    assert "not learned: one without a name (1)" in entries["columns"].text


def test_a_system_column_beside_another_system_message_is_told(data_recipe: Make) -> None:
    """Unless both say the same."""
    rows = [{"messages": SYSTEM_ASKED, "system": text} for text in ("Be long.", "Be short.")]
    examples, entries = account_of(data_recipe("x"), *rows)
    assert [example.prompt for example in examples] == [SYSTEM_PROMPT, SYSTEM_PROMPT]
    assert (entries["system_twice"].count, entries["system_twice"].first) == (1, "row 1")


def test_columns_and_fields_that_nothing_reads_are_named(data_recipe: Make) -> None:
    """Empty ones are none, as columnar files give every row all of them."""
    row = {"messages": [ASK | {"id": 3, "name": None}, ANSWER], "source": "web", "n": None}
    _, entries = account_of(data_recipe("x"), row, row | {"document": "d", "tools": []})
    assert (entries["columns"].names, entries["fields"].names) == ({"source": 2}, {"id": 2})
    assert not account_of(data_recipe("x", leave_out=["source", "id"]), row)[1].keys() - {
        "left_out"
    }
