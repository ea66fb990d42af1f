"""Questions whose answers can be verified, from the same places and formats as examples to learn
from.
"""

from dataclasses import dataclass

import xxhash

from brimful.base.errors import DataError
from brimful.base.text import shortened
from brimful.base.types import Json
from brimful.data.formats import Prompt, answer_text, as_columns, examples_of, text_of_prompt
from brimful.data.sources import open_rows
from brimful.recipe import QuestionsRecipe


@dataclass(frozen=True)
class PromptQuestion:
    """What is asked, and what an answer is held against.

    Attributes:
        id: Hash of what is asked and what an answer is held against: the same whatever else is
            asked.
        text: What is asked, to read and to compare by.
        prompt: The same as its format has it, messages or text.
        reference: The row's column answer, or else its own answer.
        row: All columns, for verifiers that run tests.
        kind: The row's column kind; empty where there is none.
        where: Place to name in errors.
    """

    id: str
    text: str
    prompt: Prompt
    reference: str
    row: Json
    kind: str
    where: str


@dataclass(frozen=True)
class QuestionSet:
    """What is asked.

    Attributes:
        asked: Questions in the source's order.
        source: Where they come from.
        notes: What was left out.
    """

    asked: tuple[PromptQuestion, ...]
    source: str
    notes: tuple[str, ...]


def read_questions(recipe: QuestionsRecipe) -> QuestionSet:
    """The questions of a recipe; of equal ones the first.

    Raises:
        DataError: the data cannot be read or hold no questions, or one question stands there with
            several answers.
    """
    data = recipe.as_data
    source = open_rows(data)
    found: dict[str, PromptQuestion] = {}
    repeated = 0
    for part in source.parts:
        if recipe.split not in part.splits:
            raise DataError(
                f"rft.questions: {part.description} has no split {recipe.split!r}; it has"
                f" {', '.join(part.splits)}."
            )
        rows = [*part.splits[recipe.split]]
        values_of = {row.where: row.columns for row in rows}
        for example in examples_of(rows, data):
            where, values = example.where, values_of[example.where]
            if example.prompt is None:
                raise DataError(
                    f"{where}: text without a question. Rows need the columns question and answer,"
                    " or another of data.format's."
                )
            question = _question(
                as_columns(values, where),
                where,
                example.prompt,
                text_of_prompt(example),
                example.completion,
                recipe,
            )
            before = found.setdefault(question.text.strip(), question)
            repeated += before is not question
            if before.reference != question.reference:
                raise DataError(
                    f"{where}: the question of {before.where} with another answer"
                    f" ({shortened(question.reference, 40)}, before"
                    f" {shortened(before.reference, 40)}). Correct or remove one of the rows."
                )
    asked, notes = [*found.values()], [*source.notes]
    if repeated:
        notes.append(
            f"{repeated} of {len(asked) + repeated} questions stand there more than once; they are"
            " asked once"
        )
    most = recipe.max_questions
    if most is not None and most < len(asked):
        notes.append(f"{most} of {len(asked)} questions are asked, evenly spread")
        asked = [asked[number * len(asked) // most] for number in range(most)]
    return QuestionSet(tuple(asked), source.description, tuple(notes))


def _question(
    row: Json,
    where: str,
    prompt: Prompt,
    text: str,
    completion: str,
    recipe: QuestionsRecipe,
) -> PromptQuestion:
    answer = row.get(recipe.columns.get("answer", "answer"))
    reference = completion
    if answer is not None:
        reference = answer_text(answer, where)
    name = xxhash.xxh3_64_hexdigest(f"{text.strip()}\0{reference}".encode())
    return PromptQuestion(name, text, prompt, reference, row, str(row.get("kind") or ""), where)
