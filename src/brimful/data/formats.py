"""Rows of a data set as examples to learn from: one function per format.

Formats and their columns follow the conventions of TRL
(https://huggingface.co/docs/trl/dataset_formats), Stanford Alpaca, ShareGPT, GSM8K and MBPP, read
2026-11-21.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.base.text import clause
from brimful.data.chatgpt_export import shown_branch
from brimful.data.conversations import Message, conversation, with_tools
from brimful.data.preferences import refuse_judged, refused_preferences
from brimful.data.rows import Row, column_name, text_of
from brimful.recipe import DataRecipe

__all__ = [
    "FORMATS",
    "Example",
    "Message",
    "Prompt",
    "answer_text",
    "as_columns",
    "examples_of",
    "find_format",
    "text_of_prompt",
]

MOST_LEFT_OUT = 0.1
"""So large a share of a split's rows is left out at most."""
_LEAVES_OUT = " data.bad_rows=drop leaves such rows out and lists them."

Prompt = tuple[Message, ...] | str
"""Messages, which a template turns into text, or text that is used unchanged."""


@dataclass(frozen=True)
class Example:
    """A prompt and its completion, from one row.

    Attributes:
        prompt: Everything before the last answer; None: there is no prompt, the whole text is
            learned.
        completion: The last answer, or the whole text.
        where: The row, for errors.
        group: Examples with equal groups are never held out apart: the row's `document` where it
            has one, else the prompt.
        given: So many of the first messages are context only: answers among them are not learned.
        extra: Of the answer, as `Message.extra`.
    """

    prompt: Prompt | None
    completion: str
    where: str
    group: str
    given: int = 0
    extra: str = ""

    @property
    def messages(self) -> tuple[Message, ...] | None:
        """The whole conversation; None where the prompt is not one."""
        if not isinstance(self.prompt, tuple):
            return None
        return (*self.prompt, Message("assistant", self.completion, self.extra))

    @property
    def has_tools(self) -> bool:
        """Whether a chat template is given more than roles and contents."""
        return any(message.extra for message in self.messages or ())


def text_of_prompt(example: Example) -> str:
    """Return the prompt as one text, to compare examples by; the text itself where there is
    none.
    """
    if example.prompt is None:
        return example.completion
    if isinstance(example.prompt, str):
        return example.prompt
    return "\n".join(
        clause(message.role != "user", f"{message.role}: ") + message.content
        for message in example.prompt
    )


class BadRow(NamedTuple):
    """A row that is left out: where it stands, and why."""

    where: str
    reason: str


@dataclass(frozen=True)
class RowFormat:
    """How rows hold examples.

    Attributes:
        columns: For each of the format's required columns, the names under which it may stand.
        optional: Further columns that are used where they are there.
        parts: Makes an example's parts of a row with these columns and of where it stands.
    """

    columns: Mapping[str, tuple[str, ...]]
    optional: tuple[str, ...]
    parts: Callable[[Mapping[str, Any], str], "_Parts"]


class _Parts(NamedTuple):
    """Prompt, completion, number of given messages, and `Message.extra` of the completion."""

    prompt: Prompt | None
    completion: str
    given: int = 0
    extra: str = ""


_OPENAI_KEYS, _SHAREGPT_KEYS = ("role", "content"), ("from", "value")


def _turns(turns: object, row: Mapping[str, Any], where: str, keys: tuple[str, str]) -> _Parts:
    said = conversation(turns, where, keys)
    if said[0].role not in {"system", "developer"}:
        said = (*_system(row, where), *said)
    messages = with_tools(said, row.get("tools"), where)
    return _Parts(messages[:-1], messages[-1].content, 0, messages[-1].extra)


def _pair(row: Mapping[str, Any], where: str) -> _Parts:
    if isinstance(row["prompt"], list) and isinstance(row["completion"], list):
        parts = _turns([*row["prompt"], *row["completion"]], row, where, _OPENAI_KEYS)
        return parts._replace(given=len(row["prompt"]))
    if isinstance(row["prompt"], list) or isinstance(row["completion"], list):
        raise DataError(
            f"{where}: one of 'prompt' and 'completion' is a list of messages and the other is not."
            " Both must be text, or both lists."
        )
    return _Parts(text_of(row, "prompt", where), text_of(row, "completion", where))


def _text_pair(row: Mapping[str, Any], where: str) -> _Parts:
    before, prompt = _system(row, where), text_of(row, "prompt", where)
    return _Parts(
        (*before, Message("user", prompt)) if before else prompt, text_of(row, "completion", where)
    )


def _messages(row: Mapping[str, Any], where: str) -> _Parts:
    return _turns(row["messages"], row, where, _OPENAI_KEYS)


def _conversations(row: Mapping[str, Any], where: str) -> _Parts:
    return _turns(row["conversations"], row, where, _SHAREGPT_KEYS)


def _chatgpt(row: Mapping[str, Any], where: str) -> _Parts:
    turns = shown_branch(row["mapping"], row.get("current_node"), where)
    return _turns(turns, row, where, _OPENAI_KEYS)


