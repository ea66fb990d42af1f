"""Rows that hold preferences between answers, which another method learns from, are told apart."""

from collections.abc import Mapping
from typing import Any

from brimful.base.errors import DataError

_PROMPTS = ("prompt", "question", "instruction", "query", "input")
"""Usual names of the column that both answers belong to."""


def refused_preferences(row: Mapping[str, Any], where: str) -> DataError | None:
    """The error for a row with a chosen and a rejected answer: which method learns from such rows,
    and how their chosen answers can be learned; None for other rows.
    """
    chosen = next((name for name in row if name.startswith("chosen")), None)
    rejected = next((name for name in row if name.startswith("rejected")), None)
    if chosen is None or rejected is None:
        return None
    return DataError(
        f"{where}: the columns {chosen!r} and {rejected!r} hold preferences, a better and a worse"
        " answer. They are learned by direct preference optimisation (DPO), which brimful does not"
        f" have. Supervised fine-tuning on the better answers: {_remedy(row, chosen)}."
    )


def _remedy(row: Mapping[str, Any], chosen: str) -> str:
    has_messages = isinstance(row[chosen], list)
    for prompt in _PROMPTS:
        if prompt in row and isinstance(row[prompt], list) == has_messages:
            renamed = "" if prompt == "prompt" else f"prompt: {prompt}, "
            return f"data.format=prompt data.columns='{{{renamed}completion: {chosen}}}'"
    if has_messages:
        return f"data.format=messages data.columns='{{messages: {chosen}}}'"
    return f"data.format=text data.columns='{{text: {chosen}}}'"


def refuse_judged(row: Mapping[str, Any], where: str) -> None:
    """Raise DataError if a row says of its completion whether it is desired."""
    if "prompt" in row and "completion" in row and isinstance(row.get("label"), bool):
        raise DataError(
            f"{where}: 'label' says whether the completion is a good one: such judgements are"
            " learned by Kahneman-Tversky optimisation (KTO), which brimful does not have."
            " Supervised fine-tuning would learn the bad ones, too: remove these rows, then the"
            " column label; data.format=prompt learns all rows as they are."
        )
