"""Texts for people: streamed to the terminal with remarks below each answer; the model before and
after tuning; conversations.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from brimful.base.console import console_printer
from brimful.base.errors import RequestError
from brimful.base.text import printable
from brimful.data.formats import Message, Prompt
from brimful.generation.load import LoadedRun, load_run, load_untuned, trained_folder
from brimful.generation.sampler import SamplingSettings
from brimful.generation.samples import TextSample, draw_samples
from brimful.model.published import is_adapter_folder, without_adapters

Judge = Callable[[str], tuple[str, str]]
"""Takes an answer and returns its code and one line that says whether it parses."""
Told = TypeVar("Told")
Ask = Callable[[], str]
"""Returns the user's next line; an empty one ends the conversation."""
SIDE_BY_SIDE_COLUMNS = 110
"""Narrower terminals show one answer above the other."""
NEW_CONVERSATION = "/new"


@dataclass(frozen=True)
class GenerationRequest:
    """How texts are drawn and judged.

    Attributes:
        settings: How a token is drawn.
        tokens: New tokens at most.
        count: Texts for each prompt.
        seed: Same seed, same texts.
        judge: Judges the code of an answer; None where answers are not code.
    """

    settings: SamplingSettings
    tokens: int = 200
    count: int = 1
    seed: int = 0
    judge: Judge | None = None

    def draw(
        self, loaded: LoadedRun, prompt: Prompt, show: Callable[[str], None] | None = None
    ) -> list[TextSample]:
        """Draw answers as `draw_samples` does."""
        return draw_samples(
            loaded,
            prompt,
            self.settings,
            max_new_tokens=self.tokens,
            count=self.count,
            seed=self.seed,
            show=show,
        )

    def remarks(self, loaded: LoadedRun, sample: TextSample) -> list[str]:
        """Return the lines below a text: whether an answer was cut at the token limit, its code
        where there is text around it, and whether that code parses.
        """
        lines, is_answer, text = [], loaded.template is not None, sample.completion
        if is_answer and sample.finish == "length":
            lines.append(f"--- stopped after {sample.tokens} tokens, without its end")
        if not is_answer:
            text = sample.prompt + text
        if self.judge is not None:
            code, verdict = self.judge(text)
            if code.strip() and code.strip() != text.strip():
                lines += ["--- its code:", code.rstrip()]
            lines.append(f"--- {verdict}")
        return lines

    def rendered(self, loaded: LoadedRun, samples: Sequence[TextSample]) -> str:
        """Return all texts with their remarks, numbered where there are several.

        A text that continues a prompt begins with it; answers to messages stand alone.
        """
        parts = []
        for sample in samples:
            text = sample.completion
            if not loaded.takes_messages:
                text = sample.prompt + text
            parts.append("\n".join([text, *self.remarks(loaded, sample)]))
        if len(parts) == 1:
            return parts[0]
        return "\n".join(f"--- {number} ---\n{part}" for number, part in enumerate(parts, 1))


def write(
    loaded: LoadedRun,
    prompt: Prompt,
    how: GenerationRequest,
    out: IO[str] | None = None,
    shown: Callable[[str], str] = printable,
) -> list[TextSample]:
    """Print what the model writes after a prompt: a single text as it is drawn, several when all
    are drawn. Prints to standard output by default.

    Args:
        shown: What is printed of a text: by default its control characters written out, which a
            terminal would obey.

    Raises:
        RequestError: the prompt is longer than the context, or a setting is out of range; nothing
            was printed.
    """
    pending = []  # the prompt, until the first piece of text: a refused request prints nothing
    if isinstance(prompt, str) and not loaded.takes_messages:
        pending.append(prompt)

    def show(text: str) -> None:
        print(shown("".join([*pending, text])), end="", flush=True, file=out)
        pending.clear()

    samples = how.draw(loaded, prompt, show)
    if len(samples) == 1:
        print(shown("\n".join(["", *how.remarks(loaded, samples[0])])), file=out)
    else:
        print(shown(how.rendered(loaded, samples)), file=out)
    return samples


