"""The model that writes samples: a finished run's, prompted as in its training, or a published
teacher that is shown solved examples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.text import plural
from brimful.data.chat import INSTRUCTION_HEADING, Template
from brimful.data.formats import Example, Message, Prompt
from brimful.generation.load import (
    LoadedRun,
    end_ids_of,
    load_run,
)
from brimful.generation.requests import StopRules
from brimful.model.fingerprint import folder_fingerprint
from brimful.model.published import (
    DTYPES,
    Loading,
    inference_attention,
    load_model,
)
from brimful.model.tokenizer import load_tokenizer
from brimful.recipe import RftRecipe
from brimful.runs.deciding import read_deciding
from brimful.runs.files import MODEL_FOLDER, PLAN_FILE


@dataclass(frozen=True)
class Author:
    """The model that writes samples.

    Attributes:
        name: Name that the user reads.
        source: Hub id or folder of the model.
        model: The model, on its device, in eval mode.
        tokenizer: Its own; samples reach a student as text, so the student's may differ.
        prompt_ids: Makes of a prompt the token ids that the model continues.
        stop: What ends its answers.
    """

    name: str
    source: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompt_ids: Callable[[Prompt], list[int]]
    stop: StopRules


def tuned_author(run_folder: Path, device: torch.device) -> Author:
    """A finished run's model.

    Raises:
        RunFolderError: the run is not finished, or its files are damaged.
    """
    loaded = load_to_write(run_folder, device)
    return Author(
        run_folder.name,
        str(run_folder / MODEL_FOLDER),
        loaded.model,
        loaded.tokenizer,
        loaded.prompt_ids,
        StopRules(loaded.stop_ids),
    )


def load_to_write(run_folder: Path, device: torch.device) -> LoadedRun:
    """Load a finished run's model to write many texts: on a CPU in fp32, elsewhere as trained.

    Raises:
        RunFolderError: the run is not finished, or its files are damaged.
    """
    precision = "fp32"
    if device.type != "cpu":
        precision = str(read_deciding(run_folder, PLAN_FILE)["precision"])
    return load_run(run_folder, device, DTYPES[precision])


def teacher(
    source: str,
    rft: RftRecipe,
    demonstrations: Sequence[Example],
    device: torch.device,
    precision: str,
) -> Author:
    """Return a model that was not tuned to these questions. Before every question it reads an
    instruction and solved examples.

    Args:
        source: Hub id or folder.
        rft: Holds the instruction and the number of examples.
        demonstrations: Solved examples; the question itself is never one of those shown.
        device: Where it goes.
        precision: Precision of its weights: fp32, bf16 or fp16.

    Raises:
        PlanError: it cannot be loaded; DataError: its chat template refuses the messages.
    """
    model = load_model(source, Loading(precision, inference_attention(source), device)).eval()
    tokenizer = load_tokenizer(source)
    template = Template.of(tokenizer, "auto", end_ids=end_ids_of(model.generation_config))
    shots = [example for example in demonstrations if example.prompt is not None][: rft.shots + 1]
    system = (Message("system", rft.system),) if rft.system else ()

    def prompt_ids(prompt: Prompt) -> list[int]:
        others = [example for example in shots if example.prompt != prompt][: rft.shots]
        turns = [
            turn
            for example in others
            for turn in (*_messages(example.prompt), Message("assistant", example.completion))
        ]
        return template.prompt_ids((*system, *turns, *_messages(prompt)))

    stop_texts = () if template.style == "chat" else (INSTRUCTION_HEADING.strip(),)
    shown = (
        f"shown {plural(min(rft.shots, len(shots)), 'solved example')}"
        if rft.shots
        else "not tuned"
    )
    return Author(
        f"{source}, {shown}",
        source,
        model,
        tokenizer,
        prompt_ids,
        StopRules(template.stop_ids, stop_texts),
    )


def source_fingerprint(source: str) -> str:
    """Return what identifies a model: the fingerprint of a folder, or the hub id."""
    return folder_fingerprint(Path(source)) if Path(source).is_dir() else source


def _messages(prompt: Prompt | None) -> tuple[Message, ...]:
    return prompt if isinstance(prompt, tuple) else (Message("user", prompt or ""),)
