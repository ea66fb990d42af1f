"""How rows of each format hold a prompt and its answer: one function per format.

Formats and their columns follow the conventions of TRL
(https://huggingface.co/docs/trl/dataset_formats), Stanford Alpaca, ShareGPT, GSM8K and MBPP, read
2026-11-21.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from brimful.base.errors import DataError
from brimful.base.text import clause
from brimful.base.types import Json
from brimful.data.account import Intake
from brimful.data.chatgpt_export import shown_branch
from brimful.data.conversations import Message, conversation, with_tools
from brimful.data.rows import text_of

Prompt = tuple[Message, ...] | str
"""Messages, which a template turns into text, or text that is used unchanged."""


Parts = TypeVar("Parts")


@dataclass(frozen=True)
class RowFormat(Generic[Parts]):
    """How rows hold examples, or what else a method learns from.

    Attributes:
        columns: Names under which each of the format's required columns may stand.
        optional: Further columns that are used where they are there.
        parts: Makes an example's parts of a row with these columns, of where it stands and of how
            rows are taken in; None: nothing of the row is learned.
    """

    columns: Mapping[str, tuple[str, ...]]
    optional: tuple[str, ...]
    parts: Callable[[Json, str, Intake], Parts | None]


class RowParts(NamedTuple):
    """Prompt, completion, and `Message.extra` of the completion."""

    prompt: Prompt | None
    completion: str
    extra: str = ""


_OPENAI_KEYS, _SHAREGPT_KEYS = ("role", "content"), ("from", "value")


def _turns(
    turns: object,
    row: Json,
    where: str,
    intake: Intake,
    keys: tuple[str, str] = _OPENAI_KEYS,
    given: int = 0,
) -> RowParts | None:
    """A conversation up to the last answer that is learned; `given`: as in `conversation`."""
    said = conversation(turns, where, keys, intake, given)
    learned = [number for number, message in enumerate(said) if message.is_learned_answer]
    if not learned:
        intake.account.add("rows_flagged", where, "every answer")
        return None
    said = said[: learned[-1] + 1]
    system = _system(row, where)
    if said[0].role not in {"system", "developer"}:
        said = (*system, *said)
    elif system and system[0].content != said[0].content:
        intake.account.add("system_twice", where)
    messages = with_tools(said, row.get("tools"), where)
    return RowParts(messages[:-1], messages[-1].content, messages[-1].extra)


def _pair(row: Json, where: str, intake: Intake) -> RowParts | None:
    if isinstance(row["prompt"], list) and isinstance(row["completion"], list):
        turns, given = [*row["prompt"], *row["completion"]], len(row["prompt"])
        return _turns(turns, row, where, intake, given=given)
    if isinstance(row["prompt"], list) or isinstance(row["completion"], list):
        raise DataError(
            f"{where}: one of 'prompt' and 'completion' is a list of messages and the other is not."
            " Both must be text, or both lists."
        )
    return _text_pair(row, where, intake)


def _text_pair(row: Json, where: str, intake: Intake) -> RowParts:
    prompt, completion = text_of(row, "prompt", where), text_of(row, "completion", where)
    if "system" in row:
        return RowParts((*_system(row, where), Message("user", prompt)), completion)
    return RowParts(prompt, completion)


def _messages(row: Json, where: str, intake: Intake) -> RowParts | None:
    return _turns(row["messages"], row, where, intake)


def _conversations(row: Json, where: str, intake: Intake) -> RowParts | None:
    return _turns(row["conversations"], row, where, intake, _SHAREGPT_KEYS)


def _chatgpt(row: Json, where: str, intake: Intake) -> RowParts | None:
    turns = shown_branch(row["mapping"], row.get("current_node"), where)
    return _turns(turns, row, where, intake)


def _alpaca(row: Json, where: str, intake: Intake) -> RowParts:
    task, material = text_of(row, "instruction", where), _optional_text(row, "input", where)
    if material.strip():
        task = f"{task}\n\n{material}"
    before = (*_system(row, where), *_history(row, where))
    return RowParts((*before, Message("user", task)), text_of(row, "output", where))


def _system(row: Json, where: str) -> tuple[Message, ...]:
    """Return the system's message that a column of its own holds."""
    text = _optional_text(row, "system", where)
    return (Message("system", text),) if text.strip() else ()


