"""Acts of the tab "Try it": a finished run writes text, beside the model that it tuned. The page
holds its conversation.
"""

import json
import shlex
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from brimful.base.errors import RequestError
from brimful.faces.studio.asked import PageRequest
from brimful.faces.studio.html import blocks_piece, render
from brimful.faces.studio.library import Library
from brimful.faces.studio.models import (
    ModelHolder,
    Side,
    Turn,
    describe,
    has_base,
    takes_messages,
    writes_text,
)
from brimful.generation.answers import GenerationRequest
from brimful.generation.sampler import SamplingSettings
from brimful.hardware.probe import probe
from brimful.report.commands import name_of
from brimful.report.views import Command, Paragraph

MOST_TOKENS, MOST_CHARACTERS, LARGEST_SEED = 4096, 20_000, 2**63 - 1
TITLES: dict[Side, str] = {"base": "Before tuning", "run": "This run"}
_TURNS = TypeAdapter(Annotated[tuple[Turn, ...], Field(max_length=1000)])


class ChatActs:
    """What the tab does.

    Args:
        library: The runs.
    """

    def __init__(self, library: Library) -> None:
        self._library, self._models = library, ModelHolder()
        self._writing: dict[str, threading.Event] = {}

    def begin(self, asked: PageRequest) -> None:
        """The finished runs that write text, and what device answers."""
        finished = self._library.finished()
        names = [name for name in finished if writes_text(self._library.path(name))]
        note = (
            f"No finished run in {self._library.folder} writes text yet. `brimful run quickstart`"
            " makes one."
        )
        if names:
            device = probe("auto")
            note = f"Answers come from {device.name}."
            if device.kind == "cpu":
                note += " No GPU was found, so large models answer slowly."
        wanted = asked.text("talker")
        chosen = wanted if wanted in names else next(iter(names), "")
        asked.show("try-notes", blocks_piece([Paragraph(note, "note")]))
        asked.show("try-run", render("options.html.j2", names=names, chosen=chosen))

    def open(self, asked: PageRequest) -> None:
        """An empty conversation with a run."""
        asked.fill("try-turns", "")
        name = asked.text("talker")
        if not name:
            asked.show("try-text", "")
            return
        folder = self._library.path(name)
        asked.show("try-beside", render("beside.html.j2", has_base=has_base(folder)))
        asked.show("try-text", transcript((), folder, describe(folder)))

    def write(self, asked: PageRequest) -> None:
        """The conversation while the answer is written, first by the base if that is wanted."""
        prompt, page, stop = asked.text("prompt"), asked.text("page"), threading.Event()
        folder, how = self._folder_for(asked.text("talker"), prompt), generation_request(asked)
        turns = turns_of(asked.text("turns"))
        is_beside = bool(asked.text("beside")) and has_base(folder)
        sides: tuple[Side, ...] = ("base", "run") if is_beside else ("run",)
        turn = Turn(prompt, dict.fromkeys(sides, ""), {})
        self._writing[page] = stop

        def show(text: str) -> None:
            unfinished = replace(turn, texts={**turn.texts, side: text})
            asked.show("try-text", transcript((*turns, unfinished), folder, writing_side=side))

        try:
            for side in sides:
                show("")
                with asked.ending(stop.set):
                    each = self._models.write(folder, side, how, (prompt, turns), stop, show)
                texts = {**turn.texts, side: each.text}
                turn = Turn(prompt, texts, {**turn.remarks, side: each.remarks})
        except Exception:
            asked.show("try-text", transcript(turns, folder))
            raise
        turns = (*turns, turn)
        command = Command("In a shell", _command(folder, prompt, how, is_beside=is_beside))
        asked.show("try-text", transcript(turns, folder) + blocks_piece([command]))
        asked.fill("try-turns", json.dumps([asdict(each) for each in turns]))
        if takes_messages(folder):
            asked.fill("try-prompt", "")

    def _folder_for(self, name: str, prompt: str) -> Path:
        """Return the folder of the run that is to write."""
        if not name:
            raise RequestError("choose a run first.")
        if len(prompt) > MOST_CHARACTERS:
            raise RequestError(
                f"the text has {len(prompt):,} characters; at most {MOST_CHARACTERS:,} are taken"
                " here."
            )
        return self._library.path(name)

    def stop(self, asked: PageRequest) -> None:
        """End the text that this page waits for; what is written stays."""
        self._writing.get(asked.text("page"), asked.left).set()


def turns_of(text: str) -> tuple[Turn, ...]:
    """Return the conversation that a page holds.

    Raises:
        RequestError: it is none.
    """
    try:
        return _TURNS.validate_json(text or "[]")
    except ValidationError:
        raise RequestError("the conversation of this page cannot be read. Start over.") from None


def generation_request(asked: PageRequest) -> GenerationRequest:
    """Return the settings that the controls of the page make.

    Raises:
        RequestError: one is missing or out of range.
    """
    try:
        temperature, top_p = float(asked.text("temperature")), float(asked.text("top_p"))
        tokens, seed = int(asked.text("tokens")), int(asked.text("seed"))
    except ValueError:
        raise RequestError("temperature, top-p, new tokens and seed each need a number.") from None
    if not 1 <= tokens <= MOST_TOKENS:
        raise RequestError(f"new tokens must be 1 to {MOST_TOKENS:,}, got {tokens}.")
    if not 0 <= seed <= LARGEST_SEED:
        raise RequestError(f"the seed must be 0 or above, got {seed}.")
    return GenerationRequest(SamplingSettings(temperature, None, top_p), tokens, seed=seed)


def transcript(
    turns: Sequence[Turn], run_folder: Path, hint: str = "", writing_side: Side | None = None
) -> str:
    """Return the conversation as a piece of the page."""
    written = {side for turn in turns for side in turn.texts}
    return render(
        "chat.html.j2",
        turns=turns,
        sides=[(side, TITLES[side]) for side in TITLES if side in written],
        hint=hint,
        takes_messages=takes_messages(run_folder),
        writing=writing_side,
    )


def _command(folder: Path, prompt: str, how: GenerationRequest, *, is_beside: bool) -> str:
    settings = how.settings
    words = ["brimful", "generate", name_of(folder), "--prompt", prompt]
    words += ["--temperature", f"{settings.temperature:g}", "--top-p", f"{settings.top_p:g}"]
    words += ["--tokens", str(how.tokens), "--seed", str(how.seed)]
    return shlex.join([*words, *["--beside-base"] * is_beside])
