"""Finished runs that write text: loaded once, one at a time. Texts come piece by piece and can be
stopped.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import torch

from brimful.base.errors import BrimfulError, RequestError
from brimful.base.units import format_bytes
from brimful.data.formats import Message, Prompt
from brimful.generation.answers import Conversation, GenerationRequest
from brimful.generation.load import (
    LoadedRun,
    base_of,
    load_run,
    load_untuned,
    recipe_of,
)
from brimful.hardware.probe import probe, torch_device
from brimful.model.published import is_adapter_folder, without_adapters
from brimful.runs.deciding import read_deciding
from brimful.runs.facts import DataFacts
from brimful.runs.files import DATA_FILE, MODEL_FOLDER, RECIPE_FILE
from brimful.runs.folder import read_run
from brimful.runs.parsing import parse

Side = Literal["run", "base"]
"""The trained model, or the one that it was tuned from."""
FP32_BYTES = 4
PACE_S = 0.08
"""Least time between two pieces of a text; a page cannot draw every token of a small model."""


@dataclass(frozen=True)
class Turn:
    """A prompt and the texts that followed it so far.

    Attributes:
        texts: Texts by side.
        remarks: Lines below the text, by side.
    """

    prompt: str
    texts: dict[Side, str]
    remarks: dict[Side, tuple[str, ...]]


@dataclass(frozen=True)
class WrittenText:
    """A text and the lines below it."""

    text: str
    remarks: tuple[str, ...]


class _Stopped(Exception):
    """The rest of a text is not wanted."""


class ModelHolder:
    """Holds the model of one run in memory, and its base if that is another model, until another
    run is asked for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[tuple[Path, str, Side], LoadedRun] = {}

    def write(
        self,
        run_folder: Path,
        side: Side,
        how: GenerationRequest,
        prompt_and_turns: tuple[str, Sequence[Turn]],
        stop: threading.Event,
        show: Callable[[str], object],
    ) -> WrittenText:
        """Return a text and the lines below it; requests wait for each other.

        Args:
            run_folder: The run.
            side: The run's model, or its base.
            how: Settings of the generation.
            prompt_and_turns: The prompt, and the turns before it, which only runs on messages read.
            stop: Ends the text after the next token when set.
            show: Is told the text so far, once in `PACE_S` at most.

        Raises:
            BrimfulError: the run cannot be loaded, or does not take such a prompt.
        """
        text, shown_at_s = "", 0.0

        def take(piece: str) -> None:
            nonlocal text, shown_at_s
            if stop.is_set():
                raise _Stopped
            text += piece
            if (now_s := time.monotonic()) - shown_at_s >= PACE_S:
                shown_at_s = now_s
                show(text)

        with self._lock:
            loaded = self._load(run_folder, side)
            prompt = _prompt(loaded, side, how, *prompt_and_turns)
            is_adapted = side == "base" and is_adapter_folder(run_folder / MODEL_FOLDER)
            with without_adapters(loaded.model) if is_adapted else nullcontext():
                try:
                    (sample,) = how.draw(loaded, prompt, take)
                    remarks = how.remarks(loaded, sample)
                except _Stopped:
                    remarks = ["--- stopped"]
        return WrittenText(text, tuple(remarks))

    def _load(self, run_folder: Path, side: Side) -> LoadedRun:
        """Return the model of one side. The base of an adapter is the same model with the adapter
        switched off, and needs no memory of its own.
        """
        state = _state(run_folder)
        for key in [key for key in self._loaded if key[:2] != (run_folder, state)]:
            del self._loaded[key]
        own: Side = "run" if is_adapter_folder(run_folder / MODEL_FOLDER) else side
        key = (run_folder, state, own)
        if key not in self._loaded:
            device = torch_device(probe("auto"))
            _refuse_too_large(run_folder, device)
            if own == "run":
                loaded = load_run(run_folder, device, torch.float32)
            else:
                loaded = load_untuned(run_folder, device)
            loaded.refuse_where_it_writes_nothing()
            self._loaded[key] = loaded
        return self._loaded[key]


def _state(run_folder: Path) -> str:
    """Return a text that changes whenever the model does, as after another training under the same
    name.
    """
    files = [
        *sorted((run_folder / MODEL_FOLDER).glob("*")),
        run_folder / RECIPE_FILE,
        run_folder / DATA_FILE,
    ]
    return " ".join(
        f"{file.name}:{file.stat().st_mtime_ns}:{file.stat().st_size}"
        for file in files
        if file.is_file()
    )


def has_base(run_folder: Path) -> bool:
    """Whether the run tuned a published model, which can answer beside it."""
    return bool(base_of(run_folder))


def takes_messages(run_folder: Path) -> bool:
    """Whether the run answers messages of a conversation, rather than going on with a text."""
    if not (run_folder / DATA_FILE).is_file():
        return False
    data = parse(DataFacts, read_deciding(run_folder, DATA_FILE))
    return data.prompts == "messages"


def writes_text(run_folder: Path) -> bool:
    """Whether the run is one of a model that writes, so far as its recipe can be read."""
    try:
        return recipe_of(run_folder).kind.writes_text
    except BrimfulError:
        return False


def describe(run_folder: Path) -> str:
    """Return what the run does with a prompt."""
    if takes_messages(run_folder):
        return "Type a message; the run answers as it was trained to."
    if has_base(run_folder):
        return "Type an instruction; the run answers it."
    return "Type how a text begins; the run goes on from there."


def _prompt(
    loaded: LoadedRun, side: Side, how: GenerationRequest, question: str, turns: Sequence[Turn]
) -> Prompt:
    if not question:
        raise RequestError("there is nothing to go on from. Type a text first.")
    if not loaded.takes_messages:
        return question
    messages: list[Message] = []
    for turn in turns:
        if answer := turn.texts.get(side):
            messages += [Message("user", turn.prompt), Message("assistant", answer)]
    return Conversation(loaded, how.tokens, tuple(messages)).asking(question)[0]


def _refuse_too_large(run_folder: Path, device: torch.device) -> None:
    """Raises RequestError where a CPU's memory would not hold the model in fp32."""
    parameters = read_run(run_folder).predicted("parameters")
    needed_bytes, free_bytes = (parameters or 0) * FP32_BYTES, psutil.virtual_memory().available
    if device.type == "cpu" and needed_bytes > free_bytes:
        raise RequestError(
            f"{run_folder.name} needs about {format_bytes(needed_bytes)} in fp32, and this machine"
            f" has {format_bytes(free_bytes)} free. Open the page on a machine with more memory, or"
            " with a GPU."
        )
