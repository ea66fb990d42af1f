"""Rows of every format become examples, and what cannot is named."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.account import Account
from brimful.data.formats import Example, Message, Prompt, examples_of, text_of_prompt
from brimful.data.rows import Row
from brimful.data.sources import open_rows
from brimful.evaluation.task import load_task, render
from brimful.recipe import DataRecipe

Make = Callable[..., DataRecipe]
ASKED = (Message("user", "Add 1 and 2."),)
CHAT = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
]
CHAT_PROMPT = (Message("system", "Be short."), Message("user", "Hi"))


def read(data: DataRecipe, *rows: Any) -> list[Example]:
    return list(
        examples_of(
            [Row(columns, f"rows, row {number}") for number, columns in enumerate(rows, start=1)],
            data,
        )
    )


@pytest.mark.parametrize(
    ("row", "prompt", "completion"),
    [
        ({"prompt": "1 + 2 =", "completion": " 3"}, "1 + 2 =", " 3"),
        ({"prompt": CHAT[:2], "completion": CHAT[2:]}, CHAT_PROMPT, "Hello"),
        ({"messages": CHAT, "id": 1}, CHAT_PROMPT, "Hello"),
        ({"instruction": "Add 1 and 2.", "input": "", "output": "3"}, ASKED, "3"),
        (
            {"instruction": "Add 1 and 2.", "input": None, "output": "3", "prompt": "all of it"},
            ASKED,
            "3",
        ),
        ({"instruction": "Add 1 and 2.", "response": "3", "text": "all of it"}, ASKED, "3"),
        (
            {"instruction": "Add.", "input": "1 and 2", "answer": "3"},
            (Message("user", "Add.\n\n1 and 2"),),
            "3",
        ),
        (
            {
                "conversations": [
                    {"from": "human", "value": "Hi"},
                    {"from": "gpt", "value": "Hello"},
                ]
            },
            (Message("user", "Hi"),),
            "Hello",
        ),
        ({"text": "a\r\nb"}, None, "a\nb"),
    ],
)
def test_formats_are_told_by_their_columns(
    data_recipe: Make, row: JsonDict, prompt: Prompt | None, completion: str
) -> None:
    """Further columns do no harm; line ends are normalised."""
    (example,) = read(data_recipe("x"), row)
    assert (example.prompt, example.completion, example.where) == (
        prompt,
        completion,
        "rows, row 1",
    )


def test_columns_of_other_names_are_named_in_the_recipe(data_recipe: Make) -> None:
    """Also for automatic choice: only formats that have these columns are tried."""
    row = {"question": "Add.", "solution": "3", "messages": "something else"}
    assert read(data_recipe("x", columns={"instruction": "question", "output": "solution"}), row)[
        0
    ].prompt == (Message("user", "Add."),)
    assert (
        read(data_recipe("x", columns={"prompt": "question", "completion": "solution"}), row)[
            0
        ].prompt
        == "Add."
    )
    assert read(data_recipe("x", text_column="solution", format="text"), row)[0].completion == "3"
    assert read(data_recipe("x", text_column=1, format="text"), row)[0].completion == "3"


def test_a_format_that_is_asked_for_is_used_though_another_would_come_first(
    data_recipe: Make,
) -> None:
    """By data.format."""
    row = {"messages": CHAT, "prompt": "a", "completion": "b", "text": "c"}
    found = {
        name: read(data_recipe("x", format=name), row)[0].completion
        for name in ("auto", "messages", "prompt", "text")
    }
    assert found == {"auto": "Hello", "messages": "Hello", "prompt": "b", "text": "c"}


def test_an_input_that_only_later_rows_have_is_used(data_recipe: Make) -> None:
    """JSON lines need not have the same columns everywhere."""
    first, second = read(
        data_recipe("x"),
        {"instruction": "a", "output": "b"},
        {"instruction": "a", "output": "b", "input": "c"},
    )
    assert (text_of_prompt(first), text_of_prompt(second)) == ("a", "a\n\nc")


def test_system_and_history_of_llama_factory_come_before(data_recipe: Make) -> None:
    """Its further columns of Alpaca's and ShareGPT's formats; earlier answers are learned, too."""
    alpaca, bare, sharegpt, own = read(
        data_recipe("x", format="alpaca"),
        {
            "instruction": "And 3?",
            "output": "6",
            "system": "Be short.",
            "history": [["Add 1 and 2.", "3"]],
        },
        {"instruction": "And 3?", "output": "6", "system": "", "history": None},
    ) + read(
        data_recipe("x"),
        {
            "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}],
            "system": "Be short.",
        },
        {
            "conversations": [
                {"from": "system", "value": "Be kind."},
                {"from": "human", "value": "Hi"},
                {"from": "gpt", "value": "Hello"},
            ],
            "system": "Be short.",
        },
    )
    assert alpaca.prompt == (
        Message("system", "Be short."),
        Message("user", "Add 1 and 2."),
        Message("assistant", "3"),
        Message("user", "And 3?"),
    )
    assert all(message.is_learned for message in alpaca.prompt)
    assert bare.prompt == (Message("user", "And 3?"),)
    assert sharegpt.prompt == CHAT_PROMPT
    assert own.prompt == (Message("system", "Be kind."), Message("user", "Hi"))


@pytest.mark.parametrize("history", [[["only one"]], ["a", "b"], [["a", 1]]])
def test_a_history_that_is_no_pairs_is_refused(
    data_recipe: Make, history: Any, refuses: Refuses
) -> None:
    row = {"instruction": "a", "output": "b", "history": history}
    with refuses(DataError, names=["'history'"]):
        read(data_recipe("x"), row)


def test_answers_in_a_prompt_of_messages_are_given(data_recipe: Make) -> None:
    """As in TRL, where only the completion is learned; in `messages` every answer is."""
    turns = [*CHAT, {"role": "user", "content": "Bye"}]
    last = {"role": "assistant", "content": "See you"}
    (pair,) = read(data_recipe("x"), {"prompt": turns, "completion": [last]})
    (chat,) = read(data_recipe("x"), {"messages": [*turns, last]})
    hello, bye = Message("assistant", "Hello"), Message("user", "Bye")
    answer = Message("assistant", "See you")
    assert chat.messages == (*CHAT_PROMPT, hello, bye, answer)
    assert pair.messages == (*CHAT_PROMPT, replace(hello, is_learned=False), bye, answer)


def test_what_is_held_out_together_is_the_rows_document_else_its_prompt(data_recipe: Make) -> None:
    """The prompt of a conversation is told apart by its roles; of a text it is the text."""
    rows = [
        {"prompt": "a", "completion": "b"},
        {"prompt": "a", "completion": "b", "document": "whole"},
    ]
    assert [example.group for example in read(data_recipe("x"), *rows)] == ["a", "whole"]
    assert read(data_recipe("x"), {"messages": CHAT})[0].group == "system: Be short.\nHi"
    assert read(data_recipe("x"), {"text": "a"})[0].group == "a"


@pytest.mark.parametrize(
    ("row", "fields", "said"),
    [
        (
            {"query": "a", "reply": "b"},
            {},
            [
                "row 1",
                "query, reply",
                "prompt + completion",
                "output|response|answer",
                "data.columns",
            ],
        ),
        (
            {"prompt": "a", "reply": "b"},
            {"format": "prompt"},
            ["prompt, reply", "Accepted: prompt: prompt + completion"],
        ),
        (
            {"q": "a"},
            {"columns": {"instruction": "q", "output": "sol"}},
            ["Accepted: alpaca: q + sol (and input"],
        ),
        ({"q": "a"}, {"columns": {"instructon": "q"}}, ["did you mean 'instruction'?"]),
        (
            {"q": "a"},
            {"columns": {"instruction": "q", "completion": "q"}},
            ["no format has the columns instruction, completion together"],
        ),
        (
            {"prompt": "a", "completion": 3},
            {},
            ["row 1", "'completion' holds 3 (int)", "expected text"],
        ),
        ({"instruction": None, "output": "b"}, {}, ["'instruction' holds None"]),
        ({"prompt": CHAT, "completion": "b"}, {}, ["list of messages and the other is not"]),
        ({"messages": "hello"}, {}, ["list of messages with 'role' and 'content', found str"]),
        (
            {"messages": [{"role": "user", "text": "a"}]},
            {},
            ["row 1, message 1", "expected 'role' and 'content', found 'role', 'text'"],
        ),
        ({"messages": ["a"]}, {}, ["message 1", "found str"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            {},
            ["message 1, part 1 has no text"],
        ),
        (
            {"messages": [{"role": "assistent", "content": "a"}]},
            {},
            ["unknown role 'assistent' - did you mean 'assistant'?"],
        ),
        (
            {"conversations": [{"from": "bot", "value": "a"}]},
            {},
            ["unknown from 'bot'", "user, human, assistant, gpt"],
        ),
        ({"messages": CHAT[:2]}, {}, ["no message is the assistant's"]),
        ({"messages": [*CHAT, CHAT[1]]}, {}, ["the last message is the user's"]),
        ({"messages": []}, {}, ["no message is the assistant's"]),
        (
            ["a"],
            {},
            ["expected an object with columns, or a list [question, answer]", "found list of 1"],
        ),
        ("a", {}, ["expected an object with columns", "found str"]),
        (["What?", True], {}, ["expected a number or text as answer, found bool"]),
        (
            {"text": "a", "code": "b", "test_list": "c"},
            {},
            ["test_list must be a list of assertions"],
        ),
    ],
)
def test_what_makes_no_example_is_named(
    data_recipe: Make, row: Any, fields: JsonDict, said: list[str]
) -> None:
    """Row, rule and way out."""
    with pytest.raises(DataError) as caught:
        read(data_recipe("x", **fields), row)
    assert [part for part in said if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("row", "example"),
    [
        ({"Frage": "a", "Antwort": "b"}, {"prompt": "Frage", "completion": "Antwort"}),
        ({"story": "a"}, {"text": "story"}),
        ({"id": 1, "said": "a", "written": "b"}, {"prompt": "NAME", "completion": "NAME"}),
        ({"prompt;completion": "a;b"}, {"prompt": "NAME", "completion": "NAME"}),
    ],
)
def test_only_names_that_columns_may_have_are_proposed(
    data_recipe: Make, row: dict[str, object], example: dict[str, str]
) -> None:
    with pytest.raises(DataError) as told:
        read(data_recipe(path="rows.jsonl"), row)
    proposed = ", ".join(map(": ".join, example.items()))
    assert f"data.columns='{{{proposed}}}'" in str(told.value)
    if "NAME" not in example.values():
        assert len(read(data_recipe(path="rows.jsonl", columns=example), row)) == 1


def test_empty_answers_are_counted(data_recipe: Make, refuses: Refuses) -> None:
    """White space is nothing, too; an empty answer that is only context does no harm."""
    rows = [{"prompt": "a", "completion": text} for text in ("b", "", " \n", "c")]
    with refuses(DataError, names=["2 of 4", "row 2"]):
        read(data_recipe("x"), *rows)
    empty = [CHAT[1], {"role": "assistant", "content": ""}, CHAT[1]]
    with refuses(DataError, names=["1 of 1"]):
        read(data_recipe("x"), {"messages": [*empty, CHAT[2]]})
    assert (
        read(data_recipe("x"), {"prompt": empty, "completion": [CHAT[2]]})[0].completion == "Hello"
    )


def test_rows_of_two_formats_are_refused(data_recipe: Make, refuses: Refuses) -> None:
    """brimful does not guess which of them is meant."""
    with refuses(DataError, names=["row 2"]):
        read(data_recipe("x"), {"prompt": "a", "completion": "b"}, {"text": "c"})


def test_real_instructions_in_the_alpaca_format_are_read(
    shared_data: Any, data_recipe: Make
) -> None:
    """GPTeacher's 4,535 rows, whose answers are called response."""
    data = data_recipe(shared_data / "gpteacher_codegen" / "codegen-instruct.json.gz")
    examples = list(examples_of(open_rows(data).parts[0].splits["train"], data))
    assert len(examples) == 4535
    assert text_of_prompt(examples[0]).endswith(
        "given its width and height.\n\nwidth: 5, height: 8"
    )


