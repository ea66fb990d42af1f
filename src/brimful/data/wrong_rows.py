"""Rows that another method learns from are refused, with the method that does."""

from typing import Literal

from brimful.base.errors import DataError
from brimful.base.text import clause
from brimful.base.types import Json
from brimful.data.row_formats import FORMATS

Learned = Literal["examples", "pairs", "judged answers"]
"""What a method learns from: answers, better and worse answers, answers that are desired or not."""
_LEARN_JUDGED = "such judgements are learned by method=kto"
_PROMPTS = ("prompt", "question", "instruction", "query", "input")
"""Usual names of the column that both answers belong to."""


def refused(row: Json, where: str, learned: Learned) -> DataError | None:
    """The error for a row that another method learns from; None: none is known that does."""
    chosen, rejected = _column_like("chosen", row), _column_like("rejected", row)
    if chosen and rejected:
        return None if learned == "pairs" else _refused_pairs(row, where, chosen, rejected, learned)
    if learned == "pairs" and _is_judged(row):
        return DataError(
            f"{where}: there are no pairs of a chosen and a rejected answer. 'label' says whether"
            f" an answer is desired: {_LEARN_JUDGED}."
        )
    if learned != "examples" and any(_has_columns(row, name) for name in FORMATS):
        needed = "pairs of a chosen and a rejected answer"
        if learned == "judged answers":
            needed = "answers with a column label that says whether they are desired, or from pairs"
        return DataError(
            f"{where}: the method learns from {needed}, but these rows ({', '.join(row)}) hold one"
            " answer each, as method=sft learns them. Other names of columns can be given with"
            " data.columns; `brimful sample` makes pairs of answers that a verifier found right and"
            " wrong."
        )
    return None


def _refused_pairs(
    row: Json, where: str, chosen: str, rejected: str, learned: Learned
) -> DataError:
    renamed = f" data.columns='{{chosen: {chosen}, rejected: {rejected}}}'"
    tuning = f" Supervised fine-tuning on the better answers: method=sft {_tuned_on(row, chosen)}."
    return DataError(
        f"{where}: the columns {chosen!r} and {rejected!r} hold preferences, a better and a worse"
        f" answer. method=dpo{clause(chosen != 'chosen', renamed)} learns from them."
        f"{clause(learned == 'examples', tuning)}"
    )


def _column_like(beginning: str, row: Json) -> str:
    """The shortest column whose name begins so, or nothing."""
    return min((name for name in row if name.startswith(beginning)), key=len, default="")


def _has_columns(row: Json, name: str) -> bool:
    columns = FORMATS[name].columns.values()
    return all(any(held_by in row for held_by in accepted) for accepted in columns)


def _tuned_on(row: Json, chosen: str) -> str:
    has_messages = isinstance(row[chosen], list)
    for prompt in _PROMPTS:
        if prompt in row and isinstance(row[prompt], list) == has_messages:
            renamed = "" if prompt == "prompt" else f"prompt: {prompt}, "
            return f"data.format=prompt data.columns='{{{renamed}completion: {chosen}}}'"
    if has_messages:
        return f"data.format=messages data.columns='{{messages: {chosen}}}'"
    return f"data.format=text data.columns='{{text: {chosen}}}'"


def refuse_judged(row: Json, where: str) -> None:
    """Raise DataError if a row says of its completion whether it is desired."""
    if _is_judged(row):
        raise DataError(
            f"{where}: 'label' says whether the completion is a good one: {_LEARN_JUDGED}."
            " Supervised fine-tuning would learn the bad ones, too: remove these"
            " rows, then the column label; data.format=prompt learns all rows as they are."
        )


def _is_judged(row: Json) -> bool:
    return "prompt" in row and "completion" in row and isinstance(row.get("label"), bool)
