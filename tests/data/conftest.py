"""Small helpers for the tests of the data stage."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brimful.base.env import shared_data_folder
from brimful.data.tokens import TokenSplit
from brimful.recipe import DataRecipe, Recipe


@pytest.fixture
def data_recipe() -> Callable[..., DataRecipe]:
    """A data section with the given fields; paths may be Path objects."""

    def make(path: Path | str | list[str], **fields: Any) -> DataRecipe:
        return DataRecipe(path=path if isinstance(path, list) else str(path), **fields)

    return make


@pytest.fixture
def recipe() -> Callable[..., Recipe]:
    """A tiny recipe with the given data and tokenizer sections."""

    def make(data: dict[str, Any], tokenizer: dict[str, Any] | None = None) -> Recipe:
        values = {
            "name": "tiny",
            "sequence_length": 8,
            "batch": {"sequences": 2},
            "training": {"steps": 1},
            "model": {"layers": 1, "heads": 1, "width": 8},
            "tokenizer": tokenizer or {"kind": "bpe", "vocabulary": 280},
            "data": {key: str(value) if isinstance(value, Path) else value for key, value in data.items()},
            "optimizer": {"learning_rate": 1e-3},
        }
        return Recipe.model_validate(values)

    return make


@pytest.fixture
def token_split() -> Callable[..., TokenSplit]:
    """A split of documents with the given token counts: ids count upwards from 1, end-of-text is 0."""

    def make(*lengths: int) -> TokenSplit:
        ids: list[int] = []
        offsets = [0]
        for length in lengths:
            ids += [*range(len(ids) + 1, len(ids) + length + 1), 0]
            offsets.append(len(ids))
        return TokenSplit(np.array(ids, dtype="<u2"), np.array(offsets, dtype="<u8"), sum(lengths), sum(lengths), len(lengths))

    return make


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets; skips where there is none."""
    folder = shared_data_folder()
    if folder is None:
        pytest.skip("real data are not on this machine (set BRIMFUL_DATA)")
    return folder
