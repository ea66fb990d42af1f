"""Models to tune that need no download: the shape of a published one, with small random weights,
and a tokenizer learned from the documentation that ships with Python.
"""

import shutil
from pathlib import Path

import psutil

from brimful.base.units import format_bytes
from brimful.data.builtin import python_docs
from brimful.data.tokenizer import as_transformers, train_backend
from brimful.model.catalog import config_of_model
from brimful.model.quiet import without_progress_bars
from brimful.planning.step import StepSpec, canonical
from brimful.prove.workplace import TrialFailed
from brimful.recipe.data import TokenizerRecipe
from brimful.rehearsal.models import count_parameters, meta_model, transformers_model
from brimful.rehearsal.real_models import real_model

VOCABULARY = 8192
"""Of the tokenizer; the model has all entries of the published one."""
BYTES_PER_PARAMETER = 2
ROOM = 1.2
"""Memory and disk that must be free, over the size of the weights."""


class TooLarge(TrialFailed):
    """This machine has no room for such a model's weights."""


def random_base(shape: str, folder: Path) -> Path:
    """Make the model in a folder, unless it is there, and return the folder.

    Args:
        shape: A model of the catalog, or the folder of one.
        folder: Folder of all such models.

    Raises:
        TooLarge: main memory or the disk cannot hold its weights in bf16.
    """
    path = folder / shape.rpartition("/")[2]
    if path.exists():
        return path
    config = config_of_model(shape)
    spec = StepSpec(canonical(config.to_dict()), sequence_length=128, weights="bf16")
    _require_room(count_parameters(meta_model(spec, config))[0] * BYTES_PER_PARAMETER, folder)
    made = path.with_name(f".{path.name}")
    shutil.rmtree(made, ignore_errors=True)
    with without_progress_bars():
        transformers_model(real_model(spec, config)).save_pretrained(made)
    vocabulary = min(VOCABULARY, config.vocab_size)
    rules = TokenizerRecipe(vocabulary=vocabulary, fewer="accept")
    as_transformers(train_backend(rules, python_docs())).save_pretrained(made)
    made.rename(path)
    return path


def _require_room(num_bytes: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    needed = num_bytes * ROOM
    memory, disk = psutil.virtual_memory().available, shutil.disk_usage(folder).free
    for what, free in (("memory", memory), ("disk space", disk)):
        if free < needed:
            raise TooLarge(
                f"its weights need {format_bytes(needed)} of {what}, {format_bytes(free)} are free"
            )
