"""Models whose weights are on this disk already: in the cache of the hub library, or exported by
runs. Only names and headers of files are read.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from brimful.base.strict_json import load_json

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
MAX_HEADER = 100_000_000
"""Bytes of the longest header that the format allows."""


def cached_models(cache: Path) -> frozenset[str]:
    """Return the hub ids of which a cache folder holds a config and weights."""
    if not cache.is_dir():
        return frozenset()
    return frozenset(
        folder.name.removeprefix("models--").replace("--", "/", 1)
        for folder in cache.glob("models--*")
        if any(_is_complete(snapshot) for snapshot in folder.glob("snapshots/*"))
    )


def _is_complete(snapshot: Path) -> bool:
    # A link of the cache leads to nothing while its download is under way.
    weights = [path for pattern in WEIGHTS for path in snapshot.glob(pattern)]
    return (
        (snapshot / "config.json").exists()
        and bool(weights)
        and all(path.exists() for path in weights)
    )


@dataclass(frozen=True)
class OwnModel:
    """A model that a run exported; its folder can stand as `model` in another recipe."""

    folder: Path
    parameters: int
    context: int | None


def own_models(runs: Path) -> list[OwnModel]:
    """Return the whole models, not adapters, that runs in a folder exported, members of studies
    among them.
    """
    configs = sorted([*runs.glob("*/model/config.json"), *runs.glob("*/*/model/config.json")])
    return [model for config in configs if (model := _own_model(config)) is not None]


def _own_model(config: Path) -> OwnModel | None:
    """Return the model beside a config; None where files are damaged or not there."""
    try:
        values = load_json(config.read_bytes())
        parameters = sum(map(_numbers_in, config.parent.glob("*.safetensors")))
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None
    context = values.get("max_position_embeddings") if isinstance(values, dict) else None
    return OwnModel(config.parent, parameters, context) if parameters else None


def _numbers_in(weights: Path) -> int:
    """Return how many numbers a safetensors file holds, by its header."""
    with weights.open("rb") as file:
        header = load_json(file.read(min(int.from_bytes(file.read(8), "little"), MAX_HEADER)))
    tensors = (tensor for name, tensor in header.items() if name != "__metadata__")
    return sum(math.prod(tensor["shape"]) for tensor in tensors)
