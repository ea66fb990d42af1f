"""The exported model of a run, as durable as a checkpoint: complete or absent, and read back."""

import os
import re
import shutil
import uuid
from pathlib import Path

from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.errors import CheckpointError
from brimful.base.manifest import note_hashes
from brimful.base.rundir import fsync_folder
from brimful.model.published import save_model
from brimful.model.quiet import without_progress_bars
from brimful.training.checkpoint import require_space, weights_of
from brimful.training.tensorfile import Tensors, compare_model


def export_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, *, checkpoint: Path
) -> None:
    """Write the model in Hugging Face layout into `folder`, with the hashes of its files.

    It is written beside the folder, made durable and compared with its checkpoint before it gets
    the folder's name; an older export stays until then.

    Args:
        checkpoint: Holds the weights that the model has.

    Raises:
        CheckpointError: it cannot be written, or what was read back is not the checkpoint.
    """
    aside = folder.with_name(f"{folder.name}.tmp-{uuid.uuid4().hex[:8]}")
    replaced = folder.with_name(f"{folder.name}.replaced-{uuid.uuid4().hex[:8]}")
    try:
        remove_leftovers(folder)
        weights = weights_of(checkpoint)
        require_space(folder.parent, weights.num_bytes)
        with without_progress_bars():
            save_model(model, aside)
        tokenizer.save_pretrained(aside)
        note_hashes(aside)
        _require_like(aside, weights)
        if folder.exists():
            os.rename(folder, replaced)
        os.rename(aside, folder)
        fsync_folder(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(
            f"the trained model could not be written to {folder}: {error}. Its checkpoint"
            f" {checkpoint.name} is kept: free space or fix the permissions and run the same"
            " command; nothing is trained again."
        ) from error
    shutil.rmtree(replaced, ignore_errors=True)


def _require_like(written: Path, weights: Tensors) -> None:
    """Raise OSError if a written tensor is not the checkpoint's to the last bit."""
    differing, _ = compare_model(written, weights)
    if differing:
        raise OSError(f"read back, {differing} differs from the checkpoint")


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed export into this folder left beside it; it has one writer."""
    for entry in folder.parent.iterdir():
        if re.fullmatch(rf"{re.escape(folder.name)}\.(tmp|replaced)-\w+", entry.name):
            shutil.rmtree(entry)
