"""How a model is asked: a tuned one as it was tuned, an untuned one with text to continue. Always
as token ids that fit its context.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.data.chat import Template
from brimful.data.formats import Example, Message, Prompt
from brimful.evaluation.task import Task, render
from brimful.evaluation.task_data import TaskExample, TaskExamples


@dataclass(frozen=True)
class Subject:
    """The model that is asked.

    Attributes:
        model: On its device; put in eval mode while it writes.
        tokenizer: Its own.
        template: How messages and texts become its ids.
        stop_ids: Tokens that end an answer.
        is_tuned: It answers questions (as it was tuned to); else it only continues text.
        context: Positions it can read at once.
        text_ending: See `text_ending_of`; None: it is asked with messages.
        budget_tokens: Prompt and answer tokens of all rows that are written at the same time, at
            most; one row is always written.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    template: Template
    stop_ids: frozenset[int]
    is_tuned: bool
    context: int
    text_ending: str | None = None
    budget_tokens: int = 16_384


@dataclass(frozen=True)
class TaskPrompt:
    """A prompt that fits.

    Attributes:
        example: What it asks.
        text: The prompt to read; messages one below the other.
        ids: What generation starts from.
        shots: Solved examples in it.
        begun: First words of the answer, which stand at the end of the prompt: those that all its
            solved examples share.
    """

    example: TaskExample
    text: str
    ids: list[int]
    shots: int
    begun: str = ""


@dataclass(frozen=True)
class TaskPrompts:
    """All prompts of a task for one model.

    Attributes:
        asked: Those that fit.
        skipped: Examples whose prompt and answer do not fit into the context.
        style: "template", "plain" or "few-shot N".
        max_new_tokens: The task's, or half the context where that is less.
        notes: What was shortened or left out, and how answers are begun.
    """

    asked: list[TaskPrompt]
    skipped: list[TaskExample]
    style: str
    max_new_tokens: int
    notes: list[str]


def text_ending_of(train: Iterable[Example]) -> str | None:
    """For a model tuned on prompts that are text: the white space they end in, "" for none. None:
    its prompts are messages.
    """
    prompt = next((example.prompt for example in train if example.prompt is not None), None)
    return prompt[len(prompt.rstrip()) :] if isinstance(prompt, str) else None


def questions_for(task: Task, examples: TaskExamples, subject: Subject) -> TaskPrompts:
    """Every example's prompt, with as many solved examples before it as fit."""
    max_new_tokens = min(task.sampling.max_new_tokens, max(1, subject.context // 2))
    longest = subject.context - max_new_tokens
    shots = 0 if subject.is_tuned else min(task.plain.shots, len(examples.shots))
    found = [
        _question(task, example, examples.shots[:shots], subject, longest)
        for example in examples.scored
    ]
    asked = [question for question in found if question is not None]
    skipped = [
        example
        for example, question in zip(examples.scored, found, strict=True)
        if question is None
    ]
    shortened = sum(question.shots < shots for question in asked)
    begun = [question.begun for question in asked if question.begun]
    words = " or ".join(f"`{text}`" for text in dict.fromkeys(begun))
    lacking = 0 if subject.is_tuned else task.plain.shots - shots
    notes = [
        (
            lacking,
            (
                f"{shots} of {task.plain.shots} solved examples stand before a question:"
                f" {examples.source} has no more"
            ),
        ),
        (
            begun,
            (
                f"{len(begun)} of {len(asked)} answers are begun with {words}, as all solved"
                " examples before them begin"
            ),
        ),
        (
            max_new_tokens < task.sampling.max_new_tokens,
            f"answers have at most {max_new_tokens} tokens, half the model's context",
        ),
        (
            shortened,
            (
                f"{shortened} of {len(asked)} prompts have fewer than {shots} solved examples, to"
                f" fit the context of {subject.context} tokens"
            ),
        ),
        (
            skipped,
            (
                f"{len(skipped)} of {len(found)} examples are skipped: their prompts have more than"
                f" {longest} tokens"
            ),
        ),
    ]
    style = "template" if subject.is_tuned else f"few-shot {shots}" if shots else "plain"
    return TaskPrompts(
        asked, skipped, style, max_new_tokens, [text for applies, text in notes if applies]
    )


def _question(
    task: Task,
    example: TaskExample,
    shots: Sequence[Mapping[str, Any]],
    subject: Subject,
    longest: int,
) -> TaskPrompt | None:
    """The prompt with the most shots that fits into `longest` tokens; None where it does not fit
    without any.
    """
    for count in range(len(shots), -1, -1):
        begun = "" if subject.is_tuned else _shared_beginning(task, shots[:count])
        prompt = (
            _tuned_prompt(task, example, subject)
            if subject.is_tuned
            else _plain_prompt(task, example, shots[:count]) + begun
        )
        ids = subject.template.prompt_ids(prompt)
        if len(ids) <= longest:
            text = (
                prompt
                if isinstance(prompt, str)
                else "\n\n".join(message.content for message in prompt)
            )
            return TaskPrompt(example, text, ids, count, begun)
    return None


def _tuned_prompt(task: Task, example: TaskExample, subject: Subject) -> Prompt:
    if task.template.text is None and example.own_prompt is not None:
        return example.own_prompt
    text = render(str(task.template.text), example.row, example.where)
    return (
        (Message("user", text),)
        if subject.text_ending is None
        else text.rstrip() + subject.text_ending
    )


def _shared_beginning(task: Task, shots: Sequence[Mapping[str, Any]]) -> str:
    """Whole words with which the answers of all solved examples begin, such as `def`; without the
    space behind, which belongs to the next token.

    An untuned model is asked for what it can do, not for guessing that an answer is a function.
    """
    answers = [render(task.reference, shot, "a solved example").lstrip("\n") for shot in shots]
    words = zip(*(re.findall(r"\S+\s", answer) for answer in answers), strict=False)
    shared = takewhile(lambda group: len(set(group)) == 1, words) if len(answers) > 1 else ()
    return "".join(group[0] for group in shared).rstrip()


def _plain_prompt(task: Task, example: TaskExample, shots: Sequence[Mapping[str, Any]]) -> str:
    solved = [render(str(task.plain.shot), shot, "a solved example") for shot in shots]
    return "".join([*solved, render(task.plain.text, example.row, example.where)])