def _alpaca(row: Mapping[str, Any], where: str) -> _Parts:
    task, material = text_of(row, "instruction", where), _optional_text(row, "input", where)
    if material.strip():
        task = f"{task}\n\n{material}"
    before = (*_system(row, where), *_history(row, where))
    return _Parts((*before, Message("user", task)), text_of(row, "output", where))


def _system(row: Mapping[str, Any], where: str) -> tuple[Message, ...]:
    """Return the system's message that a column of its own holds."""
    text = _optional_text(row, "system", where)
    return (Message("system", text),) if text.strip() else ()


def _history(row: Mapping[str, Any], where: str) -> tuple[Message, ...]:
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


def _optional_text(row: Mapping[str, Any], column: str, where: str) -> str:
    if row.get(column) is None:
        return ""
    return text_of(row, column, where)


def _question(row: Mapping[str, Any], where: str) -> _Parts:
    reasoning = _optional_text(row, "reasoning", where).rstrip()
    answer = answer_text(row["answer"], where)
    if _MARKED.search(reasoning) or (not reasoning and _MARKED.search(answer)):
        completion = reasoning or answer
    else:
        marked = f"{reasoning} <answer>{answer}</answer>".lstrip()
        completion = clause(answer.strip(), marked)
    return _Parts((Message("user", text_of(row, "question", where)),), completion)


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


def _mbpp(row: Mapping[str, Any], where: str) -> _Parts:
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
    return _Parts((Message("user", task),), f"```python\n{code}\n```")


def _text(row: Mapping[str, Any], where: str) -> _Parts:
    return _Parts(None, text_of(row, "text", where))


