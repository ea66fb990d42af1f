"""Pairs of a better and a worse answer, and judged answers, as other projects write them."""

from collections.abc import Callable

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.account import Account
from brimful.data.conversations import Message
from brimful.data.formats import Example
from brimful.data.preferences import Preference, judged_of, preferences_of
from brimful.data.rows import Row
from brimful.recipe import DataRecipe

Make = Callable[..., DataRecipe]
ASK, BETTER = (
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "Red."},
)
WORSE = {"role": "assistant", "content": "Dog."}
GPT_ASK, GPT_BETTER, GPT_WORSE = (
    {"from": name, "value": turn["content"]}
    for name, turn in (("human", ASK), ("gpt", BETTER), ("gpt", WORSE))
)
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = (Message("user", "Name a colour."),)
TOLD = (Message("system", "Be brief."), *ASKED)
DIALOGUE = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Name a colour.\n\nAssistant:"
AFTER_GREETING = (
    Message("user", "Hi"),
    Message("assistant", "Hello.", is_learned=False),
    *ASKED,
)


def numbered(rows: list[JsonDict]) -> list[Row]:
    return [Row(row, f"row {number}") for number, row in enumerate(rows, start=1)]


def pairs_of(data: DataRecipe, *rows: JsonDict) -> tuple[list[Preference], Account]:
    account = Account()
    return list(preferences_of(numbered([*rows]), data, account)), account


def answers_of(pair: Preference) -> tuple[str, str]:
    return pair.chosen.completion, pair.rejected.completion


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        pytest.param(
            {"prompt": "Name a colour.", "chosen": "Red.", "rejected": "Dog."},
            "Name a colour.",
            id="trl, text",
        ),
        pytest.param(
            {"prompt": [SYSTEM, ASK], "chosen": [BETTER], "rejected": [WORSE]},
            TOLD,
            id="trl, messages",
        ),
        pytest.param(
            {"chosen": [SYSTEM, ASK, BETTER], "rejected": [SYSTEM, ASK, WORSE]},
            TOLD,
            id="trl, implicit prompt",
        ),
        pytest.param(
            {"prompt": ASK, "chosen": "Red.", "rejected": "Dog."},
            ASKED,
            id="a message and texts",
        ),
        pytest.param(
            {"prompt": None, "chosen": [ASK, BETTER], "rejected": [ASK, WORSE]},
            ASKED,
            id="whole conversations beside an empty column",
        ),
        pytest.param(
            {"prompt": [ASK], "chosen": [ASK, BETTER], "rejected": [ASK, WORSE]},
            ASKED,
            id="prompt and whole conversations",
        ),
        pytest.param(
            {"prompt": "Name a colour.", "chosen": [ASK, BETTER], "rejected": [ASK, WORSE]},
            ASKED,
            id="ultrafeedback",
        ),
        pytest.param(
            {"prompt": "Name a colour.", "chosen": [BETTER], "rejected": [WORSE]},
            ASKED,
            id="prompt as text, answers as messages",
        ),
        pytest.param(
            {"prompt": [SYSTEM, ASK], "chosen": "Red.", "rejected": "Dog."},
            TOLD,
            id="prompt as messages, answers as text",
        ),
        pytest.param(
            {"instruction": "Name", "input": "a colour.", "chosen": "Red.", "rejected": "Dog."},
            (Message("user", "Name\n\na colour."),),
            id="llama-factory, alpaca",
        ),
        pytest.param(
            {
                "instruction": "Name a colour.",
                "history": [["Hi", "Hello."]],
                "chosen": "Red.",
                "rejected": "Dog.",
            },
            AFTER_GREETING,
            id="llama-factory, history",
        ),
        pytest.param(
            {"conversations": [GPT_ASK], "chosen": GPT_BETTER, "rejected": GPT_WORSE},
            ASKED,
            id="llama-factory, sharegpt",
        ),
        pytest.param(
            {"messages": [ASK], "chosen": BETTER, "rejected": WORSE, "system": "Be brief."},
            TOLD,
            id="llama-factory, openai",
        ),
        pytest.param(
            {
                "system": "Be brief.",
                "question": "Name a colour.",
                "chosen": "Red.",
                "rejected": "Dog.",
            },
            TOLD,
            id="orca_dpo",
        ),
        pytest.param(
            {"chosen": f"{DIALOGUE} Red.", "rejected": f"{DIALOGUE} Dog."},
            AFTER_GREETING,
            id="hh-rlhf",
        ),
        pytest.param(
            {"prompt": DIALOGUE, "chosen": " Red.", "rejected": " Dog."},
            AFTER_GREETING,
            id="hh-rlhf with a prompt",
        ),
    ],
)
def test_rows_of_every_convention_are_pairs(
    data_recipe: Make, row: JsonDict, prompt: object
) -> None:
    """Both answers have the prompt, in which nothing is learned, and nothing goes unread."""
    (pair,), account = pairs_of(data_recipe("x"), row)
    assert answers_of(pair) == ("Red.", "Dog.")
    assert pair.chosen.prompt == pair.rejected.prompt == prompt
    assert pair.chosen.where == "row 1"
    assert account.kinds <= {"system", "dialogues"}


