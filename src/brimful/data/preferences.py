"""Rows of preferences: two answers to one prompt, of which one is better, and answers that are
desired or not.

Conventions of TRL (https://huggingface.co/docs/trl/dataset_formats), LLaMA-Factory's files of
rankings (its data/README.md), UltraFeedback, Anthropic's HH-RLHF and Intel's orca_dpo_pairs, read
2026-11-28.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, takewhile
from types import MappingProxyType
from typing import Any, NamedTuple

import xxhash

from brimful.base.errors import DataError
from brimful.base.types import Json
from brimful.data.account import Account, Intake
from brimful.data.conversations import is_answer, only_read
from brimful.data.formats import Example, RowReading, example_of, examples_of, taken_in
from brimful.data.row_formats import FORMATS, RowFormat, RowParts
from brimful.data.rows import Row, short, text_of
from brimful.recipe import DataRecipe, Recipe
from brimful.recipe.preference import reads_preferences


@dataclass(frozen=True)
class Preference:
    """Two answers to one prompt.

    An answer of several messages has all but its last one in the prompt of its example, where they
    are learned; what both share is only read.

    Attributes:
        chosen: the better answer.
        rejected: the worse one.
    """

    chosen: Example
    rejected: Example


class _Both(NamedTuple):
    chosen: RowParts
    rejected: RowParts


class _Verdict(NamedTuple):
    parts: RowParts
    desired: bool


def preferences_of(
    rows: Iterable[Row], data: DataRecipe, account: Account | None = None
) -> Iterator[Preference]:
    """The pairs of rows that all have the format of the first one, but those of equal answers.

    Args:
        rows: of one split.
        data: its `format`, `columns`, `bad_rows`, `leave_out` and `loss_on` count.
        account: gets what of the rows is not learned, and pairs that are equal or contradict each
            other; None: `bad_rows` does not apply.

    Raises:
        DataError: as `taken_in`; prompts that differ within a pair, texts without a prompt.
    """
    told, seen = account or Account(), set[bytes]()
    for pair in taken_in(rows, data, account, _PAIRS):
        chosen, rejected = _hash(pair.chosen), _hash(pair.rejected)
        where = pair.chosen.where
        if chosen == rejected:
            told.add("equal_answers", where)
            continue
        told.add("repeated_pairs", where, count=int(chosen + rejected in seen))
        told.add("opposed_pairs", where, count=int(rejected + chosen in seen))
        seen.add(chosen + rejected)
        yield pair


def answers_of(
    rows: Iterable[Row], data: DataRecipe, account: Account | None = None
) -> Iterator[Example]:
    """The chosen and then the rejected answer of each pair, which are held out together; see
    `preferences_of`.
    """
    for pair in preferences_of(rows, data, account):
        yield pair.chosen
        yield replace(pair.rejected, where=pair.chosen.where, group=pair.chosen.group)


def judged_of(
    rows: Iterable[Row], data: DataRecipe, account: Account | None = None
) -> Iterator[Example]:
    """The answers of rows with a column label, which says whether they are desired, or of pairs,
    whose chosen answers are desired; see `preferences_of`.
    """
    rows = iter(rows)
    first = [*islice(rows, 1)]
    rows = chain(first, rows)
    if any({"chosen", "rejected"} <= {*row.columns, *data.columns} for row in first):
        for number, answer in enumerate(answers_of(rows, data, account)):
            yield replace(answer, desired=number % 2 == 0)
        return
    told, seen = account or Account(), dict[bytes, bool]()
    for answer in taken_in(rows, data, account, _VERDICTS):
        before = seen.setdefault(_hash(answer), answer.desired)
        told.add("opposed_verdicts", answer.where, count=int(before != answer.desired))
        yield answer


ReadExamples = Callable[[Iterable[Row], DataRecipe, Account | None], Iterator[Example]]
"""Examples of rows; see `taken_in`."""


def reader_of(recipe: Recipe) -> tuple[ReadExamples, int]:
    """Return how the rows of a recipe become examples, and how many each of them makes. Rounds
    begin with demonstrations, whatever they learn from answers.
    """
    if not reads_preferences(recipe):
        return examples_of, 1
    per_row = recipe.kind.rows_per_sample
    return (answers_of if per_row > 1 else judged_of), per_row


def _hash(example: Example) -> bytes:
    return xxhash.xxh3_128_digest(
        repr((example.prompt, example.completion, example.extra)).encode()
    )


def _read_both(
    name: str, row: Json, column: str, answers: list[Any], where: str, intake: Intake
) -> _Both | None:
    """Both answers, each in a column of a format of examples; what they share is only read."""
    shared = _num_shared(*answers) if all(isinstance(each, list) for each in answers) else 0
    once = replace(intake, account=_OfSecond(intake.account, f"{where}, rejected", shared))
    read = [
        FORMATS[name].parts({**row, column: answer}, f"{where}, {which}", each)
        for which, answer, each in zip(_ANSWERS, answers, (intake, once), strict=True)
    ]
    found = [parts for parts in read if parts is not None]
    prompts = [parts.prompt for parts in found if isinstance(parts.prompt, tuple)]
    if len(prompts) == len(answers):
        shared = _num_shared(*prompts)
        for prompt in prompts:
            if prompt[shared:] and prompt[shared].role != "assistant":
                raise DataError(
                    f"{where}: the prompts of the two answers differ, at message {shared + 1}, the"
                    f" {prompt[shared].role}'s. A pair is two answers to one prompt. Correct or"
                    " remove the row."
                )
        found = [
            parts._replace(prompt=only_read(prompt, shared))
            for parts, prompt in zip(found, prompts, strict=True)
        ]
    return _Both(*found) if len(found) == len(answers) else None


class _OfSecond(Account):
    """What is not learned of the second answer of a pair, without what was counted with the first:
    of the row, and of the messages that both share.

    Args:
        account: counts the rest.
        where: the answer, for errors.
        shared: so many of its first messages are the other's, too.
    """

    def __init__(self, account: Account, where: str, shared: int) -> None:
        super().__init__()
        self._account = account
        self._counted = {where, *(f"{where}, message {number + 1}" for number in range(shared))}

    def add(self, kind: str, where: str, *names: str, **values: Any) -> None:
        if where not in self._counted:
            self._account.add(kind, where, *names, **values)


def _num_shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many of the first items of two sequences are equal."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _to_prompt(row: Json, where: str, intake: Intake) -> _Both | None:
    prompt = row["prompt"]
    if isinstance(prompt, dict):  # one message
        prompt = [prompt]
    _refuse_no_prompt(row, prompt, where)
    if not all(isinstance(each, str) for each in (prompt, *map(row.get, _ANSWERS))):
        return _to_messages(row, prompt, where, intake)
    return _to_texts(row, prompt, where, intake)


def _refuse_no_prompt(row: Json, prompt: object, where: str) -> None:
    """Raise DataError if answers stand alone, and the column of what is before them holds no such
    thing.
    """
    if not isinstance(prompt, str | list) and any(map(_is_alone, map(row.get, _ANSWERS))):
        name = "prompt" if "prompt" in row else "conversations"
        raise DataError(
            f"{where}: field {name!r} holds {prompt!r:.60} ({type(prompt).__name__}), expected text"
            " or a list of messages. Correct or remove the row."
        )


def _is_alone(answer: object) -> bool:
    """Whether an answer has no prompt before it."""
    first = answer[0] if isinstance(answer, list) and answer else answer
    return not isinstance(first, dict) or is_answer(first)


def _to_conversation(row: Json, where: str, intake: Intake) -> _Both | None:
    _refuse_no_prompt(row, row["conversations"], where)
    return _to_messages(row, row["conversations"], where, intake)


def _to_instruction(row: Json, where: str, intake: Intake) -> _Both | None:
    return _read_both("alpaca", row, "output", [row["chosen"], row["rejected"]], where, intake)


def _to_messages(row: Json, prompt: object, where: str, intake: Intake) -> _Both | None:
    """Answers as messages, alone or with all that stands before them; a prompt that is text and
    occurs in neither is not read.
    """
    wholes = [_whole(prompt, row[name]) for name in _ANSWERS]
    if isinstance(prompt, str) and not all(
        any(prompt in turn.values() for turn in turns if isinstance(turn, dict))
        for turns in wholes
        if isinstance(turns, list)
    ):
        intake.account.add("columns", where, "prompt")
    return _read_both("messages", row, "messages", wholes, where, intake)


def _whole(prompt: object, answer: object) -> object:
    """The conversation that an answer ends, which the answer's column may hold already."""
    turns = answer if isinstance(answer, list) else [answer]
    if isinstance(answer, str):
        turns = [{"role": "assistant", "content": answer}]
    if isinstance(prompt, list):
        return turns if turns[: len(prompt)] == prompt else [*prompt, *turns]
    first = turns[0] if turns and isinstance(turns[0], dict) else {}
    if isinstance(prompt, str) and is_answer(first):
        return [{"role": "user", "content": prompt}, *turns]
    return turns