def _history(row: Json, where: str) -> tuple[Message, ...]:
    """Return earlier turns as LLaMA-Factory keeps them: pairs of an instruction and its answer.
    Their answers are learned, too, as there.
    """
    turns: list[Message] = []
    for pair in row.get("history") or ():
        if not isinstance(pair, list) or [*map(type, pair)] != [str, str]:
            raise DataError(
                f"{where}: 'history' must be a list of pairs of texts, an instruction and its"
                f" answer, not {pair!r:.60}."
            )
        turns += [Message("user", pair[0]), Message("assistant", pair[1])]
    return tuple(turns)


def _optional_text(row: Json, column: str, where: str) -> str:
    if row.get(column) is None:
        return ""
    return text_of(row, column, where)


def _question(row: Json, where: str, intake: Intake) -> RowParts:
    reasoning = _optional_text(row, "reasoning", where).rstrip()
    answer = answer_text(row["answer"], where)
    if _MARKED.search(reasoning) or (not reasoning and _MARKED.search(answer)):
        completion = reasoning or answer
    else:
        marked = f"{reasoning} <answer>{answer}</answer>".lstrip()
        completion = clause(answer.strip(), marked)
        intake.account.add("marked", where)
    asked = Message("user", text_of(row, "question", where))
    return RowParts((*_system(row, where), asked), completion)


_MARKED = re.compile(r"<answer>|####|\\boxed", re.IGNORECASE)
"""Marks of a final answer: the tags of the guide, GSM8K's and LaTeX's."""


def answer_text(value: object, where: str) -> str:
    """An answer, a number or a text, as text; a number without a needless `.0`.

    Raises:
        DataError: it is neither.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise DataError(
        f"{where}: expected a number or text as answer, found {type(value).__name__}. Correct or"
        " remove the row."
    )


def _mbpp(row: Json, where: str, intake: Intake) -> RowParts:
    """The question is worded as in the task `mbpp`."""
    if not (
        isinstance(row["test_list"], list)
        and all(isinstance(test, str) for test in row["test_list"])
    ):
        raise DataError(
            f"{where}: test_list must be a list of assertions as text. Are these the rows of MBPP?"
        )
    tests = "\n".join(row["test_list"])
    task = (
        f"You are an expert Python programmer, and here is your task: {text_of(row, 'text', where)}"
        f" Your code should pass these tests:\n\n{tests}\n\nAnswer with one Python code block."
    )
    code = text_of(row, "code", where).replace("\r", "").strip("\n")
    return RowParts((Message("user", task),), f"```python\n{code}\n```")


def _text(row: Json, where: str, intake: Intake) -> RowParts:
    return RowParts(None, text_of(row, "text", where))


FORMATS: Mapping[str, RowFormat[RowParts]] = MappingProxyType(
    {
        "messages": RowFormat({"messages": ("messages",)}, ("tools", "system"), _messages),
        "conversations": RowFormat(
            {"conversations": ("conversations",)}, ("tools", "system"), _conversations
        ),
        "prompt": RowFormat(
            {"prompt": ("prompt",), "completion": ("completion",)}, ("tools", "system"), _pair
        ),
        "question": RowFormat(
            {"question": ("question",), "answer": ("answer",)}, ("reasoning", "system"), _question
        ),
        "mbpp": RowFormat(
            {"text": ("text", "prompt"), "code": ("code",), "test_list": ("test_list",)}, (), _mbpp
        ),
        "alpaca": RowFormat(
            {"instruction": ("instruction",), "output": ("output", "response", "answer")},
            ("input", "system", "history"),
            _alpaca,
        ),
        "text": RowFormat({"text": ("text",)}, (), _text),
        "pair": RowFormat(
            {
                "prompt": ("input", "query", "user", "prompt"),
                "completion": ("output", "response", "assistant", "completion"),
            },
            ("system",),
            _text_pair,
        ),
        "chatgpt": RowFormat({"mapping": ("mapping",)}, ("current_node",), _chatgpt),
    }
)
"""By name, in the order in which data.format=auto tries them."""
