"""The tab "Try it": a finished run writes text, beside the model that it tuned. Every session of
the page has its own conversation.
"""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from brimful.base.errors import RequestError
from brimful.generation.answers import GenerationRequest
from brimful.generation.sampler import SamplingSettings
from brimful.hardware.probe import probe
from brimful.studio.html import problem_of, render
from brimful.studio.library import Library
from brimful.studio.models import (
    ModelHolder,
    Side,
    TextProgress,
    Turn,
    describe,
    has_base,
    takes_messages,
    writes_text,
)

MOST_TOKENS, MOST_CHARACTERS, LARGEST_SEED = 4096, 20_000, 2**63 - 1
TITLES: dict[Side, str] = {"base": "Before tuning", "run": "This run"}
Turns = tuple[Turn, ...]
KEEP = gr.skip()
"""Leaves an output of the page as it is."""


class ChatUpdate(NamedTuple):
    """New values of the tab's outputs; `KEEP` leaves one as it is."""

    conversation: Any
    turns: Any
    problem: str
    prompt: Any


class StopSignal(threading.Event):
    """Ends a text when set.

    Attributes:
        replacement: Shown in place of the text if what was written is discarded too. It is sent
            once more when the text ends, because a piece of the text may still be on its way to
            the page.
    """

    replacement: ChatUpdate | None = None


class StopSignals:
    """The signal of the text that each session waits for."""

    def __init__(self) -> None:
        self._by_session: dict[str, StopSignal] = {}

    def begin(self, session: str) -> StopSignal:
        """Return the signal for a new text; the text before it ends."""
        self.stop(session)
        self._by_session[session] = StopSignal()
        return self._by_session[session]

    def stop(self, session: str) -> None:
        """End the text that the session waits for, if any."""
        if signal := self._by_session.get(session):
            signal.set()

    def drop(self, session: str, replacement: ChatUpdate) -> None:
        """End the text and discard what was written."""
        if signal := self._by_session.pop(session, None):
            signal.replacement = replacement
            signal.set()


class ChatTab:
    """The callbacks of the tab."""

    def __init__(self, library: Library) -> None:
        self._library, self._models, self._stops = library, ModelHolder(), StopSignals()

    def names(self) -> list[str]:
        """Return the names of finished runs that write text."""
        return [name for name in self._library.finished() if writes_text(self._library.path(name))]

    def begin(self, name: str | None) -> tuple[Any, str]:
        """Return the list of runs, and a note on the device that answers."""
        names = self.names()
        note = (
            f"No finished run in {self._library.folder} writes text yet. `brimful run quickstart`"
            " makes one; then reload this page."
        )
        if names:
            device = probe("auto")
            note = f"Answers come from {device.name}."
            if device.kind == "cpu":
                note += " No GPU was found, so large models answer slowly."
        choice = gr.update(choices=names, value=name if name in names else None)
        return choice, render("note.html.j2", notes=[note])

    def chosen(self, name: str | None, request: gr.Request) -> tuple[Any, ...]:
        """Return an empty conversation with a run, and end the text that is being written."""
        emptied, problem, is_tuned = self._emptied(name)
        self._stops.drop(str(request.session_hash), ChatUpdate(emptied, (), problem, KEEP))
        return emptied, (), problem, gr.update(visible=is_tuned, value=is_tuned)

    def _emptied(self, name: str | None) -> tuple[str, str, bool]:
        """Return a conversation without turns, the problem, and whether the run tuned a model."""
        if not name:
            return "", "", False
        try:
            run_folder = self._library.path(name)
            return transcript((), run_folder, describe(run_folder)), "", has_base(run_folder)
        except Exception as error:
            return "", problem_of(error), False

    def send(
        self,
        name: str | None,
        prompt: str,
        turns: Turns,
        beside_base: bool,
        temperature: float,
        top_p: float,
        tokens: float,
        seed: float,
        request: gr.Request,
    ) -> Iterator[ChatUpdate]:
        """Yield the conversation while the answer is written, first by the base if that is
        wanted.
        """
        signal = self._stops.begin(str(request.session_hash))
        numbers = (temperature, top_p, tokens, seed)
        # Closing the generator releases the model at once.
        with closing(self._updates(name, prompt, turns, beside_base, numbers, signal)) as updates:
            for update in updates:
                if signal.replacement is not None:
                    break
                yield update
        if signal.replacement is not None:
            yield signal.replacement

    def _updates(
        self,
        name: str | None,
        prompt: str,
        turns: Turns,
        beside_base: bool,
        numbers: tuple[float, float, float, float],
        signal: StopSignal,
    ) -> Generator[ChatUpdate]:
        run_folder = None
        try:
            run_folder = self._folder_for(name, prompt)
            how = generation_request(*numbers)
            sides: tuple[Side, ...] = ("run",)
            if beside_base and has_base(run_folder):
                sides = ("base", "run")
            turn = Turn(prompt, dict.fromkeys(sides, ""), {})
            for side in sides:
                yield self._unfinished(turns, turn, run_folder, side)
                for text in self._models.write(run_folder, side, how, (prompt, turns), signal):
                    turn = _with(turn, side, text)
                    yield self._unfinished(turns, turn, run_folder, side)
            turns = (*turns, turn)
            prompt_left = "" if takes_messages(run_folder) else KEEP
            yield ChatUpdate(transcript(turns, run_folder), turns, "", prompt_left)
        except Exception as error:
            conversation = transcript(turns, run_folder) if run_folder else KEEP
            yield ChatUpdate(conversation, turns, problem_of(error), KEEP)

    def _unfinished(self, turns: Turns, turn: Turn, run_folder: Path, side: Side) -> ChatUpdate:
        """Return the conversation while a side still writes."""
        shown = transcript((*turns, turn), run_folder, writing_side=side)
        return ChatUpdate(shown, KEEP, "", KEEP)

    def _folder_for(self, name: str | None, prompt: str) -> Path:
        """Return the folder of the run that is to write."""
        if not name:
            raise RequestError("choose a run first.")
        if len(prompt) > MOST_CHARACTERS:
            raise RequestError(
                f"the text has {len(prompt):,} characters; at most {MOST_CHARACTERS:,} are taken"
                " here."
            )
        return self._library.path(name)

    def stop(self, request: gr.Request) -> None:
        """End the text that is being written."""
        self._stops.stop(str(request.session_hash))

    def leave(self, request: gr.Request) -> None:
        """Let go of the session: its page is closed."""
        self._stops.drop(str(request.session_hash), ChatUpdate(KEEP, KEEP, "", KEEP))


