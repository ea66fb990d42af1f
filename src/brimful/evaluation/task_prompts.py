"""How a model is asked: a tuned one through its template, an untuned one through its chat template
or with text to continue after solved examples (few-shot). Prompts are token ids that fit its
context.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.types import Json
from brimful.data.chat import Template
from brimful.data.formats import Example, Message, Prompt
from brimful.evaluation.asking import Way
from brimful.evaluation.task import Prompt as PromptRules
from brimful.evaluation.task import Task, render
from brimful.evaluation.task_data import TaskExample, TaskExamples


@dataclass(frozen=True)
class Subject:
    """The model that is asked.

    Attributes:
        model: The model, on its device; put in eval mode while it generates.
        tokenizer: Its own.
        template: How messages and texts become its ids.
        stop_ids: Tokens that end an answer.
        is_tuned: It was tuned to answer questions.
        context: Positions it can read at once.
        text_ending: See `text_ending_of`; None: it is asked with messages.
        budget_tokens: Most prompt and answer tokens of all rows that are generated at the same
            time; one row is always generated. None: from the device's free memory.
        ways: How it is asked: through its template, as text to continue, or both, of which the
            better one counts. Of a tuned model only the first makes sense.
        precision: The recipe's `plan.precision`: where it is fp32, products stay in it.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    template: Template
    stop_ids: frozenset[int]
    is_tuned: bool
    context: int
    text_ending: str | None = None
    budget_tokens: int | None = None
    ways: tuple[Way, ...] = ("chat",)
    precision: str = "auto"


@dataclass(frozen=True)
class TaskPrompt:
    """A prompt that fits.

    Attributes:
        example: The example it asks about.
        text: The prompt as text; messages one below the other.
        ids: Token ids that generation starts from.
        shots: Solved examples in it.
        begun: First words of the answer, which the prompt ends with: those that all its solved
            examples share.
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
        rules: The task's rules for such prompts: where answers are cut and how they are read.
        max_new_tokens: The task's, or half the context where that is less.
        notes: What was shortened or left out, and how answers are begun.
    """

    asked: list[TaskPrompt]
    skipped: list[TaskExample]
    style: str
    rules: PromptRules
    max_new_tokens: int
    notes: list[str]


def text_ending_of(train: Iterable[Example]) -> str | None:
    """Return the white space that the prompts end in, for a model tuned on prompts that are text.
    None: its prompts are messages.
    """
    prompt = next((example.prompt for example in train if example.prompt is not None), None)
    if not isinstance(prompt, str):
        return None
    return prompt[len(prompt.rstrip()) :]


