"""The tab "Try it": a finished run writes, beside the model that it tuned. Every session of the
page has its own conversation.
"""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from brimful.base.errors import RequestError
from brimful.generation.answers import GenerationRequest
from brimful.generation.sampler import SamplingSettings
from brimful.hardware.probe import probe
from brimful.studio.html import render, told
from brimful.studio.library import Library
from brimful.studio.models import (
    Desk,
    Side,
    Turn,
    Written,
    describe,
    has_base,
    takes_messages,
    writes_text,
)

MOST_TOKENS, MOST_CHARACTERS, LARGEST_SEED = 4096, 20_000, 2**63 - 1
TITLES: dict[Side, str] = {"base": "Before tuning", "run": "This run"}
Turns = tuple[Turn, ...]


class Waiting(threading.Event):
    """Ends a text when set.

    Attributes:
        instead: Where what was written of it is not wanted either: (the conversation, its turns,
            the problem, the prompt) that take its place. Shown once more when the text ends,
            because a piece of it may still have been on its way to the page.
    """

    instead: tuple[Any, ...] | None = None


class Stops:
    """What ends the text that a session waits for."""

    def __init__(self) -> None:
        self._by_session: dict[str, Waiting] = {}

    def begin(self, session: str) -> Waiting:
        """What ends the text that begins now; the one before it ends."""
        self.stop(session)
        self._by_session[session] = Waiting()
        return self._by_session[session]

    def stop(self, session: str) -> None:
        """End what the session waits for, if anything."""
        waiting = self._by_session.get(session)
        if waiting is not None:
            waiting.set()

    def drop(self, session: str, instead: tuple[Any, ...]) -> None:
        """The same, and let go of what was written."""
        waiting = self._by_session.pop(session, None)
        if waiting is not None:
            waiting.instead = instead
            waiting.set()


class Chat:
    """What the tab does when something is pressed."""

    def __init__(self, library: Library) -> None:
        self._library, self._desk, self._stops = library, Desk(), Stops()

    def names(self) -> list[str]:
        """Runs that can write."""
        return [name for name in self._library.finished() if writes_text(self._library.path(name))]

    def begin(self, name: str | None) -> tuple[Any, str]:
        """(the runs there are, what to know before trying)."""
        names = self.names()
        note = (
            f"No finished run in {self._library.folder} writes text yet. `brimful run quickstart`"
            " makes one; then reload this page."
        )
        if names:
            device = probe("auto")
            slow = (
                " No GPU was found, so large models answer slowly." if device.kind == "cpu" else ""
            )
            note = f"Answers come from {device.name}.{slow}"
        return gr.update(choices=names, value=name if name in names else None), render(
            "note.html.j2", notes=[note]
        )

    def chosen(self, name: str | None, request: gr.Request) -> tuple[Any, ...]:
        """An empty conversation with another run; what is being written belongs to none."""
        emptied, problem, is_tuned = self._emptied(name)
        self._stops.drop(str(request.session_hash), (emptied, (), problem, gr.skip()))
        return emptied, (), problem, gr.update(visible=is_tuned, value=is_tuned)

    def _emptied(self, name: str | None) -> tuple[str, str, bool]:
        """(a conversation without turns, the problem, whether there is a model from before
        tuning).
        """
        if not name:
            return "", "", False
        try:
            run_folder = self._library.path(name)
            return transcript((), run_folder, describe(run_folder)), "", has_base(run_folder)
        except Exception as error:
            return "", told(error), False

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
    ) -> Iterator[tuple[Any, ...]]:
        """Write what follows the prompt, first the base where it is asked, and show it as it
        comes.
        """
        waiting = self._stops.begin(str(request.session_hash))
        how = (temperature, top_p, tokens, seed)
        with closing(
            self._written(name, prompt, turns, beside_base, how, waiting)
        ) as texts:  # lets go of the model at once
            for shown in texts:
                if waiting.instead is not None:
                    break
                yield shown
        if waiting.instead is not None:
            yield waiting.instead

    def _written(
        self,
        name: str | None,
        prompt: str,
        turns: Turns,
        beside_base: bool,
        numbers: tuple[float, float, float, float],
        waiting: Waiting,
    ) -> Generator[tuple[Any, ...]]:
        """(the conversation as far as it is, its turns, the problem, the prompt), again and
        again.
        """
        run_folder = None
        try:
            run_folder = self._asked(name, prompt)
            how = writing(*numbers)
            sides: tuple[Side, ...] = (
                ("base", "run") if beside_base and has_base(run_folder) else ("run",)
            )
            turn = Turn(prompt, dict.fromkeys(sides, ""), {})
            for side in sides:
                yield (
                    transcript((*turns, turn), run_folder, writing_side=side),
                    gr.skip(),
                    "",
                    gr.skip(),
                )
                for written in self._desk.write(run_folder, side, how, (prompt, turns), waiting):
                    turn = _with(turn, side, written)
                    yield (
                        transcript((*turns, turn), run_folder, writing_side=side),
                        gr.skip(),
                        "",
                        gr.skip(),
                    )
            turns = (*turns, turn)
            yield (
                transcript(turns, run_folder),
                turns,
                "",
                "" if takes_messages(run_folder) else gr.skip(),
            )
        except Exception as error:
            yield (
                transcript(turns, run_folder) if run_folder else gr.skip(),
                turns,
                told(error),
                gr.skip(),
            )

    def _asked(self, name: str | None, prompt: str) -> Path:
        """The folder of the run that is to write."""
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
        """The page is closed."""
        self._stops.drop(str(request.session_hash), tuple(gr.skip() for _ in range(4)))


def _with(turn: Turn, side: Side, written: Written) -> Turn:
    return replace(
        turn,
        texts={**turn.texts, side: written.text},
        remarks={**turn.remarks, side: written.remarks},
    )


def writing(
    temperature: float | None, top_p: float | None, tokens: float | None, seed: float | None
) -> GenerationRequest:
    """The settings of the page's controls.

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
    """The conversation as a piece of the page."""
    shown = [
        side for side in TITLES if any(side in turn.texts for turn in turns) or side == writing_side
    ]
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
    chat = Chat(library)
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
                label="Beside the model before tuning", visible=False, elem_id="try-base"
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
                placeholder="Shift+Enter writes, too.",
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