def test_what_both_answers_of_a_pair_share_is_counted_once(data_recipe: Make) -> None:
    """A field that nobody reads: of the prompt once, of each answer for itself."""
    ask, better, worse = ({**each, "id": 7} for each in (ASK, BETTER, WORSE))
    row = {"chosen": [SYSTEM, ask, better], "rejected": [SYSTEM, ask, worse]}
    _, account = pairs_of(data_recipe("x", leave_out=["system"]), row, row)
    counts = {entry.kind: (entry.count, entry.first) for entry in account}
    assert counts["fields"] == (6, "row 1, chosen, message 2")
    assert counts["left_out"] == (2, "row 1, chosen")


def test_text_without_a_prompt_is_divided_before_the_word_that_differs(
    data_recipe: Make, snapshot: SnapshotAssertion, refuses: Refuses
) -> None:
    """Answers that begin alike stay whole words; the division is told."""
    row = {"chosen": "Two and two?\nIt is four", "rejected": "Two and two?\nIt is fourteen"}
    (pair,), account = pairs_of(data_recipe("x"), row)
    assert pair.chosen.prompt == pair.rejected.prompt == "Two and two?\nIt is"
    assert answers_of(pair) == (" four", " fourteen")
    assert [entry.text for entry in account] == snapshot
    with refuses(DataError, names=["row 1", "data.columns"]):
        pairs_of(data_recipe("x"), {"chosen": "four", "rejected": "five"})


def test_columns_have_other_names(data_recipe: Make) -> None:
    row = {"ask": "Name a colour.", "response_j": "Red.", "response_k": "Dog."}
    columns = {"prompt": "ask", "chosen": "response_j", "rejected": "response_k"}
    (pair,), account = pairs_of(data_recipe("x", columns=columns), row)
    assert answers_of(pair) == ("Red.", "Dog.")
    assert not account.kinds


def test_what_is_not_read_of_a_pair_is_told(data_recipe: Make, snapshot: SnapshotAssertion) -> None:
    """UltraFeedback's further columns, and a prompt that the conversations do not hold."""
    row = {
        "prompt": "Name a fish.",
        "prompt_id": "f0e3",
        "chosen": [ASK, BETTER],
        "rejected": [ASK, WORSE],
        "messages": [ASK, BETTER],
        "score_chosen": 8.5,
        "score_rejected": 4.0,
    }
    _, account = pairs_of(data_recipe("x"), row)
    assert [entry.text for entry in account] == snapshot