def converse(loaded: LoadedRun, how: GenerationRequest, ask: Ask) -> None:
    """Read prompts and write answers until an empty line. A run that was trained on messages keeps
    the conversation. A request that cannot be served prints its error and the session goes on.

    Raises:
        RequestError: several answers are asked for in a conversation, which goes on from one.
    """
    if not loaded.takes_messages:
        print("Type a prompt and press Enter; an empty line or Ctrl-D ends.")
        while text := ask():
            _print_refusal(partial(write, loaded, text, how))
        return
    if how.count > 1:
        raise RequestError("--samples belongs to --prompt: a conversation goes on from one answer.")
    print(
        f"Type a message and press Enter; {NEW_CONVERSATION} forgets what was said; an empty line"
        " or Ctrl-D ends."
    )
    conversation = Conversation(loaded, how.tokens)
    while text := ask():
        if text.strip() == NEW_CONVERSATION:
            conversation = Conversation(loaded, how.tokens)
        else:
            _print_refusal(partial(conversation.go_on, text, how))


def ask() -> str:
    """A line typed at a prompt; empty at the end of input."""
    try:
        return input("> ")
    except EOFError:
        return ""


def _print_refusal(serve: Callable[[], object]) -> None:
    try:
        serve()
    except RequestError as error:
        print(f"brimful: {printable(str(error))}", file=sys.stderr)


class Conversation:
    """The messages so far. Where question and answer would exceed the model's context, the oldest
    turns are dropped.
    """

    def __init__(
        self, loaded: LoadedRun, max_new_tokens: int, messages: tuple[Message, ...] = ()
    ) -> None:
        self._loaded = loaded
        self._room = loaded.context - min(max_new_tokens, loaded.context // 2)
        self._messages = messages

    def asking(self, question: str) -> tuple[tuple[Message, ...], int]:
        """The messages to answer, and how many of the oldest turns were left out of them."""
        messages = (*self._messages, Message("user", question))
        dropped = 0
        while len(messages) > 1 and len(self._loaded.prompt_ids(messages)) > self._room:
            messages = messages[2:]
            dropped += 1
        return messages, dropped

    def go_on(self, question: str, how: GenerationRequest) -> None:
        """Print the answer and remember both; a question without an answer is forgotten."""
        asked, dropped = self.asking(question)
        if dropped:
            print(
                f"--- the conversation is longer than {self._loaded.context} tokens: its oldest"
                f" turns ({dropped}) are forgotten"
            )
        (answer,) = write(self._loaded, asked, how)
        self._messages = (*asked, Message("assistant", answer.completion))


def before_and_after(
    run_folder: Path, device: torch.device, tell: Callable[[LoadedRun], Told]
) -> tuple[Told, Told]:
    """Return `tell` of the model before tuning and of the tuned one. Only one is in memory at a
    time.

    Raises:
        RunFolderError: the run tuned nothing, is not finished, or its base changed.
        PlanError: the base or the adapters cannot be loaded.
    """
    if not is_adapter_folder(trained_folder(run_folder)):
        before = tell(load_untuned(run_folder, device))
        return before, tell(load_run(run_folder, device, torch.float32))
    loaded = load_run(run_folder, device, torch.float32)
    with without_adapters(loaded.model):
        before = tell(loaded)
    return before, tell(loaded)


def show_before_and_after(
    console: Console, run_folder: Path, device: torch.device, prompt: str, how: GenerationRequest
) -> None:
    """Print the texts of both models for the same tokens, seed and settings, and how they were
    asked.

    Raises:
        BrimfulError: as `before_and_after` and `draw_samples`.
    """

    def tell(loaded: LoadedRun) -> str:
        asked = f"--- given {manner_of_asking(loaded)}, {len(loaded.prompt_ids(prompt))} tokens"
        return f"{how.rendered(loaded, how.draw(loaded, prompt))}\n{asked}"

    before, after = before_and_after(run_folder, device, tell)
    show_beside(console, [("before tuning", before), ("after tuning", after)])


def manner_of_asking(loaded: LoadedRun) -> str:
    """How a prompt reaches the model, in words."""
    if loaded.template is None or not loaded.takes_messages:
        return "the prompt as it stands"
    if loaded.template.style == "chat":
        return "the prompt in the tokenizer's chat template"
    return "the prompt under headings of plain text"


def show_beside(console: Console, columns: Sequence[tuple[str, str]]) -> None:
    """Titled texts side by side where the terminal is wide, else one above the other."""
    if console.width < SIDE_BY_SIDE_COLUMNS:
        say = console_printer(console)
        for title, text in columns:
            say(f"=== {title} ===\n{text}\n")
        return
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
    for title, _ in columns:
        table.add_column(Text(title), ratio=1, overflow="fold")
    table.add_row(*(Text(printable(text)) for _, text in columns))
    console.print(table)
