"""The solved examples that rounds begin with, and questions in the same form as theirs."""

import json
from collections.abc import Sequence
from dataclasses import replace

from brimful.base.errors import DataError
from brimful.chains.sampling_questions import SamplingQuestions
from brimful.data.account import Account
from brimful.data.formats import Example, Message, Prompt, examples_of, text_of_prompt
from brimful.data.questions import PromptQuestion
from brimful.data.sources import open_rows
from brimful.evaluation.task_prompts import text_ending_of
from brimful.recipe import Recipe
from brimful.selection.journal import training_row


def read_demonstrations(
    recipe: Recipe, questions: SamplingQuestions
) -> tuple[tuple[Example, ...], list[str]]:
    """Return the examples of `data` that the evaluation does not ask, and sentences about what is
    left out.

    Raises:
        DataError: the evaluation asks all of them.
    """
    parts, account = open_rows(recipe.data).parts, Account()
    examples = [
        example
        for part in parts
        for example in examples_of(part.splits["train"], recipe.data, account)
    ]
    held_out = questions.held_out
    kept = [each for each in examples if held_out.find(text_of_prompt(each), "") is None]
    if not kept:
        raise DataError(
            "data: the evaluation asks all demonstrations, so none is left to train on. Choose"
            " others."
        )
    notes = [f"a demonstration is left out: {bad.reason}" for bad in account.bad_rows]
    if asked := len(examples) - len(kept):
        notes.append(f"{asked} demonstrations are left out, because the evaluation asks them")
    return tuple(kept), notes


def asked_like(
    demonstrations: Sequence[Example], questions: SamplingQuestions
) -> SamplingQuestions:
    """Return the questions in the form of the demonstrations, messages or text: the form in which
    the student is tuned, asked and tuned again.
    """
    ending = text_ending_of(demonstrations)

    def asked(question: PromptQuestion) -> PromptQuestion:
        prompt = question.prompt
        if ending is None and isinstance(prompt, str):
            return replace(question, prompt=(Message("user", prompt),))
        if ending is not None and not isinstance(prompt, str):
            return replace(question, prompt=question.text.rstrip() + ending)
        return question

    every = replace(questions.questions, asked=tuple(map(asked, questions.questions.asked)))
    fingerprint = f"{questions.fingerprint} {ending!r}"
    return replace(questions, questions=every, fingerprint=fingerprint)


def demonstration_lines(examples: Sequence[Example]) -> str:
    """Return the examples as JSON lines that training reads.

    Raises:
        DataError: an example has no question.
    """
    rows = (training_row(_prompt_of(example), example.completion) for example in examples)
    return "".join(json.dumps(row) + "\n" for row in rows)


def _prompt_of(example: Example) -> Prompt:
    if example.prompt is None:
        raise DataError(
            f"{example.where}: text without a question cannot be a demonstration. Rows need a"
            " question and an answer."
        )
    return example.prompt