def test_answers_of_several_messages_are_compared_as_a_whole(data_recipe: Make) -> None:
    """What both share is only read; a call of a tool that one of them makes is learned."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    result = {"role": "tool", "content": "Red"}
    row = {"chosen": [ASK, call, result, BETTER], "rejected": [ASK, WORSE]}
    (pair,), _ = pairs_of(data_recipe("x"), row)
    learned = [message.is_learned_answer for message in pair.chosen.messages or ()]
    assert learned == [False, True, False, True]
    assert pair.rejected.prompt == ASKED


@pytest.mark.parametrize(
    "row",
    [
        {
            "chosen": [ASK, BETTER],
            "rejected": [{"role": "user", "content": "Name a pet."}, WORSE],
        },
        {"prompt": "q", "chosen": "a", "rejected": None},
        {"chosen": [ASK, BETTER], "rejected": [ASK]},
        {"prompt": None, "chosen": "a", "rejected": "b"},
        {"prompt": 7, "chosen": [BETTER], "rejected": [WORSE]},
        {"conversations": None, "chosen": BETTER, "rejected": WORSE},
    ],
    ids=["prompts differ", "no text", "no answer", "no prompt", "a number", "no conversation"],
)
def test_bad_pairs_are_refused_or_dropped(
    data_recipe: Make, row: JsonDict, refuses: Refuses
) -> None:
    good = [{"chosen": [ASK, BETTER], "rejected": [ASK, WORSE]}]
    if "prompt" in row:
        good = [{"prompt": "q", "chosen": "a", "rejected": "b"}]
    if "conversations" in row:
        good = [{"conversations": [ASK], "chosen": BETTER, "rejected": WORSE}]
    with refuses(DataError, names=["row 2", "data.bad_rows=drop"]):
        pairs_of(data_recipe("x"), *good, row)
    pairs, account = pairs_of(data_recipe("x", bad_rows="drop"), *good * 10, row)
    assert len(pairs) == 10
    assert len(account.bad_rows) == 1


def test_empty_answers_are_refused_or_dropped(data_recipe: Make, refuses: Refuses) -> None:
    """Rejected ones, too: they would teach to say anything."""
    rows = [{"prompt": f"q{number}", "chosen": "a", "rejected": "b"} for number in range(20)]
    rows += [{"prompt": "q", "chosen": " ", "rejected": "b"}]
    rows += [{"prompt": "r", "chosen": "a", "rejected": ""}]
    with refuses(DataError, names=["2 of 22", "data.bad_rows=drop"]):
        pairs_of(data_recipe("x"), *rows)
    pairs, account = pairs_of(data_recipe("x", bad_rows="drop"), *rows)
    assert len(pairs) == 20
    assert len(account.bad_rows) == 2


def test_pairs_that_teach_nothing_or_contradict_each_other_are_counted(
    data_recipe: Make, snapshot: SnapshotAssertion
) -> None:
    """Equal answers are left out, others stay: what is wrong with them is the user's to say."""
    pair = {"prompt": "q", "chosen": "a", "rejected": "b"}
    rows = [
        pair,
        {"prompt": "q", "chosen": "b", "rejected": "a"},
        {"prompt": "q", "chosen": "a", "rejected": "a"},
        pair,
        {"prompt": "other", "chosen": "b", "rejected": "a"},
    ]
    pairs, account = pairs_of(data_recipe("x"), *rows)
    assert [pair.chosen.where for pair in pairs] == ["row 1", "row 2", "row 4", "row 5"]
    assert [entry.text for entry in account] == snapshot


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"prompt": "Name a colour.", "completion": "Red."}, "Name a colour."),
        ({"prompt": [ASK], "completion": [BETTER]}, ASKED),
        ({"messages": [{"role": "user", "content": "Hi"}, BETTER, ASK, BETTER]}, None),
        ({"instruction": "Name a colour.", "output": "Red."}, ASKED),
        ({"conversations": [GPT_ASK, GPT_BETTER]}, ASKED),
    ],
    ids=["text", "messages", "conversation", "alpaca", "sharegpt"],
)
@pytest.mark.parametrize("verdict", [True, 0, "False", "1", 1.0])
def test_answers_are_judged(
    data_recipe: Make, row: JsonDict, prompt: object, verdict: object
) -> None:
    """In every form of examples, by TRL's column and LLaMA-Factory's; earlier answers are read."""
    name = "kto_tag" if "instruction" in row else "label"
    (judged,) = judged_of([Row({**row, name: verdict}, "row 1")], data_recipe("x"))
    assert judged.desired is (verdict not in (0, "False"))
    assert judged.completion == "Red."
    assert prompt in {None, judged.prompt}
    if isinstance(judged.prompt, tuple):
        assert not any(message.is_learned_answer for message in judged.prompt)


def test_verdicts_are_true_or_false_and_agree(
    data_recipe: Make, refuses: Refuses, snapshot: SnapshotAssertion
) -> None:
    rows: list[JsonDict] = [
        {"prompt": "q", "completion": "a", "label": True},
        {"prompt": "q", "completion": "a", "label": False},
    ]
    account = Account()
    examples: list[Example] = list(judged_of(numbered(rows), data_recipe("x"), account))
    assert len(examples) == 2
    assert [entry.text for entry in account] == snapshot
    with refuses(DataError, names=["row 3", "'maybe'"]):
        list(judged_of(numbered([*rows, {**rows[0], "label": "maybe"}]), data_recipe("x")))


def test_a_format_that_the_method_has_not_is_refused(data_recipe: Make, refuses: Refuses) -> None:
    row = {"prompt": "q", "chosen": "a", "rejected": "b"}
    with refuses(DataError, names=["data.format=mbpp"]):
        pairs_of(data_recipe("x", format="mbpp"), row)
    assert pairs_of(data_recipe("x", format="prompt"), row)[0]