@pytest.mark.parametrize(
    ("row", "completion"),
    [
        (["How many?", 120.0], "<answer>120</answer>"),
        (["How many?", 2.5], "<answer>2.5</answer>"),
        (["How many?", 120.0, "2 x 60 = <answer>120</answer>"], "2 x 60 = <answer>120</answer>"),
        (
            {"question": "How many?", "answer": 120, "reasoning": "2 x 60 = 120 "},
            "2 x 60 = 120 <answer>120</answer>",
        ),
        ({"question": "How many?", "answer": "2 x 60\n#### 120"}, "2 x 60\n#### 120"),
        ({"question": "How many?", "answer": 7, "reasoning": None}, "<answer>7</answer>"),
    ],
)
def test_questions_are_answered_with_their_reasoning_and_a_marked_answer(
    data_recipe: Make, row: Any, completion: str
) -> None:
    """Lists of two or three are the format of the guide."""
    (example,) = read(data_recipe("x"), row)
    assert example.prompt == (Message("user", "How many?"),)
    assert example.completion == completion


def test_a_problem_of_mbpp_is_worded_as_its_task_words_it(data_recipe: Make) -> None:
    """Else a model would be trained to answer something else than it is asked."""
    row = {
        "text": "Add two.",
        "code": "def add(a):\r\n    return a + 2\r\n",
        "test_list": ["assert add(1) == 3", "assert add(2) == 4"],
        "task_id": 700,
    }
    (example,) = read(data_recipe("x"), row)
    assert example.prompt == (
        Message("user", render(str(load_task("mbpp").template.text), row, "row")),
    )
    assert example.completion == "```python\ndef add(a):\n    return a + 2\n```"