def _without_prompt(row: Json, where: str, intake: Intake) -> _Both | None:
    if not all(isinstance(row[name], str) for name in _ANSWERS):
        return _to_messages(row, None, where, intake)
    return _to_texts(row, "", where, intake)


def _to_texts(row: Json, prompt: str, where: str, intake: Intake) -> _Both | None:
    """Answers as text; without a prompt it is what both begin with."""
    texts = [text_of(row, name, where) for name in _ANSWERS]
    dialogues = [_dialogue(prompt + text) for text in texts]
    if all(dialogues):
        intake.account.add("dialogues", where)
        return _read_both("messages", row, "messages", dialogues, where, intake)
    if "prompt" not in row:
        prompt = _LAST_WORD.sub("", texts[0][: _num_shared(*texts)])
        if not prompt.strip():
            raise DataError(
                f"{where}: there is no column of prompts, and the texts of chosen and rejected"
                " begin differently, so no prompt is found in them. Name the column of prompts:"
                " data.columns='{prompt: NAME}'."
            )
        intake.account.add("shared_prompts", where)
        row, texts = {**row, "prompt": prompt}, [text[len(prompt) :] for text in texts]
    return _read_both("prompt", row, "completion", texts, where, intake)


_LAST_WORD = re.compile(r" ?\S*\Z")
"""Of what two texts begin with: the word within which they may differ, and the space before it."""
_TURN = re.compile(r"\n\n(Human|Assistant):")