FORMATS: Mapping[str, RowFormat] = MappingProxyType(
    {
        "messages": RowFormat({"messages": ("messages",)}, ("tools",), _messages),
        "conversations": RowFormat(
            {"conversations": ("conversations",)}, ("tools", "system"), _conversations
        ),
        "prompt": RowFormat(
            {"prompt": ("prompt",), "completion": ("completion",)}, ("tools",), _pair
        ),
        "question": RowFormat(
            {"question": ("question",), "answer": ("answer",)}, ("reasoning",), _question
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


def find_format(columns: Iterable[str], data: DataRecipe, where: str) -> tuple[str, dict[str, str]]:
    """The format of rows with these columns, and for each of the format's columns the row's column
    that holds it.

    Raises:
        DataError: columns are missing, or `data.columns` names one that no format has.
    """
    found = list(columns)
    if isinstance(data.text_column, int):
        data = data.model_copy(update={"text_column": column_name(data.text_column, found, where)})
    candidates = _candidates(data)
    for name in candidates:
        chosen = _columns_in(found, FORMATS[name], data)
        if chosen is not None:
            return name, chosen
    accepted = "; ".join(f"{name}: {_described(FORMATS[name], data)}" for name in candidates)
    raise DataError(
        f"{where}: the columns {', '.join(found)} do not make examples. Accepted: {accepted}. Other"
        f" names can be given with data.columns, for example"
        f" data.columns='{{{_renaming(found, candidates)}}}'."
    )


def _renaming(found: list[str], candidates: list[str]) -> str:
    """Return an example of `data.columns`, with the rows' own columns where only one order of them
    is likely and all can be names.
    """
    likely = {1: "text", 2: "prompt"}.get(len(found))
    if likely in candidates and all(map(_NAME.fullmatch, found)):
        pairs = zip(FORMATS[likely].columns, found, strict=True)
        return ", ".join(map(": ".join, pairs))
    shown = "prompt" if "prompt" in candidates else candidates[0]
    return ", ".join(f"{column}: NAME" for column in FORMATS[shown].columns)


_NAME = re.compile(r"\w[\w .-]{0,60}")
"""What a column may be called; other characters come of rows that were divided wrongly."""


def _candidates(data: DataRecipe) -> list[str]:
    """The formats to try: the one asked for, else all that have the columns the recipe gives other
    names to.
    """
    asked: list[str] = [data.format]
    if data.format == "auto":
        asked = list(FORMATS)
    known = {name: [*FORMATS[name].columns, *FORMATS[name].optional] for name in asked}
    for column in data.columns:
        names = sorted({name for names in known.values() for name in names})
        if column not in names:
            raise DataError(
                f"data.columns: the format has no column {column!r}{did_you_mean(column, names)} It"
                f" has: {', '.join(names)}."
            )
    candidates = [name for name in asked if set(data.columns) <= set(known[name])]
    if not candidates:
        raise DataError(
            f"data.columns: no format has the columns {', '.join(data.columns)} together. Choose"
            " one with data.format."
        )
    return candidates


def _columns_in(found: list[str], row_format: RowFormat, data: DataRecipe) -> dict[str, str] | None:
    chosen = {}
    for column, accepted in row_format.columns.items():
        held_by = next((name for name in _names(column, accepted, data) if name in found), None)
        if held_by is None:
            return None
        chosen[column] = held_by
    optional = {column: data.columns.get(column, column) for column in row_format.optional}
    return chosen | {column: name for column, name in optional.items() if name in found}


def _names(column: str, accepted: tuple[str, ...], data: DataRecipe) -> tuple[str, ...]:
    renamed = {"text": str(data.text_column)} | data.columns
    if column in renamed:
        return (renamed[column],)
    return accepted


def _described(row_format: RowFormat, data: DataRecipe) -> str:
    required = " + ".join(
        "|".join(_names(column, accepted, data)) for column, accepted in row_format.columns.items()
    )
    optional = f" (and {', '.join(row_format.optional)} where there is one)"
    return required + clause(row_format.optional, optional)


def examples_of(
    rows: Iterable[Row], data: DataRecipe, left_out: list[BadRow] | None = None
) -> Iterator[Example]:
    """The examples of rows that all have the format of the first one.

    Args:
        rows: Of one split.
        data: Its `format`, `columns` and `bad_rows` count.
        left_out: Gets the rows that `bad_rows=drop` leaves out.

    Raises:
        DataError: missing columns, a value that is not text, an unknown role, a conversation
            without an answer at its end, and, when all rows were read, how many have an empty
            answer; of more than `MOST_LEFT_OUT` of the rows also with `bad_rows=drop`.
    """
    formats: dict[tuple[str, ...], tuple[str, dict[str, str]]] = {}
    drops, bad, empty = data.bad_rows == "drop", [], []
    number = 0
    for number, (values, where) in enumerate(rows, start=1):  # noqa: B007 - read below
        try:
            example = _example_of(values, where, formats, data)
        except DataError as error:
            if not (drops and formats):
                raise
            bad.append(BadRow(where, str(error)))
            continue
        if _has_an_empty_answer(example):
            empty.append(where)
            if drops:
                bad.append(BadRow(where, f"{where}: the answer is empty."))
                continue
        yield example
    if empty and not drops:
        few = len(empty) <= MOST_LEFT_OUT * number
        raise DataError(
            f"{len(empty)} of {number} rows have an empty answer, the first is {empty[0]}. They"
            " would teach the model to answer nothing. Remove these rows, or name another column as"
            f" the answer with data.columns.{clause(few, _LEAVES_OUT)}"
        )
    if len(bad) > MOST_LEFT_OUT * number:
        raise DataError(
            f"{len(bad)} of {number} rows cannot be learned, and data.bad_rows=drop leaves out"
            f" {MOST_LEFT_OUT:.0%} at most. The first: {bad[0].reason}"
        )
    if left_out is not None:
        left_out += bad


def _example_of(
    values: object,
    where: str,
    formats: dict[tuple[str, ...], tuple[str, dict[str, str]]],
    data: DataRecipe,
) -> Example:
    """The example of a row; `formats` gets the format of rows with its columns."""
    row = as_columns(values, where)
    if tuple(row) not in formats:
        found = _format_of(row, data, where)
        if len(names := {name for name, _ in [*formats.values(), found]}) > 1:
            raise DataError(
                f"{where}: rows of several formats, {' and '.join(sorted(names))}. Choose one"
                " with data.format, or separate the rows."
            )
        formats[tuple(row)] = found
    name, columns = formats[tuple(row)]
    try:
        return _example(
            FORMATS[name],
            {column: row[held_by] for column, held_by in columns.items()},
            row.get("document"),
            where,
        )
    except DataError as error:
        raise DataError(f"{error}{clause(data.bad_rows == 'stop', _LEAVES_OUT)}") from error


def _format_of(row: Mapping[str, Any], data: DataRecipe, where: str) -> tuple[str, dict[str, str]]:
    """As `find_format`; raises DataError for preferences, too."""
    if data.format == "auto" and not data.columns:
        refuse_judged(row, where)
    try:
        return find_format(row, data, where)
    except DataError as error:
        raise refused_preferences(row, where) or error from None


def as_columns(values: object, where: str) -> dict[str, Any]:
    """A row with names for its columns: [question, answer] and [question, answer, reasoning] get
    these.

    Raises:
        DataError: it is neither such a list nor an object.
    """
    if isinstance(values, dict):
        return values
    if isinstance(values, list) and len(values) in {2, 3}:
        return dict(zip(("question", "answer", "reasoning"), values, strict=False))
    found = type(values).__name__
    if isinstance(values, list):
        found = f"list of {len(values)}"
    raise DataError(
        f"{where}: expected an object with columns, or a list [question, answer] or [question,"
        f" answer, reasoning], found {found}."
    )


def _example(
    row_format: RowFormat, row: Mapping[str, Any], document: object, where: str
) -> Example:
    prompt, completion, given, extra = row_format.parts(row, where)
    example = Example(prompt, completion, where, "", given, extra)
    if not isinstance(document, str):
        document = text_of_prompt(example)
    return replace(example, group=document)


def _has_an_empty_answer(example: Example) -> bool:
    learned = (example.messages or ())[example.given :]
    answers = [
        message.content + message.extra for message in learned if message.role == "assistant"
    ] or [example.completion]
    return not all(map(str.strip, answers))
