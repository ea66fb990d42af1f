"""How likely a finished run's model finds a text of the user's: loss, perplexity, bits per byte."""

from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.chains.watched_progress import watched_progress
from brimful.data.tokens import TokenSplit
from brimful.evaluation.likelihood import Scoring, score_split
from brimful.generation.load import LoadedRun, load_run, load_untuned, recipe_of
from brimful.hardware.probe import probe, torch_device
from brimful.kinds.run_data import plan_of

WINDOWS_AT_ONCE = 4


def score_text(
    run_folder: Path,
    file: Path,
    console: Console,
    *,
    stride: int | None = None,
    untuned: bool = False,
) -> JsonDict:
    """Return the likelihood's record of a text file, by its name; nothing is written. The whole
    file is one text, and each of its tokens is scored once, in windows of the recipe's length; no
    chat template stands around it.

    Args:
        run_folder: Folder of a finished run whose model continues text or was tuned to answer.
        file: UTF-8.
        console: Shows the progress.
        stride: New tokens per window; below the length every token is scored with more context.
        untuned: Score the model that the run tuned, as it was before.

    Raises:
        DataError: the file cannot be read, or holds no text.
        RequestError: the run's model writes no text, or the stride is out of range.
        RunFolderError: as `load_run` and `load_untuned`.
    """
    text = _text_of(file)
    recipe, device = recipe_of(run_folder), torch_device(probe("auto"))
    if untuned:
        loaded = load_untuned(run_folder, device)
    else:
        loaded = load_run(run_folder, device, torch.float32)
    loaded.refuse_where_it_writes_nothing()
    plan = plan_of(run_folder)
    with watched_progress(console, run_folder, recipe) as progress:
        likelihood = score_split(
            loaded.model,
            _as_split(loaded, text),
            Scoring(
                chunk_tokens=plan.loss_chunk,
                device=device,
                batch_size=WINDOWS_AT_ONCE,
                progress=progress,
            ),
            context=min(recipe.sequence_length, loaded.context),
            stride=stride,
        )
    return {file.name: likelihood.to_json()}


def _text_of(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"--text {file}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"--text {file}: byte {error.start} is not UTF-8. Convert it, for example: iconv -t"
            f" utf-8 {file}"
        ) from error
    if not text.strip():
        raise DataError(f"--text {file}: the file holds no text.")
    return text


def _as_split(loaded: LoadedRun, text: str) -> TokenSplit:
    """The text behind the token that a text of this model begins with, which is not scored."""
    begin = loaded.template.prompt_ids("")[0] if loaded.template else loaded.end_of_text_id
    tokens_N = np.array([begin, *loaded.encode(text)], np.uint32)
    offsets = np.array([0, len(tokens_N)], np.uint64)
    return TokenSplit(tokens_N, offsets, len(text.encode()), len(text), 1, len(text.split()))