def questions_for(
    task: Task, examples: TaskExamples, subject: Subject, way: Way | None = None
) -> TaskPrompts:
    """Every example's prompt, with as many solved examples before it as fit.

    Args:
        task: Its rules.
        examples: What it asks.
        subject: Who is asked.
        way: One of the subject's; None: the first.
    """
    max_new_tokens = min(task.sampling.max_new_tokens, max(1, subject.context // 2))
    longest = subject.context - max_new_tokens
    style: _TemplateStyle | _PlainStyle = _PlainStyle(task, examples.shots[: task.plain.shots])
    if (way or subject.ways[0]) == "chat":
        style = _TemplateStyle(task, subject.text_ending, wraps_text=not subject.is_tuned)
    asked, skipped = [], []
    for example in examples.scored:
        prompt = _fitting_prompt(style, example, subject, longest)
        if prompt is None:
            skipped.append(example)
        else:
            asked.append(prompt)
    notes = _notes(style, asked, examples.source)
    if max_new_tokens < task.sampling.max_new_tokens:
        notes.append(f"answers have at most {max_new_tokens} tokens, half the model's context")
    if shortened := sum(prompt.shots < len(style.shots) for prompt in asked):
        notes.append(
            f"{shortened} of {len(asked)} prompts have fewer than {len(style.shots)} solved"
            f" examples, to fit the context of {subject.context} tokens"
        )
    if skipped:
        notes.append(
            f"{len(skipped)} of {len(examples.scored)} examples are skipped: their prompts have"
            f" more than {longest} tokens"
        )
    return TaskPrompts(asked, skipped, style.name, style.rules, max_new_tokens, notes)


def _notes(
    style: "_TemplateStyle | _PlainStyle", asked: Sequence[TaskPrompt], source: str
) -> list[str]:
    """How many solved examples stand before questions, and how answers are begun."""
    notes = []
    shots, wanted = len(style.shots), style.wanted_shots
    if shots < wanted:
        notes.append(
            f"{shots} of {wanted} solved examples stand before a question: {source} has no more"
        )
    if begun := [prompt.begun for prompt in asked if prompt.begun]:
        words = " or ".join(f"`{text}`" for text in dict.fromkeys(begun))
        notes.append(
            f"{len(begun)} of {len(asked)} answers are begun with {words}, as all solved examples"
            " before them begin"
        )
    return notes


def _fitting_prompt(
    style: "_TemplateStyle | _PlainStyle", example: TaskExample, subject: Subject, longest: int
) -> TaskPrompt | None:
    """Return the prompt with the most solved examples that fits into `longest` tokens; None where
    it does not fit without any.
    """
    for count in range(len(style.shots), -1, -1):
        prompt, begun = style.prompt(example, count)
        ids = subject.template.prompt_ids(prompt)
        if len(ids) > longest:
            continue
        if not isinstance(prompt, str):
            prompt = "\n\n".join(message.content for message in prompt)
        return TaskPrompt(example, prompt, ids, count, begun)
    return None


@dataclass(frozen=True)
class _TemplateStyle:
    """Prompts for a tuned model: the question alone, as in its training. An untuned one gets the
    same words as one user message of its chat template.

    Attributes:
        text_ending: See `text_ending_of`.
        wraps_text: Whether prompts of the run's own examples that are text become messages.
    """

    task: Task
    text_ending: str | None
    wraps_text: bool = False
    name = "template"
    shots = ()
    wanted_shots = 0

    @property
    def rules(self) -> PromptRules:
        return self.task.template

    def prompt(self, example: TaskExample, num_shots: int) -> tuple[Prompt, str]:
        """The prompt, and the beginning of the answer in it: always empty."""
        del num_shots
        if self.task.template.text is None and example.own_prompt is not None:
            if isinstance(example.own_prompt, str) and self.wraps_text:
                return (Message("user", example.own_prompt.strip()),), ""
            return example.own_prompt, ""
        text = render(str(self.task.template.text), example.row, example.where)
        if self.text_ending is None:
            return (Message("user", text),), ""
        return text.rstrip() + self.text_ending, ""


@dataclass(frozen=True)
class _PlainStyle:
    """Prompts for an untuned model: solved examples, then the question, as text to continue."""

    task: Task
    shots: Sequence[Json]

    @property
    def name(self) -> str:
        if self.shots:
            return f"few-shot {len(self.shots)}"
        return "plain"

    @property
    def wanted_shots(self) -> int:
        return self.task.plain.shots

    @property
    def rules(self) -> PromptRules:
        return self.task.plain

    def prompt(self, example: TaskExample, num_shots: int) -> tuple[Prompt, str]:
        """The prompt, and the beginning of the answer that it ends with."""
        shots, plain = self.shots[:num_shots], self.task.plain
        solved = [render(str(plain.shot), shot, "a solved example") for shot in shots]
        question = render(plain.text, example.row, example.where)
        begun = self._shared_beginning(shots)
        return "".join([*solved, question, begun]), begun

    def _shared_beginning(self, shots: Sequence[Json]) -> str:
        """Whole words with which the answers of all solved examples begin, such as `def`; without
        the space after them, which belongs to the next token.

        Without it the score of an untuned model would depend on its guess that an answer is a
        function.
        """
        if len(shots) < 2:
            return ""
        answers = [render(self.task.reference, shot, "a solved example") for shot in shots]
        words = zip(
            *(re.findall(r"\S+\s", answer.lstrip("\n")) for answer in answers), strict=False
        )
        shared = takewhile(lambda group: len(set(group)) == 1, words)
        return "".join(group[0] for group in shared).rstrip()
