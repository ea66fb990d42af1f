"""Rows of a data set as examples to learn from: which format they have, and what of them is left
out.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.base.text import clause
from brimful.base.types import Json, JsonDict, Texts
from brimful.data.account import Account, BadRow, Intake
from brimful.data.conversations import Message
from brimful.data.row_formats import FORMATS, Parts, Prompt, RowFormat, RowParts, answer_text
from brimful.data.rows import Row, column_name, unread_in
from brimful.data.wrong_rows import Learned, refuse_judged, refused
from brimful.recipe import DataRecipe

__all__ = [
    "FORMATS",
    "Example",
    "Message",
    "Prompt",
    "RowReading",
    "answer_text",
    "as_columns",
    "example_of",
    "examples_of",
    "find_format",
    "taken_in",
    "text_of_prompt",
]

MOST_LEFT_OUT = 0.1
"""So large a share of a split's rows is left out at most."""
_LEAVES_OUT = " data.bad_rows=drop leaves such rows out and lists them."


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
        extra: The extra of the answer, as `Message.extra`.
        desired: Whether the answer is a good one.
        reference: The row's column answer, which answers may be held against.
    """

    prompt: Prompt | None
    completion: str
    where: str
    group: str
    extra: str = ""
    desired: bool = True
    reference: object = field(default=None, repr=False)

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


_DOCUMENT, _ROW_FLAG = "document", "weight"
"""Columns that every format knows: which rows are held out together, and whether one is learned at
all (as Fireworks AI has it).
"""
_SYSTEM_SINCE = {"messages", "prompt", "question"}
"""Formats whose column system earlier versions did not read: it decides what is learned."""


Taken = TypeVar("Taken")


@dataclass(frozen=True)
class RowReading(Generic[Parts, Taken]):
    """How a method's rows are read.

    Attributes:
        learned: what it learns from.
        formats: of its rows, by name, in the order in which data.format=auto tries them.
        made: what is learned from, of a row's parts, its columns and where it stands.
        answers: the examples in it, of which no answer may be empty.
    """

    learned: Learned
    formats: Mapping[str, RowFormat[Parts]]
    made: Callable[[Parts, Json, str], Taken]
    answers: Callable[[Taken], Iterable[Example]]


def find_format(
    columns: Iterable[str],
    data: DataRecipe,
    where: str,
    formats: Mapping[str, RowFormat[Any]] = FORMATS,
    learned: Learned = "examples",
) -> tuple[str, dict[str, str]]:
    """The format of rows with these columns, and for each of the format's columns the row's column
    that holds it.

    Raises:
        DataError: columns are missing, or `data.columns` names one that no format has.
    """
    found = list(columns)
    if isinstance(data.text_column, int):
        data = data.model_copy(update={"text_column": column_name(data.text_column, found, where)})
    candidates = _candidates(data, formats)
    for name in candidates:
        chosen = _columns_in(found, formats[name], data)
        if chosen is not None:
            return name, chosen
    accepted = "; ".join(f"{name}: {_described(formats[name], data)}" for name in candidates)
    shown = {name: [*formats[name].columns] for name in candidates}
    raise DataError(
        f"{where}: the columns {', '.join(found)} do not make {learned}. Accepted: {accepted}."
        " Other names can be given with data.columns, for example"
        f" data.columns='{{{_renaming(found, shown)}}}'."
    )


def _renaming(found: list[str], candidates: Mapping[str, list[str]]) -> str:
    """Return an example of `data.columns`, with the rows' own columns where only one order of them
    is likely and all can be names.
    """
    likely = candidates.get({1: "text", 2: "prompt"}.get(len(found), ""), [])
    if len(likely) == len(found) and all(map(_NAME.fullmatch, found)):
        return ", ".join(map(": ".join, zip(likely, found, strict=True)))
    shown = candidates.get("prompt") or next(iter(candidates.values()))
    return ", ".join(f"{column}: NAME" for column in shown)


_NAME = re.compile(r"\w[\w .-]{0,60}")
"""What a column may be called; other characters come of rows that were divided wrongly."""


def _candidates(data: DataRecipe, formats: Mapping[str, RowFormat[Any]]) -> list[str]:
    """The formats to try: the one asked for, else all that have the columns the recipe gives other
    names to.
    """
    asked: list[str] = [data.format]
    if data.format == "auto":
        asked = list(formats)
    elif data.format not in formats:
        raise DataError(
            f"data.format={data.format}: the method has no such rows. Choose one of auto,"
            f" {', '.join(formats)}."
        )
    known = {name: [*formats[name].columns, *formats[name].optional] for name in asked}
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


def _columns_in(
    found: list[str], row_format: RowFormat[Any], data: DataRecipe
) -> dict[str, str] | None:
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


def _described(row_format: RowFormat[Any], data: DataRecipe) -> str:
    required = " + ".join(
        "|".join(_names(column, accepted, data)) for column, accepted in row_format.columns.items()
    )
    optional = f" (and {', '.join(row_format.optional)} where there is one)"
    return required + clause(row_format.optional, optional)


def examples_of(
    rows: Iterable[Row], data: DataRecipe, account: Account | None = None
) -> Iterator[Example]:
    """The examples of rows that all have the format of the first one; see `taken_in`."""
    return taken_in(rows, data, account, _EXAMPLES)


def taken_in(
    rows: Iterable[Row],
    data: DataRecipe,
    account: Account | None,
    reading: RowReading[Parts, Taken],
) -> Iterator[Taken]:
    """What is learned from rows that all have the format of the first one.

    Args:
        rows: The rows of one split.
        data: Its `format`, `columns`, `bad_rows`, `leave_out` and `loss_on` count.
        account: gets what of the rows is not learned; None: `bad_rows` does not apply.
        reading: how they are read.

    Raises:
        DataError: missing columns, a value that is not text, an unknown role, a conversation
            without an answer at its end, and, when all rows were read, how many have an empty
            answer; of more than `MOST_LEFT_OUT` of the rows also with `bad_rows=drop`.
    """
    intake = Intake(frozenset(data.leave_out), data.loss_on == "all", account or Account())
    formats: dict[tuple[str, ...], tuple[str, dict[str, str]]] = {}
    drops, bad, empty = account is not None and data.bad_rows == "drop", list[BadRow](), []
    remedy = clause(account is not None and not drops, _LEAVES_OUT)
    number = 0
    for number, (values, where, _) in enumerate(rows, start=1):  # noqa: B007 - read below
        try:
            taken = _taken(values, where, formats, data, intake, reading)
        except DataError as error:
            if not formats:
                raise
            if not drops:
                raise DataError(f"{error}{remedy}") from error
            bad.append(BadRow(where, str(error)))
            continue
        if taken is None:
            continue
        if any(map(_has_an_empty_answer, reading.answers(taken))):
            empty.append(where)
            if drops:
                bad.append(BadRow(where, f"{where}: the answer is empty."))
                continue
        yield taken
    if empty and not drops:
        few = len(empty) <= MOST_LEFT_OUT * number
        raise DataError(
            f"{len(empty)} of {number} rows have an empty answer, the first is {empty[0]}. They"
            " would teach the model to answer nothing. Remove these rows, or name another column as"
            f" the answer with data.columns.{clause(few, remedy)}"
        )
    if len(bad) > MOST_LEFT_OUT * number:
        raise DataError(
            f"{len(bad)} of {number} rows cannot be learned, and data.bad_rows=drop leaves out"
            f" {MOST_LEFT_OUT:.0%} at most. The first: {bad[0].reason}"
        )
    intake.account.add_bad_rows(bad)


def _taken(
    values: object,
    where: str,
    formats: dict[tuple[str, ...], tuple[str, dict[str, str]]],
    data: DataRecipe,
    intake: Intake,
    reading: RowReading[Parts, Taken],
) -> Taken | None:
    """What is learned from a row, None where nothing is; `formats` gets the format of rows with its
    columns.
    """
    row = intake.kept(as_columns(values, where), where)
    if tuple(row) not in formats:
        found = _format_of(row, data, where, reading)
        if len(names := {name for name, _ in [*formats.values(), found]}) > 1:
            raise DataError(
                f"{where}: rows of several formats, {' and '.join(sorted(names))}. Choose one"
                " with data.format, or separate the rows."
            )
        formats[tuple(row)] = found
    name, columns = formats[tuple(row)]
    system = columns.get("system")
    if name in _SYSTEM_SINCE and system is not None and row.get(system):
        intake.account.add("system", where, system)
    parts = _parts(reading.formats[name], columns, row, where, intake)
    return None if parts is None else reading.made(parts, row, where)


def _format_of(
    row: Json, data: DataRecipe, where: str, reading: RowReading[Any, Any]
) -> tuple[str, dict[str, str]]:
    """As `find_format`; raises DataError for rows that another method learns from, too."""
    if data.format == "auto" and not data.columns and reading.learned == "examples":
        refuse_judged(row, where)
    try:
        return find_format(row, data, where, reading.formats, reading.learned)
    except DataError as error:
        raise refused(row, where, reading.learned) or error from None


def as_columns(values: object, where: str) -> JsonDict:
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


def _parts(
    row_format: RowFormat[Parts],
    columns: Texts,
    row: Json,
    where: str,
    intake: Intake,
) -> Parts | None:
    """The parts of a row; None: nothing of it is learned."""
    read = {column: row[held_by] for column, held_by in columns.items()}
    known, flag = {*columns.values(), _DOCUMENT}, row.get(_ROW_FLAG)
    is_flag = _ROW_FLAG not in known and flag in (0, 1)
    known |= {_ROW_FLAG} if is_flag else set()
    if unread := unread_in(row, known):
        intake.account.add("columns", where, *unread)
    if is_flag and not flag:
        intake.account.add("rows_flagged", where, _ROW_FLAG)
        return None
    return row_format.parts(read, where, intake)


def example_of(parts: RowParts, row: Json, where: str) -> Example:
    """The example of a row's parts."""
    answer = row.get("answer")
    example = Example(parts.prompt, parts.completion, where, "", parts.extra, reference=answer)
    document = row.get(_DOCUMENT)
    if not isinstance(document, str):
        document = text_of_prompt(example)
    return replace(example, group=document)


_EXAMPLES = RowReading("examples", FORMATS, example_of, lambda example: (example,))


def _has_an_empty_answer(example: Example) -> bool:
    answers = [
        message.content + message.extra
        for message in example.messages or ()
        if message.is_learned_answer
    ] or [example.completion]
    return not all(map(str.strip, answers))