def _dialogue(text: str) -> list[dict[str, str]]:
    """The messages of a text as Anthropic's HH-RLHF has it; empty: it is none."""
    before, *turns = _TURN.split(f"\n\n{text.lstrip()}")
    if before or turns[:1] != ["Human"] or "Assistant" not in turns[::2]:
        return []
    return [
        {"role": role.lower(), "content": content.strip()}
        for role, content in zip(turns[::2], turns[1::2], strict=True)
    ]


_ANSWERS = {"chosen": ("chosen",), "rejected": ("rejected",)}
_PAIR_FORMATS: Mapping[str, RowFormat[_Both]] = MappingProxyType(
    {
        "alpaca": RowFormat(
            {"instruction": ("instruction",), **_ANSWERS},
            ("input", "system", "history"),
            _to_instruction,
        ),
        "prompt": RowFormat(
            {"prompt": ("prompt", "question", "query", "user", "input"), **_ANSWERS},
            ("tools", "system"),
            _to_prompt,
        ),
        "conversations": RowFormat(
            {"conversations": ("conversations", "messages"), **_ANSWERS},
            ("tools", "system"),
            _to_conversation,
        ),
        "messages": RowFormat(_ANSWERS, ("tools", "system"), _without_prompt),
    }
)
_PAIRS = RowReading(
    "pairs",
    _PAIR_FORMATS,
    lambda both, row, where: Preference(
        example_of(both.chosen, row, where), example_of(both.rejected, row, where)
    ),
    lambda pair: (pair.chosen, pair.rejected),
)


def _judged(
    row_format: RowFormat[RowParts], row: Json, where: str, intake: Intake
) -> _Verdict | None:
    """An answer with its verdict; earlier answers are only read."""
    desired = _VERDICT_WORDS.get(str(row["label"]).strip().lower().removesuffix(".0"))
    if desired is None:
        raise DataError(
            f"{where}: 'label' holds {short(row['label'])}, but it must be true for a desired"
            " answer and false for another. Correct or remove the row."
        )
    parts = row_format.parts(row, where, intake)
    if parts is None:
        return None
    if isinstance(parts.prompt, tuple) and "completion" not in row_format.columns:
        parts = parts._replace(prompt=only_read(parts.prompt, len(parts.prompt)))
    return _Verdict(parts, desired)


_VERDICT_WORDS = {"true": True, "1": True, "false": False, "0": False}
_VERDICTS = RowReading(
    "judged answers",
    {
        name: RowFormat(
            {**each.columns, "label": ("label", "kto_tag")},
            each.optional,
            partial(_judged, each),
        )
        for name, each in FORMATS.items()
        if name != "text"
    },
    lambda verdict, row, where: replace(
        example_of(verdict.parts, row, where), desired=verdict.desired
    ),
    lambda answer: (answer,),
)
