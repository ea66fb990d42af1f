"""What a model's loss is made of, kept beside the scores of a run, so that runs can be compared
window by window (or example by example).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.arrays import Floats, Ints
from brimful.base.errors import RunFolderError
from brimful.base.rundir import add_checksum, read_json, write_text_atomically

FOLDER = "evaluations"
DIGITS = 5
"""Decimal places of the nats of a window; a window has some hundred."""


@dataclass(frozen=True)
class Nats:
    """Windows of a split, or its examples, in order.

    Attributes:
        nats_N: Nats over the targets of each.
        tokens_N: Targets of each.
    """

    nats_N: Floats
    tokens_N: Ints


def path_of(run_folder: Path, split: str) -> Path:
    """Where a split's nats are kept."""
    return run_folder / FOLDER / f"{split}-nats.json"


def write_nats(run_folder: Path, split: str, nats: Nats) -> None:
    """Keep the nats of every window; none where a value is not finite, which JSON cannot hold.

    Raises:
        RunFolderError: the file cannot be written.
    """
    path = path_of(run_folder, split)
    if not np.isfinite(nats.nats_N).all():
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True)
    values = {"nats": nats.nats_N.round(DIGITS).tolist(), "tokens": nats.tokens_N.tolist()}
    write_text_atomically(path, json.dumps(add_checksum(values, path.name)) + "\n")


def read_nats(run_folder: Path, split: str) -> Nats | None:
    """The nats of a split; None where none were kept.

    Raises:
        RunFolderError: the file is damaged.
    """
    path = path_of(run_folder, split)
    if not path.exists():
        return None
    try:
        value: Any = read_json(path)
        found = Nats(np.asarray(value["nats"], np.float64), np.asarray(value["tokens"], np.int64))
    except (RunFolderError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{path} is damaged: it does not hold nats and tokens") from error
    if found.nats_N.shape != found.tokens_N.shape or found.nats_N.ndim != 1:
        raise RunFolderError(
            f"{path} is damaged: it holds {len(found.nats_N)} nats for"
            f" {len(found.tokens_N)} windows"
        )
    return found