def _with(turn: Turn, side: Side, progress: TextProgress) -> Turn:
    return replace(
        turn,
        texts={**turn.texts, side: progress.text},
        remarks={**turn.remarks, side: progress.remarks},
    )


def generation_request(
    temperature: float | None, top_p: float | None, tokens: float | None, seed: float | None
) -> GenerationRequest:
    """Return the settings that the controls of the page make.

    Raises:
        RequestError: one is missing or out of range.
    """
    if temperature is None or top_p is None or tokens is None or seed is None:
        raise RequestError("temperature, top-p, new tokens and seed each need a number.")
    if not 1 <= tokens <= MOST_TOKENS:
        raise RequestError(f"new tokens must be 1 to {MOST_TOKENS:,}, got {tokens:g}.")
    if not 0 <= seed <= LARGEST_SEED:
        raise RequestError(f"the seed must be 0 or above, got {seed:g}.")
    return GenerationRequest(
        SamplingSettings(float(temperature), None, float(top_p)), int(tokens), seed=int(seed)
    )


def transcript(
    turns: Sequence[Turn], run_folder: Path, hint: str = "", writing_side: Side | None = None
) -> str:
    """Return the conversation as a piece of the page."""
    written = {side for turn in turns for side in turn.texts}
    shown = [side for side in TITLES if side in {*written, writing_side}]
    return render(
        "chat.html.j2",
        turns=turns,
        sides=[(side, TITLES[side]) for side in shown],
        hint=hint,
        takes_messages=takes_messages(run_folder),
        writing=writing_side,
    )


def build(page: gr.Blocks, library: Library) -> None:
    """Lay the tab out, inside a page that is being built."""
    chat = ChatTab(library)
    note = gr.HTML(elem_id="try-notes")
    turns = gr.State(())
    with gr.Row(elem_classes="split"):
        with gr.Column(scale=1, min_width=260):
            run = gr.Dropdown(
                [],
                value=None,
                label="Run to try",
                info="Finished runs that write text.",
                elem_id="try-run",
            )
            beside = gr.Checkbox(
                label="Compare with the model before tuning", visible=False, elem_id="try-base"
            )
            temperature = gr.Slider(
                0,
                2,
                value=0.7,
                step=0.05,
                label="Temperature",
                info="0: always the likeliest token.",
                buttons=[],
            )
            top_p = gr.Slider(
                0.05,
                1,
                value=1,
                step=0.01,
                label="Top-p",
                info="The likeliest tokens that hold this probability.",
                buttons=[],
            )
            with gr.Row():
                tokens = gr.Number(120, label="New tokens", precision=0, min_width=100)
                seed = gr.Number(0, label="Seed", precision=0, min_width=100)
        with gr.Column(scale=3, min_width=300):
            prompt = gr.Textbox(
                label="Prompt",
                placeholder="Shift+Enter also sends.",
                lines=3,
                max_length=MOST_CHARACTERS,
                elem_id="try-prompt",
            )
            with gr.Row():
                send = gr.Button("Write", variant="primary", elem_id="try-send")
                stop = gr.Button("Stop", elem_id="try-stop")
                clear = gr.Button("Start over", elem_id="try-clear")
            wrong = gr.HTML(elem_id="try-problem")
            shown = gr.HTML(elem_id="try-text")
    hidden: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    page.load(chat.begin, run, [run, note], **hidden)
    run.change(chat.chosen, run, [shown, turns, wrong, beside], **hidden)
    clear.click(chat.chosen, run, [shown, turns, wrong, beside], **hidden)
    inputs = [run, prompt, turns, beside, temperature, top_p, tokens, seed]
    for event in (send.click, prompt.submit):
        event(
            chat.send,
            inputs,
            [shown, turns, wrong, prompt],
            concurrency_limit=1,
            concurrency_id="model",
            trigger_mode="once",
            **hidden,
        )
    stop.click(chat.stop, None, None, queue=False, **hidden)
    page.unload(chat.leave)