@pytest.mark.parametrize(
    "columns",
    [("input", "output"), ("query", "response"), ("user", "assistant"), ("prompt", "response")],
)
def test_pairs_under_other_names(
    data_recipe: Callable[..., DataRecipe], columns: tuple[str, str]
) -> None:
    """Text as it stands, as prompt and completion are; a column `system` comes before."""
    row = dict(zip(columns, ("Hi", "Ho"), strict=True))
    (example,) = examples_of([Row(row, "row 1")], data_recipe("x"))
    assert (example.prompt, example.completion) == ("Hi", "Ho")
    (example,) = examples_of([Row({**row, "system": "Be kind."}, "row 1")], data_recipe("x"))
    assert example.prompt == (Message("system", "Be kind."), Message("user", "Hi"))


BAD = {
    "null": {"prompt": "q", "completion": None},
    "empty": {"prompt": "q", "completion": " "},
    "other columns": {"prompt": "q"},
    "no row": 3,
}


def test_bad_rows_are_left_out_up_to_a_tenth(
    data_recipe: Callable[..., DataRecipe], refuses: Refuses
) -> None:
    good = [Row({"prompt": "q", "completion": "a"}, f"row {number}") for number in range(36)]
    bad = [Row(values, name) for name, values in BAD.items()]
    account, data = Account(), data_recipe("x", bad_rows="drop")
    assert len([*examples_of([good[0], *bad, *good[1:]], data, account)]) == 36
    assert [each.where for each in account.bad_rows] == [*BAD]
    (entry,) = account
    assert (entry.kind, entry.count) == ("bad_rows", 4)
    with refuses(DataError, names=["4 of 39", "10%", "null"]):
        list(examples_of([good[0], *bad, *good[2:]], data, Account()))
    for one in bad:
        with pytest.raises(DataError, match=r"data\.bad_rows=drop"):
            list(examples_of([*good, one], data_recipe("x"), Account()))


@pytest.mark.parametrize("bad_rows", ["stop", "drop"])
def test_rows_that_are_not_learned_are_not_left_out(data_recipe: Make, bad_rows: str) -> None:
    """Of questions nothing counts what is left out, so nothing is, and the key is not advised."""
    good = [Row({"prompt": "q", "completion": "a"}, f"row {number}") for number in range(36)]
    for values in BAD.values():
        with pytest.raises(DataError) as raised:
            list(examples_of([*good, Row(values, "bad")], data_recipe("x", bad_rows=bad_rows)))
        assert "bad_rows" not in str(raised.value)


def test_a_flag_of_a_row_is_read_and_other_columns_are_named(data_recipe: Make) -> None:
    """A zero is a value, an empty text is none."""
    rows = [
        {"prompt": "q", "completion": "a", "weight": weight, "id": 0, "empty": ""}
        for weight in (1, 0, 2)
    ]
    account = Account()
    assert len([*examples_of([Row(each, "row") for each in rows], data_recipe("x"), account)]) == 2
    assert [(entry.kind, entry.names) for entry in account] == [
        ("columns", {"id": 3, "weight": 1}),
        ("rows_flagged", {"weight": 1}),
    ]
